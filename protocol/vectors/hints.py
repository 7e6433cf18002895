"""Cases for a registry: what providers say about themselves, queries, answers, and where things are filed."""

from __future__ import annotations

import json

import reference as ref
from cases import Cases

KIND = "application/vnd.kvsync.{}+json"
DIGEST = "sha256:" + "11" * 32
KEY = "22" * 32


def registry() -> Cases:
    c = Cases("REGISTRY.md: statements, messages and places")
    _announcements(c)
    _others(c)
    _messages(c)
    _places(c)
    return c


def announcement() -> ref.Json:
    return {
        "epoch": 7,
        "sequence": 3,
        "artifact": DIGEST,
        "compatibility": DIGEST,
        "numerics": DIGEST,
        "keys": [KEY, "33" * 32],
        "bytes": 1084,
        "readers": ["members"],
        "ttl": 3600,
    }


def _statement(kind: str, value: ref.Json) -> dict[str, object]:
    return {"payload_type": KIND.format(kind), "payload": ref.canonical(value).decode()}


def _announcements(c: Cases) -> None:
    good = announcement()
    out = {"kind": "Announcement", "epoch": 7, "sequence": 3}
    c.ok("an announcement", "statement", out, **_statement("announcement", good))
    c.ok("no full block", "statement", out, **_statement("announcement", {**good, "keys": []}))
    readers = [ref.key_text(1), "members", "tenant:red/one"]
    c.ok("all kinds of readers", "statement", out, **_statement("announcement", {**good, "readers": readers}))
    for name, code, change in [
        ("epoch 0", "message.range", {"epoch": 0}),
        ("sequence 0", "message.range", {"sequence": 0}),
        ("an epoch that is true", "message.type", {"epoch": True}),
        ("no bytes", "message.range", {"bytes": 0}),
        ("no time to live", "message.range", {"ttl": 0}),
        ("an artifact that is a path", "digest.syntax", {"artifact": "../x"}),
        ("a key that is short", "digest.syntax", {"keys": [KEY[:-2]]}),
        ("keys that are text", "message.type", {"keys": KEY}),
        ("8,193 keys", "message.range", {"keys": [KEY] * 8193}),
        ("no readers", "message.range", {"readers": []}),
        ("17 readers", "message.range", {"readers": [f"tenant:t{n:02}" for n in range(17)]}),
        ("readers out of order", "message.range", {"readers": ["tenant:a", "members"]}),
        ("a reader twice", "message.range", {"readers": ["members", "members"]}),
        ("a reader that is nobody", "key.syntax", {"readers": ["everybody"]}),
        ("a tenant whose name is none", "ref.name", {"readers": ["tenant:../x"]}),
        ("a URL", "message.unknown", {"url": "https://example.com"}),
    ]:
        c.bad(f"announcement: {name}", "statement", code, **_statement("announcement", {**good, **change}))
    rest = {k: v for k, v in good.items() if k != "readers"}
    c.bad("announcement: readers left out", "statement", "message.missing", **_statement("announcement", rest))
    c.bad("an announcement signed as a ref", "statement", "trust.payload_type", **_statement("ref", good))
    c.bad("an announcement signed as a withdrawal", "statement", "message.unknown", **_statement("withdrawal", good))


def _others(c: Cases) -> None:
    at = {"epoch": 7, "sequence": 4}
    withdrawn, contact = {"kind": "Withdrawal", **at}, {"kind": "Contact", **at}
    c.ok("a withdrawal", "statement", withdrawn, **_statement("withdrawal", {**at, "artifact": DIGEST}))
    c.ok("a withdrawal of all", "statement", withdrawn, **_statement("withdrawal", {**at, "artifact": None}))
    c.bad(
        "withdrawal: all as text", "statement", "digest.syntax", **_statement("withdrawal", {**at, "artifact": "all"})
    )
    good = {**at, "addresses": ["192.0.2.1:7000"], "ttl": 60}
    c.ok("a contact", "statement", contact, **_statement("contact", good))
    for name, code, change in [
        ("17 addresses", "message.range", {"addresses": ["a:1"] * 17}),
        ("an address of 301 bytes", "message.range", {"addresses": ["a" * 301]}),
        ("a terminal escape", "message.range", {"addresses": ["\x1b[2J"]}),
        ("an address that is a number", "message.type", {"addresses": [1]}),
    ]:
        c.bad(f"contact: {name}", "statement", code, **_statement("contact", {**good, **change}))


def _messages(c: Cases) -> None:
    c.ok("a query", "prefix_query", 2, text=json.dumps({"keys": [KEY, KEY]}))
    c.bad("query: no keys", "prefix_query", "message.range", text='{"keys":[]}')
    c.bad("query: 4,097 keys", "prefix_query", "message.range", text=json.dumps({"keys": [KEY] * 4097}))
    c.bad("query: a second member", "prefix_query", "message.unknown", text=json.dumps({"keys": [KEY], "limit": 9}))
    c.ok("outcomes", "outcomes", {"epoch": 7, "count": 2}, text='{"epoch":7,"outcomes":["ok","registry.stale"]}')
    c.bad("outcomes: no code", "outcomes", "message.range", text='{"epoch":7,"outcomes":["fine"]}')
    provider = {"key": ref.key_text(1), "addresses": ["192.0.2.1:7000"]}
    match = {
        "artifact": DIGEST,
        "compatibility": DIGEST,
        "numerics": DIGEST,
        "blocks": 2,
        "bytes": 1084,
        "providers": [provider],
    }
    c.ok("nothing found", "matches", {"shared": 0, "count": 0}, text='{"shared":0,"matches":[]}')
    c.ok("a match", "matches", {"shared": 2, "count": 1}, text=json.dumps({"shared": 2, "matches": [match]}))
    for name, code, value in [
        ("17 of them", "message.range", {"shared": 1, "matches": [match] * 17}),
        ("65 providers", "message.range", {"shared": 1, "matches": [{**match, "providers": [provider] * 65}]}),
        (
            "a provider with a URL",
            "message.unknown",
            {"shared": 1, "matches": [{**match, "providers": [{**provider, "url": ""}]}]},
        ),
        ("shared by more blocks than can be asked", "message.range", {"shared": 4097, "matches": []}),
    ]:
        c.bad(f"matches: {name}", "matches", code, text=json.dumps(value))
    text = ref.canonical(ref.envelope(ref.REF, b"{}", 1)).decode()
    vouched = {"signers": [ref.key_text(1)], "envelope": text, "readers": ["members"]}
    c.ok("a vouched ref", "vouched", 1, text=json.dumps(vouched))
    c.ok("a vouched attestation", "vouched", 1, text=json.dumps({**vouched, "readers": []}))
    c.bad("vouched: no signer", "vouched", "message.range", text=json.dumps({**vouched, "signers": []}))
    twice = [ref.key_text(1)] * 2
    c.bad("vouched: a signer twice", "vouched", "message.range", text=json.dumps({**vouched, "signers": twice}))


def _places(c: Cases) -> None:
    for reader in ("members", "tenant:red", ref.key_text(1)):
        for kind, key in (("block", bytes.fromhex(KEY)), ("artifact", bytes.fromhex(KEY)), ("names", b"")):
            place = ref.record(f"kvsync/place/{kind}/1", reader.encode(), key)[:16]
            c.ok(f"{kind} for {reader}", "place", place, kind=kind, reader=reader, key=key)
