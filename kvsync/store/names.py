"""What a user means by a name or an id. Knows refs and recorded artifacts, not who may see them."""

from __future__ import annotations

import re
from typing import Final

from kvsync.errors import UsageError
from kvsync.store import records
from kvsync.store.artifacts import unknown
from kvsync.store.parts import Parts
from kvsync.store.refs import unknown_name
from kvsync_protocol.digest import ArtifactId, Digest

_HEX: Final = re.compile(r"(?:sha256:)?([0-9a-f]{8,64})", re.ASCII)


def resolve(parts: Parts, name_or_id: str) -> ArtifactId:
    """A full id first, then a name, then the beginning of an id: a name never shadows a full id.

    Raises as `Store.resolve`.
    """
    digits = _HEX.fullmatch(name_or_id)
    if digits and len(digits[1]) == 64:
        artifact = ArtifactId(Digest.parse(name_or_id))
        with parts.index.reading() as db:
            if not records.is_recorded(db, artifact):
                raise unknown(artifact)
        return artifact
    held = parts.refs.get(name_or_id)
    if held is not None:
        return held.artifact
    if digits is None:
        raise unknown_name(name_or_id)
    with parts.index.reading() as db:
        found = records.ids_with_prefix(db, digits[1])
    if len(found) > 1:
        raise UsageError(
            "store.ambiguous",
            f"{name_or_id!r} begins {len(found)} artifact ids",
            hint="give more digits",
            candidates=[str(artifact) for artifact in found],
        )
    if not found:
        raise unknown_name(name_or_id)
    return found[0]
