"""The compiled codec is loaded once it has paid, and a process without it lacks nothing but speed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from kvsync.pack import loading
from kvsync.pack.codec import Codec
from kvsync.pack.compiled import CompiledSplitter
from kvsync.pack.loading import Loader
from kvsync.pack.pieces import Piece
from kvsync.pack.shape import ChunkShape, Section
from kvsync.pack.splitter import Planes
from kvsync_protocol.bulk import Encoding

SHAPE = ChunkShape(4096, (Section(0, 2, 2048, ()),))


def settled() -> None:
    for thread in threading.enumerate():
        if thread.name == "kvsync-compile":
            thread.join()


def test_it_is_loaded_once_so_much_was_coded() -> None:
    loader = Loader(load_after=1000)
    for _ in range(4):
        assert loader.splitter(250) is None
        settled()
    loader.splitter(1)
    settled()
    assert isinstance(loader.splitter(1), CompiledSplitter)


def test_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    loader, loading_takes = Loader(load_after=0), threading.Event()
    monkeypatch.setattr(loader, "load", loading_takes.wait)
    assert [loader.splitter(1) for _ in range(3)] == [None] * 3
    loading_takes.set()
    settled()


@pytest.mark.parametrize("many", [2, 8])
def test_threads_load_it_once(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    loader, loads = Loader(load_after=0), []
    monkeypatch.setattr(loader, "load", lambda: loads.append(1))
    threads = [threading.Thread(target=loader.splitter, args=(1,)) for _ in range(many)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    settled()
    assert loads == [1]


@pytest.mark.parametrize(
    "reason",
    [
        ImportError("none"),
        RuntimeError("cannot cache function: no locator"),
        OSError(28, "no space"),
        ValueError("LLVM"),
    ],
)
def test_without_it_numpy_goes_on(reason: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "kvsync.pack.compiled":
                raise reason

    monkeypatch.delitem(sys.modules, "kvsync.pack.compiled")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    loader = Loader(load_after=0)
    monkeypatch.setattr("kvsync.pack.planes.LOADER", loader)
    assert not loader.load()
    codec, data = Codec(), bytes(range(256)) * 16
    for _ in range(3):
        encoding, body = codec.encode(memoryview(data), Encoding.PLANES, SHAPE)
        out = memoryview(bytearray(len(data)))
        codec.decode(body, encoding, out, SHAPE)
        assert out == data
        settled()
    assert loader.splitter(1) is None


class Wrong(CompiledSplitter):
    """Compiled wrongly, in one of the things that it does."""

    def __init__(self, part: str) -> None:
        self._part = ""
        super().__init__()
        self._part = part

    def sums(self, rows: np.ndarray, step: int) -> np.ndarray:
        return super().sums(rows, step) + np.uint16(self._part == "sums")

    def split(self, numbers: np.ndarray, piece: Piece, planes: Planes) -> None:
        super().split(numbers, piece, planes)
        part = getattr(planes, self._part, ())
        if len(part):
            part[-1] ^= 1

    def join(self, planes: Planes, piece: Piece, numbers: np.ndarray) -> None:
        super().join(planes, piece, numbers)
        if self._part == "join":
            numbers[-1] ^= 1


@pytest.mark.parametrize("part", ["sums", "fields", "rest", "lower", "join"])
def test_what_is_compiled_wrongly_is_not_taken(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvsync.pack.compiled.CompiledSplitter", lambda: Wrong(part))
    loader = Loader(load_after=0)
    assert not loader.load()
    assert loader._loaded is None


def test_without_a_thread_numpy_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_more)
    loader = Loader(load_after=0)
    assert [loader.splitter(1) for _ in range(2)] == [None, None]


def test_it_is_not_taken_where_numba_must_not_compile() -> None:
    program = "from kvsync.pack.loading import LOADER; print(LOADER.load())"
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert done.stdout == "False\n"


def test_numbers_of_another_order_are_left_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading.sys, "byteorder", "big")
    assert not Loader().load()


PROGRAM = """
import sys
from kvsync.pack.codec import Codec
from kvsync.pack.shape import ChunkShape, Section
from kvsync_protocol.bulk import Encoding
shape = ChunkShape(4096, (Section(0, 2, 2048, ()),))
Codec().encode(memoryview(bytes(4096)), Encoding.PLANES, shape)
print("numba" in sys.modules)
"""


def test_who_codes_little_does_not_import_numba(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert done.stdout == "False\n"
