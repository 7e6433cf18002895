"""Both fingerprints follow from bytes: each cause changes exactly the fields that name it."""

from __future__ import annotations

import copy
import gc
import os
import shutil
import stat
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast
from transformers.models.llama import modeling_llama

from kvsync.engines import Engine, as_engine
from kvsync.engines.transformers import load
from kvsync.engines.transformers.engine import TransformersEngine
from kvsync.engines.transformers.weights import cached_weights_digest, file_stamps
from kvsync_protocol.errors import MismatchError
from kvsync_protocol.layout import DType
from tests.engines.tiny_models import BLOCK, SHAPE, Models, edit_config, make_model, save_model, some_tokens

Change = Callable[[Path], object]


def differing(one: Engine, other: Engine) -> tuple[set[str], set[str]]:
    """Names of the fields that differ, per kind."""
    a, b = one.fingerprints, other.fingerprints
    return (
        {found.field for found in a.compatibility.differences(b.compatibility)},
        {found.field for found in a.numerics.differences(b.numerics)},
    )


def copied(tiny: Models, tmp_path: Path, family: str = "llama") -> Path:
    return Path(shutil.copytree(tiny.folder(family), tmp_path / "copy"))


def test_equal_files_in_two_places_give_equal_fingerprints(tiny: Models, tmp_path: Path) -> None:
    one, other = load(tiny.folder("llama")), load(copied(tiny, tmp_path))
    assert one.fingerprints == other.fingerprints


def test_every_field_that_was_promised_is_there(llama: TransformersEngine) -> None:
    assert set(llama.fingerprints.compatibility.fields) == {
        *("adapters", "block_tokens", "chat_template", "config", "format", "kv_dtype", "layers", "layout"),
        *("model_class", "quantisation", "rope", "tokenizer", "weights"),
    }
    assert set(llama.fingerprints.numerics.fields) == {
        *("attention", "blas", "caches", "canary", "determinism", "device", "dtype", "engine", "environment", "isa"),
        *("onednn", "precision", "schedule", "sdp_kernels", "tensor_parallel", "threads", "torch"),
    }


def other_weights(folder: Path) -> None:
    make_model(LlamaConfig(**SHAPE), seed=1).save_pretrained(folder)


def one_bit(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-200] ^= 1
    path.write_bytes(data)


def rename_token(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"w7"', '"x7"'))


ROPE = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
CAUSES: dict[str, tuple[Change, set[str], set[str]]] = {
    "other weights of the same shape": (other_weights, {"weights"}, {"canary"}),
    "one bit of one weight": (one_bit, {"weights"}, {"canary"}),
    "scaled positions": (lambda path: edit_config(path, rope_parameters=ROPE), {"config", "rope"}, {"canary"}),
    "another norm constant": (lambda path: edit_config(path, rms_norm_eps=1e-3), {"config"}, {"canary"}),
    "another tokenizer": (rename_token, {"tokenizer"}, set()),
    "a chat template": (
        lambda path: (path / "chat_template.jinja").write_text("{{ messages }}"),
        {"chat_template"},
        set(),
    ),
    "names and versions only": (
        lambda path: edit_config(path, transformers_version="9.9", _name_or_path="elsewhere", use_cache=False),
        set(),
        set(),
    ),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_change_of_files_shows_in_its_own_fields(cause: str, tiny: Models, tmp_path: Path) -> None:
    change, compatibility, numerics = CAUSES[cause]
    folder = copied(tiny, tmp_path)
    change(folder)
    assert differing(load(tiny.folder("llama")), load(folder)) == (compatibility, numerics)


SETTINGS: dict[str, tuple[dict[str, Any], set[str], set[str]]] = {
    "element type": ({"dtype": DType.BF16}, {"kv_dtype", "weights"}, {"canary", "dtype"}),
    "block size": ({"block_tokens": 32}, {"block_tokens"}, {"canary", "schedule"}),
    "attention": ({"attention": "eager"}, set(), {"attention", "canary"}),
    "threads": ({"threads": 1}, set(), {"threads"}),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_change_of_settings_shows_in_its_own_fields(setting: str, tiny: Models) -> None:
    settings, compatibility, numerics = SETTINGS[setting]
    folder = tiny.folder("llama")
    found = differing(load(folder, threads=2), load(folder, **{"threads": 2, **settings}))
    assert found[0] == compatibility
    assert numerics <= found[1] <= numerics | {"canary"}


def test_a_window_is_named_in_the_layers(tiny: Models) -> None:
    below = tiny.engine("mistral, window below a block").fingerprints.compatibility
    assert below.fields["layers"] == "4*sliding(24)"
    mixed = tiny.engine("gemma3, window of one block").fingerprints.compatibility
    assert mixed.fields["layers"] == "sliding(64),full,2*sliding(64)"


def test_an_environment_switch_of_the_libraries_below_is_named(tiny: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert load(tiny.folder("llama")).fingerprints.numerics.fields["environment"] == "ONEDNN_MAX_CPU_ISA=AVX2"


def test_artifacts_of_other_weights_are_refused_by_the_name_of_the_field(tiny: Models, tmp_path: Path) -> None:
    folder = copied(tiny, tmp_path)
    other_weights(folder)
    with pytest.raises(MismatchError) as caught:
        load(folder).fingerprints.check(load(tiny.folder("llama")).fingerprints)
    assert caught.value.code == "mismatch.compatibility"
    assert caught.value.fields["differing"] == ["weights"]


# What is remembered between loads.


def memo_files(cache: Path, family: str) -> set[Path]:
    return set((cache / family).glob("*.json"))


def test_remembered_digests_are_private_and_used_again(tiny: Models, cache: Path, tmp_path: Path) -> None:
    folder = copied(tiny, tmp_path)
    before = {family: memo_files(cache, family) for family in ("weights", "canary")}
    first = load(folder, block_tokens=48)
    made = {family: memo_files(cache, family) - before[family] for family in before}
    assert {family: len(files) for family, files in made.items()} == {"weights": 1, "canary": 1}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for files in made.values() for path in files)
    again = load(folder, block_tokens=48)
    assert again.fingerprints == first.fingerprints
    assert {family: memo_files(cache, family) - before[family] for family in before} == made


def test_a_remembered_canary_that_lies_shows_that_it_is_used_and_garbage_is_not(
    tiny: Models, cache: Path, tmp_path: Path
) -> None:
    folder = copied(tiny, tmp_path)
    before = memo_files(cache, "canary")
    true = load(folder, block_tokens=40).fingerprints
    (entry,) = memo_files(cache, "canary") - before
    text = entry.read_text()
    lie = "sha256:" + 64 * "0"
    entry.write_text(text.replace(true.numerics.fields["canary"], lie))
    assert load(folder, block_tokens=40).fingerprints.numerics.fields["canary"] == lie
    for garbage in (
        "",
        "{",
        "[]",
        '{"digest": 5, "key": {}}',
        text.replace('"block', '"blick')[:-20],
        'x"' * 400_000,
    ):
        entry.write_text(garbage)
        assert load(folder, block_tokens=40).fingerprints == true
    foreign = next(iter(memo_files(cache, "canary") - {entry}))
    shutil.copy(foreign, entry)
    assert load(folder, block_tokens=40).fingerprints == true


def test_weights_are_hashed_again_when_any_file_mark_changes(tiny: Models, tmp_path: Path) -> None:
    folder = copied(tiny, tmp_path)
    first = load(folder).fingerprints
    path = folder / "model.safetensors"
    marks = path.stat()
    one_bit(folder)
    os.utime(path, ns=(marks.st_atime_ns, marks.st_mtime_ns + 1))
    assert load(folder).fingerprints != first


def test_a_file_written_in_place_with_its_time_set_back_is_hashed_again(tiny: Models, tmp_path: Path) -> None:
    folder = copied(tiny, tmp_path)
    path = folder / "model.safetensors"
    first = load(folder).fingerprints
    marks = path.stat()
    one_bit(folder)
    os.utime(path, ns=(marks.st_atime_ns, marks.st_mtime_ns))
    now = path.stat()
    assert (now.st_size, now.st_mtime_ns, now.st_ino) == (marks.st_size, marks.st_mtime_ns, marks.st_ino)
    assert load(folder).fingerprints.compatibility != first.compatibility


def test_reverifying_finds_a_remembered_digest_that_is_wrong(tiny: Models, cache: Path, tmp_path: Path) -> None:
    folder = copied(tiny, tmp_path)
    before = memo_files(cache, "weights")
    first = load(folder).fingerprints.compatibility
    (entry,) = memo_files(cache, "weights") - before
    entry.write_text(entry.read_text().replace(first.fields["weights"], "sha256:" + 64 * "0"))
    assert load(folder).fingerprints.compatibility != first
    assert load(folder, reverify=True).fingerprints.compatibility == first


def test_weights_replaced_while_they_are_loaded_are_not_remembered_as_the_new_files(
    tiny: Models, tmp_path: Path
) -> None:
    folder = copied(tiny, tmp_path)
    stamps = file_stamps(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    other_weights(folder)
    old = cached_weights_digest(model, folder, stamps, {"dtype": "F32"}, reverify=False)
    new = AutoModelForCausalLM.from_pretrained(folder)
    assert cached_weights_digest(new, folder, file_stamps(folder), {"dtype": "F32"}, reverify=False) != old


def test_a_remembered_canary_is_not_taken_for_another_arithmetic(
    tiny: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied(tiny, tmp_path)
    first = load(folder)
    true = modeling_llama.apply_rotary_pos_emb
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", lambda q, k, *rest: true(q * 1.1, k, *rest))
    assert differing(first, load(folder)) == (set(), {"canary"})


def test_a_cache_that_cannot_be_written_only_costs_time(
    tiny: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(tiny.folder("llama")).fingerprints
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("KVSYNC_CACHE", str(tmp_path / "file"))
    assert load(tiny.folder("llama")).fingerprints == first


def test_the_canary_leaves_no_state(tiny: Models, tmp_path: Path) -> None:
    """An engine whose canary was just run computes what one with a remembered canary computes."""
    folder = save_model(tmp_path / "model", LlamaConfig(**SHAPE), seed=5)
    ran, remembered = load(folder, block_tokens=BLOCK), load(folder, block_tokens=BLOCK)
    results = []
    for engine in (ran, remembered):
        context = engine.new_context()
        assert context.position == 0
        results.append(engine.extend(context, some_tokens(90), engine.schedule).sha256())
    assert results[0] == results[1]


# Models that somebody else has loaded.


def loaded(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def test_a_loaded_model_has_the_fingerprints_of_its_directory(tiny: Models) -> None:
    folder = tiny.folder("llama")
    assert as_engine(loaded(folder)).fingerprints == load(folder).fingerprints


def test_a_model_becomes_an_engine_once_and_an_engine_stays_itself(tiny: Models) -> None:
    model = loaded(tiny.folder("llama"))
    engine = as_engine(model)
    assert as_engine(model) is engine
    assert as_engine(engine) is engine
    assert as_engine(model, threads=1) is not engine


def test_a_changed_model_becomes_another_engine(tiny: Models) -> None:
    model = loaded(tiny.folder("llama"))
    engine = as_engine(model)
    with torch.no_grad():
        model.model.norm.weight.mul_(2)
    assert differing(engine, as_engine(model))[0] == {"weights"}


def test_a_copied_model_starts_without_engines_and_a_dropped_one_is_freed(tiny: Models) -> None:
    model = loaded(tiny.folder("llama"))
    engine = as_engine(model)
    twin = copy.deepcopy(model)
    other = as_engine(twin)
    assert isinstance(other, TransformersEngine)
    assert other is not engine
    assert other.model is twin
    alive = weakref.ref(model)
    del model, engine
    gc.collect()
    assert alive() is None


def test_a_model_without_a_tokenizer_says_so_and_takes_one(tiny: Models) -> None:
    model = make_model(LlamaConfig(**SHAPE))
    bare = as_engine(model)
    assert bare.fingerprints.compatibility.fields["tokenizer"] == "none"
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tiny.folder("llama"))
    given = as_engine(model, tokenizer=tokenizer)
    assert given.encode("w5 w6") == [5, 6]
    assert given.decode([5, 6]) == "w5 w6"
    same = load(tiny.folder("llama")).fingerprints.compatibility
    assert given.fingerprints.compatibility.fields["tokenizer"] == same.fields["tokenizer"]
