"""Cases for receipts: figures in their one spelling, and files of which one thing is wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable

import reference as ref
from cases import Cases

RECEIPT = "application/vnd.kvsync.receipt+json"
PREREG = "application/vnd.kvsync.prereg+json"
SIGNER, STRANGER = 1, 2
FIGURES = {
    "0": 0.0,
    "1e0": 1.0,
    "-3.25e2": -325.0,
    "1.5e-5": 0.000015,
    "1e-1": 0.1,
    "1.2345678901234568e-7": 1.2345678901234568e-7,
    "5e-324": 5e-324,
    "1.7976931348623157e308": 1.7976931348623157e308,
}
OTHERS = [
    "NaN",
    "Infinity",
    "1e999",
    "1e400",
    "-0",
    "0e0",
    "1",
    "1.0e0",
    "10e0",
    "0.1e1",
    "1E0",
    "1e+0",
    "1e00",
    "+1e0",
]
OTHERS += ["0.00001", "1.23456789012345678e0", " 1e0", "", "1e-400"]


def receipt() -> Cases:
    c = Cases("SPEC 7.6: figures, and receipts of kind `replay` checked for the key `signer`, where there is one")
    for text, value in FIGURES.items():
        c.ok(f"figure {text}", "figure", repr(value), text=text)
    for text in OTHERS:
        c.bad(f"no figure: {text!r}", "figure", "receipt.figure", text=text)
    _files(c)
    return c


def _outputs(name: str) -> ref.Json:
    return {part: "sha256:" + ref.sha256(f"{name} {part}".encode()).hex() for part in ("logits", "decode", "decoded")}


def _record(index: int, *, match: bool) -> ref.Json:
    return {
        "index": index,
        "mode": "whole",
        "tokens": "sha256:" + ref.sha256(b"tokens %d" % index).hex(),
        "document": 300 + index,
        "shared": 300 + index,
        "new": 5,
        "cut": 300 + index,
        "artifact": "sha256:" + ref.sha256(b"artifact %d" % index).hex(),
        "expected": _outputs(f"sample {index}"),
        "found": _outputs(f"sample {index}" if match else "elsewhere"),
        "match": match,
    }


RECORDS = [_record(0, match=True), _record(1, match=False), _record(2, match=True)]
HEADER: ref.Json = {
    "format": 1,
    "kind": "replay",
    "software": "kvsync vectors",
    "time": 1_800_000_000,
    "signer": ref.key_text(SIGNER),
    "run": {
        "model": "tiny",
        "generator": "kvsync-samples/1",
        "count": 3,
        "seed": 1,
        "limit": 1024,
        "decode_steps": 32,
        "block_tokens": 256,
        "prereg": "sha256:" + "22" * 32,
        "registrar": ref.key_text(STRANGER),
        "sequence": 4,
    },
    "compatibility": {"weights": "w"},
    "numerics": {"threads": "2"},
    "summary": {"samples": 3, "matches": 2, "exact": False},
}
Change = Callable[[ref.Json, list[ref.Json]], object]


def _file(
    change: Change = lambda header, records: None,
    *,
    lines: Callable[[list[bytes]], list[bytes]] = lambda lines: lines,
    kind: str = RECEIPT,
    signers: tuple[int, ...] = (SIGNER,),
) -> str:
    """A signed file. `change` is signed, `lines` is done to the records' lines afterwards."""
    header, records = copy.deepcopy(HEADER), copy.deepcopy(RECORDS)
    change(header, records)
    encoded = [ref.canonical(record) for record in records]
    root = "sha256:" + ref.root([ref.leaf(line) for line in encoded]).hex()
    payload = ref.canonical({"count": len(encoded), "root": root, **header})
    envelope = ref.canonical(ref.envelope(kind, payload, *signers))
    return b"".join(line + b"\n" for line in (envelope, *lines(encoded))).decode()


def _files(c: Cases) -> None:
    good = _file()
    c.ok("two of three match", "receipt", {"records": 3, "summary": HEADER["summary"]}, text=good, signer=None)
    c.ok("by the key that counts", "receipt", text=good, signer=ref.key_text(SIGNER))
    c.bad(
        "by another key than the one that counts",
        "receipt",
        "trust.untrusted_signer",
        text=good,
        signer=ref.key_text(2),
    )

    def bad(name: str, code: str, text: str) -> None:
        c.bad(name, "receipt", code, text=text, signer=None)

    bad("empty", "receipt.form", "")
    bad("cut short", "receipt.form", good[:-1])
    bad("a record dropped", "receipt.count", _file(lines=lambda lines: lines[:-1]))
    bad("a record doubled", "receipt.count", _file(lines=lambda lines: [*lines, lines[-1]]))
    bad("re-ordered", "receipt.root", _file(lines=lambda lines: lines[::-1]))
    bad("a record edited", "receipt.root", _file(lines=lambda lines: [lines[0].replace(b":5", b":6"), *lines[1:]]))
    bad("signed by another key than it names", "trust.bad_signature", _file(signers=(STRANGER,)))
    bad("two signatures", "trust.bad_signature", _file(signers=(SIGNER, STRANGER)))
    bad("signed as a preregistration", "trust.payload_type", _file(kind=PREREG))
    bad("white space in the envelope", "receipt.canonical", good.replace('{"payload"', '{ "payload"', 1))
    bad("another key id", "receipt.canonical", good.replace(ref.key_id(SIGNER), ref.key_id(STRANGER), 1))

    def signed(name: str, code: str, change: Change) -> None:
        bad(name, code, _file(change))

    signed("another format", "version.format", lambda header, records: header.update(format=2))
    signed("an unknown kind", "receipt.kind", lambda header, records: header.update(kind="other"))
    signed("a member too many", "receipt.unknown", lambda header, records: header.update(note="x"))
    signed("a member too few", "receipt.missing", lambda header, records: records[0].pop("artifact"))
    signed("text for a number", "receipt.type", lambda header, records: records[0].update(new="5"))
    signed("no new tokens", "receipt.range", lambda header, records: records[0].update(new=0))
    signed(
        "a digest in another spelling",
        "receipt.canonical",
        lambda header, records: records[0].update(_bare(records[0])),
    )
    signed("a match against the digests", "receipt.score", lambda header, records: records[1].update(match=True))
    signed("another sample's index", "receipt.score", lambda header, records: records[1].update(index=2))
    signed("fewer samples than the run", "receipt.score", lambda header, records: records.pop())
    signed("a better summary", "receipt.summary", lambda header, records: header["summary"].update(matches=3))


def _bare(record: ref.Json) -> ref.Json:
    return {"tokens": record["tokens"].removeprefix("sha256:")}
