"""Fixtures of the engine tests: a cache directory of their own, and small models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kvsync.engines.transformers.engine import TransformersEngine
from tests.engines.tiny_models import Models


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache directory of these tests' own."""
    monkeypatch.setenv("KVSYNC_CACHE", str(cache))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Small models spend their time waiting for threads; a test that wants more asks for them."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def llama(tiny: Models) -> TransformersEngine:
    return tiny.engine("llama")


@pytest.fixture
def sliding(tiny: Models) -> TransformersEngine:
    return tiny.engine("mistral, window below a block")
