"""Receipts of kind `library`: figures follow from the records, and records that contradict each other are refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsync_protocol import figure, strictjson
from kvsync_protocol.digest import sha256
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import CodedError, ProtocolError
from kvsync_protocol.receipt import Receipt, records_root
from kvsync_protocol.scorers import SCORERS, scorer
from kvsync_protocol.trial import Asked, Tried
from kvsync_protocol.trial_score import SCORER, newcombe, wilson
from tests.protocol.receipts import KEY, PRINTS, file

Json = dict[str, Any]
RUN: Json = {
    "model": "tiny",
    "tasks": str(sha256(b"tasks")),
    "unrelated": str(sha256(b"others")),
    "conditions": ["control", "recurrence", "transfer", "negative"],
    "budget": 100,
    "seed": 1,
    "window": 0,
    "repeats": 0,
    "teach": False,
    "recipe": {"top_p": "9.5e-1"},
    "energy": "estimate",
    "watts": "1.5e1",
}
STREAM_RUN = {**RUN, "unrelated": None, "conditions": ["stream"], "window": 2, "repeats": 50, "teach": True}
TRAIN, HELD_OUT = ("a", "b"), ("c", "d", "e", "f")


def tried(strategy: str = "greedy", passed: bool = False, decoded: int = 10, **other: Any) -> Json:
    found = {"strategy": strategy, "tries": 1, "answer": "x", "passed": passed, "decoded": decoded}
    return {**found, "prefilled": 5, "grafted": 0, "skipped": "", **other}


def record(condition: str, task: str, *attempts: Json, seconds: float = 1.0, **other: Any) -> Json:
    found = {
        "index": 0,
        "condition": condition,
        "task": task,
        "problem": str(sha256(task.encode())),
        "split": "train" if task in TRAIN else "held-out",
        "verifier": {"name": "text", "version": "1", "parameters": {"answer": "x", "take": "whole"}},
        "attempts": list(attempts),
        "answer_tokens": None,
        "plain_tokens": None,
        "seconds": figure.spell(seconds),
        "cpu_seconds": "5e-1",
        "joules": "7.5e0",
    }
    return {**found, **other}


def several(**other: Any) -> Json:
    """Two failed attempts together."""
    return {"tries": 2, "answer": None, "answers": ["y", "z"], **other}


def numbered(records: list[Json]) -> list[Json]:
    return [{**each, "index": index} for index, each in enumerate(records)]


def records() -> list[Json]:
    """The control passes none of two and one of four, recurrence both, transfer three, the negative control one."""
    exact = [tried("exact", True, 4, grafted=30), tried("related", False, 0, answer=None, skipped="solve.gate")]
    answers = {"answer_tokens": str(sha256(b"t")), "plain_tokens": str(sha256(b"t"))}
    return numbered(
        [
            *(record("control", task, tried(decoded=40), tried("sampled", task == "c", 20)) for task in "abcdef"),
            *(record("fill", task, tried("deposit", True, 0), seconds=1.5) for task in TRAIN),
            *(record("recurrence", task, exact[0], seconds=0.25, **answers) for task in TRAIN),
            *(record("transfer", task, tried("related", task != "f", 12, grafted=30)) for task in HELD_OUT),
            *(record("negative", task, exact[1], tried(passed=task == "c")) for task in HELD_OUT),
        ]
    )


def stream_records() -> list[Json]:
    return numbered(
        [
            record("stream", "a", tried(decoded=90)),
            record("fill", "a", tried("deposit", True, 0)),
            record("stream", "c", tried("sampled", True, 30), tried("deposit", decoded=0, answer=None, prefilled=9)),
            record("stream", "a", tried("exact", True, 4)),
        ]
    )


def seal(run: Json = RUN, lines: list[Json] | None = None) -> Receipt:
    told: Json = {"run": run, "fingerprints": PRINTS, "software": "kvsync test", "time": 1_800_000_000}
    return Receipt.seal(SCORER, KEY, records() if lines is None else lines, **told)


def test_a_receipt_is_read_as_it_was_written() -> None:
    for receipt in (seal(), seal(STREAM_RUN, stream_records())):
        assert Receipt.parse(receipt.encode(), SCORERS) == receipt
    assert scorer("library").outputs(records()[8]) == {"passed": "True", "answered": "exact", "decoded": "4"}
    assert scorer("library").inputs(records()[8]).startswith("recurrence sha256:")


def test_accuracy_costs_and_comparisons_follow_from_the_records() -> None:
    summary: Json = dict(seal().header.summary)
    found = summary["conditions"]
    assert {name: (each["passed"], each["problems"]) for name, each in found.items()} == {
        "control": (1, 6),
        "recurrence": (2, 2),
        "transfer": (3, 4),
        "negative": (1, 4),
        "fill": (2, 2),
    }
    assert (found["transfer"]["accuracy"], found["transfer"]["grafted"]) == ("7.5e-1", 120)
    assert found["control"]["attempts"] == {"greedy": 6, "sampled": 6}
    assert found["negative"]["skipped"] == {"solve.gate": 4}
    assert found["recurrence"]["plain"] == {"checked": 2, "equal": 2}
    assert found["control"]["joules"] == "4.5e1"
    come_back = summary["recurrence"]
    assert (come_back["control_passed"], come_back["points"], come_back["factor"]) == (0, "1e2", "1.5e1")
    assert (come_back["never_solved"], come_back["never_solved_answered"]) == (2, 2)
    assert (come_back["never_solved_control_decoded"], come_back["never_solved_decoded"]) == (120, 8)
    assert come_back["break_even"] == 2  # 1.5 s to store, 0.75 s saved each time
    assert (summary["transfer"]["points"], summary["negative"]["points"]) == ("5e1", "0")


def test_a_stream_is_shown_by_windows() -> None:
    summary: Json = dict(seal(STREAM_RUN, stream_records()).header.summary)
    assert [(each["problems"], each["passed"], each["decoded"]) for each in summary["windows"]] == [
        (2, 1, 120),
        (1, 1, 4),
    ]


def test_intervals_are_those_of_the_literature() -> None:
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe 1998
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert newcombe(56, 70, 48, 80) == pytest.approx((0.0524, 0.3339), abs=1e-4)
    assert newcombe(9, 10, 3, 10) == pytest.approx((0.1705, 0.8090), abs=1e-4)


def test_no_byte_can_be_changed() -> None:
    data = seal(STREAM_RUN, stream_records()).encode()
    for place in range(0, len(data), 3):
        edited = data[:place] + bytes([data[place] ^ (1 << place % 7)]) + data[place + 1 :]
        with pytest.raises(ProtocolError):
            Receipt.parse(edited, SCORERS)


LIES: list[tuple[str, Callable[[Json, list[Json]], object]]] = [
    ("receipt.summary", lambda header, lines: header["summary"]["conditions"]["control"].update(passed=2)),
    ("receipt.summary", lambda header, lines: header["summary"]["recurrence"].update(factor="2e1")),
    ("receipt.summary", lambda header, lines: lines[0]["attempts"][0].update(decoded=41)),
    ("receipt.score", lambda header, lines: lines[0]["attempts"][0].update(decoded=81)),
    ("receipt.score", lambda header, lines: lines[0].update(index=1)),
    ("receipt.score", lambda header, lines: lines[0].update(condition="stream")),
    ("receipt.score", lambda header, lines: lines[0].update(joules="7e0")),
    ("receipt.score", lambda header, lines: lines[0].update(split="held-out")),
    ("receipt.score", lambda header, lines: lines[10].update(split="train")),
    ("receipt.score", lambda header, lines: lines[0]["verifier"].update(version="2")),
    ("receipt.score", lambda header, lines: lines[1].update(task="a")),
    ("receipt.score", lambda header, lines: lines.pop()),
    ("receipt.score", lambda header, lines: lines[0]["attempts"][0].update(passed=True, answer=None)),
    ("receipt.score", lambda header, lines: lines[0]["attempts"][0].update(tries=2)),
    ("receipt.score", lambda header, lines: lines[0]["attempts"][0].update(tries=2, answers=["x", "y"])),
    ("receipt.score", lambda header, lines: lines[0]["attempts"][0].update(answer=None, answers=["x"])),
    ("receipt.score", lambda header, lines: lines[0]["attempts"][0].update(several(answers=["x"]))),
    ("receipt.score", lambda header, lines: lines[0]["attempts"][0].update(several(passed=True))),
    ("receipt.score", lambda header, lines: lines[0]["attempts"][0].update(several(skipped="solve.gate"))),
    ("receipt.summary", lambda header, lines: lines[0]["attempts"][0].update(several())),
    ("receipt.range", lambda header, lines: lines[0]["attempts"][0].update(several(answers=["x", "\r"]))),
    ("receipt.type", lambda header, lines: lines[0]["attempts"][0].update(several(answers=["x", None]))),
    ("receipt.canonical", lambda header, lines: lines[0]["attempts"][0].update(answers=[])),
    ("receipt.canonical", lambda header, lines: lines[0]["attempts"][0].update(answers=None)),
    ("receipt.score", lambda header, lines: header["run"].update(unrelated=None)),
    ("receipt.score", lambda header, lines: header["run"].update(watts="0")),
    ("receipt.score", lambda header, lines: header["run"].update(energy="sun")),
    ("receipt.score", lambda header, lines: header["run"].update(window=3)),
    ("receipt.score", lambda header, lines: header["run"].update(conditions=["transfer", "control"])),
    ("receipt.score", lambda header, lines: header["run"].update(conditions=[])),
    ("receipt.missing", lambda header, lines: lines[8].update(plain_tokens=None)),
    ("receipt.unknown", lambda header, lines: lines[0].update(note="x")),
    ("receipt.figure", lambda header, lines: lines[0].update(seconds="1")),
]


@pytest.mark.parametrize(("code", "change"), LIES)
def test_a_lie_that_the_records_give_away_is_refused_though_it_is_signed(
    code: str, change: Callable[[Json, list[Json]], object]
) -> None:
    header = strictjson.loads(seal().envelope.payload, limit=1 << 20, what="the header")
    lines = copy.deepcopy(records())
    change(header, lines)
    encoded = [strictjson.dumps(line) for line in lines]
    header.update(count=len(encoded), root=str(records_root(encoded)))
    with pytest.raises(CodedError) as caught:
        Receipt.parse(file(Envelope.seal(SCORER.payload_type, strictjson.dumps(header), KEY), encoded), SCORERS)
    assert caught.value.code == code


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4), lambda inner: st.lists(inner, max_size=3)
)


@given(st.dictionaries(st.sampled_from(list(record("control", "a"))), VALUES))
def test_anything_is_a_record_or_malformed(changed: Json) -> None:
    source = {**record("control", "a", tried()), **changed}
    try:
        found = Asked.parse(source)
    except ProtocolError:
        return
    assert Asked.parse(found.as_json()) == found


@given(st.dictionaries(st.sampled_from([*tried(), "answers"]), VALUES))
def test_anything_is_an_attempt_or_malformed(changed: Json) -> None:
    try:
        found = Tried.parse({**tried(), **changed})
    except ProtocolError:
        return
    assert Tried.parse(found.as_json()) == found
