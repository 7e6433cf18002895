"""Readers: who may learn from a registry that something exists, as text and as an index key (REGISTRY.md).

A place is what a registry files things under: one reader and one key in a single hash, so that looking
something up as one reader never touches what another may see.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kvsync_protocol.digest import ArtifactId, PrefixKey
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.limits import MAX_NAME_CHARS
from kvsync_protocol.ref import check_name
from kvsync_protocol.signing import PublicKey

MEMBERS: Final = "members"
_TENANT: Final = "tenant:"
MAX_READERS: Final = 16
MAX_READER_BYTES: Final = len(_TENANT) + MAX_NAME_CHARS
PLACE_BYTES: Final = 16
"""128 bits of a SHA-256: nobody finds a second preimage, and an index takes half the room."""


def tenant(name: str) -> str:
    """The reader that stands for every member of a tenant. Raises MalformedError `ref.name`."""
    return _TENANT + check_name(name)


def check_readers(texts: Sequence[str]) -> tuple[str, ...]:
    """1 to 16 readers in ascending order, each once: `members`, `tenant:NAME`, or a peer's key.

    Raises:
        MalformedError: `message.range`, `key.*`, `ref.name`.
    """
    if not 1 <= len(texts) <= MAX_READERS or list(texts) != sorted(set(texts)):
        raise MalformedError("message.range", f"readers are 1 to {MAX_READERS} in ascending order, each once")
    for text in texts:
        if text.startswith(_TENANT):
            check_name(text.removeprefix(_TENANT))
        elif text != MEMBERS:
            PublicKey.parse(text)
    return tuple(texts)


def block_places(reader: str, keys: Iterable[PrefixKey]) -> bytes:
    """Where artifacts that hold these blocks are filed for `reader`, 16 bytes for each key, joined."""
    return b"".join(_places("kvsync/place/block/1", reader, (key.raw for key in keys)))


def artifact_place(reader: str, artifact: ArtifactId) -> bytes:
    """Where the artifact itself is filed for `reader`."""
    return b"".join(_places("kvsync/place/artifact/1", reader, [artifact.raw]))


def name_place(reader: str) -> bytes:
    """Where names are filed for `reader`."""
    return b"".join(_places("kvsync/place/names/1", reader, [b""]))


def _places(tag: str, reader: str, items: Iterable[bytes]) -> Iterator[bytes]:
    """The first bytes of the records (tag, reader, item); what they begin with is hashed once."""
    begun = hashlib.sha256()
    for part in (tag.encode(), reader.encode()):
        begun.update(len(part).to_bytes(8, "big") + part)
    for item in items:
        record = begun.copy()
        record.update(len(item).to_bytes(8, "big") + item)
        yield record.digest()[:PLACE_BYTES]
