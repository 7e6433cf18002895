"""Cases for statements about keys, for tickets, and for the request to join."""

from __future__ import annotations

import base64
import ipaddress
import json
import struct

import reference as ref
from cases import Cases

SUCCESSOR = "application/vnd.kvsync.successor+json"
BLAME = "application/vnd.kvsync.blame+json"
REVOCATIONS = "application/vnd.kvsync.revocations+json"
JOIN = "application/vnd.kvsync.join+json"
SECRET = bytes(range(16))


def statements() -> Cases:
    c = Cases("KEYS 1 to 3 and 7: successors, revocation lists, statements, blame records")
    _successors(c)
    _revocations(c)
    _blame(c)
    one = ref.canonical(ref.envelope(SUCCESSOR, ref.canonical(_step()), 1, 2)).decode()
    two = ref.canonical(ref.envelope(REVOCATIONS, ref.canonical(_revoked()), 1)).decode()
    payloads = sorted([ref.canonical(_step()), ref.canonical(_revoked())])
    digest = ref.record("kvsync/statements/1", *payloads).hex()
    both = json.dumps({"successors": [one], "revocations": [two]})
    c.ok("both kinds", "statements", {"count": 2, "digest": digest}, text=both)
    empty = ref.record("kvsync/statements/1").hex()
    c.ok("none", "statements", {"count": 0, "digest": empty}, text='{"revocations":[],"successors":[]}')
    twice = json.dumps({"successors": [one, one], "revocations": []})
    once = ref.record("kvsync/statements/1", ref.canonical(_step())).hex()
    c.ok("one of them twice", "statements", {"count": 2, "digest": once}, text=twice)
    for name, code, value in [
        ("no revocations", "message.missing", {"successors": []}),
        ("an envelope as an object", "message.type", {"successors": [{}], "revocations": []}),
        ("1,001 of a kind", "message.range", {"successors": [""] * 1001, "revocations": []}),
        ("a member too many", "message.unknown", {"successors": [], "revocations": [], "urls": []}),
    ]:
        c.bad(name, "statements", code, text=json.dumps(value))
    return c


def _blame(c: Cases) -> None:
    good: ref.Json = {
        "peer": ref.key_text(2),
        "artifact": "sha256:" + "11" * 32,
        "leaf": 7,
        "code": "integrity.chunk",
        "found": "sha256:" + "22" * 32,
        "time": 1_700_000_000,
    }

    signer = ref.key_text(1)

    def envelope(value: ref.Json, key: int = 1, kind: str = BLAME) -> str:
        return json.dumps(ref.envelope(kind, ref.canonical(value), key))

    c.ok("a chunk of other bytes", "blame", good, envelope=envelope(good), signer=signer)
    short = {**good, "code": "bulk.size", "found": None}
    c.ok("a chunk of another size", "blame", short, envelope=envelope(short), signer=signer)
    c.bad("blame: by another key", "blame", "trust.untrusted_signer", envelope=envelope(good, 3), signer=signer)
    c.bad(
        "blame: of another type",
        "blame",
        "trust.payload_type",
        envelope=envelope(good, kind=SUCCESSOR),
        signer=signer,
    )
    for name, code, value in [
        ("no leaf", "blame.missing", {k: v for k, v in good.items() if k != "leaf"}),
        ("a leaf that is text", "blame.type", {**good, "leaf": "7"}),
        ("a leaf beyond any table", "blame.range", {**good, "leaf": 2**20}),
        ("a time before 1970", "blame.range", {**good, "time": -1}),
        ("a code that is a sentence", "blame.code", {**good, "code": "it was wrong"}),
        ("a member too many", "blame.unknown", {**good, "url": "x"}),
        ("a peer that is no key", "key.syntax", {**good, "peer": "alice"}),
    ]:
        c.bad(f"blame: {name}", "blame", code, envelope=envelope(value), signer=signer)


def _step(**change: object) -> ref.Json:
    good = {
        "kind": "signer",
        "old": ref.key_text(1),
        "new": ref.key_text(2),
        "sequence": 1,
        "since": 1_700_000_000,
        "until": 1_700_086_400,
    }
    return {**good, **change}


def _successors(c: Cases) -> None:
    def case(name: str, code: str, value: ref.Json, *numbers: int, kind: str = SUCCESSOR) -> None:
        envelope = json.dumps(ref.envelope(kind, ref.canonical(value), *numbers))
        if code:
            c.bad(f"successor: {name}", "successor", code, envelope=envelope)
        else:
            out = {"kind": value["kind"], "old": value["old"], "new": value["new"], "until": value["until"]}
            c.ok(f"successor: {name}", "successor", out, envelope=envelope)

    case("signed by both", "", _step(), 1, 2)
    case("of a peer, signatures in the other order", "", _step(kind="peer"), 2, 1)
    case("the old key only", "trust.untrusted_signer", _step(), 1)
    case("the new key only", "trust.untrusted_signer", _step(), 2)
    case("the old key twice", "trust.untrusted_signer", _step(), 1, 1)
    case("a stranger for the new key", "trust.untrusted_signer", _step(), 1, 3)
    case("signed as a revocation list", "trust.payload_type", _step(), 1, 2, kind=REVOCATIONS)
    case("of another kind", "successor.kind", _step(kind="host"), 1, 2)
    case("of itself", "successor.keys", _step(new=ref.key_text(1)), 1)
    case("an overlap of no time", "successor.time", _step(until=1_700_000_000), 1, 2)
    case("sequence 0", "successor.range", _step(sequence=0), 1, 2)
    case("an end that is text", "successor.type", _step(until="soon"), 1, 2)
    case("a key of small order", "key.weak", _step(new="ed25519:" + "A" * 43), 1, 2)
    case("a reason", "successor.unknown", _step(reason="lost"), 1, 2)
    case("no beginning", "successor.missing", {k: v for k, v in _step().items() if k != "since"}, 1, 2)


def _revoked(**change: object) -> ref.Json:
    good = {"authority": ref.key_text(1), "sequence": 3, "keys": sorted([ref.key_text(2), ref.key_text(3)])}
    return {**good, **change}


def _revocations(c: Cases) -> None:
    def case(name: str, code: str, value: ref.Json, number: int = 1, kind: str = REVOCATIONS) -> None:
        envelope = json.dumps(ref.envelope(kind, ref.canonical(value), number))
        if code:
            c.bad(f"revocations: {name}", "revocations", code, envelope=envelope)
        else:
            c.ok(f"revocations: {name}", "revocations", value, envelope=envelope)

    case("two keys", "", _revoked())
    case("the authority itself", "", _revoked(keys=[ref.key_text(1)]))
    case("signed by one of the revoked", "trust.untrusted_signer", _revoked(), 2)
    case("signed as a ref", "trust.payload_type", _revoked(), kind=ref.REF)
    case("no keys", "revocation.keys", _revoked(keys=[]))
    case("a key twice", "revocation.keys", _revoked(keys=[ref.key_text(2)] * 2))
    case("keys out of order", "revocation.keys", _revoked(keys=sorted([ref.key_text(2), ref.key_text(3)])[::-1]))
    case("1,001 keys", "revocation.range", _revoked(keys=[ref.key_text(2)] * 1001))
    case("keys that are text", "revocation.type", _revoked(keys=ref.key_text(2)))
    case("a key id for a key", "key.syntax", _revoked(keys=[ref.key_id(2)]))
    case("sequence 0", "revocation.range", _revoked(sequence=0))
    case("an expiry", "revocation.unknown", _revoked(expires=1))
    case("no authority", "revocation.missing", {k: v for k, v in _revoked().items() if k != "authority"})


def _host(text: str) -> bytes:
    host, _, port = text.rpartition(":")
    number = struct.pack(">H", int(port))
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return bytes([0, len(host)]) + host.encode() + number
    return bytes([address.version]) + address.packed + number


def _word(body: bytes, *, version: int = 1, check: bytes | None = None) -> str:
    found = ref.record("kvsync/ticket/check/1", body)[:4] if check is None else check
    return f"kvt{version}_" + base64.urlsafe_b64encode(body + found).decode().rstrip("=")


def _body(
    addresses: list[bytes], *, key: bytes | None = None, count: int | None = None, tail: bytes = b"\0"
) -> bytes:
    head = (ref.public(1) if key is None else key) + SECRET + (1_800_000_000).to_bytes(5, "big")
    return head + bytes([len(addresses) if count is None else count]) + b"".join(addresses) + tail


def tickets() -> Cases:
    c = Cases("KEYS 4 and 5: tickets and the request to join")
    secret = ref.record("kvsync/ticket/1", SECRET)
    key = "ed25519:" + base64.urlsafe_b64encode(ref.public_of(secret)).decode().rstrip("=")
    places = ["192.0.2.1:7410", "[2001:db8::1]:7410", "lab.example:7410"]

    def out(addresses: list[str], registry: str | None = None) -> ref.Json:
        return {
            "identity": ref.key_text(1),
            "key": key,
            "expires": 1_800_000_000,
            "addresses": addresses,
            "registry": registry,
        }

    packed = [_host(place) for place in places]
    c.ok("a ticket", "ticket", out(places), text=_word(_body(packed)))
    c.ok(
        "a ticket with a registry",
        "ticket",
        out(places[:1], "lab.example:7411"),
        text=_word(_body(packed[:1], tail=b"\x10lab.example:7411")),
    )
    good = _word(_body(packed))
    for name, code, text in [
        ("cut short", "ticket.check", good[:-2]),
        ("a letter changed", "ticket.check", good[:20] + ("A" if good[20] != "A" else "B") + good[21:]),
        ("a wrong check", "ticket.check", _word(_body(packed), check=bytes(4))),
        ("of version 2", "version.ticket", _word(_body(packed), version=2)),
        ("no ticket", "ticket.syntax", "kvt1_"),
        ("a space behind it", "ticket.syntax", good + " "),
        ("padding", "ticket.syntax", good + "="),
        ("no address", "ticket.address", _word(_body([]))),
        ("nine addresses", "ticket.address", _word(_body(packed[:1] * 9))),
        ("an address of kind 5", "ticket.address", _word(_body([b"\x05\0\0\0\0\0\x01"]))),
        ("port 0", "ticket.address", _word(_body([_host("192.0.2.1:0")]))),
        ("a host with a slash", "ticket.address", _word(_body([_host("a/b:1")]))),
        ("an IPv4 address as a host's name", "ticket.syntax", _word(_body([b"\0\x09192.0.2.1\x1c\xf2"]))),
        ("a registry that is no address", "ticket.address", _word(_body(packed[:1], tail=b"\x03lab"))),
        ("a byte too many", "ticket.syntax", _word(_body(packed) + b"\0")),
        ("a length past the end", "ticket.syntax", _word(_body(packed, tail=b"\x05lab"))),
        ("a key of small order", "key.weak", _word(_body(packed, key=bytes(32)))),
    ]:
        c.bad(f"ticket: {name}", "ticket", code, text=text)
    about = {"name": "lab", "signer": ref.key_text(3), "addresses": ["192.0.2.1:7410"], "fingerprints": []}
    request = {"inviter": ref.key_text(1), "joiner": ref.key_text(2), "about": about}

    def join(value: ref.Json, seed: bytes = secret, kind: str = JOIN) -> ref.Json:
        payload = ref.canonical(value)
        sig = base64.b64encode(ref.sign(seed, ref.pae(kind, payload))).decode()
        return {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": kind,
            "signatures": [{"keyid": "", "sig": sig}],
        }

    c.ok("a request", "join", {"joiner": ref.key_text(2), "name": "lab"}, envelope=json.dumps(join(request)), key=key)
    for name, code, envelope in [
        ("under another secret", "trust.untrusted_signer", join(request, bytes(32))),
        ("signed as a ref", "trust.payload_type", join(request, kind=ref.REF)),
        ("no joiner", "message.missing", join({k: v for k, v in request.items() if k != "joiner"})),
        ("roles to have", "message.unknown", join({**request, "roles": ["push"]})),
        ("a name that is a path", "ref.name", join({**request, "about": {**about, "name": "../x"}})),
        ("17 addresses", "message.range", join({**request, "about": {**about, "addresses": ["a:1"] * 17}})),
        ("5 fingerprints", "message.range", join({**request, "about": {**about, "fingerprints": [{}] * 5}})),
    ]:
        c.bad(f"request: {name}", "join", code, envelope=json.dumps(envelope), key=key)
    c.ok(
        "an answer",
        "join_answer",
        ["get"],
        text=json.dumps({"answer": {"about": about, "roles": ["get"]}, "error": None}),
    )
    error = json.dumps({"code": "ticket.spent", "message": "used", "hint": ""})
    c.ok("a refusal", "join_answer", "ticket.spent", text=json.dumps({"answer": None, "error": error}))
    c.bad("an answer of neither", "join_answer", "message.type", text='{"answer":null,"error":null}')
    return c
