"""A home with keys, the tiny model as an engine, and a verifier that knows one answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

import kvsync
from kvsync.config import Home
from kvsync.engines import load_engine
from kvsync.engines.engine import Engine
from kvsync.keys import NodeKeys
from kvsync.library.library import Library
from kvsync.library.problem import Problem
from kvsync.library.verifiers import JsonValue, Verdict


@dataclass(frozen=True)
class Knows:
    """A plug-in's verifier: passes exactly one answer, and may be of a kind that stores nothing."""

    answer: str
    deposits: bool = True
    name: str = "knows"
    version: str = "1"

    @property
    def parameters(self) -> Mapping[str, JsonValue]:
        return {"answer": self.answer}

    def verify(self, problem: Problem, candidate: str) -> Verdict:
        return Verdict.of(candidate == self.answer, f"expected {self.answer!r}")


@pytest.fixture(scope="session")
def engine(tiny_model_dir: Path) -> Engine:
    return load_engine(tiny_model_dir, threads=1, block_tokens=16)


@pytest.fixture
def make_client(tmp_path: Path) -> Iterator[Callable[..., kvsync.Client]]:
    """(name) -> Client of a new home."""
    clients = []

    def make(name: str = "node") -> kvsync.Client:
        home = Home(tmp_path / name)
        home.create()
        NodeKeys.create(home)
        clients.append(kvsync.Client(home.root))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(make_client: Callable[..., kvsync.Client]) -> kvsync.Client:
    return make_client()


@pytest.fixture
def library(client: kvsync.Client) -> Library:
    return Library.create(client, "maths/easy")
