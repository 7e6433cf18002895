"""Libraries on disk: one folder each, small files replaced whole.

    libraries/<name, with ~ for />/list.json             the list, signed by this node
                                   entries/<64 hex>.json  one envelope per entry, named by its payload's digest
                                   seen.json              the highest sequence of each signer whose list was taken
                                   index.sqlite           for search; made again from the others
                                   lock                   held while any of them changes

Knows bytes, not what they mean or who may be believed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvsync.config import Home
from kvsync.errors import NotFoundError, StoreError, UsageError
from kvsync.files import exclusive, make_private_dir, read_limited, write_atomic
from kvsync_protocol import strictjson
from kvsync_protocol.digest import Digest, sha256
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import MalformedError, ProtocolError
from kvsync_protocol.limits import MAX_ENVELOPE_BYTES, MAX_JSON_BYTES
from kvsync_protocol.ref import check_name
from kvsync_protocol.signing import PublicKey

_LIST: Final = "list.json"


@dataclass(frozen=True, slots=True)
class Shelf:
    """The folder of one library, which may be gone at any moment."""

    name: str
    path: Path

    @classmethod
    def of(cls, home: Home, name: str) -> Shelf:
        """Nothing is made or read. Raises MalformedError `ref.name`."""
        # No name holds a ~, so different names have different folders.
        return cls(name, home.libraries_dir / check_name(name).replace("/", "~"))

    @property
    def index(self) -> Path:
        return self.path / "index.sqlite"

    def exists(self) -> bool:
        return (self.path / _LIST).is_file()

    def require(self) -> None:
        """Raises NotFoundError `library.unknown`."""
        if not self.exists():
            raise unknown(self.name)

    def create(self, envelope: Envelope) -> None:
        """Raises UsageError `library.exists`; StoreError `home.*`, `store.full`, `store.unwritable`."""
        make_private_dir(self.path / "entries")
        with exclusive(self.path / "lock"):
            if self.exists():
                raise UsageError("library.exists", f"there is a library {self.name!r} already")
            self.write_list(envelope)

    def remove(self) -> None:
        """The library and all its entries. Raises NotFoundError `library.unknown`; StoreError `store.unwritable`."""
        self.require()
        try:
            (self.path / _LIST).unlink(missing_ok=True)  # first, so that no half of a library answers
            shutil.rmtree(self.path)
        except OSError as error:
            raise StoreError("store.unwritable", f"{self.path} cannot be removed: {error.strerror}") from error

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Read, change and write are one step inside. Raises NotFoundError `library.unknown`."""
        self.require()
        with exclusive(self.path / "lock"):
            self.require()
            yield

    def read_list(self) -> Envelope:
        """Raises NotFoundError `library.unknown`; StoreError `library.damaged`, `file.*`."""
        return self._read(_LIST, unknown(self.name))

    def write_list(self, envelope: Envelope) -> None:
        write_atomic(self.path / _LIST, envelope.encode())

    def read_entry(self, digest: Digest) -> Envelope:
        """Raises NotFoundError `library.unknown_entry`; StoreError `library.damaged`, `file.*`."""
        envelope = self._read(f"entries/{digest.hex}.json", unknown_entry(self.name, digest.short))
        if sha256(envelope.payload) != digest:
            raise self._damaged(f"entry {digest.short} is another one")
        return envelope

    def write_entry(self, envelope: Envelope) -> None:
        write_atomic(self._entry(sha256(envelope.payload)), envelope.encode())

    def remove_entry(self, digest: Digest) -> None:
        self._entry(digest).unlink(missing_ok=True)

    def seen(self) -> dict[PublicKey, int]:
        """The highest sequence of each signer. Raises StoreError `library.damaged`."""
        try:
            data = read_limited(self.path / "seen.json", MAX_JSON_BYTES, what="the sequences")
            found = strictjson.loads(data, limit=MAX_JSON_BYTES, what="the sequences")
            return {PublicKey.parse(key): number for key, number in found.items() if type(number) is int}
        except NotFoundError:
            return {}
        except ProtocolError as error:
            raise self._damaged(f"seen.json: {error.message}") from error

    def mark_seen(self, signer: PublicKey, sequence: int) -> None:
        """For a caller inside `changing`."""
        found = {**self.seen(), signer: sequence}
        write_atomic(self.path / "seen.json", strictjson.dumps({str(key): number for key, number in found.items()}))

    def _entry(self, digest: Digest) -> Path:
        return self.path / "entries" / f"{digest.hex}.json"

    def _read(self, name: str, missing: NotFoundError) -> Envelope:
        try:
            return Envelope.parse(read_limited(self.path / name, MAX_ENVELOPE_BYTES, what="the library's file"))
        except NotFoundError as error:
            raise missing from error
        except MalformedError as error:
            raise self._damaged(f"{name}: {error.message}") from error

    def _damaged(self, what: str) -> StoreError:
        return StoreError(
            "library.damaged",
            f"library {self.name!r} is damaged: {what}",
            hint="remove the file, then kvsync library sync",
        )


def unknown(name: str) -> NotFoundError:
    """`library.unknown`, also for a library that the asker may not see."""
    return NotFoundError("library.unknown", f"there is no library {name!r} here", hint="kvsync library create")


def unknown_entry(library: str, entry: str) -> NotFoundError:
    """`library.unknown_entry`."""
    return NotFoundError(
        "library.unknown_entry", f"no entry {entry!r} in the library {library!r}", hint="kvsync library show"
    )


def shelves(home: Home) -> list[Shelf]:
    """All libraries here, by name."""
    if not home.libraries_dir.is_dir():
        return []
    found = []
    for path in sorted(home.libraries_dir.iterdir()):
        try:
            shelf = Shelf.of(home, path.name.replace("~", "/"))
        except MalformedError:
            continue  # a stranger's file
        if shelf.path == path and shelf.exists():
            found.append(shelf)
    return found
