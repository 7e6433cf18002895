"""From a directory, or from a model somebody else loaded, to an engine. Reaches no network, runs no foreign code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from kvsync.engines.transformers import compatibility as compat
from kvsync.engines.transformers.determinism import Determinism
from kvsync.engines.transformers.dtypes import TO_TORCH, from_torch
from kvsync.engines.transformers.engine import LoadedModel, TransformersEngine
from kvsync.engines.transformers.forward import Forward
from kvsync.engines.transformers.layers import new_cache
from kvsync.engines.transformers.numerics import numerics_fields
from kvsync.engines.transformers.probe import probe
from kvsync.engines.transformers.quiet import quiet_and_offline
from kvsync.engines.transformers.support import check_attention, check_config
from kvsync.engines.transformers.weights import WeightGuard, cached_weights_digest, own, weights_digest
from kvsync.errors import EngineError, NotFoundError
from kvsync_protocol.digest import Digest
from kvsync_protocol.layout import DType
from kvsync_protocol.limits import BLOCK_TOKENS, MAX_TOKENS
from kvsync_protocol.schedule import Schedule

_LOAD_ERRORS: Final = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    RuntimeError,
    ImportError,
    SafetensorError,
)
_ENGINES: Final = "_kvsync_engines"


class _Engines(dict[tuple[int, int], TransformersEngine]):
    """The engines of one model object, kept on it so that they go when it goes; a copied model starts with none."""

    def __deepcopy__(self, memo: object) -> _Engines:
        return _Engines()

    def __reduce__(self) -> tuple[type[_Engines], tuple[()]]:
        return _Engines, ()


def load(
    model_dir: Path,
    *,
    dtype: DType | None = None,
    device: str = "cpu",
    attention: str = "sdpa",
    threads: int = 0,
    block_tokens: int = BLOCK_TOKENS,
    reverify: bool = False,
) -> TransformersEngine:
    """See `kvsync.engines.load_engine`; `reverify` hashes the weights even when their digest is remembered."""
    check_attention(attention)
    place = _device(device)
    _check_dir(model_dir)
    determinism = Determinism.choose(threads, place)
    with determinism.running(), quiet_and_offline():
        config = _config(model_dir)
        check_config(config)
        new_cache(config)
        kind = dtype or from_torch(getattr(config, "dtype", None) or torch.float32)
        _check_dtype(kind, place)
        tokenizer = _tokenizer(model_dir)
        model = _model(model_dir, config, kind, attention).to(place)
        own(model, all_of_them=place.type == "cpu")
        settings = {
            "dtype": kind.value,
            "loader": f"transformers {transformers.__version__}",
            "torch": torch.__version__,
        }
        weights = cached_weights_digest(model, model_dir, settings, reverify=reverify)
        return _engine(model, tokenizer, model_dir, weights, determinism, attention, kind, block_tokens)


def wrap(
    model: Any, *, threads: int = 0, tokenizer: Any = None, block_tokens: int = BLOCK_TOKENS
) -> TransformersEngine:
    """See `kvsync.engines.as_engine`."""
    if not isinstance(model, PreTrainedModel):
        raise EngineError(
            "engine.unsupported_model",
            f"{type(model).__name__} is neither an engine nor a transformers model",
            hint="pass a model as AutoModelForCausalLM.from_pretrained returns it",
        )
    engines: _Engines = model.__dict__.setdefault(_ENGINES, _Engines())
    known = engines.get((threads, block_tokens))
    if known is not None and known.unchanged and tokenizer is None:
        return known
    places = {parameter.device for parameter in model.parameters()}
    if len(places) != 1 or next(iter(places)).type not in ("cpu", "cuda"):
        raise EngineError("engine.device", "the model does not lie on one CPU or CUDA device as a whole")
    if model.training:
        raise EngineError("engine.training", "the model is in training mode", hint="call model.eval()")
    if getattr(model, "_hf_peft_config_loaded", False):
        raise EngineError(
            "engine.adapter", "the model has adapters that no fingerprint names", hint="merge them first"
        )
    attention = str(getattr(model.config, "_attn_implementation", "sdpa"))
    check_attention(attention)
    check_config(model.config)
    new_cache(model.config)
    kind = from_torch(next(model.parameters()).dtype)
    determinism = Determinism.choose(threads, next(iter(places)))
    with determinism.running(), quiet_and_offline():
        own(model, all_of_them=False)
        engine = _engine(model, tokenizer, None, weights_digest(model), determinism, attention, kind, block_tokens)
    engines[threads, block_tokens] = engine
    return engine


def _engine(
    model: Any,
    tokenizer: Any,
    model_dir: Path | None,
    weights: Digest,
    determinism: Determinism,
    attention: str,
    dtype: DType,
    block_tokens: int,
) -> TransformersEngine:
    model.eval()
    forward = Forward(model, determinism.device)
    schedule = Schedule(block_tokens)
    shape = probe(forward, model.config)
    template = compat.template_digest(tokenizer)
    loaded = LoadedModel(
        forward=forward,
        config=model.config,
        tokenizer=tokenizer,
        shape=shape,
        determinism=determinism,
        guard=WeightGuard(model),
        dtype=dtype,
        max_tokens=int(getattr(model.config, "max_position_embeddings", None) or MAX_TOKENS),
        token_limit=model.get_input_embeddings().weight.shape[0],
        template=template,
        weights=weights,
        hash_weights=lambda: weights_digest(model),
    )
    compatible = compat.compatibility(
        config=model.config,
        model_class=type(model).__name__,
        groups=shape.groups,
        weights=weights,
        tokenizer=compat.tokenizer_digest(tokenizer, model_dir),
        template=template,
        block_tokens=block_tokens,
    )
    numerics = numerics_fields(determinism=determinism, attention=attention, dtype=dtype, schedule=schedule)
    return TransformersEngine(loaded, schedule, compatible, numerics)


def _check_dir(model_dir: Path) -> None:
    if not model_dir.is_dir():
        raise NotFoundError("model.missing", f"there is no model directory {model_dir}", hint="kvsync model ls")
    if not (model_dir / "config.json").is_file():
        raise EngineError("engine.config", f"{model_dir} has no config.json", hint="is this a model directory?")
    if (model_dir / "adapter_config.json").exists():
        raise EngineError(
            "engine.adapter", f"{model_dir} holds an adapter", hint="merge it into its base model first"
        )
    if not any((model_dir / name).is_file() for name in compat.TOKENIZER_FILES):
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


def _tokenizer(model_dir: Path) -> Any:
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
            attn_implementation=attention,
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
    if dtype is DType.BF16 and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise EngineError("engine.dtype", f"{device} has no bf16 arithmetic", hint="use F32 or F16")


def _line(error: BaseException) -> str:
    """The first line of a library's message."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]
