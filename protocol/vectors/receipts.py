"""Cases for receipts: figures in their one spelling, and files of two kinds of which one thing is wrong."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from decimal import Decimal

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
    c = Cases(
        "SPEC 7.6: figures; receipts of kinds `replay` and `library`, checked for the key `signer` where there is one"
    )
    for text, value in FIGURES.items():
        c.ok(f"figure {text}", "figure", repr(value), text=text)
    for text in OTHERS:
        c.bad(f"no figure: {text!r}", "figure", "receipt.figure", text=text)
    _files(c)
    _libraries(c)
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
    start: tuple[ref.Json, list[ref.Json]] | None = None,
    lines: Callable[[list[bytes]], list[bytes]] = lambda lines: lines,
    kind: str = RECEIPT,
    signers: tuple[int, ...] = (SIGNER,),
) -> str:
    """A signed file. `change` is signed, `lines` is done to the records' lines afterwards."""
    header, records = copy.deepcopy(start or (HEADER, RECORDS))
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


def _tried(strategy: str, answer: str | None, *, passed: bool = False, decoded: int = 0) -> ref.Json:
    found: ref.Json = {"strategy": strategy, "tries": 1, "answer": answer, "passed": passed, "decoded": decoded}
    return {**found, "prefilled": 6, "grafted": 0, "skipped": ""}


def _asked(index: int, condition: str, task: str, *attempts: ref.Json) -> ref.Json:
    return {
        "index": index,
        "condition": condition,
        "task": task,
        "problem": "sha256:" + ref.sha256(task.encode()).hex(),
        "split": "train",
        "verifier": {"name": "text", "version": "1", "parameters": {"answer": "42", "take": "whole"}},
        "attempts": list(attempts),
        "answer_tokens": None,
        "plain_tokens": None,
        "seconds": "1.5e0" if condition == "control" else "5e-1",
        "cpu_seconds": "5e-1",
        "joules": "5e0",
    }


TWO = {**_tried("sampled", None, decoded=20), "tries": 2, "answers": ["40", "43"]}
ASKED = [
    _asked(0, "control", "one", _tried("greedy", "41", decoded=20), TWO),
    _asked(1, "control", "two", _tried("greedy", "42", passed=True, decoded=8)),
    _asked(2, "fill", "one", _tried("deposit", "42", passed=True)),
    _asked(3, "fill", "two", _tried("deposit", "42", passed=True)),
    _asked(4, "recurrence", "one", _tried("exact", "42", passed=True, decoded=4)),
    _asked(5, "recurrence", "two", _tried("exact", "42", passed=True, decoded=4)),
]


def _figure(value: float) -> str:
    """The shortest decimal of a double, as `d.ddde±n`."""
    parts = Decimal(repr(value)).normalize().as_tuple()
    digits = "".join(map(str, parts.digits))
    power = len(digits) - 1 + int(parts.exponent)
    return "0" if value == 0 else f"{'-' * parts.sign}{digits[0]}{'.' * (len(digits) > 1)}{digits[1:]}e{power}"


def _share(passed: int, count: int) -> tuple[float, float]:
    """Wilson's interval, in the order of operations that docs/evidence/README.md gives."""
    z, share = 1.959963984540054, passed / count
    middle = share + z * z / (2 * count)
    width = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    return max(0.0, (middle - width) / scale), min(1.0, (middle + width) / scale)


def _condition(
    passed: int, decoded: int, prefilled: int, times: tuple[str, str, str], **counts: ref.Json
) -> ref.Json:
    low, high = _share(passed, 2)
    return {
        "problems": 2,
        "passed": passed,
        "accuracy": _figure(passed / 2),
        "low": _figure(low),
        "high": _figure(high),
        "decoded": decoded,
        "prefilled": prefilled,
        "grafted": 0,
        "seconds": times[0],
        "cpu_seconds": times[1],
        "joules": times[2],
        "skipped": {},
        "plain": {"checked": 0, "equal": 0},
        **counts,
    }


def _library_summary() -> ref.Json:
    (low, high), (other_low, other_high) = _share(2, 2), _share(1, 2)
    below, above = (1.0 - low, other_high - 0.5), (high - 1.0, 0.5 - other_low)
    stored = {"answered": {"deposit": 2}, "attempts": {"deposit": 2}}
    return {
        "conditions": {
            "control": _condition(
                1, 48, 18, ("3e0", "1e0", "1e1"), answered={"greedy": 1}, attempts={"greedy": 2, "sampled": 2}
            ),
            "fill": _condition(2, 0, 12, ("1e0", "1e0", "1e1"), **stored),
            "recurrence": _condition(2, 8, 12, ("1e0", "1e0", "1e1"), answered={"exact": 2}, attempts={"exact": 2}),
        },
        "recurrence": {
            "control_passed": 1,
            "points": "5e1",
            "points_low": _figure(100 * (1.0 - 0.5 - math.sqrt(below[0] * below[0] + below[1] * below[1]))),
            "points_high": _figure(100 * (1.0 - 0.5 + math.sqrt(above[0] * above[0] + above[1] * above[1]))),
            "factor": "6e0",
            "never_solved": 1,
            "never_solved_answered": 1,
            "never_solved_decoded": 4,
            "never_solved_control_decoded": 40,
            "never_solved_factor": "1e1",
            "break_even": 1,
        },
    }


def _libraries(c: Cases) -> None:
    run: ref.Json = {
        "model": "tiny",
        "tasks": "sha256:" + "33" * 32,
        "unrelated": None,
        "conditions": ["control", "recurrence"],
        "budget": 40,
        "seed": 1,
        "window": 0,
        "repeats": 0,
        "teach": False,
        "recipe": {"max_tokens": 20, "top_p": "9.5e-1"},
        "energy": "estimate",
        "watts": "1e1",
    }
    start = {**HEADER, "kind": "library", "run": run, "summary": _library_summary()}, ASKED
    c.ok(
        "a library's recurrence",
        "receipt",
        {"records": 6, "summary": start[0]["summary"]},
        text=_file(start=start),
        signer=None,
    )

    def signed(name: str, code: str, change: Change) -> None:
        c.bad(f"library: {name}", "receipt", code, text=_file(change, start=start), signer=None)

    signed("a condition that is none", "receipt.score", lambda h, r: h["run"].update(conditions=["control", "luck"]))
    signed("a problem left out of one condition", "receipt.score", lambda h, r: r.pop())
    signed("more than the budget", "receipt.score", lambda h, r: r[0]["attempts"][0].update(decoded=21))
    signed("energy that is not the estimate", "receipt.score", lambda h, r: r[0].update(joules="6e0"))
    signed(
        "an attempt that passed without an answer",
        "receipt.score",
        lambda h, r: r[4]["attempts"][0].update(answer=None),
    )
    signed(
        "two attempts with three answers",
        "receipt.score",
        lambda h, r: r[0]["attempts"][1]["answers"].append("44"),
    )
    signed("an empty list of answers", "receipt.canonical", lambda h, r: r[0]["attempts"][0].update(answers=[]))
    signed("a held-out problem that comes back", "receipt.score", lambda h, r: r[4].update(split="held-out"))
    signed("a better summary", "receipt.summary", lambda h, r: h["summary"]["conditions"]["control"].update(passed=2))
