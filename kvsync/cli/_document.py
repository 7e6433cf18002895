"""A document as the command line names it: a text file, or `-` for standard input."""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from typing import Final

from kvsync.errors import NotFoundError, StoreError, UsageError
from kvsync.files import read_limited
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.limits import MiB

MAX_DOCUMENT_BYTES: Final = 64 * MiB
STDIN: Final = "-"


def read_document(name: str) -> str:
    """The whole text, as it stands.

    Raises:
        NotFoundError: `document.missing`.
        UsageError: `document.empty`, `document.kind` for what is not a regular file, `document.too_large`.
        MalformedError: `document.encoding`.
        StoreError: `document.unreadable`.
    """
    data = sys.stdin.buffer.read(MAX_DOCUMENT_BYTES + 1) if name == STDIN else _read_file(Path(name))
    if len(data) > MAX_DOCUMENT_BYTES:
        raise UsageError("document.too_large", f"{name} is larger than {MAX_DOCUMENT_BYTES} bytes", hint="split it")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise MalformedError(
            "document.encoding",
            f"{name} is not UTF-8 text: byte {error.start}",
            hint="convert it, with iconv for example",
        ) from error
    if not text:
        raise UsageError("document.empty", f"{name} is empty", hint="give a document with text in it")
    return text


def _read_file(path: Path) -> bytes:
    try:
        # A link is followed here, unlike everywhere else: the user named it.
        path = path.resolve(strict=True)
        found = path.stat()
    except FileNotFoundError as error:
        raise NotFoundError("document.missing", f"there is no document {path}") from error
    except (OSError, RuntimeError, ValueError) as error:
        detail = getattr(error, "strerror", None) or str(error)
        hint = "check owner and mode"
        raise StoreError("document.unreadable", f"{path} cannot be read: {detail}", hint=hint) from error
    if not stat.S_ISREG(found.st_mode):
        raise UsageError("document.kind", f"{path} is not a file", hint="name a text file, or - for standard input")
    if found.st_size > MAX_DOCUMENT_BYTES:
        raise UsageError("document.too_large", f"{path} is larger than {MAX_DOCUMENT_BYTES} bytes", hint="split it")
    try:
        return read_limited(path, MAX_DOCUMENT_BYTES + 1, what="the document")
    except StoreError as error:
        raise StoreError("document.unreadable", error.message, hint="check owner and mode") from error
