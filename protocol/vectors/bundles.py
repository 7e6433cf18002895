"""Cases for bundles: headers of members, and the index."""

from __future__ import annotations

from typing import Any

import reference as ref
from cases import Cases

BUNDLE = "application/vnd.kvsync.bundle+json"


def bundle() -> Cases:
    c = Cases("BUNDLE 1 and 2: headers of members, and the index")
    _members(c)
    _chunks(c)
    _index(c)
    return c


def _header(name: bytes, size: int = 0, **change: bytes) -> bytes:
    """A ustar header by its fields."""
    given = {
        "mode": b"0000600\0",
        "owner": b"0000000\0" * 2,
        "digits": f"{size:011o}".encode() + b"\0",
        "time": b"0" * 11 + b"\0",
        "type": b"0",
        "link": bytes(100),
        "magic": b"ustar\x0000",
        **change,
    }
    before = name.ljust(100, b"\0") + given["mode"] + given["owner"] + given["digits"] + given["time"]
    after = (given["type"] + given["link"] + given["magic"]).ljust(356, b"\0")
    total = sum(before) + 8 * 32 + sum(after)
    return before + change.get("sum", f"{total:06o}".encode() + b"\0 ") + after


def _members(c: Cases) -> None:
    for name, size in (
        ("index.json", 700),
        ("artifacts/0/leaves", 40),
        ("chunks/" + "ab" * 32 + ".planes", 4_194_304),
    ):
        c.ok(f"member: {name}", "member", {"name": name, "size": size}, header=_header(name.encode(), size))
    leaves = b"artifacts/0/leaves"
    for name, header in [
        ("a link", _header(leaves, type=b"2", link=b"/etc/passwd".ljust(100, b"\0"))),
        ("a device", _header(leaves, type=b"3")),
        ("a directory", _header(leaves, type=b"5")),
        ("of the old type", _header(leaves, type=b"\0")),
        ("with an owner", _header(leaves, owner=b"0001750\0" * 2)),
        ("that anybody may run", _header(leaves, mode=b"0004755\0")),
        ("with a time", _header(leaves, time=b"0" * 10 + b"1\0")),
        ("of GNU tar", _header(leaves, magic=b"ustar  \0")),
        ("a size in binary", _header(leaves, digits=b"\x80" + bytes(10) + b"\x01")),
        ("a size with spaces", _header(leaves, digits=b"         40\0")),
        ("a wrong sum", _header(leaves, sum=b"000000\0 ")),
        ("without a name", _header(b"")),
        ("a name that is not UTF-8", _header(b"\xff")),
        ("two names", _header(b"a\0b")),
        ("the archive's end", bytes(512)),
        ("cut short", _header(leaves)[:511]),
    ]:
        c.bad(f"member: {name}", "member", "bundle.member", header=header)


def _chunks(c: Cases) -> None:
    digest = "ab" * 32
    for encoding, ending in enumerate(("", ".zst", ".planes")):
        c.ok(f"chunk: in encoding {encoding}", "chunk", encoding, member=f"chunks/{digest}{ending}", digest=digest)
    for name, given in [
        ("another one", "chunks/" + "cd" * 32),
        ("in an unknown encoding", f"chunks/{digest}.gz"),
        ("in capitals", f"chunks/{digest.upper()}"),
        ("elsewhere", f"../chunks/{digest}"),
        ("no chunk", "index.json"),
    ]:
        c.bad(f"chunk: {name}", "chunk", "bundle.order", member=given, digest=digest)


def _index(c: Cases) -> None:
    def digest(number: int) -> str:
        return "sha256:" + f"{number:02x}" * 32

    def artifact(number: int, **change: Any) -> ref.Json:
        good = {"artifact": digest(number), "envelope": digest(9), "positions": None, "attestations": [], "refs": []}
        return {**good, **change}

    def case(name: str, code: str, *artifacts: ref.Json, payload: str = "", kind: str = BUNDLE, **top: Any) -> None:
        text = payload or ref.canonical({"format": 1, "artifacts": list(artifacts), **top}).decode()
        if code:
            c.bad(f"index: {name}", "bundle", code, payload=text, payload_type=kind)
        else:
            out = {"artifacts": [each["artifact"] for each in artifacts]}
            c.ok(f"index: {name}", "bundle", out, payload=text, payload_type=kind)

    case("one artifact", "", artifact(1))
    case("two, one of them in part", "", artifact(1, positions=[256, 512], refs=[digest(7)]), artifact(2))
    case("an attestation", "", artifact(1, attestations=[digest(8)]))
    case("none", "bundle.artifacts")
    case("out of order", "bundle.artifacts", artifact(2), artifact(1))
    case("one twice", "bundle.artifacts", artifact(1), artifact(1))
    case("129", "bundle.range", *(artifact(number) for number in range(129)))
    case("65 refs", "bundle.range", artifact(1, refs=[digest(n) for n in range(65)]))
    case("a position of 0", "bundle.range", artifact(1, positions=[0]))
    case("a position that is text", "bundle.type", artifact(1, positions=["1"]))
    case("a digest that is a path", "digest.syntax", artifact(1, envelope="../../b"))
    case("a path", "bundle.unknown", artifact(1, path="/etc/passwd"))
    case("without an envelope", "bundle.missing", {k: v for k, v in artifact(1).items() if k != "envelope"})
    case("of another format", "version.format", artifact(1), format=2)
    case("signed as a manifest", "trust.payload_type", artifact(1), kind=ref.IN_TOTO)
    spaced = ref.canonical({"format": 1, "artifacts": [artifact(1)]}).decode() + " "
    case("with a space in its JSON", "bundle.canonical", payload=spaced)
