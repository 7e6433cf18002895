"""`Matching`: which artifacts here begin like a context, what this node's own audits have refuted left out.

Trusts nothing it finds: whoever uses an artifact checks it. A part of `Store`.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvsync.store import records
from kvsync.store.parts import Parts
from kvsync_protocol.digest import ArtifactId, PrefixKey
from kvsync_protocol.fingerprint import Fingerprints


class Matching:
    """Thread-safe."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def find_prefix(self, keys: Sequence[PrefixKey]) -> tuple[ArtifactId, int] | None:
        """The artifact here with which a graft covers most blocks of a context of these block keys, and how many.

        Of artifacts here completely those are the shared blocks, snapshots of states aside; of those kept in part
        the last one behind which a graft can begin.

        `keys` are `block_keys(start_key(fingerprints), tokens, schedule)`, without a salt. Keys bind both
        fingerprints; under the policy "canary" ask again with the keys of each acceptable pair of
        `fingerprints()`.
        """
        found = self.find_prefixes(keys)
        return max(found, key=lambda match: match[1]) if found else None

    def find_prefixes(self, keys: Sequence[PrefixKey], *, partial: bool = True) -> list[tuple[ArtifactId, int]]:
        """As `find_prefix`: the best artifact that is here completely, then the best one kept in part."""
        without = self._parts.refuted.ids()
        with self._parts.index.reading() as db:
            found = [records.find_prefix(db, keys, without)]
            if partial:
                found.append(records.find_covered(db, keys, without))
        return [match for match in found if match is not None]

    def find_whole(self, tokens: Sequence[int], fingerprints: Fingerprints) -> ArtifactId | None:
        """The longest artifact with whose tokens `tokens` begin, both fingerprints being equal.

        Under the policy "canary" ask again with each acceptable pair of `fingerprints()`.
        """
        with self._parts.index.reading() as db:
            return records.find_whole(db, tokens, fingerprints, self._parts.refuted.ids())

    def fingerprints(self) -> list[Fingerprints]:
        """Every pair of fingerprints that artifacts here have, the most recent first."""
        with self._parts.index.reading() as db:
            holders = records.fingerprint_holders(db)
        return [stored.manifest.fingerprints for stored in self._parts.sound(holders)]
