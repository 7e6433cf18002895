"""A `kvsync` that runs in this process, and homes to run it in."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvsync.cli import main
from kvsync.config import Home
from kvsync.keys import NodeKeys, TrustList
from kvsync.store import Store
from kvsync_protocol.ref import Ref


@dataclass(frozen=True)
class Answer:
    """What one command line gave."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON object on stdout; fails when there is more or less than one."""
        return json.loads(self.out)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


Command = Callable[..., Answer]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weight digests and canaries of test models stay out of the user's cache."""
    monkeypatch.setenv("KVSYNC_CACHE", str(cache))


@pytest.fixture
def kvsync(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run one command line in this process; paths and other values are turned into words."""

    def run(*words: object) -> Answer:
        capsys.readouterr()
        status = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return Answer(status, out, err)

    return run


@pytest.fixture
def home(tmp_path: Path, kvsync: Command, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh home that commands find by themselves."""
    root = tmp_path / "home"
    monkeypatch.setenv("KVSYNC_HOME", str(root))
    assert kvsync("init").status == 0
    return root


@pytest.fixture
def put(home: Path) -> Callable[..., None]:
    """Store artifacts in the home, under a name for the first if one is given; their signer is trusted."""

    def store_all(*artifacts: Any, name: str | None = None) -> None:
        found = Home(home)
        own = NodeKeys.load(found).signer
        with Store.open(found.store_dir) as store:
            for artifact in artifacts:
                with store.pull_draft(*artifact.parts) as draft:
                    for index in draft.missing():
                        draft.put(index, artifact.chunks[index])
                    draft.publish()
            if name is not None:
                ref = Ref(name, artifacts[0].id, store.ref_sequence(name, own.public) + 1)
                store.set_ref(ref, ref.seal(own), own.public)
        for artifact in artifacts:
            trust = TrustList(found, own.public)
            trusted = trust.keys()
            if artifact.key.public not in trusted:
                trust.add(f"signer-{artifact.key.public.key_id}", artifact.key.public)

    return store_all


def _tree_hash(root: Path) -> str:
    """Names, kinds, modes and contents of everything below `root`."""
    state = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        found = path.lstat()
        content = b""
        if stat.S_ISREG(found.st_mode):
            content = path.read_bytes()
        elif stat.S_ISLNK(found.st_mode):
            content = os.fsencode(path.readlink())
        state.update(f"{path.relative_to(root)} {found.st_mode:o} {len(content)} ".encode("utf-8", "surrogateescape"))
        state.update(content)
    return state.hexdigest()


@pytest.fixture
def tree_hash() -> Callable[[Path], str]:
    """A digest of a whole directory, to show that nothing in it changed."""
    return _tree_hash
