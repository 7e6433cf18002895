"""What a user means by a name or an id. Knows refs and recorded artifacts, not who may see them."""

from __future__ import annotations

import re
import time
from typing import Final

from kvsync.errors import UsageError
from kvsync.store import records
from kvsync.store.artifacts import unknown
from kvsync.store.parts import Parts
from kvsync.store.refs import unknown_name
from kvsync_protocol.digest import ArtifactId, Digest

_HEX: Final = re.compile(r"(?:sha256:)?([0-9a-f]{8,64})", re.ASCII)


def resolve(parts: Parts, name_or_id: str) -> ArtifactId:
    """A full id, else a name or the beginning of an id: whoever gives names shadows no id by them.

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
    if held is None and digits is None:
        raise unknown_name(name_or_id)
    named = set() if held is None else {held.artifact}
    found = sorted(named | _beginning_with(parts, digits[1] if digits else None))
    if len(found) > 1:
        raise UsageError(
            "store.ambiguous",
            f"{name_or_id!r} can mean {len(found)} artifacts",
            hint="give more digits",
            candidates=[str(artifact) for artifact in found],
        )
    if not found:
        raise unknown_name(name_or_id)
    if held is not None:
        held.ref.check_fresh(int(time.time()))
    return found[0]


def _beginning_with(parts: Parts, digits: str | None) -> set[ArtifactId]:
    if digits is None:
        return set()
    with parts.index.reading() as db:
        return set(records.ids_with_prefix(db, digits))
