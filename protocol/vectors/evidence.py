"""Cases for attestations and divergences: what an auditor may have signed, and what proves a disagreement."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable

import reference as ref
import tiny
from cases import Cases

ATTESTATION = "application/vnd.kvsync.attestation+json"


def attestation() -> Cases:
    c = Cases("SPEC 7.5: attestations about the worked example")
    good: ref.Json = {
        "artifact": "sha256:" + tiny.ARTIFACT.hex(),
        "numerics": "sha256:" + ref.fingerprint("numerics", tiny.NUMERICS).hex(),
        "blocks": [[0, 2]],
        "logits": True,
        "differs": None,
    }
    other = {"leaf": 1, "found": "sha256:" + "11" * 32}

    def ok(name: str, *, refutes: bool, **change: object) -> None:
        value = {**good, **change}
        out = {"blocks": [b for first, end in value["blocks"] for b in range(first, end)], "refutes": refutes}
        payload = ref.canonical(value).decode()
        c.ok(name, "attestation", out, payload=payload, payload_type=ATTESTATION, manifest=MANIFEST)

    def bad(name: str, code: str, change: Callable[[ref.Json], object], kind: str = ATTESTATION) -> None:
        value = {**good}
        change(value)
        payload = ref.canonical(value).decode()
        c.bad(name, "attestation", code, payload=payload, payload_type=kind, manifest=MANIFEST)

    ok("all of it", refutes=False)
    ok("one block without the logits", refutes=False, blocks=[[1, 2]], logits=False)
    ok("a leaf with other bytes", refutes=True, differs=other)
    ok("other bytes by other arithmetic", refutes=False, differs=other, numerics="sha256:" + "22" * 32)
    bad("signed as a ref", "trust.payload_type", lambda v: None, ref.REF)
    bad("another artifact", "mismatch.attestation", lambda v: v.update(artifact="sha256:" + "33" * 32))
    bad("a block past the end", "mismatch.attestation", lambda v: v.update(blocks=[[0, 3]]))
    bad("a leaf past the end", "mismatch.attestation", lambda v: v.update(differs={**other, "leaf": 3}))
    bad("no blocks", "attestation.range", lambda v: v.update(blocks=[]))
    bad("an empty range", "attestation.range", lambda v: v.update(blocks=[[1, 1]]))
    bad("adjacent ranges", "attestation.range", lambda v: v.update(blocks=[[0, 1], [1, 2]]))
    bad("ranges out of order", "attestation.range", lambda v: v.update(blocks=[[3, 4], [0, 1]]))
    bad("1,001 ranges", "attestation.range", lambda v: v.update(blocks=[[2 * n, 2 * n + 1] for n in range(1001)]))
    bad("true for a block", "attestation.type", lambda v: v.update(blocks=[[0, True]]))
    bad("logits as a number", "attestation.type", lambda v: v.update(logits=1))
    bad("no numerics", "attestation.missing", lambda v: v.pop("numerics"))
    bad("a time", "attestation.unknown", lambda v: v.update(time=1))
    bad("a found digest that is a path", "digest.syntax", lambda v: v.update(differs={**other, "found": "../x"}))
    bad("a digest without its prefix", "attestation.canonical", lambda v: v.update(artifact=tiny.ARTIFACT.hex()))
    bad("an absent member for null", "attestation.canonical", lambda v: v.pop("differs"))
    return c


MANIFEST = tiny.PAYLOAD.decode()


def divergence() -> Cases:
    c = Cases("SPEC 7.5: records of divergences from the worked example")
    forged = _forged()
    ours = _side(tiny.PAYLOAD, tiny.CHUNKS, 1, 1)
    good: ref.Json = {"block": 1, "sides": _ordered(ours, _side(*forged, 1, 2))}
    same_bytes = _ordered(ours, _side(*_forged(change=False), 1, 2))

    def bad(name: str, code: str, change: Callable[[ref.Json], object]) -> None:
        value = copy.deepcopy(good)
        change(value)
        c.bad(name, "divergence", code, text=ref.canonical(value).decode())

    c.ok("one byte of block 1", "divergence", None, text=ref.canonical(good).decode())
    bad("of another block", "merkle.inclusion", lambda v: v.update(block=0))
    bad("of a block past the end", "integrity.divergence", lambda v: v.update(block=3))
    bad("without leaves", "integrity.divergence", lambda v: v["sides"][0].update(leaves=[]))
    bad(
        "a leaf that nobody signed", "merkle.inclusion", lambda v: _first_leaf(v).update(digest="sha256:" + "11" * 32)
    )
    bad("a proof cut short", "merkle.inclusion", lambda v: v["sides"][1]["leaves"][0].update(proof=[]))
    bad("other token ids", "integrity.tokens", lambda v: v["sides"][0].update(tokens="A" * 32))
    bad("token ids that are not base64", "divergence.base64", lambda v: v["sides"][0].update(tokens="?"))
    bad("one side", "divergence.range", lambda v: v["sides"].pop())
    bad("sides out of order", "divergence.range", lambda v: v["sides"].reverse())
    bad("the same side twice", "divergence.range", lambda v: v.update(sides=[v["sides"][0]] * 2))
    bad("a block as text", "divergence.type", lambda v: v.update(block="1"))
    bad("no tokens", "divergence.missing", lambda v: v["sides"][0].pop("tokens"))
    bad("a verdict", "divergence.unknown", lambda v: v.update(right=0))
    bad("equal bytes", "integrity.divergence", lambda v: v.update(sides=same_bytes))
    return c


def _first_leaf(value: ref.Json) -> ref.Json:
    found: ref.Json = value["sides"][0]["leaves"][0]
    return found


def _ordered(*sides: ref.Json) -> list[ref.Json]:
    """By artifact id."""

    def artifact(side: ref.Json) -> bytes:
        return ref.sha256(base64.b64decode(json.loads(side["envelope"])["payload"]))

    return sorted(sides, key=artifact)


def _forged(change: bool = True) -> tuple[bytes, list[bytes]]:
    """Another artifact of the same tokens: one byte of block 1 differs, or only what its text is said to be."""
    chunks = list(tiny.CHUNKS)
    if change:
        chunks[1] = chunks[1][:-1] + bytes([chunks[1][-1] ^ 1])
    value = tiny.statement()
    value["predicate"]["tree"]["root"] = ref.root([ref.chunk_leaf(chunk) for chunk in chunks]).hex()
    value["predicate"]["tokens"]["text"] = "sha256:" + "44" * 32
    value["subject"][0]["digest"]["sha256"] = ref.sha256(ref.leaf_table(chunks)).hex()
    return ref.canonical(value), chunks


def _side(payload: bytes, chunks: list[bytes], index: int, signer: int) -> ref.Json:
    hashes = [ref.chunk_leaf(chunk) for chunk in chunks]
    return {
        "envelope": ref.canonical(ref.envelope(ref.IN_TOTO, payload, signer)).decode(),
        "tokens": base64.b64encode(tiny.TOKENS).decode(),
        "leaves": [
            {
                "digest": "sha256:" + ref.sha256(chunks[index]).hex(),
                "size": len(chunks[index]),
                "proof": ["sha256:" + node.hex() for node in ref.inclusion(index, hashes)],
            }
        ],
    }
