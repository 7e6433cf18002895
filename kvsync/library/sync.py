"""Take a library's entries and passages from a peer: its list, those that are not here, and then their artifacts.

    hello ─► list ─► entries not here ─► signature, address ─► (verifier again) ─► pull the artifact ─► listed here
             signed   each by digest      keys that count

An entry is listed when all of its artifact is here. One that is refused is named with the reason and harms no
other. What a trusted list has in quarantine leaves this library as well, with its history; so does a passage that a
list of its own signer has no more, since the document has changed or is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from kvsync.config import Settings
from kvsync.errors import NotFoundError, UnavailableError
from kvsync.graft.deposit import set_name
from kvsync.keys import NodeKeys, Peer, TrustList
from kvsync.library.entries import EntryStore, finding
from kvsync.library.library import artifact_name
from kvsync.library.reading import parse_any
from kvsync.library.verifiers import Verdict
from kvsync.peer.client import PeerClient
from kvsync.progress import Progress, silent
from kvsync.store import Store
from kvsync.sync import pull
from kvsync.sync.transfer import Transfer
from kvsync_protocol import library as list_format
from kvsync_protocol.digest import Digest, sha256
from kvsync_protocol.entry import Entry
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import CodedError, IntegrityError, MalformedError, TrustError
from kvsync_protocol.fingerprint import Fingerprints
from kvsync_protocol.library import LibraryList
from kvsync_protocol.passage import Passage
from kvsync_protocol.successor import SIGNER

Judge = Callable[[Entry], Verdict]
"""Runs an entry's verifier again."""


@dataclass(frozen=True, slots=True)
class SyncReport:
    """Entries and passages taken, refused with the code of why, put in quarantine, and withdrawn by their signer;
    `bytes_moved` of artifacts."""

    library: str
    peer: str
    offered: int
    taken: tuple[Digest, ...]
    refused: dict[Digest, str]
    quarantined: tuple[Digest, ...]
    withdrawn: tuple[Digest, ...]
    verified: int
    bytes_moved: int

    def as_dict(self) -> dict[str, object]:
        return {
            "library": self.library,
            "peer": self.peer,
            "offered": self.offered,
            "taken": [str(digest) for digest in self.taken],
            "refused": {str(digest): code for digest, code in self.refused.items()},
            "quarantined": [str(digest) for digest in self.quarantined],
            "withdrawn": [str(digest) for digest in self.withdrawn],
            "verified": self.verified,
            "bytes_moved": self.bytes_moved,
        }


@dataclass(slots=True)
class _Tally:
    taken: list[Digest] = field(default_factory=list)
    refused: dict[Digest, str] = field(default_factory=dict)
    quarantined: list[Digest] = field(default_factory=list)
    withdrawn: list[Digest] = field(default_factory=list)
    verified: int = 0
    bytes_moved: int = 0


class LibrarySync:
    """One library, one peer. `fingerprints` are those of the model it is for, None to carry artifacts of any.

    With `judge` an entry's verifier runs again before it is taken, and for those that are here already; those that
    fail are quarantined.
    """

    def __init__(
        self,
        library: EntryStore,
        store: Store,
        trust: TrustList,
        peer: Peer,
        *,
        keys: NodeKeys,
        settings: Settings,
        fingerprints: Fingerprints | None = None,
        judge: Judge | None = None,
        progress: Progress = silent,
    ) -> None:
        self._library = library
        self._store = store
        self._trust = trust
        self._peer = peer
        self._keys = keys
        self._settings = settings
        self._fingerprints = fingerprints
        self._judge = judge
        self._progress = progress
        self._tally = _Tally()

    async def run(self) -> SyncReport:
        """Raises as `kvsync.sync.pull` for the peer as a whole; NotFoundError `library.unknown`; TrustError
        `trust.untrusted_signer`, `trust.rollback` for its list; MalformedError `library.*`."""
        transfer = Transfer("library", [self._peer], self._keys, self._settings, self._progress, dry_run=False)
        async with transfer.contact(self._peer) as contact:
            client = contact.client
            await client.hello()
            envelope = await client.library(self._library.name)
            offered = await asyncio.to_thread(self._judged_list, envelope)
            if not self._library.shelf.exists():
                await asyncio.to_thread(self._library.create)
            await asyncio.to_thread(self._quarantine, offered)
            if self._judge is not None:
                await asyncio.to_thread(self._judge_again, self._judge)
            for number, digest in enumerate(await asyncio.to_thread(self._lacking, offered)):
                self._progress("entries", number, len(offered.entries), "entries")
                await self._take(client, digest)
            await asyncio.to_thread(self._withdraw, envelope, offered)
            await asyncio.to_thread(self._remember, envelope, offered)
        tally = self._tally
        return SyncReport(
            self._library.name,
            self._peer.name,
            len(offered.entries),
            tuple(tally.taken),
            tally.refused,
            tuple(tally.quarantined),
            tuple(tally.withdrawn),
            tally.verified,
            tally.bytes_moved,
        )

    def _judged_list(self, envelope: Envelope) -> LibraryList:
        """The peer's list, signed by a key that counts for the name, and not older than one taken before."""
        keys = self._trust.keys(self._library.name)
        verified = envelope.verify(list_format.PAYLOAD_TYPE, keys)
        offered = LibraryList.parse(verified)
        if offered.name != self._library.name:
            raise MalformedError("library.name", f"the peer answered with the library {offered.name!r}")
        seen = self._library.shelf.seen()
        if any(offered.sequence < seen.get(signer, 0) for signer in verified.signers):
            raise TrustError(
                "trust.rollback",
                f"the list of {offered.name!r} is number {offered.sequence}, an older one than was taken before",
                hint="the peer is behind, or somebody plays back an old list",
            )
        return offered

    def _remember(self, envelope: Envelope, offered: LibraryList) -> None:
        with self._library.shelf.changing():
            for signer in envelope.signers(self._trust.keys(self._library.name)):
                self._library.shelf.mark_seen(signer, offered.sequence)

    def _lacking(self, offered: LibraryList) -> list[Digest]:
        ours = self._library.listing()
        known = {*ours.entries, *(each.entry for each in ours.quarantined)}
        return [digest for digest in offered.entries if digest not in known]

    def _quarantine(self, offered: LibraryList) -> None:
        """What the peer's list believes no more, of what this one believes."""
        ours = set(self._library.listing().entries)
        for each in offered.quarantined:
            if each.entry in ours:
                self._library.quarantine(each.entry, *each.history)
                self._tally.quarantined.append(each.entry)

    def _withdraw(self, envelope: Envelope, offered: LibraryList) -> None:
        """Drop passages that nobody but the signers of this list has signed, and that are in it no more.

        The keys that follow each other in a rotation are one signer. After the new ones were taken, so that a
        document is never without its passages.
        """
        found, now = envelope.signers(self._trust.keys(self._library.name)), self._trust.standing()
        signers = {*found, *(old for key in found for old in now.follows(SIGNER, key))}
        offers = {*offered.entries}
        gone = [
            stored.digest
            for stored in self._library.passages()
            if stored.signers and signers.issuperset(stored.signers) and stored.digest not in offers
        ]
        if gone:
            self._library.change((), gone)
            self._tally.withdrawn += gone
        for digest in gone:
            with contextlib.suppress(NotFoundError):
                self._store.remove_ref(artifact_name(self._library.name, digest))

    def _judge_again(self, judge: Judge) -> None:
        """Entries that are here already, by their own verifiers."""
        for stored in [each for each in self._library.entries() if each.signers]:
            try:
                verdict = judge(stored.entry)
            except CodedError as error:
                self._tally.refused[stored.digest] = error.code  # not judged: no reason to believe it less
                continue
            self._tally.verified += 1
            if not verdict.passed:
                reason = f"fails {stored.entry.verifier.name} again: {verdict.detail}"
                self._library.quarantine(stored.digest, finding(reason))
                self._tally.quarantined.append(stored.digest)

    async def _take(self, client: PeerClient, digest: Digest) -> None:
        """One entry with its artifact, or the reason why not."""
        try:
            envelope = await client.entry(self._library.name, digest)
            entry = await asyncio.to_thread(self._accepted, envelope, digest)
            report = await pull(
                self._store,
                self._trust,
                self._peer,
                str(entry.artifact),
                keys=self._keys,
                settings=self._settings,
                fingerprints=self._fingerprints,
                progress=self._progress,
            )
            await asyncio.to_thread(self._keep, envelope, entry)
        except UnavailableError:
            raise
        except CodedError as error:
            self._tally.refused[digest] = error.code
        else:
            self._tally.taken.append(digest)
            self._tally.bytes_moved += report.bytes_moved

    def _accepted(self, envelope: Envelope, digest: Digest) -> Entry | Passage:
        """Raises the reason against an entry."""
        if sha256(envelope.payload) != digest:
            raise IntegrityError("entry.digest", "the peer answered with another entry", hint="ask another peer")
        entry = parse_any(envelope)
        envelope.verify(envelope.payload_type, self._trust.keys(self._library.name))
        if self._judge is not None and isinstance(entry, Entry):
            verdict = self._judge(entry)
            self._tally.verified += 1
            if not verdict.passed:
                raise IntegrityError("entry.fails", f"the solution does not pass here: {verdict.detail}")
        return entry

    def _keep(self, envelope: Envelope, entry: Entry | Passage) -> None:
        manifest = self._store.artifact(entry.artifact).manifest
        if (manifest.tokens.digest, manifest.tokens.count) != (entry.tokens_digest, entry.tokens):
            raise IntegrityError("entry.tokens", "the entry speaks of other tokens than its artifact holds")
        self._library.add(envelope)
        signer = self._keys.current().signer
        set_name(self._store, signer, artifact_name(self._library.name, entry.digest), entry.artifact)
