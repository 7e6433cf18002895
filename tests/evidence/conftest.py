"""A small model with a tokenizer of letters, and homes in which the installed program runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engines.tiny_models import FAMILIES, save_letters, save_model


@dataclass(frozen=True)
class Said:
    """How one run of the program ended."""

    status: int
    json: Any

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


Program = Callable[..., Said]


@pytest.fixture(scope="session")
def letters_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of four layers and 1,024 positions, random."""
    folder = save_model(tmp_path_factory.mktemp("models") / "tiny-llama", FAMILIES["llama"]())
    save_letters(folder)
    return folder


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Run `kvsync --json WORDS` in a process of its own; `home` and further variables by name."""
    cache = tmp_path_factory.mktemp("cache")

    def run(*words: object, home: Path, **variables: str) -> Said:
        environment = {
            **os.environ,
            "KVSYNC_CACHE": str(cache),
            "KVSYNC_HOME": str(home),
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
            **variables,
        }
        command = [sys.executable, "-m", "kvsync.cli", "--json", *map(str, words)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.stdout, done.stderr
        return Said(done.returncode, json.loads(done.stdout))

    return run


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory, program: Program) -> tuple[Path, Path]:
    """Two nodes."""
    roots = tmp_path_factory.mktemp("nodes") / "one", tmp_path_factory.mktemp("nodes") / "two"
    for root in roots:
        assert program("init", home=root).status == 0
    return roots
