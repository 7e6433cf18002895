"""Two nodes without a network between them: what one packs, the other takes from the file."""

from __future__ import annotations

import dataclasses
import io
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvsync.bundle import BundleReport, export_bundle, import_bundle
from kvsync.config import Settings
from kvsync.keys import Peer
from kvsync.store import StoreLimits
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.ref import Ref
from tests.conftest import SIGNER
from tests.store.conftest import tmp_path as tmp_path
from tests.sync.nodes import Node


class Site(Node):
    """A node that packs and takes bundles."""

    def pack(self, *artifacts: ArtifactId, path: Path | None = None, **options: Any) -> bytes:
        """The bundle's bytes."""
        with tempfile.TemporaryDirectory() as folder:
            file = path or Path(folder) / "bundle"
            export_bundle(self.store, artifacts, file, keys=self.keys, **options)
            return file.read_bytes()

    def take(self, data: bytes, **options: Any) -> BundleReport:
        """Import what `pack` gave."""
        settings = dataclasses.replace(self.settings, **options.pop("settings", {}))
        return import_bundle(
            self.store, self.trust, io.BytesIO(data), name="bundle", keys=self.keys, settings=settings, **options
        )

    def give(self, name: str, artifact: ArtifactId, sequence: int = 1, expires: int | None = None) -> None:
        ref = Ref(name, artifact, sequence, expires)
        self.store.set_ref(ref, ref.seal(SIGNER), SIGNER.public)

    def know(self, other: Node) -> None:
        """Pin the other's peer key."""
        self.book.add(Peer(other.name, other.keys.peer.public, (), ("get",)))

    def holds(self, artifact: Any) -> bool:
        """Whether the artifact is here with exactly its bytes."""
        stored = self.store.whole(artifact.id)
        if stored is None or stored.extent is not None or stored.tokens() != artifact.token_ids:
            return False
        for leaf, chunk in zip(stored.leaves().leaves, artifact.chunks, strict=True):
            with open(self.store.open_chunk(leaf.digest), "rb") as file:  # noqa: PTH123  a descriptor
                if file.read() != chunk:
                    return False
        return True

    @property
    def empty(self) -> bool:
        """Nobody sees anything here."""
        return not self.store.artifacts() and not self.store.refs()


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """(name, settings=None, limits=None) -> Site, which trusts the artifacts' signer."""
    sites: list[Site] = []

    def make(name: str, settings: Settings | None = None, limits: StoreLimits | None = None) -> Site:
        sites.append(Site(tmp_path, name, settings, limits))
        sites[-1].trust.add("signer", SIGNER.public)
        return sites[-1]

    yield make
    for site in sites:
        site.close()


@pytest.fixture
def fresh(tmp_path: Path, sender: Site) -> Callable[[], AbstractContextManager[Site]]:
    """A node that is new each time and knows the sender."""

    @contextmanager
    def make() -> Iterator[Site]:
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            site = Site(Path(folder), "fresh")
            site.trust.add("signer", SIGNER.public)
            site.know(sender)
            try:
                yield site
            finally:
                site.close()

    return make


@pytest.fixture
def sender(make_site: Callable[..., Site]) -> Site:
    return make_site("sender")


@pytest.fixture
def taker(make_site: Callable[..., Site], sender: Site) -> Site:
    """Knows the sender as a peer."""
    site = make_site("taker")
    site.know(sender)
    return site
