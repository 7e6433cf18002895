"""Where fetched models lie, which are there, and which directory a name or path means.

<cache>/models/<name>/            a fetched model: config, safetensors, tokenizer, licence files, kvsync-model.json
<cache>/models/.fetch-<name>/     what an unfinished fetch has verified so far
<cache>/models/.lock-<name>       held while one process fetches
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvsync.engines.cachedir import cache_dir
from kvsync.errors import EngineError, KvsyncError, NotFoundError
from kvsync.files import read_limited
from kvsync.models.catalog import CATALOG, CatalogModel
from kvsync_protocol import strictjson
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.limits import KiB

STAMP_NAME: Final = "kvsync-model.json"
MAX_STAMP_BYTES: Final = 64 * KiB


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model of the catalogue; `path` and `bytes` when it was fetched."""

    name: str
    title: str
    licence: str
    path: Path | None
    bytes: int

    @property
    def fetched(self) -> bool:
        return self.path is not None


def models_dir() -> Path:
    return cache_dir() / "models"


def stamp_of(model: CatalogModel) -> dict[str, object]:
    """What a finished directory says it was made from; another stamp means it is fetched anew."""
    return {"content": model.content_sha256, "gguf": model.gguf_sha256, "name": model.name}


def fetched_path(model: CatalogModel) -> Path | None:
    """The directory of a completely fetched model of exactly this catalogue entry."""
    path = models_dir() / model.name
    try:
        data = read_limited(path / STAMP_NAME, MAX_STAMP_BYTES, what="the model's stamp")
        stamp = strictjson.loads(data, limit=MAX_STAMP_BYTES, what="the model's stamp")
    except (KvsyncError, MalformedError):
        return None
    return path if stamp == stamp_of(model) else None


def list_models() -> list[ModelEntry]:
    """The whole catalogue, fetched or not."""
    found = []
    for model in CATALOG.values():
        path = fetched_path(model)
        size = 0 if path is None else sum(file.stat().st_size for file in path.iterdir())
        found.append(ModelEntry(model.name, model.title, model.licence, path, size))
    return found


def resolve(name_or_path: str | Path) -> Path:
    """The directory of a fetched catalogue model, or a model directory as it is.

    Raises:
        NotFoundError: `model.not_fetched`, `model.missing` for a path where there is nothing, `model.unknown`.
        EngineError: `engine.unreadable` for a path this user may not look at.
    """
    text = str(name_or_path)
    if text in CATALOG:
        found = fetched_path(CATALOG[text])
        if found is None:
            raise NotFoundError("model.not_fetched", f"{text} is not here yet", hint=f"kvsync model fetch {text}")
        return found
    try:
        path = Path(text).expanduser()
        if path.is_dir():
            return path
        there = path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        detail = getattr(error, "strerror", None) or str(error)
        hint = "check owner and mode"
        raise EngineError("engine.unreadable", f"{text} cannot be read: {detail}", hint=hint) from error
    if there or len(path.parts) > 1:
        raise NotFoundError("model.missing", f"there is no model directory {path}", hint="kvsync model ls")
    raise NotFoundError(
        "model.unknown", f"no model is called {text!r}", hint=f"a directory, or one of {', '.join(CATALOG)}"
    )
