"""Known peers, in `peers.json`: which keys may connect, where they are, and what they may do here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from kvsync.config import MAX_RATE, MIN_RATE, Home, is_host
from kvsync.errors import NotFoundError, UsageError
from kvsync.files import exclusive
from kvsync.keys.lists import load_list, save_list
from kvsync.keys.patterns import MAX_PATTERNS, check_patterns, covers
from kvsync.keys.standing import standing
from kvsync_protocol import strictjson
from kvsync_protocol.join import ANCHOR_SEED
from kvsync_protocol.limits import MAX_ROLES
from kvsync_protocol.ref import check_name
from kvsync_protocol.signing import PublicKey, SigningKey
from kvsync_protocol.successor import PEER

ROLES: Final = ("get", "push", "compute", "audit")
"""What a peer may do here: fetch artifacts, send some, ask for computations, leave attestations."""
MAX_ADDRESSES: Final = 16
MAX_ADDRESS_CHARS: Final = 300
_EVERYBODY: Final = SigningKey(ANCHOR_SEED).public


@dataclass(frozen=True, slots=True)
class Peer:
    """A key that may connect and be connected to. `roles` is what it may do here.

    `names` are patterns of the names whose artifacts it may see, all artifacts when there are none. `pins` are
    the keys that prove it now: its own, during a rotation also the next one, none when all are revoked. `rate` is
    how many bytes of chunks a second go to it, and come from it, at most; 0 for no limit.
    """

    name: str
    key: PublicKey
    addresses: tuple[str, ...] = ()
    roles: tuple[str, ...] = ("get",)
    names: tuple[str, ...] = ()
    pins: tuple[PublicKey, ...] | None = None
    rate: int = 0
    paused: bool = False

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.key == _EVERYBODY:
            raise UsageError("peer.key", "everybody holds the private half of this key")
        check_roles(self.roles)
        check_rate(self.rate)
        check_patterns(self.names)
        if len(self.addresses) > MAX_ADDRESSES:
            raise UsageError("peer.address", f"more than {MAX_ADDRESSES} addresses")
        for address in self.addresses:
            split_address(address)

    @property
    def keys(self) -> tuple[PublicKey, ...]:
        """The keys that prove this peer now, oldest first."""
        return (self.key,) if self.pins is None else self.pins

    def sees(self, names: Iterable[str]) -> bool:
        """True when the peer may see an artifact of these names."""
        return not self.names or any(covers(self.names, name) for name in names)


def check_roles(roles: Iterable[str]) -> tuple[str, ...]:
    """Each once. Raises UsageError `peer.role`."""
    found = tuple(dict.fromkeys(roles))
    unknown = set(found) - set(ROLES)
    if unknown:
        raise UsageError("peer.role", f"unknown role {min(unknown)!r}", hint=f"roles are {', '.join(ROLES)}")
    return found


def check_rate(rate: int) -> int:
    """Bytes per second, or 0. Raises UsageError `rate.range`."""
    if rate and not MIN_RATE <= rate <= MAX_RATE:
        raise UsageError(
            "rate.range", f"a rate of {rate} bytes/s is not in {MIN_RATE}..{MAX_RATE}", hint="0 for none"
        )
    return rate


def split_address(address: str) -> tuple[str, int]:
    """`host:port`, with an IPv6 host in brackets. Raises UsageError `peer.address`."""
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if (
        not is_host(host)
        or len(address) > MAX_ADDRESS_CHARS
        or not port.isascii()
        or not port.isdigit()
        or not 0 < int(port) < 65536
    ):
        raise UsageError("peer.address", f"{address!r} is not an address", hint="use host:port or [ipv6]:port")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """The inverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class PeerBook:
    """Known peers."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._path = home.peers_file
        self._lock = home.lock_file

    def peers(self) -> list[Peer]:
        """As listed, each with the keys that prove it now.

        Raises:
            StoreError: `peers.damaged`, `trust.damaged`, `statements.damaged`.
        """
        now = standing(self._home)
        found = []
        for peer in self._listed():
            pins = now.current(PEER, peer.key)
            found.append(peer if pins == (peer.key,) else replace(peer, pins=pins))
        return found

    def get(self, name_or_key: str) -> Peer:
        """Raises NotFoundError `peer.unknown`."""
        found = next((p for p in self.peers() if name_or_key in (p.name, str(p.key), *map(str, p.keys))), None)
        if found is None:
            raise NotFoundError("peer.unknown", f"{name_or_key!r} is not a known peer", hint="kvsync peer ls")
        return found

    def by_key(self, key: PublicKey) -> Peer | None:
        return next((p for p in self.peers() if key == p.key or key in p.keys), None)

    def add(self, peer: Peer) -> None:
        """Add, or replace the entry of the same name and key. Raises UsageError `peer.exists`, `peers.full`."""
        with exclusive(self._lock):
            self.add_locked(peer)

    def add_locked(self, peer: Peer) -> None:
        """`add` for a caller that holds the home's lock already."""
        kept = self.check_free(peer)
        before = [each for each in self._listed() if each not in kept]
        if before and not peer.rate and not peer.paused:
            peer = replace(peer, rate=before[0].rate, paused=before[0].paused)
        self._save([*kept, peer])

    def limit(self, name_or_key: str, *, rate: int | None = None, paused: bool | None = None) -> Peer:
        """Change how fast bytes move to and from a peer, and whether they do; None leaves it.

        Raises NotFoundError `peer.unknown`; UsageError `rate.range`.
        """
        with exclusive(self._lock):
            found = self.get(name_or_key)
            changed = replace(
                found,
                rate=found.rate if rate is None else rate,
                paused=found.paused if paused is None else paused,
                pins=None,
            )
            self._save([*(peer for peer in self._listed() if peer.key != found.key), changed])
        return changed

    def check_free(self, peer: Peer) -> list[Peer]:
        """The other peers, none of whom has this one's name or key. Raises UsageError `peer.exists`."""
        now = standing(self._home)
        kept = [p for p in self._listed() if p.name != peer.name or peer.key not in now.chain(PEER, p.key)]
        if any(p.name == peer.name or peer.key in now.chain(PEER, p.key) for p in kept):
            raise UsageError("peer.exists", f"{peer.name!r} or its key is another peer's", hint="kvsync peer ls")
        return kept

    def remove(self, name_or_key: str) -> Peer:
        """Raises NotFoundError `peer.unknown`."""
        with exclusive(self._lock):
            found = self.get(name_or_key)
            self._save([p for p in self._listed() if p.key != found.key])
        return found

    def _listed(self) -> list[Peer]:
        return load_list(self._path, "peers", _read)

    def _save(self, peers: Iterable[Peer]) -> None:
        entries = [
            {
                "name": p.name,
                "key": str(p.key),
                "addresses": list(p.addresses),
                "roles": list(p.roles),
                "names": list(p.names),
                **({"rate": p.rate} if p.rate else {}),
                **({"paused": True} if p.paused else {}),
            }
            for p in sorted(peers, key=lambda p: p.name)
        ]
        save_list(self._path, "peers", entries)


def _read(entry: strictjson.Fields, version: int) -> Peer:
    return Peer(
        entry.string("name", limit=800),
        PublicKey.parse(entry.take("key")),
        tuple(str(address) for address in entry.array("addresses", limit=MAX_ADDRESSES)),
        entry.strings("roles", limit=MAX_ROLES, each=64),
        entry.strings("names", limit=MAX_PATTERNS, each=800) if version > 1 else (),
        rate=entry.optional("rate", lambda name: entry.integer(name, MIN_RATE, MAX_RATE)) or 0,
        paused=entry.optional("paused", entry.boolean) or False,
    )
