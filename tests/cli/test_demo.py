"""The main job from the command line, on a random model of two layers: every step, real processes."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from kvsync.cli._render import Terminal
from kvsync.cli.demo import outcome
from kvsync.demo.result import DemoResult, OneShot, Pair
from kvsync.demo.run import DOCUMENT_CHARS, _workspace, first_sections, specification
from kvsync.errors import UnavailableError


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    path = tmp_path_factory.mktemp("demo") / "document.txt"
    path.write_text(" ".join(f"w{number * 7 % 100}" for number in range(700)))
    return path


def test_the_demo_holds_every_promise(kvsync, tiny_model_dir, document):
    shown = kvsync("demo", "--model", tiny_model_dir, "--doc", document, "--json")
    assert shown.status == 0, shown.out
    found = shown.json
    assert found["ok"] is True
    assert found["exact"] is True
    assert found["logits_sha256"]["fresh"] == found["logits_sha256"]["graft"]
    assert found["decode_sha256"]["fresh"] == found["decode_sha256"]["graft"]
    assert (found["tokens_grafted"], found["dtype"]) == (700, "F32")
    assert found["live_cache_untouched"] is True
    assert set(found["refusals"].values()) == {
        "integrity.chunk",
        "trust.untrusted_signer",
        "mismatch.compatibility",
    }
    needed = {
        *("model", "tokens_recomputed", "one_shot", "ttft_fresh_s", "ttft_graft_s", "speedup"),
        *("pull_mb_s", "artifact_bytes"),
    }
    assert needed <= set(found)
    assert found["kept"] is None


def result(**changes: Any) -> DemoResult:
    found: dict[str, Any] = {
        "model": "a-model",
        "dtype": "F32",
        "artifact": "sha256:" + "ab" * 32,
        "document_tokens": 3000,
        "question_tokens": 12,
        "tokens_grafted": 3000,
        "tokens_recomputed": 12,
        "artifact_bytes": 140_000_000,
        "chunks": 40,
        "compute_tokens_s": 270.0,
        "pull_mb_s": 400.0,
        "push_mb_s": 300.0,
        "ttft_fresh_s": 12.0,
        "ttft_graft_s": 0.2,
        "graft_seconds": {"verify": 0.01, "restore": 0.1},
        "logits_sha256": Pair("11" * 32, "11" * 32),
        "decode_sha256": Pair("22" * 32, "22" * 32),
        "one_shot": OneShot(kl=1e-9, argmax_equal=True),
        "answer": "an answer",
        "checks": ("signature", "chunks"),
        "refusals": dict(DemoResult.EXPECTED_REFUSALS),
        "live_cache_untouched": True,
    }
    return DemoResult(**(found | changes))


def test_the_last_screen_is_a_table_that_shows_what_is_equal(capsys):
    Terminal().show(outcome(result(kept="/somewhere")))
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert any(line.startswith("all new logits") and line.endswith("yes") for line in lines)
    assert any(line.startswith("32 decode steps") and line.endswith("yes") for line in lines)
    assert any("manifest signed by a stranger" in line and "trust.untrusted_signer" in line for line in lines)
    assert any(line.split() == ["every", "check", "held", "yes"] for line in lines)
    assert "60× faster" in out
    assert err == "the nodes' homes are in /somewhere\n"
    assert outcome(result()).status == 0


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"logits_sha256": Pair("11" * 32, "12" * 32)}, id="other logits"),
        pytest.param({"decode_sha256": Pair("22" * 32, "23" * 32)}, id="other decode steps"),
        pytest.param({"tokens_grafted": 2816}, id="not everything grafted"),
        pytest.param({"refusals": {}}, id="nothing refused"),
        pytest.param(
            {"refusals": DemoResult.EXPECTED_REFUSALS | {"stranger's artifact pulled": "accepted"}},
            id="something accepted",
        ),
        pytest.param({"live_cache_untouched": False}, id="the live cache touched"),
    ],
)
def test_a_demo_of_which_one_check_failed_exits_with_a_failure(changes):
    found = outcome(result(**changes))
    assert (found.status, found.data["ok"]) == (4, False)


@pytest.mark.parametrize(("named", "kept"), [(True, True), (False, False)])
def test_a_failed_demo_keeps_what_its_hint_names_and_nothing_else(named, kept):
    places = []

    def fail():
        with _workspace(keep=False) as root:
            places.append(root)
            hint = f"see {root / 'a' / 'daemon.log'}" if named else ""
            raise UnavailableError("daemon.start_failed", "the daemon ended at once", hint=hint)

    with pytest.raises(UnavailableError):
        fail()
    assert places[0].exists() is kept
    shutil.rmtree(places[0], ignore_errors=True)


def test_the_demo_reads_whole_sections_and_no_more_than_it_may():
    text = "# title\n\nabout\n\n## one\n\nfirst\n\n## two\n\nsecond\n"
    assert first_sections(text, len(text)) == text
    assert first_sections(text, len(text) - 1) == "# title\n\nabout\n\n## one\n\nfirst\n\n"
    assert first_sections("no sections", 3) == "no sections"
    shown = first_sections(specification().read_text("utf-8"), DOCUMENT_CHARS)
    assert DOCUMENT_CHARS / 2 < len(shown) <= DOCUMENT_CHARS
