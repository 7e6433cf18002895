"""Receipts made without any model, for the tests of their form and of what is read from them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from kvsync.evidence.samples import GENERATOR, draw
from kvsync_protocol import exactness, strictjson
from kvsync_protocol.digest import sha256
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.exactness import Drift, PathResult, Reference, Run, Sample
from kvsync_protocol.fingerprint import Fingerprint, FingerprintKind, Fingerprints
from kvsync_protocol.receipt import Receipt, records_root
from kvsync_protocol.sample import GraftMode, Inputs, Outputs, Settings
from kvsync_protocol.signing import SigningKey

KEY = SigningKey(bytes([7]) * 32)
STRANGER = SigningKey(bytes([8]) * 32)
PRINTS = Fingerprints(
    Fingerprint(FingerprintKind.COMPATIBILITY, {"weights": "w"}),
    Fingerprint(FingerprintKind.NUMERICS, {"dtype": "F32", "threads": "2"}),
)


def settings(count: int) -> Settings:
    return Settings("tiny", GENERATOR, count, 1, 8192, 32, 256)


DRAWN = draw(settings(2000))


def inputs(index: int) -> Inputs:
    drawn = DRAWN[index]
    cut = drawn.document if drawn.mode is GraftMode.WHOLE and drawn.document % 256 else None
    tokens, artifact = sha256(b"in%d" % index), sha256(b"kv%d" % index)
    return Inputs(index, drawn.mode, tokens, drawn.document, drawn.shared, drawn.new, cut, artifact)


def outputs(name: str) -> Outputs:
    logits, decode, decoded = (sha256(f"{name} {part}".encode()) for part in ("logits", "decode", "decoded"))
    return Outputs(logits, decode, decoded)


def sample(index: int, *, references: bool) -> Sample:
    """Every graft equal; other references apart, one of them refused."""
    given, canonical = inputs(index), outputs(f"out{index}")
    same = PathResult(canonical, True, Drift(0.0, 0.0, given.new))
    others = {
        exactness.ONE_SHOT: Reference(sha256(b"e%d" % index), Drift(1.25e-7, 0.5, given.new)),
        exactness.UNCUT: Reference(None, None, "no cut"),
        "shift_7": Reference(sha256(b"g%d" % index), Drift(3.5e-9, 0.0625, given.new - 1)),
    }
    return Sample(given, canonical, dict.fromkeys(exactness.PATHS, same), others if references else None)


def run_settings(count: int) -> Run:
    return Run(settings(count), min(2, count), (7,))


def records(count: int) -> list[dict[str, Any]]:
    return [sample(index, references=index < 2).as_json() for index in range(count)]


def make(count: int = 3, key: SigningKey = KEY) -> Receipt:
    run = run_settings(count).as_json()
    told = {"run": run, "fingerprints": PRINTS, "software": "kvsync test", "time": 1_800_000_000}
    return Receipt.seal(exactness.SCORER, key, records(count), **told)  # type: ignore[arg-type]


def lying(
    change: Callable[[dict[str, Any], list[dict[str, Any]]], None], count: int = 3, key: SigningKey = KEY
) -> bytes:
    """A receipt whose signer signed something changed: `change` gets the header and the records, as JSON."""
    honest = make(count, key)
    header = strictjson.loads(honest.envelope.payload, limit=1 << 20, what="the header")
    lines: list[dict[str, Any]] = copy.deepcopy(records(count))
    change(header, lines)
    encoded = [strictjson.dumps(line) for line in lines]
    if header["root"] == str(honest.header.root):
        header["root"] = str(records_root(encoded))
    if header["count"] == count:
        header["count"] = len(encoded)
    return file(Envelope.seal(exactness.SCORER.payload_type, strictjson.dumps(header), key), encoded)


def file(envelope: Envelope, lines: Sequence[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in (envelope.encode(), *lines))
