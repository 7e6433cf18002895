"""From a directory to an engine. Reaches no network, runs no foreign code, guesses no missing weight."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from kvsync.engines.transformers.assembly import assemble
from kvsync.engines.transformers.compatibility import TOKENIZER_FILES
from kvsync.engines.transformers.determinism import Determinism
from kvsync.engines.transformers.dtypes import TO_TORCH, from_torch
from kvsync.engines.transformers.engine import TransformersEngine
from kvsync.engines.transformers.layers import new_cache
from kvsync.engines.transformers.quiet import quiet_and_offline
from kvsync.engines.transformers.support import AUTO, check_attention, check_config
from kvsync.engines.transformers.weights import cached_weights_digest, file_stamps, own
from kvsync.errors import EngineError, NotFoundError
from kvsync_protocol.group import COMPUTED, DType
from kvsync_protocol.limits import BLOCK_TOKENS, SNAPSHOT_BLOCKS

_LOAD_ERRORS: Final = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    RuntimeError,
    ImportError,
    SafetensorError,
    StrictDataclassError,
)


def load(
    model_dir: Path,
    *,
    dtype: DType | None = None,
    device: str = "cpu",
    attention: str = AUTO,
    threads: int = 0,
    block_tokens: int = BLOCK_TOKENS,
    snapshot_blocks: int = SNAPSHOT_BLOCKS,
    reverify: bool = False,
) -> TransformersEngine:
    """See `kvsync.engines.load_engine`; `reverify` hashes the weights even when their digest is remembered."""
    if attention != AUTO:
        check_attention(attention)
    place = _device(device)
    try:
        _check_dir(model_dir)
    except OSError as error:
        raise EngineError("engine.unreadable", f"{model_dir} cannot be read: {error.strerror}") from error
    determinism = Determinism.choose(threads, place)
    with determinism.running(), quiet_and_offline():
        config = _config(model_dir)
        check_config(config)
        new_cache(config)
        kind = dtype or from_torch(getattr(config, "dtype", None) or torch.float32)
        _check_dtype(kind, place)
        tokenizer = load_tokenizer(model_dir)
        stamps = file_stamps(model_dir)
        model = _model(model_dir, config, kind, attention).to(place)
        used = str(model.config._attn_implementation)
        check_attention(used)
        own(model, all_of_them=place.type == "cpu")
        settings = {
            "dtype": kind.value,
            "loader": f"transformers {transformers.__version__}",
            "torch": torch.__version__,
        }
        weights = cached_weights_digest(model, model_dir, stamps, settings, reverify=reverify)
        return assemble(
            model,
            tokenizer,
            model_dir,
            weights,
            determinism,
            used,
            kind,
            block_tokens,
            snapshot_blocks,
            remember=True,
        )


def _check_dir(model_dir: Path) -> None:
    if not model_dir.is_dir():
        raise NotFoundError("model.missing", f"there is no model directory {model_dir}", hint="kvsync model ls")
    if not (model_dir / "config.json").is_file():
        raise EngineError("engine.config", f"{model_dir} has no config.json", hint="is this a model directory?")
    if (model_dir / "adapter_config.json").exists():
        raise EngineError(
            "engine.adapter", f"{model_dir} holds an adapter", hint="merge it into its base model first"
        )
    if not any((model_dir / name).is_file() for name in TOKENIZER_FILES):
        raise EngineError(
            "engine.no_tokenizer", f"{model_dir} has no tokenizer", hint="save the tokenizer beside the model"
        )
    if not any(model_dir.glob("*.safetensors")):
        raise EngineError(
            "engine.weights", f"{model_dir} has no safetensors weights", hint="other formats can run code when loaded"
        )


def _config(model_dir: Path) -> Any:
    try:
        json.loads((model_dir / "config.json").read_bytes())
        return AutoConfig.from_pretrained(model_dir, local_files_only=True, trust_remote_code=False)
    except _LOAD_ERRORS as error:
        raise EngineError(
            "engine.config", f"{model_dir}/config.json is no config known here: {_line(error)}"
        ) from error


def load_tokenizer(model_dir: Path) -> Any:
    """Raises EngineError `engine.no_tokenizer`."""
    try:
        return AutoTokenizer.from_pretrained(model_dir, local_files_only=True, trust_remote_code=False)
    except _LOAD_ERRORS as error:
        raise EngineError(
            "engine.no_tokenizer", f"the tokenizer of {model_dir} cannot be loaded: {_line(error)}"
        ) from error


def _model(model_dir: Path, config: Any, dtype: DType, attention: str) -> Any:
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            model_dir,
            config=config,
            dtype=TO_TORCH[dtype],
            attn_implementation=None if attention == AUTO else attention,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except _LOAD_ERRORS as error:
        raise EngineError("engine.weights", f"the weights of {model_dir} cannot be loaded: {_line(error)}") from error
    missing = sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]]))
    if missing:
        # transformers would go on with random numbers in their place.
        raise EngineError(
            "engine.weights",
            f"{model_dir} lacks {len(missing)} of the model's tensors, {missing[0]} first",
            hint="fetch or save the model again",
            tensors=missing[:20],
        )
    return model


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise EngineError("engine.device", f"{name!r} is no device", hint='use "cpu" or "cuda"') from error
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise EngineError(
            "engine.device", f"devices of type {device.type} are not supported", hint='use "cpu" or "cuda"'
        )
    if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
        raise EngineError("engine.device", f"there is no usable device {name} here", hint='use "cpu"')
    return torch.device("cuda", device.index or 0)


def _check_dtype(dtype: DType, device: torch.device) -> None:
    if dtype not in COMPUTED:
        raise EngineError("engine.dtype", f"no model computes in {dtype.value} here", hint="use F32, BF16 or F16")
    if dtype is DType.BF16 and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise EngineError("engine.dtype", f"{device} has no bf16 arithmetic", hint="use F32 or F16")


def _line(error: BaseException) -> str:
    """The first line of a library's message."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]
