"""`EntryStore`: the entries and passages of one library, who signed them, and which of them may answer.

An entry answers when it stands in the list, is in no quarantine, lies under its address, and is signed by a key that
counts here, now, for the library's name. Knows neither models nor verifiers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvsync.config import Home
from kvsync.errors import NotFoundError, StoreError, UsageError
from kvsync.keys import TrustList
from kvsync.library.index import EntryIndex, Listed, words
from kvsync.library.problem import Problem
from kvsync.library.reading import parse_any, parse_entry
from kvsync.library.shelf import Shelf, unknown_entry
from kvsync_protocol import library as list_format
from kvsync_protocol.digest import Digest, sha256
from kvsync_protocol.entry import Entry
from kvsync_protocol.envelope import Envelope, VerifiedPayload
from kvsync_protocol.errors import CodedError, ProtocolError
from kvsync_protocol.library import (
    MAX_HISTORY,
    MAX_LIBRARY_ENTRIES,
    MAX_QUARANTINED,
    MAX_REASON_BYTES,
    Finding,
    LibraryList,
    Quarantined,
)
from kvsync_protocol.passage import Passage
from kvsync_protocol.signing import PublicKey, SigningKey

_SEARCHED: Final = 8
"""Hits looked at for each one wanted, since some may not answer."""


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry here. `signers` are those of its signers that count now, none for one that does not answer."""

    digest: Digest
    entry: Entry
    signers: tuple[PublicKey, ...]


@dataclass(frozen=True, slots=True)
class StoredPassage:
    """A passage here. `signers` as of an entry."""

    digest: Digest
    passage: Passage
    signers: tuple[PublicKey, ...]


@dataclass(frozen=True, slots=True)
class Hit:
    """A related entry, and the part of the asked problem's words that its problem has as well, in 0..1."""

    stored: StoredEntry
    overlap: float


class EntryStore:
    """One library of this node's. Safe for several threads and processes; may be emptied by others at any time."""

    def __init__(self, home: Home, trust: TrustList, signer: Callable[[], SigningKey], name: str) -> None:
        self.shelf = Shelf.of(home, name)
        self._trust = trust
        self._signer = signer
        self._index = EntryIndex(self.shelf.index, self._indexed)

    @property
    def name(self) -> str:
        return self.shelf.name

    def create(self) -> None:
        """An empty library. Raises UsageError `library.exists`."""
        self.shelf.create(LibraryList(self.name, 1).seal(self._signer()))

    def listing(self) -> LibraryList:
        """Raises NotFoundError `library.unknown`; StoreError `library.damaged`."""
        return self._listed(self._signed())

    def entries(self) -> Iterator[StoredEntry]:
        """All in the list, by digest, those that do not answer as well; unreadable ones left out."""
        return (each for each in self.everything() if isinstance(each, StoredEntry))

    def passages(self) -> Iterator[StoredPassage]:
        """As `entries`."""
        return (each for each in self.everything() if isinstance(each, StoredPassage))

    def everything(self) -> Iterator[StoredEntry | StoredPassage]:
        """Entries and passages in the list, by digest; unreadable ones left out."""
        for digest in self.listing().entries:
            try:
                yield self.read_any(digest)
            except CodedError:
                continue

    def read(self, digest: Digest) -> StoredEntry:
        """An entry as it lies here, whoever signed it.

        Raises:
            NotFoundError: `library.unknown_entry`; StoreError `library.damaged`.
            MalformedError: as `Entry.parse`; IntegrityError `entry.address`.
        """
        envelope = self.shelf.read_entry(digest)
        return StoredEntry(digest, parse_entry(envelope), self._signers(envelope))

    def read_any(self, digest: Digest) -> StoredEntry | StoredPassage:
        """An entry or a passage. Raises as `read`, MalformedError `passage.*`."""
        envelope = self.shelf.read_entry(digest)
        found, signers = parse_any(envelope), self._signers(envelope)
        return (
            StoredEntry(digest, found, signers) if isinstance(found, Entry) else StoredPassage(digest, found, signers)
        )

    def named(self, name: str) -> StoredEntry | StoredPassage:
        """The entry or passage whose digest is or begins with `name`, in quarantine or not.

        Raises:
            NotFoundError: `library.unknown_entry`; UsageError `library.ambiguous`.
        """
        found = self.listing()
        every = (*found.entries, *(each.entry for each in found.quarantined))
        digits = name.removeprefix("sha256:")
        named = [digest for digest in every if len(digits) >= 8 and digest.hex.startswith(digits)]
        if len(named) > 1:
            raise UsageError("library.ambiguous", f"{name!r} can mean {len(named)} entries", hint="give more digits")
        if not named:
            raise unknown_entry(self.name, name)
        return self.read_any(named[0])

    def find(self, address: Digest) -> list[StoredEntry]:
        """Entries of this very problem that may answer, the latest first; none where there is no library."""
        return list(self._asked(lambda state, listed: self._index.find(state, listed, address)))

    def search(self, problem: Problem, limit: int) -> list[Hit]:
        """At most `limit` entries of other problems that may answer, the most related first."""
        asked = set(words(problem.normalised))
        hits: list[Hit] = []
        for stored in self._asked(
            lambda state, listed: self._index.search(state, listed, problem.normalised, limit * _SEARCHED)
        ):
            if stored.entry.address != problem.address and len(hits) < limit:
                shared = asked.intersection(words(stored.entry.problem))
                hits.append(Hit(stored, len(shared) / len(asked)))
        return hits

    def route(self, chosen: Sequence[str], limit: int) -> Iterator[tuple[StoredPassage, float]]:
        """At most `limit` passages with some of these words and phrases that may answer, and their scores.

        The highest first, each read when it is asked for. None where there is no library.
        """
        try:
            signed = self._signed()
        except NotFoundError:
            return
        found = self._index.route(sha256(signed.payload), self._telling(signed), chosen, limit * _SEARCHED)
        for digest, score in found:
            stored = self._answering(digest)
            if isinstance(stored, StoredPassage):
                yield stored, score
                limit -= 1
            if limit < 1:
                return

    def refresh(self) -> None:
        """Let the index catch up with the list. Raises NotFoundError `library.unknown`."""
        signed = self._signed()
        self._index.refresh(sha256(signed.payload), self._telling(signed))

    def add(self, envelope: Envelope) -> bool:
        """Take an entry into the list; False when it stands there, or in quarantine, already. Raises as `change`."""
        return self.change([envelope]) > 0

    def remove(self, digest: Digest) -> None:
        """Take an entry, and what was found of it, out of the library. Raises NotFoundError `library.unknown`."""
        self.change((), [digest])

    def change(self, added: Sequence[Envelope], removed: Sequence[Digest] = ()) -> int:
        """Take entries and passages into the list and others out of it, in one step; the number of new ones.

        Raises:
            TrustError: `trust.untrusted_signer`, `trust.bad_signature`, `trust.payload_type`.
            MalformedError: as `Entry.parse`, `Passage.parse`; IntegrityError `entry.address`.
            UsageError: `library.full`; NotFoundError `library.unknown`.
        """
        keys = self._trust.keys(self.name)
        for envelope in added:
            parse_any(envelope)
            envelope.verify(envelope.payload_type, keys)
        with self.shelf.changing():
            found = self.listing()
            gone = set(removed)
            kept = {*found.entries} - gone
            apart = tuple(each for each in found.quarantined if each.entry not in gone)
            named = {sha256(envelope.payload): envelope for envelope in added}
            new = named.keys() - kept - {each.entry for each in apart}
            if not new and not gone:
                return 0
            if len(kept) + len(new) > MAX_LIBRARY_ENTRIES:
                raise UsageError(
                    "library.full", f"{self.name!r} takes no more than {MAX_LIBRARY_ENTRIES} entries and passages"
                )
            for digest in new:
                self.shelf.write_entry(named[digest].endorsed(keys))
            self._write(replace(found, entries=tuple(sorted(kept | new)), quarantined=apart))
            for digest in gone - new:
                self.shelf.remove_entry(digest)
        return len(new)

    def quarantine(self, digest: Digest, *history: Finding) -> None:
        """Believe an entry no more; what was found is kept with it, the latest findings of many.

        Raises:
            NotFoundError: `library.unknown`; UsageError `library.full`.
        """
        with self.shelf.changing():
            found = self.listing()
            apart = {each.entry: each.history for each in found.quarantined}
            kept = dict.fromkeys((*apart.get(digest, ()), *history))
            apart[digest] = tuple(kept)[-MAX_HISTORY:]
            if len(apart) > MAX_QUARANTINED:
                raise UsageError("library.full", f"{self.name!r} holds {MAX_QUARANTINED} entries in quarantine")
            self._write(
                replace(
                    found,
                    entries=tuple(each for each in found.entries if each != digest),
                    quarantined=tuple(Quarantined(each, apart[each]) for each in sorted(apart)),
                )
            )

    def _write(self, changed: LibraryList) -> None:
        self.shelf.write_list(replace(changed, sequence=changed.sequence + 1).seal(self._signer()))

    def _signed(self) -> VerifiedPayload:
        """The list as this node has signed it."""
        envelope = self.shelf.read_list()
        try:
            return envelope.verify(list_format.PAYLOAD_TYPE, self._trust.keys())
        except ProtocolError as error:
            raise self._not_ours(error.message) from error

    def _listed(self, signed: VerifiedPayload) -> LibraryList:
        try:
            found = LibraryList.parse(signed)
        except ProtocolError as error:
            raise self._not_ours(error.message) from error
        if found.name != self.name:
            raise self._not_ours(f"it is that of {found.name!r}")
        return found

    def _not_ours(self, why: str) -> StoreError:
        return StoreError("library.damaged", f"the list of {self.name!r} is not this node's: {why}")

    def _telling(self, signed: VerifiedPayload) -> Listed:
        """The list for an index that is behind it: reading thousands of digests costs more than a search."""
        return lambda: self._listed(signed).entries

    def _asked(self, ask: Callable[[Digest, Listed], list[Digest]]) -> Iterator[StoredEntry]:
        """What the index names, as far as it may answer."""
        try:
            signed = self._signed()
        except NotFoundError:
            return
        for digest in ask(sha256(signed.payload), self._telling(signed)):
            stored = self._answering(digest)
            if isinstance(stored, StoredEntry):
                yield stored

    def _answering(self, digest: Digest) -> StoredEntry | StoredPassage | None:
        """What may answer: neither gone nor damaged since it was listed, and signed by a key that counts."""
        try:
            stored = self.read_any(digest)
        except (NotFoundError, StoreError, ProtocolError):
            return None
        return stored if stored.signers else None

    def _signers(self, envelope: Envelope) -> tuple[PublicKey, ...]:
        return envelope.signers(self._trust.keys(self.name))

    def _indexed(self, digest: Digest) -> tuple[Digest | None, str] | None:
        try:
            found = parse_any(self.shelf.read_entry(digest))
        except CodedError:
            return None
        return (found.address, found.problem) if isinstance(found, Entry) else (None, found.prompt)


def finding(reason: str) -> Finding:
    """A line of history, found now."""
    plain = "".join(char if char.isprintable() else " " for char in reason)
    return Finding(int(time.time()), plain.encode()[:MAX_REASON_BYTES].decode(errors="ignore"))
