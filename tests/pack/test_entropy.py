"""zstd as an entropy coder: ordinary frames, near the entropy, and nothing written past the space given."""

from __future__ import annotations

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kvsync.pack.entropy import EntropyCoder
from kvsync_protocol.limits import KiB, MiB

GUARD = 64


def compressed(plane: np.ndarray, room: int) -> bytes:
    """The frame that `room` bytes hold; what lies beyond them has to stay as it was."""
    space = np.full(room + GUARD, 0xA5, np.uint8)
    size = EntropyCoder().compress(plane, space[:room])
    assert size <= room
    assert (space[room:] == 0xA5).all()
    return space[:size].tobytes()


@given(st.binary(max_size=4 * KiB), st.integers(0, 5 * KiB))
def test_a_frame_fits_its_space_or_there_is_none(data: bytes, room: int) -> None:
    frame = compressed(np.frombuffer(data, np.uint8), room)
    if frame:
        assert zstandard.ZstdDecompressor().decompress(frame) == data
    else:
        assert room < len(data) + 32


@pytest.mark.parametrize("deviation", [2, 5, 20])
def test_symbols_take_hardly_more_than_their_entropy(deviation: int) -> None:
    symbols = np.random.default_rng(deviation).normal(0, deviation, MiB).round().astype(np.int8).view(np.uint8)
    counts = np.bincount(symbols).astype(float)
    share = counts[counts > 0] / len(symbols)
    entropy = -(share * np.log2(share)).sum() * len(symbols) / 8
    assert len(compressed(symbols, MiB)) < 1.05 * entropy


def test_noise_has_no_shorter_frame() -> None:
    noise = np.random.default_rng(7).integers(0, 256, MiB, dtype=np.uint8)
    assert not compressed(noise, MiB - 1)


def test_a_coder_is_as_good_as_new_after_a_space_that_was_too_small() -> None:
    plane, space, coder = (
        np.arange(64 * KiB, dtype=np.uint32).view(np.uint8) & 3,
        np.empty(MiB, np.uint8),
        EntropyCoder(),
    )
    assert not coder.compress(plane, space[:16])
    size = coder.compress(plane, space)
    assert zstandard.ZstdDecompressor().decompress(space[:size].tobytes()) == plane.tobytes()
