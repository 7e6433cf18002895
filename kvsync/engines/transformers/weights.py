"""The weights as they lie in memory: owned, aligned and hashed. `watch` notices later writes."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch

from kvsync.engines.memo import DigestMemo
from kvsync.engines.transformers.adapters import has_adapters, is_adapter, plain_name
from kvsync.engines.transformers.dtypes import from_torch
from kvsync.errors import EngineError
from kvsync_protocol.digest import Digest

ALIGNMENT: Final = 64
_TAG: Final = b"kvsync/weights/1"


def own(model: Any, *, all_of_them: bool) -> None:
    """Move parameters into memory of this process, aligned as torch aligns its own.

    Loaded weights are views of a mapped file, at whatever offset its header left: a file written later would
    change a running model, and kernels may choose their path by alignment. `all_of_them` is for a model that
    was just loaded; otherwise only misaligned ones move, since the caller may hold references.
    """
    moved: dict[int, torch.Tensor] = {}
    for parameter in model.parameters():
        place = parameter.data_ptr()
        if all_of_them or place % ALIGNMENT or not parameter.is_contiguous():
            if place not in moved:
                moved[place] = parameter.detach().clone(memory_format=torch.contiguous_format)
            parameter.data = moved[place]


def tensors_of(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and persistent buffers, each storage once, in name order; of adapters none (`adapters`)."""
    parameters = dict(model.named_parameters())
    kept = set(model.state_dict(keep_vars=True))
    buffers = {name: tensor for name, tensor in model.named_buffers() if name in kept}
    found = {**parameters, **buffers}
    if has_adapters(model):
        found = {plain_name(name): tensor for name, tensor in found.items() if not is_adapter(name)}
    yield from sorted(found.items())


def weights_digest(model: Any) -> Digest:
    """SHA-256 over name, dtype, shape and bytes of every tensor, each length-prefixed.

    Raises:
        EngineError: `engine.weights` for meta tensors, `engine.dtype` for types that cannot be hashed.
    """
    state = hashlib.sha256(_TAG)
    for name, tensor in tensors_of(model):
        if tensor.is_meta:
            raise EngineError("engine.weights", f"{name} is not loaded")
        kind = from_torch(tensor.dtype).value if tensor.is_floating_point() else str(tensor.dtype)
        head = f"{name}\0{kind}\0{','.join(map(str, tensor.shape))}".encode()
        flat = tensor.detach().contiguous().cpu().reshape(-1)
        data = flat.view(torch.uint8).numpy().data
        state.update(struct.pack(">QQ", len(head), data.nbytes))
        state.update(head)
        state.update(data)
    return Digest(state.digest())


def cached_weights_digest(
    model: Any, model_dir: Path, before: dict[str, str], settings: dict[str, str], *, reverify: bool
) -> Digest:
    """`weights_digest`, remembered for as long as no weight file changes path, size, times or inode.

    Args:
        before: `file_stamps` from before the model was loaded: files that changed since are not what is in memory.
        settings: what else decides the bytes in memory: dtype, versions of the loading code.
        reverify: hash again whatever is remembered.
    """
    key = {**settings, **before}
    memo = DigestMemo("weights")
    found = None if reverify else memo.get(key)
    if found is None:
        found = weights_digest(model)
        # Files that changed while they were loaded or hashed must not be remembered under either state.
        if file_stamps(model_dir) == before:
            memo.put(key, found)
    return found


def file_stamps(model_dir: Path) -> dict[str, str]:
    """What changes with every write of a weight or config file; the ctime too, since an mtime can be set back."""
    stamps = {}
    for path in sorted(model_dir.resolve().iterdir()):
        if path.suffix in (".safetensors", ".json"):
            stat = path.stat()
            times = f"{stat.st_mtime_ns} {stat.st_ctime_ns}"
            stamps[f"file:{path}"] = f"{stat.st_size} {times} {stat.st_dev}:{stat.st_ino}"
    return stamps
