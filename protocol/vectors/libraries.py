"""Cases for entries, lists and passages of libraries."""

from __future__ import annotations

from typing import Any

import reference as ref
from cases import Cases

ENTRY = "application/vnd.kvsync.entry+json"
LIST = "application/vnd.kvsync.library+json"
PASSAGE = "application/vnd.kvsync.passage+json"
TAG = "kvsync.problem.v1"


def library() -> Cases:
    c = Cases("LIBRARY 1, 2 and 5: entries, passages, and the lists that name them")
    _entries(c)
    _lists(c)
    _passages(c)
    return c


def _digest(number: int) -> str:
    return "sha256:" + f"{number:02x}" * 32


def _entry(**change: Any) -> ref.Json:
    good: ref.Json = {
        "format": 1,
        "problem": "What is\n6 \u00d7 7?",
        "address": "sha256:" + ref.record(TAG, "What is 6 \u00d7 7?".encode()).hex(),
        "solution": "6 \u00d7 7 = 42\n",
        "verifier": {"name": "number", "version": "1", "parameters": {"expected": "42"}},
        "verdict": {"passed": True, "score": "1e0", "detail": "42"},
        "artifact": _digest(0x11),
        "tokens": {"count": 20, "digest": _digest(0x22)},
        "template": None,
        "compatibility": _digest(0x33),
        "cost": {"decoded": 61, "prefilled": 12, "seconds": "1.5e0"},
    }
    return {**good, **change}


def _entries(c: Cases) -> None:
    def case(name: str, code: str, value: ref.Json, *, payload: str | None = None, kind: str = ENTRY) -> None:
        text = ref.canonical(value).decode() if payload is None else payload
        if code:
            c.bad(f"entry: {name}", "entry", code, payload=text, payload_type=kind)
        else:
            out = {"digest": ref.sha256(text.encode()).hex(), "address": value["address"], "tokens": 20}
            c.ok(f"entry: {name}", "entry", out, payload=text, payload_type=kind)

    case("without a chat template", "", _entry())
    case("under a chat template", "", _entry(template=_digest(0x44)))
    case("of a solution with tabs", "", _entry(solution="def f():\n\treturn 42\n"))
    verdict, tokens, cost, verifier = (_entry()[name] for name in ("verdict", "tokens", "cost", "verifier"))
    for name, code, change in [
        ("another format", "version.format", {"format": 2}),
        ("that did not pass", "entry.verdict", {"verdict": {**verdict, "passed": False}}),
        ("a score that is a number", "receipt.figure", {"verdict": {**verdict, "score": 1}}),
        ("a solution with an escape character", "entry.range", {"solution": "\x1b[2J"}),
        ("a problem over 64 KiB", "entry.range", {"problem": "a" * 65_537}),
        ("no tokens", "entry.range", {"tokens": {**tokens, "count": 0}}),
        ("a negative time", "entry.range", {"cost": {**cost, "seconds": "-1e0"}}),
        ("parameters over 8 KiB", "entry.range", {"verifier": {**verifier, "parameters": {"a": "b" * 8192}}}),
        ("parameters as text", "entry.type", {"verifier": {**verifier, "parameters": "42"}}),
        ("an address that is a path", "digest.syntax", {"address": "../b"}),
        ("a link", "entry.unknown", {"url": "https://example.com"}),
    ]:
        case(name, code, _entry(**change))
    case("no artifact", "entry.missing", {k: v for k, v in _entry().items() if k != "artifact"})
    case("with a space in its JSON", "entry.canonical", {}, payload=ref.canonical(_entry()).decode() + " ")
    case("signed as a list", "trust.payload_type", _entry(), kind=LIST)


def _lists(c: Cases) -> None:
    def case(name: str, code: str, change: ref.Json, *, kind: str = LIST, without: str = "") -> None:
        good: ref.Json = {
            "name": "maths/easy",
            "sequence": 3,
            "entries": [_digest(1), _digest(2)],
            "quarantined": [
                {"entry": _digest(3), "history": [{"time": 1_700_000_000, "reason": "tests were added"}]}
            ],
        }
        value = {k: v for k, v in {**good, **change}.items() if k != without}
        payload = ref.canonical(value).decode()
        if code:
            c.bad(f"list: {name}", "library", code, payload=payload, payload_type=kind)
        else:
            out = {"entries": value["entries"], "quarantined": len(value["quarantined"]), "sequence": 3}
            c.ok(f"list: {name}", "library", out, payload=payload, payload_type=kind)

    finding = {"time": 1, "reason": "wrong"}
    case("two entries, one in quarantine", "", {})
    case("empty", "", {"entries": [], "quarantined": []})
    for name, code, change in [
        ("out of order", "list.order", {"entries": [_digest(2), _digest(1)]}),
        ("an entry twice", "list.order", {"entries": [_digest(1), _digest(1)]}),
        ("an entry in both", "list.order", {"quarantined": [{"entry": _digest(1), "history": [finding]}]}),
        ("in quarantine without a reason", "list.history", {"quarantined": [{"entry": _digest(3), "history": []}]}),
        ("nine findings", "list.range", {"quarantined": [{"entry": _digest(3), "history": [finding] * 9}]}),
        ("sequence 0", "list.range", {"sequence": 0}),
        ("entries as text", "list.type", {"entries": _digest(1)}),
        ("an expiry", "list.unknown", {"expires": None}),
        ("a name with a parent folder", "ref.name", {"name": "a/../b"}),
        ("an entry that is a path", "digest.syntax", {"entries": ["../b"]}),
    ]:
        case(name, code, change)
    case("no entries", "list.missing", {}, without="entries")
    case("signed as a ref", "trust.payload_type", {}, kind=ref.REF)


def _passages(c: Cases) -> None:
    good: ref.Json = {
        "format": 1,
        "source": "handbook/leave.md",
        "document": {"digest": _digest(0x44), "characters": 900},
        "section": "Leave > Sick days",
        "start": 12,
        "stop": 39,
        "heading": "handbook/leave.md, Leave > Sick days",
        "text": "\nSick days are \u00bd paid.\n\n  \t",
        "artifact": _digest(0x11),
        "tokens": {"count": 20, "digest": _digest(0x22)},
        "compatibility": _digest(0x33),
    }

    def case(
        name: str, code: str, change: ref.Json, *, kind: str = PASSAGE, without: str = "", tail: str = ""
    ) -> None:
        value = {k: v for k, v in {**good, **change}.items() if k != without}
        payload = ref.canonical(value).decode() + tail
        if code:
            c.bad(f"passage: {name}", "passage", code, payload=payload, payload_type=kind)
        else:
            heading, text = str(value["heading"]), str(value["text"]).strip()
            prompt = f"{heading}\n\n{text}\n" if heading else f"{text}\n"
            out = {"digest": ref.sha256(payload.encode()).hex(), "prompt": prompt}
            c.ok(f"passage: {name}", "passage", out, payload=payload, payload_type=kind)

    case("under a heading", "", {})
    case("without heading and section", "", {"heading": "", "section": ""})
    case("at the end of its document", "", {"start": 873, "stop": 900})
    for name, code, change in [
        ("another format", "version.format", {"format": 2}),
        ("a place longer than the text", "passage.range", {"stop": 40}),
        ("a place that ends before it begins", "passage.range", {"start": 41}),
        ("a place beyond the document", "passage.range", {"start": 874, "stop": 901}),
        ("no text", "passage.range", {"text": "", "stop": 12}),
        ("a text with an escape character", "passage.range", {"text": "\x1b[2J", "stop": 16}),
        ("a section of two lines", "passage.range", {"section": "a\nb"}),
        ("a source that is absolute", "passage.source", {"source": "/etc/passwd"}),
        ("a source with a parent folder", "passage.source", {"source": "a/../b"}),
        ("a source without a name", "passage.source", {"source": ""}),
        ("no tokens", "passage.range", {"tokens": {"count": 0, "digest": _digest(0x22)}}),
        ("a place as text", "passage.type", {"start": "12"}),
        ("an artifact that is a path", "digest.syntax", {"artifact": "../b"}),
        ("a link", "passage.unknown", {"url": "https://example.com"}),
    ]:
        case(name, code, change)
    case("no document", "passage.missing", {}, without="document")
    case("with a space in its JSON", "passage.canonical", {}, tail=" ")
    case("signed as an entry", "trust.payload_type", {}, kind=ENTRY)
