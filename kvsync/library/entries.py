"""`EntryStore`: the entries of one library, who signed them, and which of them may answer.

An entry answers when it stands in the list, is in no quarantine, lies under its address, and is signed by a key that
counts here, now, for the library's name. Knows neither models nor verifiers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from kvsync.config import Home
from kvsync.errors import NotFoundError, StoreError, UsageError
from kvsync.keys import TrustList
from kvsync.library.index import EntryIndex, words
from kvsync.library.problem import Problem
from kvsync.library.shelf import Shelf, unknown_entry
from kvsync_protocol import entry as entry_format
from kvsync_protocol import library as list_format
from kvsync_protocol.digest import Digest, sha256
from kvsync_protocol.entry import Entry
from kvsync_protocol.envelope import Envelope, VerifiedPayload
from kvsync_protocol.errors import CodedError, IntegrityError, ProtocolError, TrustError
from kvsync_protocol.library import (
    MAX_HISTORY,
    MAX_LIBRARY_ENTRIES,
    MAX_QUARANTINED,
    MAX_REASON_BYTES,
    Finding,
    LibraryList,
    Quarantined,
)
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
        return self._listed()[0]

    def entries(self) -> Iterator[StoredEntry]:
        """All in the list, by digest, those that do not answer as well; unreadable ones left out."""
        for digest in self.listing().entries:
            try:
                yield self.read(digest)
            except CodedError:
                continue

    def read(self, digest: Digest) -> StoredEntry:
        """An entry as it lies here, whoever signed it.

        Raises:
            NotFoundError: `library.unknown_entry`; StoreError `library.damaged`.
            MalformedError: as `Entry.parse`; IntegrityError `entry.address`.
        """
        envelope = self.shelf.read_entry(digest)
        entry = parse_entry(envelope)
        return StoredEntry(digest, entry, envelope.signers(self._trust.keys(self.name)))

    def named(self, name: str) -> StoredEntry:
        """The entry whose digest is or begins with `name`, in quarantine or not.

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
        return self.read(named[0])

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

    def add(self, envelope: Envelope) -> bool:
        """Take an entry into the list; False when it stands there, or in quarantine, already.

        Raises:
            TrustError: `trust.untrusted_signer`, `trust.bad_signature`, `trust.payload_type`.
            MalformedError: as `Entry.parse`; IntegrityError `entry.address`.
            UsageError: `library.full`; NotFoundError `library.unknown`.
        """
        keys = self._trust.keys(self.name)
        envelope.verify(entry_format.PAYLOAD_TYPE, keys)
        parse_entry(envelope)
        digest = sha256(envelope.payload)
        with self.shelf.changing():
            found = self.listing()
            if digest in found.entries or any(each.entry == digest for each in found.quarantined):
                return False
            if len(found.entries) >= MAX_LIBRARY_ENTRIES:
                raise UsageError(
                    "library.full", f"{self.name!r} has {MAX_LIBRARY_ENTRIES} entries, the most there are"
                )
            self.shelf.write_entry(envelope.endorsed(keys))
            self._write(replace(found, entries=tuple(sorted((*found.entries, digest)))))
        return True

    def remove(self, digest: Digest) -> None:
        """Take an entry, and what was found of it, out of the library. Raises NotFoundError `library.unknown`."""
        with self.shelf.changing():
            found = self.listing()
            self._write(
                replace(
                    found,
                    entries=tuple(each for each in found.entries if each != digest),
                    quarantined=tuple(each for each in found.quarantined if each.entry != digest),
                )
            )
            self.shelf.remove_entry(digest)

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

    def _listed(self) -> tuple[LibraryList, Digest]:
        """The list, and the digest that names this state of it."""
        envelope = self.shelf.read_list()
        try:
            found = LibraryList.parse(envelope.verify(list_format.PAYLOAD_TYPE, self._trust.keys()))
        except ProtocolError as error:
            raise StoreError(
                "library.damaged", f"the list of {self.name!r} is not this node's: {error.message}"
            ) from error
        if found.name != self.name:
            raise StoreError("library.damaged", f"the list of {self.name!r} is that of {found.name!r}")
        return found, sha256(envelope.payload)

    def _asked(self, ask: Callable[[Digest, tuple[Digest, ...]], list[Digest]]) -> Iterator[StoredEntry]:
        """What the index names, as far as it may answer."""
        try:
            found, state = self._listed()
        except NotFoundError:
            return
        for digest in ask(state, found.entries):
            try:
                stored = self.read(digest)
            except (NotFoundError, StoreError, ProtocolError):
                continue  # gone or damaged since it was listed: it answers nothing
            if stored.signers:
                yield stored

    def _indexed(self, digest: Digest) -> tuple[Digest, str] | None:
        try:
            entry = parse_entry(self.shelf.read_entry(digest))
        except CodedError:
            return None
        return entry.address, entry.problem


def parse_entry(envelope: Envelope) -> Entry:
    """An entry whose signature is another question.

    Raises:
        MalformedError: as `Entry.parse`; TrustError `trust.payload_type`.
        IntegrityError: `entry.address` when it does not lie where its problem belongs.
    """
    if envelope.payload_type != entry_format.PAYLOAD_TYPE:
        raise TrustError("trust.payload_type", f"signed as {envelope.payload_type!r}, not as an entry")
    entry = Entry.parse(VerifiedPayload(envelope.payload_type, envelope.payload, ()))
    try:
        address = Problem.of(entry.problem).address
    except UsageError as error:
        raise IntegrityError("entry.address", f"an entry without a problem: {error.message}") from error
    if address != entry.address:
        raise IntegrityError("entry.address", "the entry lies under the address of another problem")
    return entry


def finding(reason: str) -> Finding:
    """A line of history, found now."""
    plain = "".join(char if char.isprintable() else " " for char in reason)
    return Finding(int(time.time()), plain.encode()[:MAX_REASON_BYTES].decode(errors="ignore"))
