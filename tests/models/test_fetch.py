"""Fetching with the real pip from a local index, the real converter, and everything that can go wrong between."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kvsync.engines import load_engine
from kvsync.errors import NotFoundError
from kvsync.models import CATALOG, FetchedModel, fetch, list_models, resolve
from kvsync.models.catalog import CatalogModel, Member
from kvsync_protocol.errors import CodedError
from tests.models.tiny_gguf import NOTICE, Index, build, to_json


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return build(tmp_path_factory.mktemp("index"), tmp_path_factory.mktemp("work"))


@pytest.fixture
def index(made: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """The local index as pip's only source, an empty cache, and the entry in the catalogue."""
    own = Index(Path(shutil.copytree(made.folder, tmp_path / "index")), made.model)
    for name, value in {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(own.folder),
        "PIP_CONFIG_FILE": os.devnull,
        "KVSYNC_CACHE": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(CATALOG, "tiny", made.model)
    return own


@pytest.fixture
def change(monkeypatch: pytest.MonkeyPatch) -> Callable[..., CatalogModel]:
    """Replace fields of the entry."""

    def changed(index: Index, **fields: object) -> CatalogModel:
        model: CatalogModel = dataclasses.replace(index.model, **fields)  # type: ignore[arg-type]
        monkeypatch.setitem(CATALOG, "tiny", model)
        return model

    return changed


def visible(index: Index) -> bool:
    return (Path(os.environ["KVSYNC_CACHE"]) / "models" / "tiny").exists()


def refused(index: Index) -> CodedError:
    """The error of a fetch that fails, and nothing to be seen afterwards."""
    with pytest.raises(CodedError) as caught:
        fetch("tiny")
    assert not visible(index)
    assert "\n" not in caught.value.message
    return caught.value


def test_two_fetches_at_once_make_one_model_that_then_needs_no_network(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotFoundError) as caught:
        resolve("tiny")
    assert (caught.value.code, caught.value.hint) == ("model.not_fetched", "kvsync model fetch tiny")
    results: list[FetchedModel] = []
    stages: list[str] = []

    def one() -> None:
        results.append(fetch("tiny", lambda stage, *_: stages.append(stage)))

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result.fresh for result in results) == [False, True]
    assert list(dict.fromkeys(stages)) == ["download", "extract", "convert"]

    shutil.rmtree(index.folder)
    monkeypatch.setenv("PATH", "")
    again = fetch("tiny")
    assert (again.fresh, again.notice) == (False, NOTICE)
    assert resolve("tiny") == again.path
    assert (again.path / "NOTICE.md").read_text() == NOTICE
    assert stat.S_IMODE(again.path.parent.stat().st_mode) == 0o700
    assert sorted(path.name for path in again.path.parent.iterdir()) == [".lock-tiny", "tiny"]
    entry = next(entry for entry in list_models() if entry.name == "tiny")
    assert entry.fetched
    assert entry.bytes > index.model.gguf_bytes // 2
    engine = load_engine(again.path, threads=1)
    assert (engine.vocab, engine.max_tokens) == (40, 256)
    assert engine.decode(engine.encode("t1t2")) == "t1t2"


def test_a_fetch_killed_while_converting_goes_on_from_what_it_had(index: Index) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.models.fetching"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(to_json(index.model) + "\n")
    child.stdin.flush()
    for line in child.stdout:
        if line.strip() == "convert":
            break
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    child.stdin.close()
    child.stdout.close()
    assert not visible(index)
    shutil.rmtree(index.folder)  # the wheels are here already
    assert fetch("tiny").fresh


def test_other_tensors_than_the_catalogue_names_are_not_published(
    index: Index, change: Callable[..., CatalogModel]
) -> None:
    change(index, content_sha256="1" * 64)
    error = refused(index)
    assert error.code == "integrity.model"
    assert error.fields["expected"] == "1" * 64
    assert error.fields["found"] == index.model.content_sha256


def test_a_wheel_with_other_bytes_is_refused_before_it_is_opened(index: Index) -> None:
    path = next(index.folder.glob("tiny_model_rest*"))
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert refused(index).code == "integrity.model"


def test_a_wheel_that_is_nowhere_is_a_download_error(index: Index) -> None:
    next(index.folder.glob("tiny_model_rest*")).unlink()
    error = refused(index)
    assert error.code == "model.download"
    assert "tiny-model-rest" in error.message


def test_a_kept_wheel_that_was_damaged_since_is_fetched_again(index: Index) -> None:
    next(index.folder.glob("tiny_model_rest*")).rename(index.folder / "aside")
    refused(index)
    (kept,) = Path(os.environ["KVSYNC_CACHE"]).rglob("tiny_model-1.0-*.whl")
    kept.write_bytes(b"not a wheel")
    (index.folder / "aside").rename(index.folder / "tiny_model_rest-1.0-py3-none-any.whl")
    next(index.folder.glob("tiny_model-1.0*")).unlink()
    assert refused(index).code == "model.download"
    assert not kept.exists()


PIECES: dict[str, dict[str, object]] = {
    "another file than the pinned one": {"gguf_sha256": "2" * 64},
    "a longer file than announced": {"gguf_bytes": 1000},
    "a shorter file than announced": {"gguf_bytes": 10**9},
    "a piece that the wheel does not have": {"pieces": (Member("tiny-model", "../../etc/passwd"),)},
}


@pytest.mark.parametrize("case", PIECES)
def test_a_wrong_piece_is_refused(case: str, index: Index, change: Callable[..., CatalogModel]) -> None:
    change(index, **PIECES[case])
    assert refused(index).code == "integrity.model"


def test_a_file_that_is_no_gguf_is_a_conversion_error(index: Index, change: Callable[..., CatalogModel]) -> None:
    import hashlib

    data = b"be told"
    piece = Member("tiny-model", "tiny_model/NOTICE.md")
    change(index, pieces=(piece,), gguf_bytes=len(data), gguf_sha256=hashlib.sha256(data).hexdigest())
    assert refused(index).code == "model.conversion"


def test_a_directory_of_another_catalogue_version_does_not_count(index: Index) -> None:
    path = Path(os.environ["KVSYNC_CACHE"]) / "models" / "tiny"
    path.mkdir(parents=True)
    for text in ("{}", "{", '{"name": "tiny", "gguf": "old", "content": "old"}'):
        (path / "kvsync-model.json").write_text(text)
        with pytest.raises(NotFoundError) as caught:
            resolve("tiny")
        assert caught.value.code == "model.not_fetched"


def test_names_and_paths_are_told_apart(index: Index, tmp_path: Path) -> None:
    assert resolve(tmp_path) == tmp_path
    assert resolve(str(tmp_path)) == tmp_path
    for wanted, code in (("no-such-model", "model.unknown"), (str(tmp_path / "absent"), "model.missing")):
        with pytest.raises(NotFoundError) as caught:
            resolve(wanted)
        assert caught.value.code == code
    with pytest.raises(NotFoundError) as caught:
        fetch("no-such-model")
    assert caught.value.code == "model.unknown"


def test_the_catalogue_pins_every_byte() -> None:
    for name, model in CATALOG.items():
        assert model.name == name
        assert model.notice
        assert all(len(bytes.fromhex(wheel.sha256)) == 32 for wheel in model.wheels)
        assert len(bytes.fromhex(model.gguf_sha256)) == len(bytes.fromhex(model.content_sha256)) == 32
        packages = {wheel.package for wheel in model.wheels}
        assert {piece.package for piece in model.pieces} | {member.package for member, _ in model.keep} <= packages


def test_the_list_names_what_is_not_here_yet(index: Index) -> None:
    assert {entry.name for entry in list_models()} == {"smollm2-135m", "gemma3-270m", "tiny"}
    assert not any(entry.fetched for entry in list_models())
