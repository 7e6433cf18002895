"""Signers as `trust.json` lists them. What counts in the end is `TrustList`'s to say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kvsync.keys.lists import load_list, save_list
from kvsync.keys.patterns import MAX_PATTERNS, check_patterns, covers
from kvsync_protocol import strictjson
from kvsync_protocol.ref import check_name
from kvsync_protocol.signing import PublicKey


@dataclass(frozen=True, slots=True)
class Signer:
    """A key whose signatures count here.

    `names` are patterns of the names that it may give, all when there are none; they limit refs, not bytes.
    An `authority` may also revoke other keys.
    """

    name: str
    key: PublicKey
    names: tuple[str, ...] = ()
    authority: bool = False

    def gives(self, name: str) -> bool:
        return not self.names or covers(self.names, name)


def load_signers(path: Path) -> list[Signer]:
    """Raises StoreError `trust.damaged`."""
    return load_list(path, "trust", _read)


def save_signers(path: Path, signers: Iterable[Signer]) -> None:
    """Raises UsageError `trust.full`."""
    entries = [
        {"name": s.name, "key": str(s.key), "names": list(s.names), "authority": s.authority}
        for s in sorted(signers, key=lambda s: s.name)
    ]
    save_list(path, "trust", entries)


def _read(entry: strictjson.Fields, version: int) -> Signer:
    name, key = check_name(entry.string("name", limit=800)), PublicKey.parse(entry.take("key"))
    if version == 1:
        return Signer(name, key)
    names = check_patterns(entry.strings("names", limit=MAX_PATTERNS, each=800))
    return Signer(name, key, names, entry.boolean("authority"))
