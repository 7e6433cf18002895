"""Two nodes that know each other, for every test of a transfer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvsync.config import Settings
from kvsync.store import StoreLimits
from tests.conftest import SIGNER
from tests.sync.nodes import Node


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """(name, settings=None, limits=None) -> Node; its store is closed at the end."""
    nodes: list[Node] = []

    def make(name: str, settings: Settings | None = None, limits: StoreLimits | None = None) -> Node:
        nodes.append(Node(tmp_path, name, settings, limits))
        return nodes[-1]

    yield make
    for node in nodes:
        node.close()


@pytest.fixture
def provider(make_node: Callable[..., Node]) -> Node:
    return make_node("provider")


@pytest.fixture
def getter(make_node: Callable[..., Node], provider: Node) -> Node:
    """Knows the provider, trusts the artifacts' signer, and may get there and push there."""
    node = make_node("getter")
    provider.meet(node, "get", "push")
    for one in (node, provider):
        one.trust.add("signer", SIGNER.public)
    return node
