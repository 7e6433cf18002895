"""Cases for DSSE envelopes."""

from __future__ import annotations

import base64
import copy
import json

import reference as ref
from cases import Cases

HELLO = ("http://example.com/HelloWorld", b"hello world")
UMLAUT = "application/vnd.größe+json"


def envelope() -> Cases:
    c = Cases("SPEC 5.2: pre-authentication encoding, and envelopes verified with `keys` for `payload_type`")
    c.ok(
        "the DSSE vector",
        "pae",
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world",
        payload_type=HELLO[0],
        payload=HELLO[1],
    )
    c.ok(
        "lengths count bytes: a non-ASCII payload type",
        "pae",
        ref.pae(UMLAUT, b"{}"),
        payload_type=UMLAUT,
        payload=b"{}",
    )
    c.ok("nothing of nothing", "pae", b"DSSEv1 0  0 ", payload_type="", payload=b"")

    payload = b'{"\xc3\xbc":"?>?>"}\xff'
    one = ref.envelope(HELLO[0], payload, 1)
    two = ref.envelope(HELLO[0], payload, 1, 2)
    keys = [ref.key_text(1), ref.key_text(2)]

    def ok(
        name: str,
        value: ref.Json,
        signers: list[int],
        *,
        threshold: int = 1,
        kind: str = HELLO[0],
        keys: list[str] = keys,
    ) -> None:
        names = sorted(ref.key_text(n) for n in signers)
        c.ok(
            name,
            "envelope",
            {"payload": payload, "signers": names},
            text=json.dumps(value, ensure_ascii=False),
            payload_type=kind,
            keys=keys,
            threshold=threshold,
        )

    def bad(name: str, code: str, value: ref.Json, *, threshold: int = 1, kind: str = HELLO[0]) -> None:
        c.bad(
            name,
            "envelope",
            code,
            text=json.dumps(value, ensure_ascii=False),
            payload_type=kind,
            keys=keys,
            threshold=threshold,
        )

    ok("one signature", one, [1])
    ok("two of two", two, [1, 2], threshold=2)
    ok("a stranger's signature beside ours", ref.envelope(HELLO[0], payload, 9, 1), [1])
    ok("a non-ASCII payload type", ref.envelope(UMLAUT, payload, 1), [1], kind=UMLAUT)
    urlsafe = copy.deepcopy(one)
    urlsafe["payload"] = base64.urlsafe_b64encode(payload).decode()
    urlsafe["signatures"][0]["sig"] = one["signatures"][0]["sig"].translate(str.maketrans("+/", "-_"))
    ok("url-safe base64", urlsafe, [1])
    ok("unknown members are ignored", {**one, "note": {"a": [1]}}, [1])
    ok("no key id", {**one, "signatures": [{"sig": one["signatures"][0]["sig"]}]}, [1])
    ok("a key id that names another key", _sign_change(one, keyid=ref.key_id(2)), [1])
    ok("a key id that is nonsense", _sign_change(one, keyid="../../etc/passwd"), [1])
    longer = copy.deepcopy(one)
    longer["signatures"].append({"keyid": "", "sig": base64.b64encode(bytes(4627)).decode()})
    ok("a longer signature of another algorithm beside ours", longer, [1])
    sixteen = copy.deepcopy(one)
    sixteen["signatures"] = [{"keyid": "", "sig": base64.b64encode(bytes([n]) * 64).decode()} for n in range(15)]
    sixteen["signatures"] += one["signatures"]
    ok("16 signatures, the last one ours", sixteen, [1])

    bad("17 signatures", "envelope.signatures", {**one, "signatures": sixteen["signatures"] + one["signatures"]})
    bad("no signature", "envelope.signatures", {**one, "signatures": []})
    twice = {**one, "signatures": one["signatures"] * 2}
    bad("a threshold met by one key twice", "trust.untrusted_signer", twice, threshold=2)
    renamed = [{**entry, "keyid": ref.key_id(n)} for n, entry in enumerate(twice["signatures"], 1)]
    bad("one key twice under two key ids", "trust.bad_signature", {**one, "signatures": renamed}, threshold=2)
    bad(
        "a stranger with our key id",
        "trust.bad_signature",
        _sign_change(ref.envelope(HELLO[0], payload, 9), keyid=ref.key_id(1)),
    )
    bad(
        "another payload under the signature",
        "trust.bad_signature",
        {**one, "payload": base64.b64encode(payload + b" ").decode()},
    )
    flipped = bytearray(ref.signature(1, HELLO[0], payload))
    flipped[0] ^= 1
    bad(
        "a flipped bit in the signature",
        "trust.bad_signature",
        _sign_change(one, sig=base64.b64encode(flipped).decode()),
    )
    bad(
        "63 bytes of signature",
        "trust.bad_signature",
        _sign_change(one, sig=base64.b64encode(ref.signature(1, HELLO[0], payload)[:63]).decode()),
    )
    bad("signed as another type", "trust.payload_type", one, kind=ref.IN_TOTO)
    bad(
        "the type changed after signing",
        "trust.bad_signature",
        {**one, "payloadType": ref.IN_TOTO},
        kind=ref.IN_TOTO,
    )
    text = one["payload"]
    padded = base64.b64encode(payload + b"12").decode()
    for name, wrong in {
        "a space in base64": text[:4] + " " + text[4:],
        "a line feed in base64": text + "\n",
        "both alphabets at once": text.replace("+", "-", 1) + "/+/+",
        "padding is missing": padded.rstrip("="),
        "padding is doubled": padded + "=",
        "padding in the middle": "QQ==" + text,
        "unused bits set": "QR==",
        "no base64 at all": "ü",
    }.items():
        code = "envelope.range" if "\n" in wrong else "envelope.base64"
        bad(name, code, {**one, "payload": wrong})
    bad("the payload is missing", "envelope.missing", {k: v for k, v in one.items() if k != "payload"})
    bad("the signature is missing", "envelope.missing", {**one, "signatures": [{"keyid": ""}]})
    bad("an empty signature", "envelope.range", _sign_change(one, sig=""))
    bad("the payload is an object", "envelope.type", {**one, "payload": {}})
    bad("the signatures are an object", "envelope.type", {**one, "signatures": {}})
    bad("a signature is text", "envelope.type", {**one, "signatures": ["abc"]})
    bad("a payload type of 257 bytes", "envelope.range", {**one, "payloadType": "a" * 257})
    c.bad(
        "the payload twice",
        "envelope",
        "json.duplicate_key",
        payload_type=HELLO[0],
        keys=keys,
        threshold=1,
        text=json.dumps(one)[:-1] + f', "payload": "{text}"}}',
    )
    return c


def _sign_change(value: ref.Json, **change: str) -> ref.Json:
    return {**value, "signatures": [{**value["signatures"][0], **change}]}
