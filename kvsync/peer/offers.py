"""Offers: pushes that other peers have under way here, from the envelope to the commit.

    open (envelope verified) ─► leaves, tokens ─► draft: missing, put … ─► commit
        └────────────── nothing for a while: expired, verified chunks stay for a resume

An offer belongs to the peer that made it; nobody else can see, feed or end it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

from kvsync.errors import NotFoundError, StoreError, UnavailableError, UsageError
from kvsync.store import PullDraft, Store, StoredArtifact
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.divergence import Described
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.leaves import LeafTable
from kvsync_protocol.manifest import Manifest
from kvsync_protocol.signing import PublicKey

MAX_OFFERS: Final = 16


class Offer:
    """One push under way. Safe for several threads; it is not closed while one is inside `use`.

    Only a thread that runs may be inside: one that waits for its turn would hold up those that close offers.

    A `secretive` one is of somebody who may not know what is here: it asks for every chunk, here or not.
    """

    def __init__(self, envelope: Envelope, manifest: Manifest, *, secretive: bool = False) -> None:
        self.envelope = envelope
        self.manifest = manifest
        self._came: set[int] | None = set() if secretive else None
        self._leaves: bytes | None = None
        self._tokens: bytes | None = None
        self._draft: PullDraft | None = None
        self._published: StoredArtifact | None = None
        self._users = 0
        self._closed = False
        self._touched = time.monotonic()
        self._lock = threading.Condition()
        self._opening = threading.Lock()  # and publishing; apart: opening may wait for another transfer

    @contextmanager
    def use(self) -> Iterator[None]:
        """Keep the offer open meanwhile. Raises NotFoundError `offer.unknown` when it is closed."""
        with self._lock:
            if self._closed:
                raise unknown_offer()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                self._touched = time.monotonic()
                self._lock.notify_all()

    def add_leaves(self, data: bytes) -> None:
        """Raises IntegrityError `integrity.leaf_table`, `integrity.root`, `leaves.layout`."""
        with self.use():
            self.manifest.check_leaves(data)
            self._leaves = data

    def add_tokens(self, data: bytes) -> None:
        """Raises IntegrityError `integrity.tokens`."""
        with self.use():
            self.manifest.check_tokens(data)
            self._tokens = data

    def begin(self, store: Store, deadline: float, judge: Callable[[Described], None]) -> list[int]:
        """Open the draft; the leaves to ask the peer for. Raises as `draft`."""
        with self.use():
            return self.missing(self.draft(store, deadline, judge))

    def draft(self, store: Store, deadline: float, judge: Callable[[Described], None]) -> PullDraft:
        """The draft, opened when leaves and tokens are there and `judge` has found nothing against them.

        Raises:
            UsageError: `offer.incomplete`.
            StoreError: `store.full`; UnavailableError: `store.busy`.
        """
        with self._opening:
            if self._draft is None:
                if self._leaves is None or self._tokens is None:
                    raise UsageError("offer.incomplete", "leaves and tokens come before chunks")
                table, tokens = self.manifest.check_leaves(self._leaves), self.manifest.check_tokens(self._tokens)
                judge(Described(self.envelope, self.manifest, table, tokens))
                self._draft = store.pull_draft(
                    self.envelope, self.manifest, self._leaves, self._tokens, deadline=deadline
                )
            return self._draft

    @property
    def leaf_table(self) -> LeafTable | None:
        """Known once the draft is open."""
        return None if self._draft is None else self._draft.leaves

    def missing(self, draft: PullDraft) -> list[int]:
        """The leaves to ask the peer for."""
        if self._came is None:
            return draft.missing()
        return [index for index in range(len(draft.leaves.leaves)) if index not in self._came]

    def put(self, index: int, data: memoryview) -> None:
        """Raises UsageError `offer.incomplete`, IntegrityError `integrity.chunk`, StoreError `store.full`."""
        if self._draft is None:
            raise UsageError("offer.incomplete", "leaves and tokens come before chunks")
        self._draft.put(index, data)
        if self._came is not None:
            self._came.add(index)

    def publish(self) -> StoredArtifact:
        """Publish once, however often and from however many connections it is asked for.

        Raises:
            UsageError: `offer.incomplete`; StoreError: `store.incomplete`; otherwise as `PullDraft.publish`.
        """
        with self._opening:
            if self._published is None:
                if self._draft is None:
                    raise UsageError("offer.incomplete", "leaves and tokens come before the commit")
                left = len(self.missing(self._draft))
                if left:
                    raise StoreError("store.incomplete", f"{left} chunks have not come", missing=left)
                self._published = self._draft.publish()
            return self._published

    def idle_for(self) -> float:
        """Seconds since the last use ended, 0 while in use."""
        with self._lock:
            return 0.0 if self._users else time.monotonic() - self._touched

    def close(self) -> None:
        """Wait for those inside `use`, then let go of the draft; verified chunks stay."""
        with self._lock:
            self._closed = True
            self._lock.wait_for(lambda: self._users == 0)
            if self._draft is not None:
                self._draft.close()
                self._draft = None


class Offers:
    """All open offers of a server. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[tuple[PublicKey, ArtifactId], Offer] = {}

    def open(self, peer: PublicKey, envelope: Envelope, manifest: Manifest, *, secretive: bool = False) -> Offer:
        """Begin, or go on with what the same peer has open: two pushes of one artifact help each other.

        Raises:
            UnavailableError: `offer.too_many`.
        """
        name = (peer, manifest.artifact)
        with self._lock:
            if name not in self._open:
                if len(self._open) >= MAX_OFFERS:
                    raise UnavailableError("offer.too_many", "too many pushes at once", hint="try again later")
                self._open[name] = Offer(envelope, manifest, secretive=secretive)
            return self._open[name]

    def find(self, peer: PublicKey, artifact: ArtifactId) -> Offer:
        """Raises NotFoundError `offer.unknown`."""
        with self._lock:
            found = self._open.get((peer, artifact))
        if found is None:
            raise unknown_offer()
        return found

    def count(self) -> int:
        with self._lock:
            return len(self._open)

    def end(self, peer: PublicKey, artifact: ArtifactId) -> None:
        """Forget an offer, closing its draft."""
        with self._lock:
            found = self._open.pop((peer, artifact), None)
        if found is not None:
            found.close()

    def expire(self, seconds: float, busy: Collection[PublicKey] = ()) -> None:
        """End offers that nobody touched for so long; not of peers that are `busy`: a chunk may take longer."""
        with self._lock:
            names = [name for name, offer in self._open.items() if offer.idle_for() > seconds]
        for peer, artifact in (name for name in names if name[0] not in busy):
            self.end(peer, artifact)

    def end_all(self) -> None:
        self.expire(float("-inf"))


def unknown_offer() -> NotFoundError:
    return NotFoundError("offer.unknown", "no such push is under way", hint="begin it again; nothing is lost")
