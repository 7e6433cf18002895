"""The worked example of SPEC: six tokens, one layer, three chunks, everything about it in hex."""

from __future__ import annotations

import copy
from typing import Final

import reference as ref

IDS: Final = [1, 17, 4, 250, 9, 33]
BLOCK: Final = 4
GROUP: Final[ref.Json] = {
    "name": "full",
    "kind": "full",
    "layers": [0],
    "kv_heads": 1,
    "key_dim": 2,
    "value_dim": 2,
    "dtype": "BF16",
    "window": None,
}
COMPATIBILITY: Final = {"weights": "example", "kv_dtype": "BF16"}
NUMERICS: Final = {"engine": "example 1.0", "canary": "1122"}

SIGNER: Final = 1


def _block(begin: int, end: int) -> bytes:
    """Keys count up from 0x00, values from 0x80, four bytes a token."""
    keys = bytes(range(4 * begin, 4 * end))
    return ref.block_header(GROUP, end - begin) + keys + bytes(0x80 + byte for byte in keys)


CHUNKS: Final = [
    _block(0, 4),
    _block(4, 6),
    ref.header([("logits", [1, 1, 3])], "F32") + bytes.fromhex("0000003f 000080be 00000040"),
]
TABLE: Final = ref.leaf_table(CHUNKS)
TOKENS: Final = ref.tokens(IDS)
LEAVES: Final = [ref.chunk_leaf(chunk) for chunk in CHUNKS]
ROOT: Final = ref.root(LEAVES)


def statement() -> ref.Json:
    """A fresh copy of the example's statement, for cases that change one thing."""
    predicate = {
        "format": 1,
        "tokens": {"count": len(IDS), "text": None, "template": None},
        "schedule": {"block_tokens": BLOCK, "boundaries": [len(IDS)]},
        "groups": [GROUP],
        "logits": {"vocab": 3, "dtype": "F32"},
        "tree": {
            "algorithm": "rfc9162-sha256",
            "root": ROOT.hex(),
            "size": len(CHUNKS),
            "bytes": sum(map(len, CHUNKS)),
        },
        "compatibility": COMPATIBILITY,
        "numerics": NUMERICS,
    }
    return copy.deepcopy(ref.statement(predicate, TABLE, TOKENS))


PAYLOAD: Final = ref.canonical(statement())
ARTIFACT: Final = ref.sha256(PAYLOAD)
ENVELOPE: Final = ref.envelope(ref.IN_TOTO, PAYLOAD, SIGNER)
KEYS: Final = ref.block_keys(COMPATIBILITY, NUMERICS, b"", IDS, BLOCK, [len(IDS)])


def as_json() -> ref.Json:
    """Every byte of the example, for `example.json`."""
    return {
        "seed": (bytes([SIGNER]) * 32).hex(),
        "signer": ref.key_text(SIGNER),
        "tokens": TOKENS.hex(),
        "chunks": [chunk.hex() for chunk in CHUNKS],
        "leaf_table": TABLE.hex(),
        "leaf_hashes": [leaf.hex() for leaf in LEAVES],
        "root": ROOT.hex(),
        "payload": PAYLOAD.decode(),
        "artifact": ARTIFACT.hex(),
        "envelope": ref.canonical(ENVELOPE).decode(),
        "prefix_keys": [key.hex() for key in KEYS],
    }


def as_markdown() -> str:
    """The example as SPEC shows it."""
    rows = (TABLE[at : at + 40] for at in range(0, len(TABLE), 40))
    first, second, logits = (len(chunk) for chunk in CHUNKS)
    return "\n".join(
        [
            "```text",
            "token ids  " + " ".join(map(str, IDS)),
            "```",
            "",
            f"Block 0 is a file of {first} bytes: 8 bytes of length, this text, spaces up to byte 384, then keys and",
            "values of layer 0.",
            "",
            "```text",
            CHUNKS[0][8:384].decode().rstrip(),
            f"key    {CHUNKS[0][384:400].hex()}",
            f"value  {CHUNKS[0][400:].hex()}",
            "```",
            "",
            f"Block 1 takes {second} bytes, the logits {logits}. Each file is below 4 MiB and so a single chunk.",
            "The leaf table has the digest and the size of each, and the tree over it a root:",
            "",
            "```text",
            *(f"{row[:32].hex()} {row[32:].hex()}" for row in rows),
            f"root {ROOT.hex()}",
            "```",
            "",
            "The manifest's payload is one line:",
            "",
            "```json",
            PAYLOAD.decode(),
            "```",
            "",
            f"Its SHA-256 is the artifact id. The Ed25519 key whose seed is 32 bytes of {SIGNER:02x} signs it; the",
            "envelope holds the payload in base64, the key id and the signature. Last come the prefix keys.",
            "",
            "```text",
            f"artifact {ARTIFACT.hex()}",
            f"keyid    {ENVELOPE['signatures'][0]['keyid']}",
            f"sig      {ENVELOPE['signatures'][0]['sig']}",
            *(f"key {block}    {key.hex()}" for block, key in enumerate(KEYS)),
            "```",
        ]
    )
