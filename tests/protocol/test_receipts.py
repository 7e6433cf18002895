"""A receipt is accepted as it was signed, or refused: every edit, every lie that its own digests give away."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvsync_protocol import figure, strictjson
from kvsync_protocol.digest import sha256
from kvsync_protocol.envelope import Envelope, Signature
from kvsync_protocol.errors import CodedError, MalformedError, ProtocolError
from kvsync_protocol.prereg import PREREG_SCORER, REPLAY_SCORER, Commitment, Expectation, Replayed, ReplayRun
from kvsync_protocol.receipt import Receipt
from kvsync_protocol.scorers import SCORERS
from tests.protocol.receipts import KEY, PRINTS, STRANGER, file, inputs, lying, make, outputs, settings

DATA = make().encode()
LINES = DATA.splitlines()
ENVELOPE = Envelope.parse(LINES[0])
Lie = Callable[[dict[str, Any], list[dict[str, Any]]], None]


def code_of(data: bytes, *keys: Any) -> str:
    with pytest.raises(CodedError) as caught:
        Receipt.parse(data, SCORERS, keys)
    return caught.value.code


def test_a_receipt_is_read_as_it_was_written() -> None:
    assert Receipt.parse(DATA, SCORERS) == make()
    assert Receipt.parse(DATA, SCORERS, [STRANGER.public, KEY.public]).encode() == DATA


def test_the_summary_is_what_follows_from_the_records() -> None:
    summary = make(5).header.summary
    assert summary["exact"] is True
    assert summary["modes"] == {"whole": 3, "prefix": 2}
    assert summary["positions"] == 3 + 1 + 68 + 13 + 533
    assert summary["paths"]["pulled"] == {
        "equal": 5,
        "argmax": 618,
        "kl_max": "0",
        "kl_mean": "0",
        "max_abs": "0",
    }
    assert summary["references"]["shift_7"] == {
        "samples": 2,
        "refused": 0,
        "positions": 4,
        "equal": 0,
        "argmax": 2,
        "kl_max": "3.5e-9",
        "kl_mean": "3.5e-9",
        "max_abs": "6.25e-2",
    }
    assert summary["references"]["uncut"]["refused"] == 2


def test_no_byte_can_be_changed() -> None:
    data = make(1).encode()
    assert Receipt.parse(data, SCORERS)
    for place in range(len(data)):
        edited = data[:place] + bytes([data[place] ^ (1 << place % 7)]) + data[place + 1 :]
        with pytest.raises(ProtocolError):
            Receipt.parse(edited, SCORERS)


@given(st.integers(0, len(DATA) - 1), st.binary(max_size=2), st.integers(0, 2))
@example(len(DATA) - 1, b"", 1)
@example(len(DATA), b"\n", 0)
def test_no_bytes_can_be_put_in_taken_out_or_replaced(place: int, put: bytes, taken: int) -> None:
    edited = DATA[:place] + put + DATA[place + taken :]
    if edited != DATA:
        with pytest.raises(ProtocolError):
            Receipt.parse(edited, SCORERS)


@given(st.binary(max_size=400) | st.binary(max_size=200).map(lambda tail: LINES[0] + b"\n" + tail))
def test_arbitrary_bytes_are_refused_with_a_code(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        Receipt.parse(data, SCORERS)


EDITS = {
    "empty": (b"", "receipt.form"),
    "cut short inside a line": (DATA[:-40], "receipt.form"),
    "without its last line end": (DATA[:-1], "receipt.form"),
    "a record dropped": (file(ENVELOPE, LINES[1:-1]), "receipt.count"),
    "a record doubled": (file(ENVELOPE, [*LINES[1:], LINES[-1]]), "receipt.count"),
    "a record doubled in another's place": (file(ENVELOPE, [LINES[1], LINES[1], LINES[3]]), "receipt.root"),
    "re-ordered": (file(ENVELOPE, [LINES[2], LINES[1], LINES[3]]), "receipt.root"),
    "an empty line behind": (DATA + b"\n", "receipt.count"),
    "white space in a record": (DATA.replace(b'{"artifact"', b'{ "artifact"', 1), "receipt.root"),
    "white space in the envelope": (DATA.replace(b'{"payload"', b'{ "payload"', 1), "receipt.canonical"),
    "an unknown member in the envelope": (
        DATA.replace(b'{"payload"', b'{"more":1,"payload"', 1),
        "receipt.canonical",
    ),
    "another key id": (DATA.replace(KEY.public.key_id.encode(), b"0" * 16, 1), "receipt.canonical"),
}


@pytest.mark.parametrize(("data", "code"), EDITS.values(), ids=list(EDITS))
def test_an_edited_file_is_refused(data: bytes, code: str) -> None:
    assert code_of(data) == code


def test_a_signature_that_is_not_the_signer_s_is_refused() -> None:
    wrong = Envelope(ENVELOPE.payload_type, ENVELOPE.payload, (Signature(KEY.public.key_id, bytes(64)),))
    assert code_of(file(wrong, LINES[1:])) == "trust.bad_signature"
    stranger = Envelope.seal(ENVELOPE.payload_type, ENVELOPE.payload, STRANGER)
    assert code_of(file(stranger, LINES[1:])) == "trust.bad_signature"
    both = Envelope.seal(ENVELOPE.payload_type, ENVELOPE.payload, KEY, STRANGER)
    assert code_of(file(both, LINES[1:])) == "trust.bad_signature"


def test_one_signed_again_by_a_stranger_is_refused_where_the_signer_is_known() -> None:
    again = make(key=STRANGER).encode()
    assert Receipt.parse(again, SCORERS, [STRANGER.public])
    assert code_of(again, KEY.public) == "trust.untrusted_signer"


def test_one_of_another_type_or_kind_is_refused() -> None:
    other = Envelope.seal(PREREG_SCORER.payload_type, ENVELOPE.payload, KEY)
    assert code_of(file(other, LINES[1:])) == "trust.payload_type"

    def unknown(header: dict[str, Any], records: list[dict[str, Any]]) -> None:
        header["kind"] = "horoscope"

    assert code_of(lying(unknown)) == "receipt.kind"


def _set(*path: Any) -> Lie:
    """Sets what `path` leads to, in the records or, from "header" on, in the header; the last item is the value."""
    *steps, name, value = path

    def change(header: dict[str, Any], records: list[dict[str, Any]]) -> None:
        target: Any = header if steps[:1] == ["header"] else records
        for step in steps[1:] if steps[:1] == ["header"] else steps:
            target = target[step]
        target[name] = value

    return change


def _drop(header: dict[str, Any], records: list[dict[str, Any]]) -> None:
    del records[-1]


OTHER = str(sha256(b"another"))
LIES: dict[str, tuple[Lie, str]] = {
    "another format": (_set("header", "format", 2), "version.format"),
    "an unknown member in the header": (_set("header", "more", 1), "receipt.unknown"),
    "an unknown member in a record": (_set(0, "more", 1), "receipt.unknown"),
    "an unknown path": (_set(0, "paths", "telepathy", {}), "receipt.unknown"),
    "an unknown setting": (_set("header", "run", "more", 1), "receipt.unknown"),
    "fewer records than the run has samples": (_drop, "receipt.score"),
    "another count": (_set("header", "count", 4), "receipt.count"),
    "another root": (_set("header", "root", OTHER), "receipt.root"),
    "a summary of more equal grafts": (_set("header", "summary", "paths", "pulled", "equal", 2), "receipt.summary"),
    "a summary that says 1 for true": (_set("header", "summary", "exact", 1), "receipt.summary"),
    "a summary without a part": (_set("header", "summary", {}), "receipt.summary"),
    "equal against the digests": (_set(0, "paths", "pulled", "logits", OTHER), "receipt.score"),
    "unequal against the digests": (_set(0, "paths", "pulled", "equal", False), "receipt.score"),
    "equal logits, other figures": (_set(0, "paths", "pulled", "max_abs", "1e0"), "receipt.score"),
    "equal logits, fewer agreements": (_set(2, "paths", "pulled", "argmax", 1), "receipt.score"),
    "no difference, but a divergence": (_set(0, "references", "one_shot", "max_abs", "0"), "receipt.score"),
    "more agreements than positions": (_set(0, "references", "one_shot", "argmax", 99), "receipt.score"),
    "a negative divergence": (_set(0, "references", "one_shot", "kl", "-1e0"), "receipt.score"),
    "a reference too few": (lambda h, r: r[0]["references"].pop("shift_7"), "receipt.score"),
    "references that the run has not": (_set(2, "references", {}), "receipt.score"),
    "a document shorter than what is shared": (_set(1, "document", 255), "receipt.score"),
    "a prefix inside a block": (_set(1, "shared", 500), "receipt.score"),
    "a whole graft without its cut": (_set(0, "cut", None), "receipt.score"),
    "another index": (_set(0, "index", 1), "receipt.score"),
    "another mode": (_set(0, "mode", "half"), "receipt.score"),
    "a digest in another spelling": (_set(0, "tokens", inputs(0).tokens.hex), "receipt.canonical"),
    "a number where text belongs": (_set(0, "tokens", 1), "digest.syntax"),
    "true where a number belongs": (_set(0, "new", True), "receipt.type"),
    "no new tokens": (_set(0, "new", 0), "receipt.range"),
    "a missing member": (lambda h, r: r[0].pop("artifact"), "receipt.missing"),
}


@pytest.mark.parametrize(("lie", "code"), LIES.values(), ids=list(LIES))
def test_a_signed_lie_is_refused(lie: Lie, code: str) -> None:
    assert code_of(lying(lie)) == code


SPELLINGS = ["NaN", "Infinity", "-Infinity", "1e999", "1E-5", "1.0e-5", "0.00001", "+1e0", "1e+5", "1e05", "01e0"]
SPELLINGS += ["", "-0", "0e0", "0.0", " 1e0", "1e0 ", "1e0\n", "1", "0x1p0", "1_0e0", "١e0", "1e-400", "1.50e0"]


@pytest.mark.parametrize("text", [*SPELLINGS, 1, None, ["1e0"]])
def test_a_figure_in_another_spelling_is_refused(text: object) -> None:
    with pytest.raises(MalformedError) as caught:
        figure.read(text)
    assert caught.value.code == "receipt.figure"


@pytest.mark.parametrize("text", ["NaN", "1e999", "0.5"])
def test_a_receipt_with_such_a_figure_is_refused(text: str) -> None:
    assert code_of(lying(_set(0, "references", "one_shot", "kl", text))) == "receipt.figure"


@given(st.floats())
def test_a_figure_has_one_spelling_that_reads_back(value: float) -> None:
    if not math.isfinite(value):
        with pytest.raises(MalformedError):
            figure.spell(value)
        return
    assert figure.read(figure.spell(value)) == value


@given(st.text("0123456789.e-", max_size=9))
def test_a_text_is_the_spelling_of_its_number_or_none(text: str) -> None:
    try:
        value = figure.read(text)
    except MalformedError:
        return
    assert figure.spell(value) == text


def test_nothing_is_signed_that_would_not_check() -> None:
    honest = make()
    records = [dict(record) for record in honest.records]
    records[0]["index"] = 5
    with pytest.raises(ProtocolError, match="no sample 0"):
        Receipt.seal(SCORERS[0], KEY, records, run=honest.header.run, fingerprints=PRINTS, software="test", time=1)


def replays(found: str) -> Receipt:
    run = ReplayRun(settings(2), sha256(b"prereg"), STRANGER.public, 4).as_json()
    records = [
        Replayed(inputs(index), outputs(f"out{index}"), outputs(f"{found}{index}")).as_json() for index in range(2)
    ]
    return Receipt.seal(REPLAY_SCORER, KEY, records, run=run, fingerprints=PRINTS, software="test", time=1)


def test_preregistrations_and_replays_are_receipts_too() -> None:
    run = Commitment(settings(2), 9).as_json()
    records = [Expectation(inputs(index), outputs(f"out{index}")).as_json() for index in range(2)]
    prereg = Receipt.seal(PREREG_SCORER, KEY, records, run=run, fingerprints=PRINTS, software="test", time=1)
    assert Receipt.parse(prereg.encode(), SCORERS) == prereg
    assert prereg.header.summary == {"samples": 2, "positions": 4}
    matching, other = replays("out"), replays("elsewhere")
    assert Receipt.parse(matching.encode(), SCORERS).header.summary == {"samples": 2, "matches": 2, "exact": True}
    assert Receipt.parse(other.encode(), SCORERS).header.summary == {"samples": 2, "matches": 0, "exact": False}
    lie = strictjson.dumps({**other.records[0], "match": True})
    assert b'"match":true' in lie
    with pytest.raises(ProtocolError, match="against their digests"):
        Replayed.parse(strictjson.loads(lie, limit=1 << 16, what="it"))
    for scorer, receipt in ((PREREG_SCORER, prereg), (REPLAY_SCORER, matching)):
        assert scorer.inputs(receipt.records[1]) == SCORERS[0].inputs(make().records[1])
        assert scorer.outputs(receipt.records[1]) == SCORERS[0].outputs(make().records[1])
