"""Audits and divergences on the command line: what a person reads, what a program gets, how it ends."""

from __future__ import annotations

import random
from typing import Any

import pytest

from benchmarks.forger import consistent
from kvsync.config import Home, Settings
from kvsync.engines import load_engine
from kvsync.keys import NodeKeys, TrustList
from kvsync.store import Store
from kvsync_protocol.divergence import Described, Divergence, first_divergence
from kvsync_protocol.signing import SigningKey
from tests.sync.forging import attested

FORGER = SigningKey(bytes([21]) * 32)


@pytest.fixture
def computed(kvsync, home, tmp_path, tiny_model_dir) -> str:
    """An artifact named `doc`, of 700 tokens in three blocks."""
    (home / "config.toml").write_text("threads = 1\n")
    path = tmp_path / "document.txt"
    path.write_text(" ".join(f"w{number * 7 % 100}" for number in range(700)))
    made = kvsync("compute", path, "--model", tiny_model_dir, "--name", "doc", "--local", "--json")
    assert made.status == 0, made.out
    return str(made.json["artifact"])


@pytest.fixture
def forged(home, computed, tiny_model_dir) -> Any:
    """A consistent forgery of it from block 1 on, by a signer that is trusted here and called mallory."""
    engine = load_engine(tiny_model_dir, threads=1)
    found = Home(home)
    TrustList(found, NodeKeys.load(found).signer.public).add("mallory", FORGER.public)
    with Store.open(found.store_dir) as store:
        stored = store.artifact(store.resolve(computed))
        return consistent(store, engine, stored, FORGER, 1, random.Random(5))


def test_an_audit_signs_and_show_tells_how_much_is_covered(kvsync, home, computed, tiny_model_dir):
    assert "0 % of 3 blocks by 0 signers" in kvsync("show", "doc").out
    part = kvsync("audit", "doc", "--share", "1/3", "--model", tiny_model_dir, "--json")
    assert (part.status, part.json["blocks"], part.json["own_percent"]) == (0, [0], 33)
    whole = kvsync("audit", "doc", "--model", tiny_model_dir)
    assert whole.status == 0
    assert "3 of 3 blocks: 0-2" in whole.out
    assert "100 % of 3 blocks by 1 signer" in kvsync("show", "doc").out
    audits = kvsync("show", "doc", "--json").json["audits"]
    own = str(NodeKeys.load(Home(home)).signer.public)
    assert audits == {
        "percent": 100,
        "blocks": 3,
        "covered": [0, 1, 2],
        "signers": [own],
        "refuted": False,
        "refuted_by": [],
    }


def test_a_forgery_is_named_by_block_and_leaf_and_no_longer_grafted(kvsync, home, forged, computed, tiny_model_dir):
    digits = forged.artifact.hex[:12]
    found = kvsync("audit", digits, "--model", tiny_model_dir)
    assert found.status == 4
    assert "from block 1 on, and not before, the bytes are not what this host computes" in found.out
    as_json = kvsync("audit", digits, "--model", tiny_model_dir, "--json").json
    assert (as_json["passed"], as_json["from_block"], as_json["begins_there"]) == (False, 1, True)
    [wrong] = as_json["wrong"]
    with Store.open(Home(home).store_dir) as store:
        leaf = store.artifact(forged.artifact).leaves().leaves[wrong["leaf"]]
    assert (wrong["signed"], wrong["found"] == wrong["signed"]) == (str(leaf.digest), False)
    assert "refuted" in kvsync("show", digits).out
    refused = kvsync("graft", digits, "--model", tiny_model_dir, "--tokens", "1", "--json")
    assert (refused.status, refused.code) == (5, "evidence.refuted")
    assert kvsync("graft", "doc", "--model", tiny_model_dir, "--tokens", "1").status == 0


def test_a_draw_that_misses_the_fault_says_only_what_it_computed(kvsync, home, forged, tiny_model_dir):
    digits = forged.artifact.hex[:12]
    outcomes = {}
    for seed in range(8):
        found = kvsync("audit", digits, "--blocks", "1", "--seed", seed, "--model", tiny_model_dir, "--json").json
        outcomes[tuple(found["blocks"])] = (found["passed"], found["begins_there"])
    assert outcomes.pop((1,)) == (False, False)  # an earlier block was not looked at
    assert outcomes
    assert set(outcomes.values()) == {(True, False)}


def _divergence(home: Any, one: str, other: str) -> Divergence:
    with Store.open(Home(home).store_dir) as store:
        sides: list[Described] = [store.evidence.describe(store.resolve(name)) for name in (one, other)]
        block = first_divergence(*sides)
        assert block == 1
        record = Divergence.of(block, *sides)
        store.evidence.add_divergence(record)
    return record


@pytest.mark.parametrize("audited", ["ours", "theirs"])
def test_a_divergence_is_listed_shown_and_settled_by_an_audit_of_either_side(
    kvsync, home, forged, computed, tiny_model_dir, audited
):
    assert kvsync("divergences", "ls", "--json").json == {"divergences": []}
    theirs = forged.artifact.hex
    record = _divergence(home, computed, theirs)
    assert kvsync("rm", theirs).status == 0  # a refused pull leaves only the evidence
    listed = kvsync("divergences", "ls")
    assert record.name.short in listed.out
    assert "open" in listed.out
    shown = kvsync("divergences", "show", record.name.hex[:8])
    assert "mallory" in shown.out
    assert "this node" in shown.out
    assert "kvsync audit" in shown.err
    word = "doc" if audited == "ours" else theirs[:16]
    words = ("audit", word, "--blocks", "1", "--seed", "0", "--model", tiny_model_dir)
    settled = kvsync(*words)
    assert settled.status == 0  # what is here is right
    assert f"is settled: {computed.removeprefix('sha256:')[:12]} is right" in settled.out
    assert "signed by mallory" in settled.out
    found = kvsync("divergences", "show", theirs[:8], "--json").json
    assert (found["settled"], found["block"]) == (True, 1)
    assert sorted(name for side in found["sides"] for name in side["signers"]) == ["mallory", "this node"]


def test_bad_words_are_one_error_each(kvsync, home, computed, tiny_model_dir):
    for words, code, status in (
        (("doc", "--blocks", "some"), "audit.blocks", 2),
        (("doc", "--blocks", "0"), "audit.blocks", 2),
        (("doc", "--share", "3/2"), "audit.share", 2),
        (("doc", "--share", "1/9"), "audit.share", 2),
        (("doc", "--blocks", "2", "--share", "1/2"), "audit.share", 2),
        (("nothing",), "store.unknown_name", 7),
        (("doc", "--dtype", "bf16"), "mismatch.compatibility", 6),
    ):
        found = kvsync("audit", *words, "--model", tiny_model_dir, "--json")
        assert (found.status, found.code) == (status, code), words
        told = kvsync("audit", *words, "--model", tiny_model_dir)
        assert len(told.err.splitlines()) <= 2
    assert kvsync("divergences", "show", "12345678", "--json").code == "divergence.unknown"
    next(path for path in (home / "store" / "chunks").rglob("*") if path.is_file()).unlink()
    assert kvsync("audit", "doc", "--model", tiny_model_dir, "--json").code == "store.incomplete"


def test_others_attestations_count_only_while_their_keys_are_trusted(kvsync, home, put, make_artifact):
    artifact = make_artifact(7)
    put(artifact, name="doc")
    auditor = SigningKey(bytes([22]) * 32)
    kvsync("trust", "add", "auditor", auditor.public)
    with Store.open(Home(home).store_dir) as store:
        store.add_attestation(attested(artifact, auditor, 0, 2), [auditor.public])
    assert "66 % of 3 blocks by 1 signer" in kvsync("show", "doc").out
    kvsync("trust", "rm", "auditor")
    assert "0 % of 3 blocks by 0 signers" in kvsync("show", "doc").out


def test_explain_reads_files_of_other_hosts_and_says_what_each_policy_would(
    kvsync, home, tmp_path, put, make_artifact, make_fingerprints
):
    ours = make_artifact(1, prints=make_fingerprints(host="2.13"))
    theirs = make_artifact(2, prints=make_fingerprints(host="2.12"))
    stranger = make_artifact(3, prints=make_fingerprints(model="other"))
    put(ours, stranger, name="doc")
    envelope = tmp_path / "envelope.json"
    envelope.write_bytes(theirs.envelope.encode())
    found = kvsync("fingerprint", "explain", "doc", envelope, "--json").json
    assert [(d["field"], d["kind"], d["first"], d["second"]) for d in found["differences"]] == [
        ("torch", "numerics", "2.13", "2.12")
    ]
    assert found["second"]["kind"] == "file"
    assert found["accept"] == {"equal": "mismatch.numerics", "canary": "ok"}
    text = kvsync("fingerprint", "explain", "doc", envelope).out
    assert "version of PyTorch" in text
    assert "numerics: this host may compute other bytes" in text
    shown = tmp_path / "shown.json"
    shown.write_text(kvsync("show", stranger.id.hex, "--json").out)
    other = kvsync("fingerprint", "explain", "doc", shown, "--json").json
    assert {d["field"]: d["kind"] for d in other["differences"]} == {"weights": "compatibility", "torch": "numerics"}
    assert set(other["accept"].values()) == {"mismatch.compatibility"}
    for content, code in (
        ("{}", "fingerprint.file"),
        ("no", "json.syntax"),
        ('{"numerics": {}}', "fingerprint.file"),
    ):
        shown.write_text(content)
        refused = kvsync("fingerprint", "explain", "doc", shown, "--json")
        assert (refused.status, refused.code) == (3, code)


def test_every_field_of_a_real_fingerprint_has_words(kvsync, home, tiny_model_dir):
    from kvsync.cli._fields import meaning

    shown = kvsync("fingerprint", "show", "--model", tiny_model_dir, "--json").json
    names = [name for kind in ("compatibility", "numerics") for name in shown[kind]["fields"]]
    assert [name for name in names if "no words for" in meaning(name)] == []


def test_the_rules_for_pulls_can_be_set_and_are_bounded(kvsync, home):
    Settings(require_signers=3, require_audited_percent=50).save(Home(home))
    assert Settings.load(Home(home)).require_signers == 3
    for line in ("require_signers = 0", "require_signers = 17", "require_audited_percent = 101"):
        (home / "config.toml").write_text(line + "\n")
        assert kvsync("ls", "--json").code == "config.value"


def test_attestations_beside_an_artifact_survive_a_rebuilt_index_and_damage_is_set_aside(
    kvsync, home, put, make_artifact
):
    artifact = make_artifact(8)
    put(artifact, name="doc")
    auditor = SigningKey(bytes([22]) * 32)
    kvsync("trust", "add", "auditor", auditor.public)
    with Store.open(Home(home).store_dir) as store:
        store.add_attestation(attested(artifact, auditor), [auditor.public])
    (home / "store" / "index.sqlite").unlink()
    assert kvsync("fsck").status == 0
    assert "100 % of 3 blocks by 1 signer" in kvsync("show", "doc").out
    [file] = (home / "store" / "artifacts" / artifact.id.hex / "attestations").iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    found = kvsync("fsck", "--json").json
    assert [f["repaired"] for f in found["findings"]] == [True]
    assert kvsync("fsck", "--json").json["clean"]
    assert "0 % of 3 blocks by 0 signers" in kvsync("show", "doc").out
    assert kvsync("rm", "doc").status == 0
    assert kvsync("fsck", "--json").json["clean"]
