"""Cases for digests, records, JSON, keys, token ids, schedules, fingerprints and prefix keys."""

from __future__ import annotations

import reference as ref
import tiny
from cases import Cases

HEX = ref.sha256(b"abc").hex()


def digest() -> Cases:
    c = Cases("SPEC 2.1 and 2.2: digests in text, and tagged records")
    c.ok("with its prefix", "digest", HEX, text=f"sha256:{HEX}")
    c.ok("bare hex", "digest", HEX, text=HEX)
    for name, text in {
        "upper case": HEX.upper(),
        "upper-case prefix": f"SHA256:{HEX}",
        "another algorithm": f"sha512:{HEX}",
        "a dash for the colon": f"sha256-{HEX}",
        "a path": "../../etc/passwd",
        "a path after the prefix": "sha256:../" + HEX[3:],
        "63 digits": HEX[:-1],
        "65 digits": HEX + "0",
        "a space before": " " + HEX,
        "a line feed after": HEX + "\n",
        "a zero byte after": HEX + "\0",
        "nothing": "",
        "full-width digits": "\uff10" + HEX[1:],
    }.items():
        c.bad(name, "digest", "digest.syntax", text=text)
    c.bad("a number", "digest", "digest.syntax", text=0)
    c.bad("31 raw bytes", "digest_raw", "digest.length", bytes=bytes(31))
    c.ok("a record of nothing", "record", ref.record("t"), tag="t", items=[])
    c.ok("ab, c", "record", ref.record("t", b"ab", b"c"), tag="t", items=[b"ab", b"c"])
    c.ok("a, bc", "record", ref.record("t", b"a", b"bc"), tag="t", items=[b"a", b"bc"])
    c.ok("the same items under another tag", "record", ref.record("u", b"a", b"bc"), tag="u", items=[b"a", b"bc"])
    return c


def json() -> Cases:
    c = Cases("SPEC 1.2: JSON that two parsers cannot read differently; `limit` bytes are allowed")
    limit = 4096
    c.ok("an object", "json", {"a": [1, -2, True, None, "ü"]}, text='{"a": [1, -2, true, null, "ü"]}', limit=limit)
    c.ok("a surrogate pair as escapes", "json", {"a": "😀"}, text='{"a":"\\ud83d\\ude00"}', limit=limit)
    c.ok("brackets inside text are no nesting", "json", {"a": "[" * 99}, text='{"a":"%s"}' % ("[" * 99), limit=limit)
    c.ok("16 levels", "json", text='{"a":' + "[" * 15 + "]" * 15 + "}", limit=limit)
    c.ok("2^53 - 1", "json", {"a": 2**53 - 1}, text='{"a":9007199254740991}', limit=limit)
    for name, code, text in [
        ("a key twice", "json.duplicate_key", '{"a":1,"a":1}'),
        ("a key twice, deeper", "json.duplicate_key", '{"b":[{"a":1,"c":2,"a":3}]}'),
        ("a key twice, once as an escape", "json.duplicate_key", '{"a":1,"\\u0061":2}'),
        ("a fraction", "json.number", '{"a":1.0}'),
        ("an exponent", "json.number", '{"a":1e3}'),
        ("NaN", "json.number", '{"a":NaN}'),
        ("Infinity", "json.number", '{"a":-Infinity}'),
        ("minus zero", "json.number", '{"a":-0}'),
        ("2^53", "json.number", '{"a":9007199254740992}'),
        ("an integer of 2,000 digits", "json.number", '{"a":' + "9" * 2000 + "}"),
        ("half a surrogate pair", "json.encoding", '{"a":"\\ud83d"}'),
        ("half a surrogate pair as a key", "json.encoding", '{"\\udc00":1}'),
        ("two first halves", "json.encoding", '{"a":"\\ud83d\\ud83d\\ude00"}'),
        ("17 levels", "json.depth", '{"a":' + "[" * 16 + "]" * 16 + "}"),
        ("17 levels behind closing brackets in text", "json.depth", '["]]]]"' + ',["]]]]"' * 16 + "]" * 17),
        ("nothing", "json.syntax", ""),
        ("cut off", "json.syntax", '{"a":'),
        ("a comma too many", "json.syntax", '{"a":1,}'),
        ("a second value", "json.syntax", "{} {}"),
        ("single quotes", "json.syntax", "{'a':1}"),
        ("a comment", "json.syntax", "{/**/}"),
        ("a leading zero", "json.syntax", '{"a":01}'),
        ("a raw line feed in text", "json.syntax", '{"a":"\n"}'),
        ("a byte order mark", "json.syntax", "\ufeff{}"),
        ("an array", "json.not_object", "[]"),
        ("only a number", "json.not_object", "1"),
        ("over the limit", "json.size", '{"a":"' + "x" * limit + '"}'),
    ]:
        c.bad(name, "json", code, text=text, limit=limit)
    c.bad("not UTF-8", "json", "json.encoding", bytes=b'{"a":"\xff"}', limit=limit)
    c.bad("overlong UTF-8", "json", "json.encoding", bytes=b'{"a":"\xc0\xaf"}', limit=limit)
    c.bad("a surrogate in UTF-8", "json", "json.encoding", bytes=b'{"a":"\xed\xa0\x80"}', limit=limit)
    c.bad("UTF-16", "json", "json.encoding", bytes='{"a":1}'.encode("utf-16"), limit=limit)
    return c


def keys() -> Cases:
    c = Cases("SPEC 5.2: public keys as text, and the hint made of them")
    good = ref.key_text(1)
    c.ok("a key", "key", {"raw": ref.public(1), "key_id": ref.key_id(1)}, text=good)
    for name, text in {
        "without its prefix": good.removeprefix("ed25519:"),
        "another algorithm": good.replace("ed25519", "ed448"),
        "padded": good + "=",
        "too short": good[:-1],
        "too long": good + "A",
        "standard base64 letters": "ed25519:" + "+" * 43,
        "unused bits set": "ed25519:" + "A" * 42 + "B",
        "a line feed after": good + "\n",
    }.items():
        c.bad(name, "key", "key.syntax", text=text)
    c.bad("null", "key", "key.syntax", text=None)
    c.bad("the identity, under which anyone can sign", "key_raw", "key.weak", bytes=b"\x01" + bytes(31))
    c.bad(
        "a point of order 8, x negative",
        "key_raw",
        "key.weak",
        bytes=bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85"),
    )
    c.bad("p + 1 for 1", "key_raw", "key.weak", bytes=b"\xee" + b"\xff" * 30 + b"\x7f")
    c.bad("31 bytes", "key_raw", "key.length", bytes=bytes(31))
    return c


def token_ids() -> Cases:
    c = Cases("SPEC 2.3: token ids as bytes")
    c.ok("u32, little-endian", "tokens_decode", [1, 256, 2**32 - 1], bytes=bytes.fromhex("0100000000010000ffffffff"))
    c.ok("the reverse", "tokens_encode", bytes.fromhex("0100000000010000ffffffff"), tokens=[1, 256, 2**32 - 1])
    c.bad("none", "tokens_decode", "tokens.length", bytes=b"")
    c.bad("three bytes", "tokens_decode", "tokens.length", bytes=bytes(3))
    c.bad("five bytes", "tokens_decode", "tokens.length", bytes=bytes(5))
    c.bad("a negative id", "tokens_encode", "tokens.range", tokens=[-1])
    c.bad("2^32", "tokens_encode", "tokens.range", tokens=[2**32])
    return c


def schedule() -> Cases:
    c = Cases("SPEC 3.1: the calls that compute tokens start..stop, and boundaries as offsets inside a block")
    plan = {"block_tokens": 4, "boundaries": [6, 9]}
    c.ok("from nothing", "segments", [[0, 4], [4, 6], [6, 8], [8, 9], [9, 10]], **plan, start=0, stop=10)
    c.ok("from a cut: the rest of the same calls", "segments", [[6, 8], [8, 9], [9, 10]], **plan, start=6, stop=10)
    c.ok("from a block's end", "segments", [[4, 6], [6, 8]], **plan, start=4, stop=8)
    c.ok("nothing to do", "segments", [], **plan, start=8, stop=8)
    c.ok("a cut inside block 1", "cuts_inside", [2], **plan, block=1)
    c.ok("no cut inside block 0", "cuts_inside", [], **plan, block=0)
    for name, boundaries in {
        "a multiple of the block": [8],
        "zero": [0],
        "twice the same": [6, 6],
        "descending": [9, 6],
        "beyond any artifact": [2**24 + 1],
    }.items():
        c.bad(
            f"a boundary: {name}",
            "segments",
            "schedule.boundaries",
            block_tokens=4,
            boundaries=boundaries,
            start=0,
            stop=1,
        )
    c.bad("blocks of nothing", "segments", "schedule.block_tokens", block_tokens=0, boundaries=[], start=0, stop=1)
    c.bad("blocks of 4,097", "segments", "schedule.block_tokens", block_tokens=4097, boundaries=[], start=0, stop=1)
    return c


def fingerprints() -> Cases:
    c = Cases("SPEC 6.1: fingerprints, and whether one host accepts another's")
    for kind in ("compatibility", "numerics"):
        c.ok(
            f"{kind}, fields in any order",
            "fingerprint",
            ref.fingerprint(kind, {"b": "2", "a": "ü", "a.b": ""}),
            kind=kind,
            fields={"b": "2", "a.b": "", "a": "ü"},
        )
    for name, fields in {
        "no field": {},
        "257 fields": {str(n): "" for n in range(257)},
        "a number for text": {"a": 1},
        "null": {"a": None},
        "a nested object": {"a": {}},
        "an empty name": {"": "a"},
        "a name with a space": {"a b": "c"},
        "a name of 101 letters": {"a" * 101: "c"},
        "a line feed in a value": {"a": "b\nc"},
        "an escape sequence in a value": {"a": "\x1b[2J"},
        "a value over 8 KiB": {"a": "é" * 4097},
    }.items():
        c.bad(name, "fingerprint", "fingerprint.fields", kind="numerics", fields=fields)
    c.bad("an array", "fingerprint", "fingerprint.fields", kind="numerics", fields=[])
    ours = {"compatibility": tiny.COMPATIBILITY, "numerics": tiny.NUMERICS}
    other = {"compatibility": tiny.COMPATIBILITY, "numerics": {**tiny.NUMERICS, "engine": "example 1.1"}}
    weights = {"compatibility": {"weights": "sha256:" + "33" * 32}, "numerics": tiny.NUMERICS}
    dumb = {"compatibility": tiny.COMPATIBILITY, "numerics": {**other["numerics"], "canary": "sha256:" + "44" * 32}}
    silent = {"compatibility": tiny.COMPATIBILITY, "numerics": {**tiny.NUMERICS, "canary": "sha256:" + "44" * 32}}
    mute = {"compatibility": tiny.COMPATIBILITY, "numerics": {"engine": "example 1.0", "canary": ""}}
    mute2 = {"compatibility": tiny.COMPATIBILITY, "numerics": {"engine": "example 1.1", "canary": ""}}
    c.ok("equal", "accepts", [], ours=ours, theirs=ours, accept="equal")
    c.ok("another version, equal canary, allowed", "accepts", ["engine"], ours=ours, theirs=other, accept="canary")
    c.bad("another version", "accepts", "mismatch.numerics", ours=ours, theirs=other, accept="equal")
    c.bad("only the canary", "accepts", "mismatch.canary", ours=ours, theirs=silent, accept="equal")
    c.bad("another canary", "accepts", "mismatch.canary", ours=ours, theirs=dumb, accept="canary")
    c.bad("empty canaries are none", "accepts", "mismatch.canary", ours=mute, theirs=mute2, accept="canary")
    c.bad(
        "other weights, equal canary", "accepts", "mismatch.compatibility", ours=ours, theirs=weights, accept="canary"
    )
    return c


def prefix() -> Cases:
    c = Cases("SPEC 6.2: the prefix keys of all blocks, the partial last one included")
    sides = (tiny.COMPATIBILITY, tiny.NUMERICS)

    def case(name: str, salt: bytes, ids: list[int], boundaries: list[int]) -> None:
        c.ok(
            name,
            "block_keys",
            ref.block_keys(*sides, salt, ids, 4, boundaries),
            compatibility=sides[0],
            numerics=sides[1],
            salt=salt,
            tokens=ids,
            block_tokens=4,
            boundaries=boundaries,
        )

    case("the worked example", b"", tiny.IDS, [6])
    case("a longer document shares its first block", b"", [*tiny.IDS, 5, 6], [])
    case("a cut inside block 1 makes another key", b"", [*tiny.IDS, 5, 6], [6])
    case("a tenant's salt changes every key", b"tenant", tiny.IDS, [6])
    case("exactly one block", b"", tiny.IDS[:4], [])
    return c
