"""The writing half of SPEC, a second time and without kvsync_protocol, so that vectors are not circular.

Follows the definitions where the package follows the algorithms: trees by recursion, headers as text,
signatures straight from the cryptography library. Slow and short on purpose.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import struct
from collections.abc import Sequence
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

CHUNK = 4 * 1024 * 1024
IN_TOTO = "application/vnd.in-toto+json"
REF = "application/vnd.kvsync.ref+json"
SIZES = {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1}
Json = dict[str, Any]


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def record(tag: str, *items: bytes) -> bytes:
    return sha256(b"".join(len(item).to_bytes(8, "big") + item for item in (tag.encode(), *items)))


def canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


# Trees, RFC 9162 2.1


def node(left: bytes, right: bytes) -> bytes:
    return sha256(b"\x01" + left + right)


def leaf(data: bytes) -> bytes:
    return sha256(b"\x00" + data)


def chunk_leaf(chunk: bytes) -> bytes:
    return leaf(sha256(chunk) + struct.pack(">Q", len(chunk)))


def split(size: int) -> int:
    cut = 1
    while cut * 2 < size:
        cut *= 2
    return cut


def root(leaves: Sequence[bytes]) -> bytes:
    if not leaves:
        return sha256(b"")
    if len(leaves) == 1:
        return leaves[0]
    cut = split(len(leaves))
    return node(root(leaves[:cut]), root(leaves[cut:]))


def inclusion(index: int, leaves: Sequence[bytes]) -> list[bytes]:
    if len(leaves) == 1:
        return []
    cut = split(len(leaves))
    if index < cut:
        return [*inclusion(index, leaves[:cut]), root(leaves[cut:])]
    return [*inclusion(index - cut, leaves[cut:]), root(leaves[:cut])]


def consistency(first: int, leaves: Sequence[bytes], whole: bool = True) -> list[bytes]:
    if first == len(leaves):
        return [] if whole else [root(leaves)]
    cut = split(len(leaves))
    if first <= cut:
        return [*consistency(first, leaves[:cut], whole), root(leaves[cut:])]
    return [*consistency(first - cut, leaves[cut:], False), root(leaves[:cut])]


# Envelopes


def secret(number: int) -> Ed25519PrivateKey:
    """Fixed test key `number`: its seed is the byte `number`, 32 times."""
    return Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)


def public(number: int) -> bytes:
    return secret(number).public_key().public_bytes_raw()


def public_of(seed: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def sign(seed: bytes, message: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(seed).sign(message)


def key_text(number: int) -> str:
    return "ed25519:" + base64.urlsafe_b64encode(public(number)).decode().rstrip("=")


def key_id(number: int) -> str:
    return sha256(b"kvsync/key/1" + public(number)).hex()[:16]


def pae(kind: str, payload: bytes) -> bytes:
    raw = kind.encode()
    return b" ".join([b"DSSEv1", str(len(raw)).encode(), raw, str(len(payload)).encode(), payload])


def signature(number: int, kind: str, payload: bytes) -> bytes:
    return secret(number).sign(pae(kind, payload))


def envelope(kind: str, payload: bytes, *numbers: int) -> Json:
    return {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": kind,
        "signatures": [
            {"keyid": key_id(n), "sig": base64.b64encode(signature(n, kind, payload)).decode()} for n in numbers
        ],
    }


# Files, chunks and manifests


def tokens(ids: Sequence[int]) -> bytes:
    return b"".join(struct.pack("<I", number) for number in ids)


def header(named: Sequence[tuple[str, list[int]]], dtype: str) -> bytes:
    """The header of a file with these tensors, `(name, shape)`."""
    return mixed_header([(name, shape, dtype) for name, shape in named])


def mixed_header(named: Sequence[tuple[str, list[int], str]]) -> bytes:
    """The header of a file with tensors of several element types."""
    entries = ['"__metadata__":{"format":"kvsync-block/1"}']
    at = 0
    for name, shape, dtype in named:
        end = at + tensor_size(shape, dtype)
        dims = ",".join(map(str, shape))
        entries.append(f'"{name}":{{"dtype":"{dtype}","shape":[{dims}],"data_offsets":[{at},{end}]}}')
        at = end
    size = 128 * (1 + len(named))
    return struct.pack("<Q", size - 8) + ("{" + ",".join(entries) + "}").encode().ljust(size - 8, b" ")


def tensor_size(shape: list[int], dtype: str) -> int:
    return math.prod(shape) * SIZES[dtype]


def state_header(group: Json) -> bytes:
    return mixed_header(
        [
            (f"layers.{layer}.{part['name']}", part["shape"], part["dtype"])
            for layer in group["layers"]
            for part in group["parts"]
        ]
    )


def block_header(group: Json, count: int) -> bytes:
    named = []
    for layer in group["layers"]:
        named.append((f"layers.{layer}.key", [group["kv_heads"], count, group["key_dim"]]))
        named.append((f"layers.{layer}.value", [group["kv_heads"], count, group["value_dim"]]))
    return header(named, group["dtype"])


def fingerprint(kind: str, fields: dict[str, str]) -> bytes:
    return record(f"kvsync/fingerprint/{kind}/1", *(x.encode() for n in sorted(fields) for x in (n, fields[n])))


def block_keys(
    compatibility: dict[str, str],
    numerics: dict[str, str],
    salt: bytes,
    ids: Sequence[int],
    block: int,
    boundaries: Sequence[int],
) -> list[bytes]:
    key = record(
        "kvsync/prefix/start/1", fingerprint("compatibility", compatibility), fingerprint("numerics", numerics), salt
    )
    keys = []
    for begin in range(0, len(ids), block):
        part = ids[begin : begin + block]
        cuts = [place - begin for place in boundaries if begin < place < begin + len(part)]
        key = record("kvsync/prefix/block/1", key, tokens(cuts), tokens(part))
        keys.append(key)
    return keys


def leaf_table(chunks: Sequence[bytes]) -> bytes:
    return b"".join(sha256(chunk) + struct.pack(">Q", len(chunk)) for chunk in chunks)


def statement(predicate: Json, table: bytes, ids: bytes) -> Json:
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": "leaves", "digest": {"sha256": sha256(table).hex()}},
            {"name": "tokens", "digest": {"sha256": sha256(ids).hex()}},
        ],
        "predicateType": "https://kvsync.dev/artifact/v1",
        "predicate": predicate,
    }
