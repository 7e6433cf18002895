"""Loading says nothing, reaches nothing, and leaves other people's settings alone; arithmetic settings hold."""

from __future__ import annotations

import importlib.util
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import huggingface_hub.constants
import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from kvsync.engines import as_engine, load_engine
from kvsync.engines.transformers import load, wrap
from kvsync.engines.transformers.quiet import quiet_and_offline
from kvsync.errors import EngineError
from kvsync_protocol.digest import Digest
from tests.engines.tiny_models import BLOCK, Models, edit_config, some_tokens


def test_loading_prints_nothing_and_restores_what_it_silenced(
    tiny: Models, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tiny.folder("phi3, rope that changes at 200")
    capfd.readouterr()
    before = (
        transformers_logging.is_progress_bar_enabled(),
        transformers_logging.get_verbosity(),
        huggingface_hub.constants.HF_HUB_OFFLINE,
    )
    load(folder)
    assert capfd.readouterr() == ("", "")
    after = (
        transformers_logging.is_progress_bar_enabled(),
        transformers_logging.get_verbosity(),
        huggingface_hub.constants.HF_HUB_OFFLINE,
    )
    assert after == before


def test_loading_opens_no_connection(tiny: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    folder = Path(shutil.copytree(tiny.folder("llama"), tmp_path / "copy"))
    edit_config(folder, _name_or_path="someone/some-model")
    load(folder)


def test_the_hub_client_is_offline_inside_and_as_before_outside() -> None:
    before = huggingface_hub.is_offline_mode()
    with quiet_and_offline():
        assert huggingface_hub.is_offline_mode()
    assert huggingface_hub.is_offline_mode() == before


def digest(engine_call: Callable[[], Digest]) -> Digest:
    """The result of a call on a thread whose own torch settings are others."""
    found: list[Digest] = []

    def run() -> None:
        torch.set_num_threads(1)
        found.append(engine_call())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def test_settings_are_put_in_place_at_every_call_and_on_every_thread(tiny: Models) -> None:
    seen: list[tuple[int, bool, bool]] = []
    model = AutoModelForCausalLM.from_pretrained(tiny.folder("llama")).eval()
    model.register_forward_hook(  # before the engine is made, which watches for later ones
        lambda *_: seen.append(
            (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), torch.is_grad_enabled())
        )
    )
    engine = wrap(model, threads=2, block_tokens=BLOCK)

    def compute() -> Digest:
        return engine.extend(engine.new_context(), some_tokens(100), engine.schedule).sha256()

    here = compute()
    torch.use_deterministic_algorithms(mode=False)
    torch.backends.cuda.enable_flash_sdp(enabled=False)  # chooses the kernel on the CPU as well
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compute() == here
    assert digest(compute) == here
    assert set(seen) == {(2, True, False)}


def test_results_need_no_gradients_and_carry_none(tiny: Models) -> None:
    engine = load(tiny.folder("llama"), block_tokens=BLOCK)
    context = engine.new_context()
    engine.extend(context, some_tokens(70), engine.schedule)
    assert not any(layer.keys.requires_grad or layer.keys.is_inference() for layer in context.cache.layers)
    assert torch.is_grad_enabled()


def test_weights_are_owned_and_aligned(tiny: Models) -> None:
    engine = load(tiny.folder("llama"))
    assert {parameter.data_ptr() % 64 for parameter in engine.model.parameters()} == {0}


def test_the_interface_and_the_catalogue_load_no_torch() -> None:
    program = (
        "import sys, kvsync.engines, kvsync.models; kvsync.models.list_models();"
        "print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_node_without_torch_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    actions: tuple[Callable[[], object], ...] = (lambda: load_engine(tmp_path), lambda: as_engine(object()))
    for action in actions:
        with pytest.raises(EngineError) as caught:
            action()
        assert caught.value.code == "engine.not_installed"
        assert caught.value.hint == "pip install 'kvsync[torch]'"
