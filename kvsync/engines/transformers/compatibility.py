"""The compatibility fingerprint: may stored bytes be interpreted by this model here. From bytes, not names."""

from __future__ import annotations

import hashlib
import json
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from kvsync.errors import EngineError, StoreError
from kvsync_protocol.digest import Digest, sha256
from kvsync_protocol.fingerprint import Fingerprint, FingerprintKind
from kvsync_protocol.layout import AnyGroup, DType, StateGroup
from kvsync_protocol.limits import MAX_FIELD_BYTES
from kvsync_protocol.manifest import FORMAT

LAYOUT_NAME: Final = "kvsync-block/1 [kv_heads, tokens, dim] post-rope"
TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "spiece.model")
_VOLATILE: Final = frozenset(
    {
        "_name_or_path",
        "_attn_implementation",
        "architectures",
        "auto_map",
        "dtype",
        "initializer_range",
        "output_attentions",
        "output_hidden_states",
        "return_dict",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
"""Config entries that name, describe or train, and decide no byte of the KV state."""


def compatibility(
    *,
    config: Any,
    model_class: str,
    groups: tuple[AnyGroup, ...],
    weights: Digest,
    adapters: str,
    tokenizer: Digest | None,
    template: Digest | None,
    block_tokens: int,
) -> Fingerprint:
    """All fields of the fingerprint, each computed from what was loaded."""
    fields = {
        "adapters": _bounded(adapters),
        "block_tokens": str(block_tokens),
        "chat_template": "none" if template is None else str(template),
        "config": str(config_digest(config)),
        "format": str(FORMAT),
        "kv_dtype": ",".join(sorted({dtype.value for group in groups for dtype in _dtypes(group)})),
        "layers": _bounded(layer_text(groups)),
        "layout": LAYOUT_NAME,
        "model_class": model_class,
        "quantisation": "none",
        "rope": _bounded(_plain(getattr(config, "rope_parameters", None))),
        "tokenizer": "none" if tokenizer is None else str(tokenizer),
        "weights": str(weights),
    }
    return Fingerprint(FingerprintKind.COMPATIBILITY, fields)


def config_digest(config: Any) -> Digest:
    """Digest of what the config says besides the defaults of its class, without volatile entries."""
    entries = {name: value for name, value in config.to_diff_dict().items() if name not in _VOLATILE}
    return sha256(_plain(entries).encode())


def layer_text(groups: tuple[AnyGroup, ...]) -> str:
    """Kinds in layer order, runs shortened: `5*sliding(512),full`."""
    kinds = {layer: group.kind.value + _qualified(group) for group in groups for layer in group.layers}
    runs = [(kind, len(list(run))) for kind, run in groupby(kinds[layer] for layer in sorted(kinds))]
    return ",".join(kind if count == 1 else f"{count}*{kind}" for kind, count in runs)


def _qualified(group: AnyGroup) -> str:
    if isinstance(group, StateGroup):
        parts = " ".join(f"{part.name}:{part.dtype.value}" for part in group.parts)
        return f"({parts}, every {group.every} blocks)"
    return f"({group.window})" if group.window else ""


def _dtypes(group: AnyGroup) -> tuple[DType, ...]:
    return tuple(part.dtype for part in group.parts) if isinstance(group, StateGroup) else (group.dtype,)


def tokenizer_digest(tokenizer: Any, model_dir: Path | None) -> Digest | None:
    """Digest of the tokenizer's files, or of its serialised form for one that has none; None without a tokenizer.

    Raises:
        EngineError: `engine.no_tokenizer` for one that has neither.
        StoreError: `file.unreadable`.
    """
    if tokenizer is None:
        return None
    found = (
        [] if model_dir is None else [model_dir / name for name in TOKENIZER_FILES if (model_dir / name).is_file()]
    )
    if found:
        state = hashlib.sha256()
        for path in found:
            try:
                data = path.read_bytes()
            except OSError as error:
                raise StoreError("file.unreadable", f"{path} cannot be read: {error.strerror}") from error
            state.update(f"{path.name}\0{len(data)}\0".encode() + data)
        return Digest(state.digest())
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise EngineError("engine.no_tokenizer", "the tokenizer has neither files nor a serialised form")
    return sha256(backend.to_str().encode())


def template_digest(tokenizer: Any) -> Digest | None:
    """Digest of the chat template; of all of them where there are several by name."""
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        return None
    return sha256((template if isinstance(template, str) else _plain(template)).encode())


def _plain(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def _bounded(text: str) -> str:
    """The text itself where a field can hold it, else its digest."""
    return text if len(text.encode()) <= MAX_FIELD_BYTES // 2 else str(sha256(text.encode()))
