"""The documents of a folder: which files are texts, and why the others are none.

A file is a document when its name ends in one of `SUFFIXES` or has no suffix, and its content is UTF-8 text. Hidden
files and folders, whose names begin with a dot, are left out without a word; links are never followed. Whatever else
is no document is named with the reason, and harms no other. Knows no tokens.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvsync.errors import NotFoundError, StoreError, UsageError
from kvsync.files import read_limited
from kvsync_protocol.digest import Digest, sha256
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.limits import MiB
from kvsync_protocol.passage import MAX_SOURCE_BYTES, check_source
from kvsync_protocol.strictjson import has_control

SUFFIXES: Final = frozenset(
    {
        *(".txt", ".text", ".md", ".markdown", ".rst", ".adoc", ".org", ".tex", ".log"),
        *(".csv", ".tsv", ".json", ".jsonl", ".yaml", ".yml", ".toml", ".ini", ".cfg"),
        *(".conf", ".xml", ".html", ".htm", ".css", ".py", ".pyi", ".sh", ".sql"),
        *(".c", ".h", ".cc", ".cpp", ".hpp", ".rs", ".go", ".java", ".kt"),
        *(".swift", ".js", ".ts", ".rb", ".pl", ".lua", ".r"),
    }
)
MAX_FILE_BYTES: Final = 16 * MiB
MAX_FILES: Final = 100_000

LINK: Final = "link"
SUFFIX: Final = "suffix"
KIND: Final = "kind"
NAME: Final = "name"
SIZE: Final = "size"
UNREADABLE: Final = "unreadable"
BINARY: Final = "binary"
ENCODING: Final = "encoding"
EMPTY: Final = "empty"
REASONS: Final = {
    LINK: "a symbolic link",
    SUFFIX: "its suffix is not that of a text",
    KIND: "neither a file nor a folder",
    NAME: "its path is too long, or holds what no text may",
    SIZE: f"larger than {MAX_FILE_BYTES // MiB} MiB",
    UNREADABLE: "it cannot be read",
    BINARY: "it holds control characters",
    ENCODING: "not UTF-8",
    EMPTY: "nothing but white space",
}

_BREAK: Final = re.compile("\r\n|[\r\v\f]")


@dataclass(frozen=True, slots=True)
class Document:
    """`text` with line feeds for all kinds of line ends; `digest` of the bytes as they lie in the file."""

    source: str
    digest: Digest
    text: str


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A file that is no document; `reason` is one of `REASONS`."""

    source: str
    reason: str


def check_folder(folder: Path) -> Path:
    """Where it really is.

    Raises:
        NotFoundError: `corpus.missing`.
        UsageError: `corpus.kind` for what is not a folder.
        StoreError: `corpus.unreadable` when it cannot be listed.
    """
    try:
        root = folder.resolve(strict=True)  # a link here is followed: the user named it
        os.scandir(root).close()
    except FileNotFoundError as error:
        raise NotFoundError("corpus.missing", f"there is no folder {folder}") from error
    except NotADirectoryError as error:
        raise UsageError(
            "corpus.kind", f"{folder} is not a folder", hint="name the folder of the documents"
        ) from error
    except (OSError, RuntimeError, ValueError) as error:
        detail = getattr(error, "strerror", None) or str(error)
        raise StoreError("corpus.unreadable", f"{folder} cannot be read: {detail}") from error
    return root


def read_folder(folder: Path) -> Iterator[Document | PassedOver]:
    """Every file below `folder`, by path, read when it is asked for.

    Raises as `check_folder`; UsageError `corpus.files` beyond `MAX_FILES`.
    """
    root = check_folder(folder)
    for number, (source, path, reason) in enumerate(_walk(root, "")):
        if number >= MAX_FILES:
            raise UsageError("corpus.files", f"{folder} holds more than {MAX_FILES} files", hint="split it")
        yield PassedOver(source, reason) if reason else _read(source, path)


def _walk(folder: Path, before: str) -> Iterator[tuple[str, Path, str]]:
    """(source, path, why it is no document, "" for what may be one), folders before what comes behind them."""
    try:
        with os.scandir(folder) as listing:
            found = sorted(listing, key=lambda each: each.name)
    except OSError:
        yield _shown(before.rstrip("/")), folder, UNREADABLE
        return
    for each in found:
        if each.name.startswith("."):
            continue
        source, path = before + each.name, Path(each.path)
        if each.is_symlink():
            yield _shown(source), path, LINK
        elif each.is_dir(follow_symlinks=False):
            yield from _walk(path, f"{source}/")
        elif not each.is_file(follow_symlinks=False):
            yield _shown(source), path, KIND
        elif path.suffix.lower() not in SUFFIXES and path.suffix:
            yield _shown(source), path, SUFFIX
        else:
            yield _shown(source), path, "" if _nameable(source) else NAME


def _nameable(source: str) -> bool:
    try:
        return len(check_source(source).encode()) <= MAX_SOURCE_BYTES and not has_control(source)
    except (MalformedError, UnicodeEncodeError):
        return False


def _shown(source: str) -> str:
    """Bytes of a name that are no UTF-8 as something that can be printed."""
    return source.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _read(source: str, path: Path) -> Document | PassedOver:
    try:
        data = read_limited(path, MAX_FILE_BYTES, what="the document")
    except NotFoundError:
        return PassedOver(source, UNREADABLE)
    except StoreError as error:
        return PassedOver(source, SIZE if error.code == "file.too_large" else UNREADABLE)
    if b"\0" in data:
        return PassedOver(source, BINARY)
    try:
        text = _BREAK.sub("\n", data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return PassedOver(source, ENCODING)
    if not text.strip():
        return PassedOver(source, EMPTY)
    if has_control(text.replace("\n", "").replace("\t", "")):
        return PassedOver(source, BINARY)
    return Document(source, sha256(data), text)
