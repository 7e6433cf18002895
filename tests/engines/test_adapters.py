"""LoRA adapters: exact like any other arithmetic, and named in the fingerprint by what they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import peft
import pytest
import torch
from transformers import LlamaConfig

from kvsync.engines import Engine
from kvsync.engines.transformers.engine import TransformersEngine
from kvsync.engines.transformers.wrapping import wrap
from kvsync.errors import EngineError
from kvsync.graft import deposit
from kvsync.pack import ArtifactReader
from kvsync.store import Store
from kvsync_protocol.signing import SigningKey
from tests.engines.tiny_models import SHAPE, make_model, some_tokens

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
"""peft's own."""

BLOCK = 16


def base() -> Any:
    return make_model(LlamaConfig(**SHAPE))


def lora(alpha: int = 8, seed: int = 1, name: str = "default", **settings: Any) -> Any:
    """The base model with one adapter that changes what it computes."""
    config = peft.LoraConfig(
        r=4, lora_alpha=alpha, target_modules=["q_proj", "v_proj"], init_lora_weights=False, **settings
    )
    model = base()
    torch.manual_seed(seed)
    return peft.get_peft_model(model, config, adapter_name=name).eval()


def engine_of(model: Any) -> TransformersEngine:
    return wrap(model, block_tokens=BLOCK)


def fields(engine: Engine) -> dict[str, str]:
    return dict(engine.fingerprints.compatibility.fields)


def differing(a: Engine, b: Engine) -> list[str]:
    return [found.field for found in a.fingerprints.compatibility.differences(b.fingerprints.compatibility)]


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(EngineError) as caught:
        action()
    return caught.value.code


def test_an_adapter_is_its_own_field_beside_the_base_weights() -> None:
    plain, adapted = engine_of(base()), engine_of(lora())
    assert fields(plain)["adapters"] == "none"
    assert fields(adapted)["adapters"].startswith("lora sha256:")
    assert fields(adapted)["adapters"].endswith(" scale 2.0")
    assert differing(plain, adapted) == ["adapters"]


def test_the_same_adapter_under_another_name_is_the_same_fingerprint() -> None:
    assert engine_of(lora(name="other")).fingerprints == engine_of(lora()).fingerprints


def test_other_numbers_and_another_scale_are_another_fingerprint() -> None:
    first = engine_of(lora())
    assert differing(first, engine_of(lora(seed=2))) == ["adapters"]
    assert differing(first, engine_of(lora(alpha=16))) == ["adapters"]
    changed = lora()
    with torch.no_grad():
        next(value for name, value in changed.named_parameters() if "lora_B" in name)[0, 0] += 1
    assert differing(first, engine_of(changed)) == ["adapters"]


def test_a_merged_adapter_is_in_the_weights() -> None:
    merged = lora().merge_and_unload()
    assert fields(engine_of(merged))["adapters"] == "none"
    assert "weights" in differing(engine_of(merged), engine_of(base()))
    in_place = lora()
    in_place.merge_adapter()
    assert differing(engine_of(in_place), engine_of(merged)) == []
    assert set(differing(engine_of(in_place), engine_of(lora()))) == {"adapters", "weights"}


def test_an_idle_adapter_changes_nothing() -> None:
    model = lora()
    model.base_model.disable_adapter_layers()
    assert engine_of(model).fingerprints == engine_of(base()).fingerprints


SWITCHES: dict[str, Callable[[Any], object]] = {
    "another adapter": lambda model: model.set_adapter("second"),
    "none": lambda model: model.base_model.disable_adapter_layers(),
    "merged": lambda model: model.merge_adapter(),
    "another scale": lambda model: model.base_model.model.model.layers[1].self_attn.q_proj.set_scale("default", 3.0),
    "removed": lambda model: model.unload(),
    "written": lambda model: model.base_model.model.model.layers[0].self_attn.q_proj.lora_A.default.weight.data.mul_(
        2
    ),
}


@pytest.mark.parametrize("case", [name for name in SWITCHES if name != "written"])
def test_an_adapter_that_is_switched_is_noticed_before_the_next_call(case: str) -> None:
    model = lora()
    model.add_adapter("second", peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    model.eval()
    engine = engine_of(model)
    context = engine.new_context()
    engine.extend(context, [1, 2], engine.schedule)
    SWITCHES[case](model)
    code = refusal(lambda: engine.extend(context, [3], engine.schedule))
    assert code in ("engine.model_changed", "engine.weights_changed")
    assert not engine.unchanged


def test_an_adapter_that_is_written_behind_torch_is_noticed_by_hashing() -> None:
    model = lora()
    engine = engine_of(model)
    engine.verify_weights()
    SWITCHES["written"](model)
    assert refusal(engine.verify_weights) == "engine.weights_changed"
    assert not engine.unchanged


def test_a_graft_under_an_adapter_continues_like_a_fresh_run(tmp_path: Any) -> None:
    ours, theirs = engine_of(lora()), engine_of(lora())
    assert ours.fingerprints == theirs.fingerprints
    tokens, following = some_tokens(3 * BLOCK + 5), some_tokens(BLOCK, seed=1)
    schedule = ours.schedule.with_boundary(len(tokens))
    fresh = ours.new_context()
    ours.prefill(fresh, tokens, schedule)
    expected = ours.extend(fresh, following, schedule).sha256()
    with Store.open(tmp_path / "store") as store:
        stored = deposit(store, ours, SigningKey(bytes(range(32))), tokens)
        reader = ArtifactReader(store, stored.artifact, stored.manifest.layout, stored.leaves())
        grafted = theirs.restore(reader, len(tokens))
    assert theirs.extend(grafted, following, schedule).sha256() == expected
    plain = engine_of(base())
    other = plain.new_context()
    plain.prefill(other, tokens, schedule)
    assert plain.extend(other, following, schedule).sha256() != expected


OTHERS: dict[str, Any] = {
    "dora": lambda: lora(use_dora=True),
    "prefix tuning": lambda: peft.get_peft_model(
        base(), peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    ),
    "ia3": lambda: peft.get_peft_model(
        base(), peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"])
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_adapters_that_are_not_plain_lora_are_refused_by_name(case: str) -> None:
    model = OTHERS[case]().eval()
    assert refusal(lambda: engine_of(model)) == "engine.adapter"
