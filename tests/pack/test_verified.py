"""Chunks verified once in a process: the same bytes again without a hash, and never across a reopen."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kvsync.pack import VerifiedChunks
from kvsync_protocol.digest import Digest, sha256

MiB = 1 << 20


def kept(chunks: VerifiedChunks, data: bytes) -> Digest:
    digest = sha256(data)
    half = len(data) // 2
    chunks.keep(digest, [memoryview(data)[:half], memoryview(data)[half:]])
    return digest


def read(chunks: VerifiedChunks, digest: Digest, size: int) -> bytes | None:
    descriptor = chunks.open(digest, size)
    if descriptor is None:
        return None
    with os.fdopen(descriptor, "rb") as file:
        return os.pread(file.fileno(), size + 1, 0)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


WAYS_IN: dict[str, Callable[[int], object]] = {
    "written": lambda fd: os.pwrite(fd, b"x", 0),
    "shortened": lambda fd: os.ftruncate(fd, 1),
    "lengthened": lambda fd: os.ftruncate(fd, MiB),
    "mapped for writing": lambda fd: mmap.mmap(fd, 0, prot=mmap.PROT_READ | mmap.PROT_WRITE),
}


@pytest.mark.parametrize("way", WAYS_IN)
def test_what_is_kept_can_be_changed_by_nobody(way: str) -> None:
    with VerifiedChunks(MiB) as chunks:
        digest = kept(chunks, b"some verified bytes")
        descriptor = chunks.open(digest, 19)
        assert descriptor is not None
        with pytest.raises(OSError, match=r"not permitted|Permission denied"):
            WAYS_IN[way](descriptor)
        os.close(descriptor)
        assert read(chunks, digest, 19) == b"some verified bytes"


def test_the_least_recently_used_go_when_the_limit_is_reached() -> None:
    before = open_descriptors()
    with VerifiedChunks(3000) as chunks:
        first, second, third = (kept(chunks, bytes([n]) * 1000) for n in range(3))
        assert read(chunks, first, 1000) == bytes(1000)
        fourth = kept(chunks, b"d" * 1000)
        assert chunks.bytes == 3000
        assert [read(chunks, d, 1000) is not None for d in (first, second, third, fourth)] == [
            True,
            False,
            True,
            True,
        ]
        kept(chunks, bytes(3001))
        assert chunks.bytes == 3000
    assert chunks.bytes == 0
    assert open_descriptors() == before


def test_a_chunk_kept_twice_is_held_once() -> None:
    before = open_descriptors()
    with VerifiedChunks(MiB) as chunks:
        kept(chunks, b"the same")
        kept(chunks, b"the same")
        assert chunks.bytes == 8
        assert open_descriptors() == before + 1


def test_another_size_than_the_bytes_have_is_not_answered(tmp_path: Path) -> None:
    with VerifiedChunks(MiB) as chunks:
        digest = kept(chunks, b"twelve bytes")
        assert read(chunks, digest, 11) is None
        assert read(chunks, digest, 13) is None


def test_without_room_nothing_is_kept() -> None:
    with VerifiedChunks(0) as chunks:
        assert read(chunks, kept(chunks, b"x"), 1) is None
