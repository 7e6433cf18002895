"""What the tensors of a directory say, whatever they are called and however they are spread over files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from safetensors import SafetensorError, safe_open

from kvsync.errors import EngineError
from kvsync_protocol.digest import Digest


def content_digest(directory: Path) -> Digest:
    """SHA-256 over the sorted digests of all tensors, each over dtype, shape and bytes.

    Raises:
        EngineError: `model.conversion` when a file is no safetensors file, or there is none.
    """
    found: list[bytes] = []
    for path in sorted(directory.glob("*.safetensors")):
        try:
            with safe_open(path, framework="numpy") as file:
                for name in file.keys():  # noqa: SIM118 - not a mapping
                    array = file.get_tensor(name)
                    state = hashlib.sha256(f"{array.dtype} {array.shape}\0".encode())
                    state.update(array.data)
                    found.append(state.digest())
        except (OSError, SafetensorError) as error:
            raise EngineError("model.conversion", f"{path} cannot be read back: {error}") from error
    if not found:
        raise EngineError("model.conversion", f"{directory} holds no tensors")
    return Digest(hashlib.sha256(b"".join(sorted(found))).digest())
