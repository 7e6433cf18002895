"""One GGUF file to a plain model directory: `python -m kvsync.models.convert FOLDER FILE TARGET`.

A process of its own: the unpacked weights take gigabytes, and whatever a converter does to its process ends
with it. Unpacking is exact arithmetic on whole tensors, so equal files give equal tensors on every host.
Prints one JSON object: {} or {"error": message}.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
from pathlib import Path
from typing import Final

PR_SET_PDEATHSIG: Final = 1


def convert(folder: Path, name: str, target: Path) -> None:
    """Unpack all weights to fp32 and save them with config and tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from kvsync.engines.transformers.quiet import quiet_and_offline

    with quiet_and_offline():
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            gguf_file=name,
            # Without this, matmuls run in a packed kernel whose weights cannot be saved.
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
            local_files_only=True,
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name, local_files_only=True)
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)


def _die_with_parent() -> None:
    """Nobody would use the result of a converter whose fetch was killed."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> int:
    _die_with_parent()
    folder, name, target = sys.argv[1:]
    try:
        convert(Path(folder), name, Path(target))
    except (ImportError, OSError, RuntimeError, ValueError, KeyError, AttributeError, TypeError) as error:
        message = next((line for line in str(error).splitlines() if line.strip()), "")
        sys.stdout.write(json.dumps({"error": f"{type(error).__name__}: {message}"}))
        return 1
    sys.stdout.write("{}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
