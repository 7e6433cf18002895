"""Token ids as bytes, and prefix keys: names for a block's computation, chained from its context (SPEC 6.2)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from kvsync_protocol.digest import Digest, PrefixKey, hash_record, sha256
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.fingerprint import Fingerprints
from kvsync_protocol.limits import MAX_TOKENS
from kvsync_protocol.schedule import Schedule


def encode_tokens(tokens: Sequence[int]) -> bytes:
    """Token ids as u32 LE.

    Raises:
        MalformedError: `tokens.range` when an id is no u32.
    """
    try:
        return struct.pack(f"<{len(tokens)}I", *tokens)
    except (struct.error, TypeError) as error:
        raise MalformedError("tokens.range", "token ids are whole numbers from 0 to 2^32 - 1") from error


def decode_tokens(data: bytes) -> tuple[int, ...]:
    """The reverse of `encode_tokens`. Raises MalformedError `tokens.length`."""
    if not data or len(data) % 4 or len(data) > MAX_TOKENS * 4:
        raise MalformedError("tokens.length", "token ids are 1 or more u32 values, within limits")
    return struct.unpack(f"<{len(data) // 4}I", data)


def tokens_digest(tokens: Sequence[int]) -> Digest:
    return sha256(encode_tokens(tokens))


def start_key(fingerprints: Fingerprints, salt: bytes = b"") -> PrefixKey:
    """pk[0]: the empty context under these fingerprints. `salt` keeps tenants apart."""
    return PrefixKey(
        hash_record(
            "kvsync/prefix/start/1",
            [fingerprints.compatibility.digest.raw, fingerprints.numerics.digest.raw, salt],
        )
    )


def next_key(previous: PrefixKey, cuts: Sequence[int], tokens: Sequence[int]) -> PrefixKey:
    """pk[k+1] of a block with these tokens and cuts strictly inside it, as offsets from its start."""
    cut_bytes = struct.pack(f"<{len(cuts)}I", *cuts)
    return PrefixKey(hash_record("kvsync/prefix/block/1", [previous.raw, cut_bytes, encode_tokens(tokens)]))


def block_keys(start: PrefixKey, tokens: Sequence[int], schedule: Schedule) -> Iterator[PrefixKey]:
    """The keys of all blocks of `tokens`, the partial last one included."""
    key, size = start, schedule.block_tokens
    for block, begin in enumerate(range(0, len(tokens), size)):
        part = tokens[begin : begin + size]
        cuts = [cut for cut in schedule.cuts_inside(block) if cut < len(part)]
        key = next_key(key, cuts, part)
        yield key
