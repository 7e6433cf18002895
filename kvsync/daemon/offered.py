"""Models with which peers may have this node compute, in `offered.json`: the owner's choice, by fingerprints.

A peer asks by digests; only what stands here is found by them. Knows no engine: the fingerprints are those that the
model had when it was offered, and the worker compares them again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kvsync.config import Home
from kvsync.daemon.params import MAX_PATH_BYTES
from kvsync.daemon.transfer_params import fingerprints_json, read_fingerprints
from kvsync.errors import NotFoundError, UsageError
from kvsync.files import exclusive
from kvsync.keys.lists import load_list, save_list
from kvsync_protocol import strictjson
from kvsync_protocol.computation import MAX_MODELS
from kvsync_protocol.digest import Digest
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.fingerprint import Fingerprints
from kvsync_protocol.group import COMPUTED, DType


@dataclass(frozen=True, slots=True)
class OfferedModel:
    """`path` is an absolute model directory; `dtype` None is the one it was saved in."""

    name: str
    path: Path
    dtype: DType | None
    device: str
    fingerprints: Fingerprints


class OfferedModels:
    """The list. Safe for several processes."""

    def __init__(self, home: Home) -> None:
        self._path = home.offered_file
        self._lock = home.lock_file

    def models(self) -> list[OfferedModel]:
        """Raises StoreError `offered.damaged`."""
        return load_list(self._path, "offered", _read)

    def find(self, compatibility: Digest, numerics: Digest) -> OfferedModel:
        """Raises NotFoundError `compute.unknown_model`."""
        for model in self.models():
            pair = model.fingerprints
            if (pair.compatibility.digest, pair.numerics.digest) == (compatibility, numerics):
                return model
        raise NotFoundError("compute.unknown_model", "no such model is offered here")

    def add(self, model: OfferedModel) -> None:
        """Offer a model, or the same again with fingerprints of now. Raises UsageError `offered.full`."""
        with exclusive(self._lock):
            kept = [
                m for m in self.models() if (m.path, m.dtype, m.device) != (model.path, model.dtype, model.device)
            ]
            if len(kept) >= MAX_MODELS:
                raise UsageError("offered.full", f"{MAX_MODELS} models are offered", hint="kvsync model withdraw")
            self._save([*kept, model])

    def remove(self, name: str) -> list[OfferedModel]:
        """Offer it no longer, whatever its element type. Raises NotFoundError `offered.unknown`."""
        with exclusive(self._lock):
            models = self.models()
            found = [m for m in models if name in (m.name, str(m.path))]
            if not found:
                raise NotFoundError("offered.unknown", f"{name!r} is not offered", hint="kvsync model offered")
            self._save([m for m in models if m not in found])
        return found

    def _save(self, models: Iterable[OfferedModel]) -> None:
        entries = [
            {
                "name": m.name,
                "path": str(m.path),
                "dtype": None if m.dtype is None else m.dtype.value,
                "device": m.device,
                "fingerprints": fingerprints_json(m.fingerprints),
            }
            for m in models
        ]
        save_list(self._path, "offered", entries)


def _read(entry: strictjson.Fields, version: int) -> OfferedModel:
    dtype = entry.optional("dtype", lambda name: entry.string(name, limit=16))
    if dtype is not None and dtype not in {known.value for known in COMPUTED}:
        raise MalformedError("offered.dtype", f"no model computes in {dtype!r}")
    return OfferedModel(
        entry.string("name", limit=MAX_PATH_BYTES),
        Path(entry.string("path", limit=MAX_PATH_BYTES)),
        None if dtype is None else DType(dtype),
        entry.string("device", limit=20),
        read_fingerprints(entry.take("fingerprints")),
    )
