"""The members of a bundle's file, one after the other: a plain tar stream, written and read without a tar library.

A reader asks for the member that must come next and takes nothing else: no other name, kind or order, no member
larger than it may be, nothing behind the end. So neither a path nor a size in the file decides anything. Knows no
artifacts.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, Protocol

from kvsync.errors import StoreError
from kvsync.files import write_error
from kvsync_protocol.bundle import END, RECORD, Member
from kvsync_protocol.digest import Digest, sha256
from kvsync_protocol.errors import IntegrityError, MalformedError


class Readable(Protocol):
    """A file, or a pipe."""

    def read(self, size: int, /) -> bytes | None: ...


class MemberWriter:
    """Writes members to a file that its caller opens and closes."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self.written = 0

    def add(self, name: str, data: bytes | memoryview) -> None:
        """Raises StoreError `store.full`, `store.unwritable`."""
        member = Member(name, len(data))
        self._write(member.encode(), data, bytes(member.padding))

    def end(self) -> None:
        """Write the archive's end. Raises as `add`."""
        self._write(END)

    def _write(self, *parts: bytes | memoryview) -> None:
        try:
            for part in parts:
                self._file.write(part)
                self.written += len(part)
        except OSError as error:
            raise write_error(error, self._path) from error


class MemberReader:
    """Reads members from a file that its caller opens and closes.

    Every method raises MalformedError `bundle.truncated`, `bundle.member`; StoreError `file.unreadable`.
    """

    def __init__(self, file: Readable) -> None:
        self._file = file
        self._header = memoryview(bytearray(RECORD))
        self._next: Member | None = None
        self.read_bytes = 0

    def head(self) -> Member:
        """What comes next, before any of it is read."""
        if self._next is None:
            self._fill(self._header)
            self._next = Member.decode(bytes(self._header))
        return self._next

    def small(self, name: str, limit: int, digest: Digest | None = None) -> bytes:
        """All of the member that must come next.

        Raises:
            MalformedError: `bundle.order` when another one comes, `bundle.size` when it has more than `limit` bytes.
            IntegrityError: `bundle.digest` when its digest is not `digest`.
        """
        member = self.head()
        if member.name != name:
            raise MalformedError("bundle.order", f"{name} is not where it belongs")
        if member.size > limit:
            raise MalformedError("bundle.size", f"{name} is larger than {limit} bytes")
        data = bytearray(member.size)
        self.into(memoryview(data))
        if digest is not None and sha256(data) != digest:
            raise IntegrityError("bundle.digest", f"{name} is not what the bundle's index says")
        return bytes(data)

    def into(self, view: memoryview) -> None:
        """The next member's bytes, whose number is `view`'s and the caller's to check."""
        member = self.head()
        self._next = None
        self._fill(view)
        padding = memoryview(bytearray(member.padding))
        self._fill(padding)
        if any(padding):
            raise MalformedError("bundle.member", f"something stands behind {member.name}")

    def end(self) -> None:
        """Check that the archive ends here, and the file with it. Raises MalformedError `bundle.trailing`."""
        found = memoryview(bytearray(len(END)))
        self._fill(found)
        if found != END or self._read(memoryview(bytearray(1))):
            raise MalformedError("bundle.trailing", "the bundle does not end where it should")

    def _fill(self, view: memoryview) -> None:
        while view:
            got = self._read(view)
            if not got:
                raise MalformedError("bundle.truncated", "the bundle ends too early", hint="copy it again, all of it")
            view = view[got:]

    def _read(self, view: memoryview) -> int:
        try:
            found = self._file.read(len(view)) or b""
        except OSError as error:
            raise StoreError("file.unreadable", f"the bundle cannot be read: {error.strerror}") from error
        view[: len(found)] = found
        self.read_bytes += len(found)
        return len(found)
