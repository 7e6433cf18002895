"""Cases for manifests and refs: what a trusted key may have signed, and what is refused nevertheless."""

from __future__ import annotations

import json
from collections.abc import Callable

import reference as ref
import tiny
from cases import Cases


def manifest() -> Cases:
    c = Cases("SPEC 5.1: payloads that a trusted key has signed as `payload_type`")

    def ok(name: str, value: ref.Json) -> None:
        payload = ref.canonical(value)
        c.ok(name, "manifest", ref.sha256(payload), payload=payload.decode(), payload_type=ref.IN_TOTO)

    def raw(name: str, code: str, payload: str) -> None:
        c.bad(name, "manifest", code, payload=payload, payload_type=ref.IN_TOTO)

    def bad(name: str, code: str, change: Callable[[ref.Json, ref.Json], object]) -> None:
        value = tiny.statement()
        change(value, value["predicate"])
        raw(name, code, ref.canonical(value).decode())

    ok("the worked example", tiny.statement())
    plain = tiny.statement()
    plain["predicate"]["tokens"]["text"] = None
    plain["predicate"]["numerics"]["note"] = 'größer "<&>" \\ / \u2028 😀'
    ok("no text, and characters that JSON writers disagree about", plain)

    payload = tiny.PAYLOAD.decode()
    c.bad("signed as a ref", "manifest", "trust.payload_type", payload=payload, payload_type=ref.REF)
    raw("not JSON", "json.syntax", payload[:-1])
    raw("the predicate twice", "json.duplicate_key", payload[:-1] + ',"predicate":{}}')
    raw("spaces after colons", "manifest.canonical", json.dumps(tiny.statement(), sort_keys=True))
    raw("members in another order", "manifest.canonical", json.dumps(tiny.statement(), separators=(",", ":")))
    raw("a character as an escape", "manifest.canonical", payload.replace('"full"', '"\\u0066ull"', 1))
    raw("a line feed at the end", "manifest.canonical", payload + "\n")
    bad(
        "a prefix before a subject's digest",
        "manifest.canonical",
        lambda s, _: s["subject"][0]["digest"].update(sha256="sha256:" + s["subject"][0]["digest"]["sha256"]),
    )
    bad("subjects in another order", "manifest.canonical", lambda s, _: s["subject"].reverse())
    bad("an absent member for null", "manifest.canonical", lambda _, p: p["tokens"].pop("template"))

    bad(
        "another statement version",
        "version.statement",
        lambda s, _: s.update(_type="https://in-toto.io/Statement/v0.1"),
    )
    bad(
        "another predicate",
        "version.predicate",
        lambda s, _: s.update(predicateType="https://slsa.dev/provenance/v1"),
    )
    bad(
        "another format, with members unknown here",
        "version.format",
        lambda s, p: (p.update(format=2, more={}), s.update(x=1)),
    )
    bad("another tree", "version.tree", lambda _, p: p["tree"].update(algorithm="blake3"))
    bad("another layer kind", "version.layer_kind", lambda _, p: p["groups"][0].update(kind="latent"))
    bad("another logits dtype", "version.dtype", lambda _, p: p["logits"].update(dtype="I8"))

    bad("a format that is true", "manifest.type", lambda _, p: p.update(format=True))
    bad("a predicate that is a list", "manifest.type", lambda s, _: s.update(predicate=[]))
    bad("a count as text", "manifest.type", lambda _, p: p["tokens"].update(count="6"))
    bad("a boundary that is true", "manifest.type", lambda _, p: p["schedule"].update(boundaries=[True]))
    bad("groups as an object", "manifest.type", lambda _, p: p.update(groups={}))
    bad("the type is missing", "manifest.missing", lambda s, _: s.pop("_type"))
    bad("numerics are missing", "manifest.missing", lambda _, p: p.pop("numerics"))
    bad("the root is missing", "manifest.missing", lambda _, p: p["tree"].pop("root"))
    bad("no tokens", "manifest.range", lambda _, p: p["tokens"].update(count=0))
    bad("2^24 + 1 tokens", "manifest.range", lambda _, p: p["tokens"].update(count=2**24 + 1))
    bad("negative bytes", "manifest.range", lambda _, p: p["tree"].update(bytes=-1))
    bad("an unknown member of the statement", "manifest.unknown", lambda s, _: s.update(extra=1))
    bad("an unknown member of the predicate", "manifest.unknown", lambda _, p: p.update(created="today"))
    bad("an unknown member of the tree", "manifest.unknown", lambda _, p: p["tree"].update(height=2))
    bad("a root that is a path", "digest.syntax", lambda _, p: p["tree"].update(root="../../etc/passwd"))
    bad("a text digest in upper case", "digest.syntax", lambda _, p: p["tokens"].update(text="sha256:" + "AA" * 32))

    bad("no subject", "manifest.subjects", lambda s, _: s.update(subject=[]))
    bad("one subject", "manifest.subjects", lambda s, _: s["subject"].pop())
    bad("a third subject", "manifest.subjects", lambda s, _: s["subject"].append(s["subject"][0]))
    bad("the same subject twice", "manifest.subjects", lambda s, _: s.update(subject=[s["subject"][0]] * 2))
    bad("a subject of another name", "manifest.subjects", lambda s, _: s["subject"][0].update(name="leafs"))
    bad("a second digest in a subject", "manifest.unknown", lambda s, _: s["subject"][0]["digest"].update(sha1="00"))
    bad("a subject without digest", "manifest.missing", lambda s, _: s["subject"][0].pop("digest"))

    bad("a tree of another size", "manifest.tree", lambda _, p: p["tree"].update(size=4))
    bad("a tree of other bytes", "manifest.tree", lambda _, p: p["tree"].update(bytes=p["tree"]["bytes"] - 1))
    bad("the end is no boundary", "manifest.schedule", lambda _, p: p["schedule"].update(boundaries=[]))
    bad("a boundary past the end", "manifest.schedule", lambda _, p: p["schedule"].update(boundaries=[6, 7]))
    bad("a boundary at a block's end", "schedule.boundaries", lambda _, p: p["schedule"].update(boundaries=[4, 6]))
    bad("boundaries out of order", "schedule.boundaries", lambda _, p: p["schedule"].update(boundaries=[6, 5]))
    bad("a layer missing", "layout.layers", lambda _, p: p["groups"][0].update(layers=[1]))
    bad("no groups", "layout.groups", lambda _, p: p.update(groups=[]))
    bad("a fingerprint that is text", "fingerprint.fields", lambda _, p: p.update(numerics="same"))
    bad("a fingerprint without fields", "fingerprint.fields", lambda _, p: p.update(compatibility={}))
    bad("an escape sequence in a fingerprint", "fingerprint.fields", lambda _, p: p["numerics"].update(a="\x1b[2J"))
    return c


def refs() -> Cases:
    c = Cases("SPEC 7: refs, their names and age")
    good: ref.Json = {
        "name": "team/handbook",
        "artifact": "sha256:" + "11" * 32,
        "sequence": 3,
        "expires": 2_000_000_000,
    }
    for name, value in {"a ref": good, "without expiry": {**good, "expires": None}}.items():
        payload = ref.canonical(value)
        c.ok(name, "ref", value, payload=payload.decode(), payload_type=ref.REF)
    for name, code, change in [
        ("a name with a parent folder", "ref.name", {"name": "a/../b"}),
        ("an absolute name", "ref.name", {"name": "/etc/passwd"}),
        ("an upper-case name", "ref.name", {"name": "Handbook"}),
        ("an empty name", "ref.name", {"name": ""}),
        ("a name of 201 letters", "ref.name", {"name": "a" * 201}),
        ("a name ending in a slash", "ref.name", {"name": "a/"}),
        ("a name with a line feed", "ref.range", {"name": "a\n"}),
        ("sequence 0", "ref.range", {"sequence": 0}),
        ("a negative expiry", "ref.range", {"expires": -1}),
        ("a sequence as text", "ref.type", {"sequence": "3"}),
        ("a sequence that is true", "ref.type", {"sequence": True}),
        ("an unknown member", "ref.unknown", {"url": "https://example.com"}),
        ("an artifact that is a path", "digest.syntax", {"artifact": "../b"}),
    ]:
        c.bad(name, "ref", code, payload=ref.canonical({**good, **change}).decode(), payload_type=ref.REF)
    missing = ref.canonical({k: v for k, v in good.items() if k != "artifact"}).decode()
    c.bad("no artifact", "ref", "ref.missing", payload=missing, payload_type=ref.REF)
    c.bad(
        "signed as a manifest",
        "ref",
        "trust.payload_type",
        payload=ref.canonical(good).decode(),
        payload_type=ref.IN_TOTO,
    )
    c.bad(
        "over 4 KiB",
        "ref",
        "json.size",
        payload=ref.canonical({**good, "name": "a" * 4096}).decode(),
        payload_type=ref.REF,
    )

    c.ok("at its last second", "ref_fresh", ref=good, now=2_000_000_000)
    c.bad("a second later", "ref_fresh", "trust.expired", ref=good, now=2_000_000_001)
    return c
