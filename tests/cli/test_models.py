"""Commands that run a model: compute, graft, fingerprint, doctor. A random model of two layers stands in."""

from __future__ import annotations

import json

import pytest

WORDS = " ".join(f"w{number * 7 % 100}" for number in range(300))


@pytest.fixture
def document(tmp_path):
    path = tmp_path / "document.txt"
    path.write_text(WORDS)
    return path


@pytest.fixture
def computed(kvsync, home, document, tiny_model_dir):
    found = kvsync("compute", document, "--model", tiny_model_dir, "--name", "doc", "--json")
    assert found.status == 0
    return found.json


def test_compute_stores_a_signed_artifact_under_its_name(kvsync, computed):
    assert (computed["tokens"], computed["name"], computed["daemon"]) == (300, "doc", False)
    shown = kvsync("show", "doc", "--json").json
    assert shown["artifact"] == computed["artifact"]
    assert [s["name"] for s in shown["signers"]] == ["(this node)"]
    assert kvsync("verify", "doc").status == 0


def test_computing_again_gives_the_same_artifact(kvsync, computed, document, tiny_model_dir, monkeypatch):
    import io
    import sys

    class Standard:
        buffer = io.BytesIO(document.read_bytes())

    monkeypatch.setattr(sys, "stdin", Standard)
    again = kvsync("compute", "-", "--model", tiny_model_dir, "--json").json
    assert again["artifact"] == computed["artifact"]
    assert len(kvsync("ls", "--json").json["artifacts"]) == 1


def test_graft_by_name_and_by_text_continue_alike(kvsync, computed, document, tiny_model_dir):
    question = ("--question", "w1 w2 w3", "--tokens", "4", "--model", tiny_model_dir, "--json")
    by_name = kvsync("graft", "doc", *question).json
    by_text = kvsync("graft", "--doc", document, *question).json
    assert by_name["report"]["mode"] == "whole"
    assert by_name["report"]["tokens_grafted"] == 300
    assert by_name["report"]["tokens_recomputed"] == 3
    assert by_name["report"]["refused"] is None
    assert by_name["decode_sha256"] == by_text["decode_sha256"]
    assert len(by_name["tokens"]) == 4
    text = kvsync("graft", "doc", *question[:-1]).out
    assert text.startswith(by_name["text"])
    assert "tokens recomputed" in text


def test_a_graft_without_a_question_decodes_from_the_stored_logits(kvsync, computed, tiny_model_dir):
    found = kvsync("graft", "doc", "--tokens", "3", "--model", tiny_model_dir, "--json").json
    assert found["report"]["tokens_recomputed"] == 0
    assert len(found["tokens"]) == 3


def test_a_refused_graft_ends_with_the_refusal(kvsync, computed, tiny_model_dir):
    other_dtype = kvsync("graft", "doc", "--model", tiny_model_dir, "--dtype", "bf16", "--json")
    assert (other_dtype.status, other_dtype.code) == (6, "mismatch.compatibility")
    assert "weights" in other_dtype.json["error"]["fields"]["differing"]


def test_a_text_without_an_artifact_is_a_miss(kvsync, computed, tmp_path, tiny_model_dir):
    other = tmp_path / "other.txt"
    other.write_text("w9 " * 40)
    missed = kvsync("graft", "--doc", other, "--model", tiny_model_dir, "--json")
    assert (missed.status, missed.code) == (7, "graft.miss")


def test_fingerprints_are_shown_and_differences_explained(kvsync, computed, tiny_model_dir):
    shown = kvsync("fingerprint", "show", "--model", tiny_model_dir, "--json").json
    artifact = kvsync("show", "doc", "--json").json
    assert shown["compatibility"] == artifact["compatibility"]
    assert shown["numerics"] == artifact["numerics"]
    assert shown["numerics"]["digest"] in kvsync("fingerprint", "show", "--model", tiny_model_dir).out
    equal = kvsync("fingerprint", "explain", "doc", tiny_model_dir)
    assert equal.out == f"doc and {tiny_model_dir} have equal fingerprints\n"
    explain = ("fingerprint", "explain", "doc", tiny_model_dir, "--dtype", "bf16")
    found = kvsync(*explain, "--json").json
    assert found["equal"] is False
    by_field = {d["field"]: d for d in found["differences"]}
    assert by_field["weights"]["affects"].startswith("interpretation")
    assert by_field["canary"]["affects"].startswith("numerics")
    assert all("no words for" not in d["meaning"] for d in found["differences"])
    text = kvsync(*explain).out
    assert "weights: every weight of the model" in text


def test_every_field_of_a_real_fingerprint_has_a_meaning(kvsync, computed):
    from kvsync.cli._fields import meaning

    artifact = kvsync("show", "doc", "--json").json
    fields = [*artifact["compatibility"]["fields"], *artifact["numerics"]["fields"]]
    assert [field for field in fields if "no words for" in meaning(field)] == []


def test_doctor_computes_the_same_tokens_twice(kvsync, home, tiny_model_dir):
    found = kvsync("doctor", "--model", tiny_model_dir, "--json")
    assert found.status == 0
    states = {check["name"]: check["state"] for check in found.json["checks"]}
    assert found.json["healthy"] is True
    assert states["determinism"] == states["home"] == states["keys"] == states["store"] == states["engine"] == "ok"
    assert "hint: daemon: kvsync daemon start" in kvsync("doctor", "--model", tiny_model_dir).err


def test_doctor_names_what_is_broken_and_exits_with_its_status(kvsync, home):
    (home / "config.toml").write_text("accept = 1\n")
    (home / "trust.json").write_text("{")
    found = kvsync("doctor", "--json")
    broken = {check["name"]: check["code"] for check in found.json["checks"] if check["state"] == "broken"}
    assert broken["settings"] == "config.type"
    assert broken["lists"] == "trust.damaged"
    assert found.status == 2
    assert found.json["healthy"] is False


def test_models_are_listed_with_their_licences(kvsync, home, tmp_path, monkeypatch):
    monkeypatch.setenv("KVSYNC_CACHE", str(tmp_path / "cache"))
    listed = {entry["name"]: entry for entry in kvsync("model", "ls", "--json").json["models"]}
    assert set(listed) == {"smollm2-135m", "gemma3-270m"}
    assert listed["gemma3-270m"]["licence"] == "Gemma Terms of Use"
    assert [entry["fetched"] for entry in listed.values()] == [False, False]
    assert "not fetched" in kvsync("model", "ls").out
    assert json.dumps(listed)
