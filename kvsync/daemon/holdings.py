"""What this node can tell registries: the artifacts it serves, their names and what auditors said, and to whom.

    store ─► Held (keys of the full blocks, names)  ─┐
    peers ─► who may see which names                ─┴─► Holding per artifact, Word per name, for each audience

Whoever may not see an artifact here must not learn of it from a registry either. Knows no network.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kvsync.errors import KvsyncError
from kvsync.keys import Peer, PeerBook, TrustList
from kvsync.keys.registries import PEERS
from kvsync.peer.registry_link import Holding
from kvsync.peer.registry_vouching import Word
from kvsync.store import Store, StoredArtifact
from kvsync_protocol.announcement import MAX_ANNOUNCED_KEYS
from kvsync_protocol.digest import ArtifactId, PrefixKey
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import ProtocolError
from kvsync_protocol.limits import MAX_SIGNATURES
from kvsync_protocol.prefix import block_keys, start_key
from kvsync_protocol.reader import MAX_READERS, MEMBERS
from kvsync_protocol.registry_messages import Vouched

OWN_MEMBERS: Final = "own"
"""The audience of the embedded registry: its members are this node's peers."""

AGAIN_S: Final = 600.0
"""The store is looked at again after so long, whatever its folders say."""
REST: Final = 9.0
"""A look may take a tenth of the time."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Held:
    """What is announced of an artifact, and does not change while it is here."""

    stored: StoredArtifact
    keys: tuple[PrefixKey, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything at one moment. `audience` is `OWN_MEMBERS`, or the readers that a listed registry names."""

    held: tuple[_Held, ...] = ()
    names: dict[ArtifactId, tuple[str, ...]] = field(default_factory=dict)
    refs: tuple[tuple[str, ArtifactId, Vouched], ...] = ()
    attested: tuple[Word, ...] = ()
    peers: tuple[Peer, ...] = ()

    def holdings(self, audience: str) -> Iterator[Holding]:
        for one in self.held:
            stored, prints = one.stored, one.stored.manifest.fingerprints
            readers = self._readers(self.names.get(stored.artifact, ()), audience)
            if readers:
                yield Holding(
                    stored.artifact,
                    prints.compatibility.digest,
                    prints.numerics.digest,
                    one.keys,
                    stored.manifest.tree.total_bytes,
                    readers,
                )

    def words(self, audience: str) -> Iterator[Word]:
        """Names of what is here, then attestations."""
        here = {one.stored.artifact for one in self.held}
        for name, artifact, vouched in self.refs:
            readers = self._readers((name,), audience)
            if artifact in here and readers:
                yield Word(Vouched(vouched.signers, vouched.envelope, readers))
        yield from self.attested

    def _readers(self, names: Sequence[str], audience: str) -> tuple[str, ...]:
        """Who may learn of something with these names, at most 16; nobody when there is nobody."""
        if audience not in (OWN_MEMBERS, PEERS):
            return (audience,)
        asking = [peer for peer in self.peers if "get" in peer.roles]
        seeing = [peer for peer in asking if peer.sees(names)]
        if audience == OWN_MEMBERS and len(seeing) == len(asking):
            return (MEMBERS,)
        keys = sorted(str(key) for peer in seeing for key in peer.keys)
        if len(keys) > MAX_READERS:
            log.warning("%d peers may see %s, a registry tells %d of them", len(keys), names, MAX_READERS)
        return tuple(keys[:MAX_READERS])


class Holdings:
    """Looks at the store and the lists again whenever they have changed. For one thread at a time."""

    def __init__(self, store: Store, trust: TrustList, book: PeerBook) -> None:
        self._store = store
        self._trust = trust
        self._book = book
        self._known: dict[ArtifactId, _Held] = {}
        self._seen: tuple[int, ...] = ()
        self._looked = 0.0
        self._rest_until = 0.0

    def changed(self) -> bool:
        """True at first, after a change, and once more a little later: a folder's time may be coarse.

        Also now and then, for what changes no folder: attestations, and names that expire. After a look that took
        long there is a rest, so that a large store that changes all the time is not looked at all the time.
        """
        if time.monotonic() < self._rest_until:
            return False
        home = self._trust.home
        folders = [home.store_dir / name for name in ("artifacts", "refs", "refuted")]
        files = [home.peers_file, home.trust_file, home.statements_file]
        seen = tuple(_changed_ns(path) for path in (*folders, *files))
        latest, now = max(seen) / 1e9, time.time()
        settled = self._looked > latest + 1.0 or latest > now + 1.0  # of a clock that was set back, nothing follows
        if seen == self._seen and settled and abs(now - self._looked) < AGAIN_S:
            return False
        self._seen = seen
        return True

    def look(self) -> Picture:
        """Raises StoreError, UnavailableError `store.*`; StoreError `peers.damaged`, `trust.damaged`."""
        self._looked, began = time.time(), time.monotonic()
        refuted = self._store.evidence.refuted()
        # What was described once does not change, and what is here in part is told to nobody.
        whole = [artifact for artifact, all_of_it in self._store.kept().items() if all_of_it]
        known = {a: self._known.get(a) or self._describe(a) for a in whole if a not in refuted}
        self._known = {artifact: held for artifact, held in known.items() if held is not None}
        now, names = time.time(), dict[ArtifactId, tuple[str, ...]]()
        refs = []
        for ref in self._store.refs():
            if ref.expires is None or now <= ref.expires:
                names[ref.artifact] = (*names.get(ref.artifact, ()), ref.name)
                refs.append((ref.name, ref.artifact, Vouched(ref.signers[:MAX_SIGNATURES], ref.envelope)))
        attested = [word for artifact in self._known for word in self._attestations(artifact)]
        self._rest_until = time.monotonic() + REST * (time.monotonic() - began)
        return Picture(tuple(self._known.values()), names, tuple(refs), tuple(attested), tuple(self._book.peers()))

    def _describe(self, artifact: ArtifactId) -> _Held | None:
        """None for one of which something is missing: a registry takes it that whoever has a block has all before."""
        stored = self._store.whole(artifact)
        if stored is None or stored.extent is not None:
            return None
        manifest = stored.manifest
        count = min(manifest.layout.full_blocks, MAX_ANNOUNCED_KEYS)
        keys = block_keys(start_key(manifest.fingerprints), stored.tokens(), manifest.schedule)
        return _Held(stored, tuple(key for _, key in zip(range(count), keys, strict=False)))

    def _attestations(self, artifact: ArtifactId) -> Iterable[Word]:
        trusted = self._trust.keys()
        for envelope in self._envelopes(artifact):
            signers = tuple(sorted(envelope.signers(trusted)))[:MAX_SIGNATURES]
            if signers:
                yield Word(Vouched(signers, envelope), artifact)

    def _envelopes(self, artifact: ArtifactId) -> list[Envelope]:
        try:
            return self._store.attestations(artifact)
        except (KvsyncError, ProtocolError):
            return []  # removed meanwhile, or damaged: fsck says so


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
