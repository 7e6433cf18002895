"""Registries that this node uses beside its own, in `registries.json`: which key each must prove, and where it is.

A registry is told what this node has and asked what others have; nothing it says is believed. `readers` is who may
learn there of what this node announces: `peers` for this node's own peers by their keys, or a reader in the words of
REGISTRY.md, `members` or `tenant:NAME`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from kvsync.config import Home
from kvsync.errors import NotFoundError, UsageError
from kvsync.files import exclusive
from kvsync.keys.lists import load_list, save_list
from kvsync.keys.peers import MAX_ADDRESSES, Peer
from kvsync.keys.standing import standing
from kvsync_protocol import strictjson
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.reader import MAX_READER_BYTES, MEMBERS, check_readers
from kvsync_protocol.signing import PublicKey
from kvsync_protocol.successor import PEER

PEERS: Final = "peers"


@dataclass(frozen=True, slots=True)
class ListedRegistry:
    """`peer` is the registry as something to connect to; it may do nothing here."""

    peer: Peer
    readers: str = PEERS

    def __post_init__(self) -> None:
        if not self.peer.addresses:
            raise UsageError("registry.address", "a registry has an address", hint="give --address HOST:PORT")
        try:
            known = self.readers in (PEERS, MEMBERS) or bool(check_readers([self.readers]))
        except MalformedError:
            known = False
        if not known:
            raise UsageError(
                "registry.readers", f"{self.readers!r} are no readers", hint="peers, members or tenant:NAME"
            )

    @property
    def name(self) -> str:
        return self.peer.name


class RegistryBook:
    """The list. Safe for several processes."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def registries(self) -> list[ListedRegistry]:
        """By name, each with the keys that prove it now.

        Raises:
            StoreError: `registries.damaged`, `statements.damaged`.
        """
        now = standing(self._home)
        return [
            replace(each, peer=replace(each.peer, pins=now.current(PEER, each.peer.key))) for each in self._listed()
        ]

    def add(self, registry: ListedRegistry) -> None:
        """Add, or replace the entry of the same name. Raises UsageError `registry.exists`, `registries.full`."""
        with exclusive(self._home.lock_file):
            kept = [each for each in self._listed() if each.name != registry.name]
            if any(each.peer.key == registry.peer.key for each in kept):
                raise UsageError("registry.exists", "a registry of this key is listed", hint="kvsync registry ls")
            self._save([*kept, registry])

    def remove(self, name_or_key: str) -> ListedRegistry:
        """Raises NotFoundError `registry.unlisted`."""
        with exclusive(self._home.lock_file):
            listed = self._listed()
            found = next((each for each in listed if name_or_key in (each.name, str(each.peer.key))), None)
            if found is None:
                raise NotFoundError(
                    "registry.unlisted", f"{name_or_key!r} is not a listed registry", hint="kvsync registry ls"
                )
            self._save([each for each in listed if each != found])
        return found

    def _listed(self) -> list[ListedRegistry]:
        return load_list(self._home.registries_file, "registries", _read)

    def _save(self, registries: Iterable[ListedRegistry]) -> None:
        entries = [
            {
                "name": each.name,
                "key": str(each.peer.key),
                "addresses": list(each.peer.addresses),
                "readers": each.readers,
            }
            for each in sorted(registries, key=lambda each: each.name)
        ]
        save_list(self._home.registries_file, "registries", entries)


def _read(entry: strictjson.Fields, version: int) -> ListedRegistry:
    return ListedRegistry(
        Peer(
            entry.string("name", limit=800),
            PublicKey.parse(entry.take("key")),
            entry.strings("addresses", limit=MAX_ADDRESSES, each=300),
            (),
        ),
        entry.string("readers", limit=MAX_READER_BYTES),
    )
