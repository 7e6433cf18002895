"""Cases for the peer protocol: control messages, bulk frames and their seals."""

from __future__ import annotations

import hashlib
import hmac
import json
import struct

import reference as ref
import tiny
from cases import Cases


def messages() -> Cases:
    c = Cases("SPEC 8.1: bodies of the control lane")
    _hello(c)
    _refs(c)
    _missing(c)
    _have(c)
    _rest(c)
    return c


def _hello(c: Cases) -> None:
    hello: ref.Json = {
        "protocol": 1,
        "software": "kvsync 0.1.0",
        "signers": [ref.key_text(1)],
        "roles": ["get", "push"],
        "statements": None,
    }
    c.ok("a hello", "hello", hello, text=json.dumps(hello))
    c.ok("a hello with members of a later version", "hello", hello, text=json.dumps({**hello, "motto": {}}))
    said = {**hello, "statements": "sha256:" + "11" * 32}
    c.ok("a hello with statements about keys", "hello", said, text=json.dumps(said))
    earlier = json.dumps({k: v for k, v in hello.items() if k != "statements"})
    c.ok("a hello of before there were statements", "hello", hello, text=earlier)
    for name, code, change in [
        ("statements that are no digest", "digest.syntax", {"statements": "none"}),
        ("another protocol", "version.protocol", {"protocol": 2, "signers": "all"}),
        ("protocol 0", "message.range", {"protocol": 0}),
        ("a protocol that is true", "message.type", {"protocol": True}),
        ("a signer that is no key", "key.syntax", {"signers": ["alice"]}),
        ("17 signers", "message.range", {"signers": [ref.key_text(1)] * 17}),
        ("a role that is a number", "message.type", {"roles": [1]}),
        ("17 roles", "message.range", {"roles": ["get"] * 17}),
        ("a terminal escape in the software's name", "message.range", {"software": "\x1b[2J"}),
    ]:
        c.bad(f"hello: {name}", "hello", code, text=json.dumps({**hello, **change}))
    c.bad(
        "hello: no roles",
        "hello",
        "message.missing",
        text=json.dumps({k: v for k, v in hello.items() if k != "roles"}),
    )


def _refs(c: Cases) -> None:
    one = ref.canonical(ref.envelope(ref.REF, b'{"name":"a"}', 1)).decode()
    c.ok("no refs", "refs", {"count": 0, "more": False}, text='{"refs":[],"more":false}')
    c.ok(
        "two refs, more to come",
        "refs",
        {"count": 2, "more": True},
        text=json.dumps({"refs": [one, one], "more": True}),
    )
    for name, code, value in [
        ("an envelope that is an object", "message.type", {"refs": [{}], "more": False}),
        (
            "an envelope without signatures",
            "envelope.missing",
            {"refs": ['{"payload":"","payloadType":""}'], "more": False},
        ),
        ("more is a number", "message.type", {"refs": [], "more": 1}),
        ("1,001 refs", "message.range", {"refs": [""] * 1001, "more": False}),
        ("a URL to follow", "message.unknown", {"refs": [], "more": False, "next": "http://example.com/"}),
    ]:
        c.bad(f"refs: {name}", "refs", code, text=json.dumps(value))


def _missing(c: Cases) -> None:
    c.ok("nothing missing", "missing", [], text='{"ranges":[]}', leaves=3)
    c.ok("all missing", "missing", [0, 1, 2], text='{"ranges":[[0,3]]}', leaves=3)
    c.ok("two ranges", "missing", [0, 2], text='{"ranges":[[0,1],[2,3]]}', leaves=3)
    for name, code, ranges in [
        ("past the tree", "message.range", [[0, 4]]),
        ("a huge range", "message.range", [[0, 2**53 - 1]]),
        ("negative", "message.range", [[-1, 1]]),
        ("empty", "message.range", [[1, 1]]),
        ("backwards", "message.range", [[2, 1]]),
        ("overlapping", "message.range", [[0, 2], [1, 3]]),
        ("adjacent", "message.range", [[0, 1], [1, 2]]),
        ("descending", "message.range", [[2, 3], [0, 1]]),
        ("one number", "message.range", [[0]]),
        ("three numbers", "message.range", [[0, 1, 2]]),
        ("true for 1", "message.type", [[0, True]]),
        ("no pair", "message.type", [0, 1]),
    ]:
        c.bad(f"missing: {name}", "missing", code, text=json.dumps({"ranges": ranges}), leaves=3)


def _have(c: Cases) -> None:
    c.ok("all to be had", "have", [0, 1, 2], text='{"leaves":null}', leaves=3)
    c.ok("none to be had", "have", [], text='{"leaves":"AA=="}', leaves=3)
    c.ok("the first and the last of three", "have", [0, 2], text='{"leaves":"oA=="}', leaves=3)
    c.ok("the last of nine", "have", [8], text='{"leaves":"AIA="}', leaves=9)
    for name, code, leaves in [
        ("a bit beyond the last leaf", "message.range", "EA=="),
        ("a bitmap of all leaves", "message.range", "4A=="),
        ("a byte too many", "message.range", "oAA="),
        ("no byte", "message.range", ""),
        ("no base64", "message.range", "*A=="),
        ("base64 in another spelling", "message.range", "oB=="),
        ("base64 without padding", "message.range", "oA"),
        ("a list of indices", "message.type", [0, 2]),
    ]:
        c.bad(f"have: {name}", "have", code, text=json.dumps({"leaves": leaves}), leaves=3)
    c.bad("have: a member too many", "have", "message.unknown", text='{"leaves":null,"all":true}', leaves=3)


def _rest(c: Cases) -> None:
    artifact = "sha256:" + tiny.ARTIFACT.hex()
    c.ok(
        "accepted",
        "accepted",
        {"artifact": artifact, "complete": True},
        text=json.dumps({"artifact": artifact, "complete": True}),
    )
    c.bad(
        "accepted: an artifact that is a path",
        "accepted",
        "digest.syntax",
        text='{"artifact":"../x","complete":true}',
    )
    c.bad(
        "accepted: complete is 1", "accepted", "message.type", text=json.dumps({"artifact": artifact, "complete": 1})
    )
    one = ref.canonical(ref.envelope(ref.REF, b"{}", 1)).decode()
    c.ok("commit without a ref", "commit", False, text='{"ref":null}')
    c.ok("commit with a ref", "commit", True, text=json.dumps({"ref": one}))
    c.bad("commit: a ref that is a number", "commit", "message.type", text='{"ref":1}')
    c.bad("commit: a ref that is no envelope", "commit", "json.syntax", text='{"ref":"x"}')
    signed = ref.canonical(ref.envelope("application/vnd.kvsync.attestation+json", b"{}", 1)).decode()
    c.ok("attestations", "attestations", 1, text=json.dumps({"attestations": [signed]}))
    c.ok("no attestations", "attestations", 0, text='{"attestations":[]}')
    c.bad("65 attestations", "attestations", "message.range", text=json.dumps({"attestations": [signed] * 65}))
    c.bad("attestations: an object", "attestations", "message.type", text='{"attestations":[{}]}')
    c.ok("related", "related", [artifact], text=json.dumps({"artifacts": [artifact]}))
    c.bad("related: a path", "related", "digest.syntax", text='{"artifacts":["../x"]}')
    c.bad("related: 65 of them", "related", "message.range", text=json.dumps({"artifacts": [artifact] * 65}))
    error = {"code": "store.full", "message": "no room left", "hint": ""}
    c.ok("an error", "error", error, text=json.dumps(error))
    for name, change in {
        "a code with spaces": {"code": "store full"},
        "a code in upper case": {"code": "Store.Full"},
        "a code of 101 letters": {"code": "a." + "b" * 99},
        "a message of 2,001 bytes": {"message": "x" * 2001},
        "a line feed in the hint": {"hint": "a\nb"},
    }.items():
        c.bad(f"error: {name}", "error", "message.range", text=json.dumps({**error, **change}))
    c.bad("error: a member too many", "error", "message.unknown", text=json.dumps({**error, "traceback": "x"}))


def bulk() -> Cases:
    c = Cases("SPEC 8.2: frames of the bulk lane")

    def request(
        magic: bytes = b"KVq1", verb: int = 1, encoding: int = 0, zero: int = 0, index: int = 7, length: int = 0
    ) -> bytes:
        return magic + struct.pack(">BBH", verb, encoding, zero) + tiny.ARTIFACT + struct.pack(">II", index, length)

    def reply(
        magic: bytes = b"KVr1", status: int = 0, encoding: int = 0, zero: int = 0, length: int = 0, rest: int = 0
    ) -> bytes:
        return magic + struct.pack(">BBHII", status, encoding, zero, length, rest)

    def out(verb: str, encoding: str, length: int) -> ref.Json:
        return {"verb": verb, "encoding": encoding, "artifact": tiny.ARTIFACT, "index": 7, "length": length}

    most = ref.CHUNK + 64 * 1024
    c.ok("a GET", "bulk_request", out("GET", "IDENTITY", 0), bytes=request())
    c.ok("a GET that reads zstd", "bulk_request", out("GET", "ZSTD", 0), bytes=request(encoding=1))
    c.ok("a GET that reads planes", "bulk_request", out("GET", "PLANES", 0), bytes=request(encoding=2))
    c.ok(
        "a PUT of the largest body", "bulk_request", out("PUT", "IDENTITY", most), bytes=request(verb=2, length=most)
    )
    for name, frame in {
        "another magic": request(magic=b"KVq2"),
        "a reply's magic": request(magic=b"KVr1"),
        "verb 0": request(verb=0),
        "verb 3": request(verb=3),
        "encoding 3": request(encoding=3),
        "padding not zero": request(zero=1),
        "a byte short": request()[:-1],
        "a byte long": request() + b"\0",
        "nothing": b"",
    }.items():
        c.bad(f"request: {name}", "bulk_request", "bulk.frame", bytes=frame)
    for name, frame in {
        "a GET with a body": request(length=1),
        "a PUT without one": request(verb=2),
        "a PUT of more than a chunk": request(verb=2, length=most + 1),
        "a PUT of 4 GiB": request(verb=2, length=2**32 - 1),
    }.items():
        c.bad(f"request: {name}", "bulk_request", "bulk.length", bytes=frame)

    names = ["OK", "NOT_FOUND", "REFUSED", "CORRECT_AND_RESEND", "BUSY", "FULL", "FAILED"]
    for status, text in enumerate(names):
        c.ok(
            f"reply {text}",
            "bulk_reply",
            {"status": text, "encoding": "IDENTITY", "length": 0},
            bytes=reply(status=status),
        )
    c.ok(
        "a body in zstd",
        "bulk_reply",
        {"status": "OK", "encoding": "ZSTD", "length": 9},
        bytes=reply(encoding=1, length=9),
    )
    for name, frame in {
        "another magic": reply(magic=b"HTTP"),
        "status 7": reply(status=7),
        "encoding 255": reply(encoding=255),
        "padding not zero": reply(rest=1),
        "a byte short": reply()[:-1],
    }.items():
        c.bad(f"reply: {name}", "bulk_reply", "bulk.frame", bytes=frame)
    c.bad("reply: a body that is too long", "bulk_reply", "bulk.length", bytes=reply(length=most + 1))
    c.bad("reply: a failure with a body", "bulk_reply", "bulk.length", bytes=reply(status=1, length=1))
    return c


def unencrypted() -> Cases:
    c = Cases("UNENCRYPTED 3: seals of what one side of a connection sends, in order")
    key = bytes(range(32))
    get = b"KVq1" + struct.pack(">BBH", 1, 0, 0) + tiny.ARTIFACT + struct.pack(">II", 7, 0)
    reply = b"KVr1" + struct.pack(">BBHII", 0, 1, 0, 9, 0)

    def seal(sender: int, number: int, message: bytes, under: bytes = key) -> bytes:
        return hmac.new(under, struct.pack(">BQ", sender, number) + message, hashlib.sha256).digest()

    def row(sender: int, *messages: bytes) -> list[ref.Json]:
        return [{"message": m.hex(), "seal": seal(sender, n, m).hex()} for n, m in enumerate(messages)]

    c.ok("a request", "seals", 1, key=key, sender=1, messages=row(1, get))
    c.ok("the same request again", "seals", 2, key=key, sender=1, messages=row(1, get, get))
    c.ok("a reply and its encoded body", "seals", 2, key=key, sender=2, messages=row(2, reply, b"nine byte"))
    c.ok("nothing yet", "seals", 0, key=key, sender=2, messages=[])
    changed = [{"message": (get[:-5] + bytes([get[-5] ^ 1]) + get[-4:]).hex(), "seal": seal(1, 0, get).hex()}]
    cut = [{"message": get.hex(), "seal": seal(1, 0, get)[:-1].hex()}]
    wrong: dict[str, list[ref.Json]] = {
        "another leaf": changed,
        "a bit of the seal": [{"message": get.hex(), "seal": (seal(1, 0, get)[:-1] + b"\0").hex()}],
        "a seal that is cut short": cut,
        "no seal": [{"message": get.hex(), "seal": ""}],
        "under another key": [{"message": get.hex(), "seal": seal(1, 0, get, bytes(32)).hex()}],
        "sent back to its sender": row(2, get),
        "a repeated message with its seal": [*row(1, get), *row(1, get)],
        "the second message first": row(1, get, get)[1:],
        "an encoded body that was changed": [
            *row(1, reply),
            {"message": b"nine_byte".hex(), "seal": seal(1, 1, b"nine byte").hex()},
        ],
        "a plain SHA-256": [{"message": get.hex(), "seal": hashlib.sha256(get).hexdigest()}],
    }
    for name, messages in wrong.items():
        c.bad(name, "seals", "bulk.seal", key=key, sender=1, messages=messages)
    return c
