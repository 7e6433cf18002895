"""This node's two keys, the signers it trusts and the peers it knows.

A signer vouches for bytes, a peer merely carries them: the two are different keys and different
lists, and neither implies the other. Identity is the key, never an address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from kvsync.config import Home, is_host
from kvsync.errors import NotFoundError, StoreError, UsageError
from kvsync.files import exclusive, read_limited, write_atomic
from kvsync_protocol import strictjson
from kvsync_protocol.errors import ProtocolError
from kvsync_protocol.limits import MAX_LIST_ENTRIES, MiB
from kvsync_protocol.ref import check_name
from kvsync_protocol.signing import PublicKey, SigningKey

T = TypeVar("T")

ROLES: Final = ("get", "push")
MAX_LIST_BYTES: Final = 16 * MiB
"""More than 1,000 peers of 16 long addresses each."""
MAX_ADDRESSES: Final = 16
MAX_ADDRESS_CHARS: Final = 300


@dataclass(frozen=True, slots=True)
class NodeKeys:
    """`signer` vouches for what this node computes; `peer` is its identity on the network."""

    signer: SigningKey
    peer: SigningKey

    @classmethod
    def create(cls, home: Home) -> NodeKeys:
        """Write fresh keys, 0600. Existing ones are kept, so `init` may be run twice, even at once."""
        with exclusive(home.lock_file):
            for name in ("signer", "peer"):
                if not (home.keys_dir / f"{name}.key").exists():
                    write_atomic(home.keys_dir / f"{name}.key", SigningKey.generate().seed.hex().encode() + b"\n")
        return cls.load(home)

    @classmethod
    def load(cls, home: Home) -> NodeKeys:
        """Raises StoreError: `home.*`, `keys.lax_mode`, `keys.damaged`."""
        home.require()
        return cls(_load_key(home.keys_dir / "signer.key"), _load_key(home.keys_dir / "peer.key"))


def _load_key(path: Path) -> SigningKey:
    text = read_limited(path, 1024, what="the key file", lax_code="keys.lax_mode")
    try:
        return SigningKey(bytes.fromhex(text.decode("ascii").strip()))
    except (ValueError, ProtocolError) as error:
        raise StoreError("keys.damaged", f"{path} does not hold a key", hint="restore it from a backup") from error


@dataclass(frozen=True, slots=True)
class Signer:
    """A key whose signatures count here."""

    name: str
    key: PublicKey


@dataclass(frozen=True, slots=True)
class Peer:
    """A key that may connect and be connected to. `roles` is what it may do here."""

    name: str
    key: PublicKey
    addresses: tuple[str, ...] = ()
    roles: tuple[str, ...] = ("get",)

    def __post_init__(self) -> None:
        check_name(self.name)
        unknown = set(self.roles) - set(ROLES)
        if unknown:
            raise UsageError("peer.role", f"unknown role {min(unknown)!r}", hint=f"roles are {', '.join(ROLES)}")
        if len(self.addresses) > MAX_ADDRESSES:
            raise UsageError("peer.address", f"more than {MAX_ADDRESSES} addresses")
        for address in self.addresses:
            split_address(address)


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


class TrustList:
    """Trusted signers, in `trust.json`. The node's own signer is always among `keys`."""

    def __init__(self, home: Home, own: PublicKey) -> None:
        self._path = home.trust_file
        self._lock = home.lock_file
        self._own = own

    def signers(self) -> list[Signer]:
        """Raises StoreError `trust.damaged`."""
        return _load_list(self._path, "trust", _read_signer)

    def keys(self) -> frozenset[PublicKey]:
        return frozenset({self._own, *(signer.key for signer in self.signers())})

    def add(self, name: str, key: PublicKey) -> None:
        """Raises UsageError: `trust.exists` when name or key is taken by another, `trust.full`."""
        with exclusive(self._lock):
            kept = [s for s in self.signers() if s != Signer(name, key)]
            if any(s.name == name or s.key == key for s in kept):
                raise UsageError("trust.exists", f"{name!r} or its key is already trusted", hint="kvsync trust ls")
            self._save([*kept, Signer(check_name(name), key)])

    def remove(self, name_or_key: str) -> Signer:
        """Raises NotFoundError `trust.unknown`."""
        with exclusive(self._lock):
            signers = self.signers()
            found = next((s for s in signers if name_or_key in (s.name, str(s.key))), None)
            if found is None:
                raise NotFoundError(
                    "trust.unknown", f"{name_or_key!r} is not a trusted signer", hint="kvsync trust ls"
                )
            self._save([s for s in signers if s != found])
        return found

    def _save(self, signers: Iterable[Signer]) -> None:
        entries = [{"name": s.name, "key": str(s.key)} for s in sorted(signers, key=lambda s: s.name)]
        _save_list(self._path, "trust", entries)


class PeerBook:
    """Known peers, in `peers.json`."""

    def __init__(self, home: Home) -> None:
        self._path = home.peers_file
        self._lock = home.lock_file

    def peers(self) -> list[Peer]:
        """Raises StoreError `peers.damaged`."""
        return _load_list(self._path, "peers", _read_peer)

    def get(self, name_or_key: str) -> Peer:
        """Raises NotFoundError `peer.unknown`."""
        found = next((p for p in self.peers() if name_or_key in (p.name, str(p.key))), None)
        if found is None:
            raise NotFoundError("peer.unknown", f"{name_or_key!r} is not a known peer", hint="kvsync peer ls")
        return found

    def by_key(self, key: PublicKey) -> Peer | None:
        return next((p for p in self.peers() if p.key == key), None)

    def add(self, peer: Peer) -> None:
        """Add, or replace the entry of the same name and key. Raises UsageError `peer.exists`, `peers.full`."""
        with exclusive(self._lock):
            kept = [p for p in self.peers() if (p.name, p.key) != (peer.name, peer.key)]
            if any(p.name == peer.name or p.key == peer.key for p in kept):
                raise UsageError("peer.exists", f"{peer.name!r} or its key is another peer's", hint="kvsync peer ls")
            self._save([*kept, peer])

    def remove(self, name_or_key: str) -> Peer:
        """Raises NotFoundError `peer.unknown`."""
        with exclusive(self._lock):
            found = self.get(name_or_key)
            self._save([p for p in self.peers() if p.key != found.key])
        return found

    def _save(self, peers: Iterable[Peer]) -> None:
        entries = [
            {"name": p.name, "key": str(p.key), "addresses": list(p.addresses), "roles": list(p.roles)}
            for p in sorted(peers, key=lambda p: p.name)
        ]
        _save_list(self._path, "peers", entries)


def _read_signer(entry: strictjson.Fields) -> Signer:
    return Signer(check_name(entry.string("name", limit=800)), PublicKey.parse(entry.take("key")))


def _read_peer(entry: strictjson.Fields) -> Peer:
    return Peer(
        entry.string("name", limit=800),
        PublicKey.parse(entry.take("key")),
        tuple(str(address) for address in entry.array("addresses", limit=MAX_ADDRESSES)),
        tuple(str(role) for role in entry.array("roles", limit=len(ROLES))),
    )


def _load_list(path: Path, family: str, read: Callable[[strictjson.Fields], T]) -> list[T]:
    """The entries of a list file; none when there is no file. Raises StoreError `<family>.damaged`."""
    try:
        data = read_limited(path, MAX_LIST_BYTES, what="the list")
    except NotFoundError:
        return []
    try:
        top = strictjson.Fields(strictjson.loads(data, limit=MAX_LIST_BYTES, what=path.name), family)
        top.integer("version", 1, 1)
        found = []
        for value in top.array("entries", limit=MAX_LIST_ENTRIES):
            entry = strictjson.Fields(value, family)
            found.append(read(entry))
            entry.done()
        top.done()
    except (ProtocolError, UsageError) as error:
        raise StoreError(
            f"{family}.damaged", f"{path} is damaged: {error.message}", hint="restore or remove it"
        ) from error
    return found


def _save_list(path: Path, family: str, entries: Sequence[Mapping[str, object]]) -> None:
    """Replace the file, unless the reader would refuse it. Raises UsageError `<family>.full`."""
    data = strictjson.dumps({"version": 1, "entries": entries})
    if len(entries) > MAX_LIST_ENTRIES or len(data) > MAX_LIST_BYTES:
        raise UsageError(f"{family}.full", f"{path.name} takes at most {MAX_LIST_ENTRIES} entries")
    write_atomic(path, data)
