"""Cases for the encoding in planes: bodies made by the rules of PLANES.md, number by number."""

from __future__ import annotations

import struct
from collections.abc import Callable

import geometry
import reference as ref
from cases import Cases

CENTRE = 0x3F80
"""Any centre decodes; this is that of 1.0."""
NARROW_CENTRE = 0x38
"""The same of an F8_E4M3."""


def planes() -> Cases:
    c = Cases("PLANES.md: a chunk, encoded in planes")
    short = geometry.shape([geometry.group("full", [0], key_dim=2, value_dim=3)])
    _chunk(c, "fewer rows than have centres", short, 0, [])
    long = {**short, "tokens": 130, "block_tokens": 65}
    _chunk(c, "65 rows, each channel with its centre", long, 1, [2, 3])
    _chunk(c, "fields in a zstd frame", long, 0, [2, 3], framed=True)
    upper = geometry.shape([geometry.group("full", [0], dtype="F32")], tokens=64, block_tokens=64)
    _chunk(c, "F32: centres for the upper halves", upper, 0, [2, 2])
    _chunk(c, "logits in F32", upper, 1, [])
    narrow = geometry.shape(
        [geometry.group("full", [0], key_dim=2, value_dim=3, dtype="F8_E4M3")], tokens=64, block_tokens=64
    )
    _narrow(c, "F8: all of a number is field", narrow, [2, 3], lambda i: i * 37 % 251)
    _narrow(c, "F8: fields in a zstd frame", narrow, [2, 3], lambda _: NARROW_CENTRE)
    return c


def _chunk(
    c: Cases, name: str, given: dict[str, object], index: int, widths: list[int], *, framed: bool = False
) -> None:
    """The chunk `index` of a layout whose files are smaller than a chunk; `widths` are those of its tensors."""
    block, group, _, size = geometry.chunks(given)[index]
    each = 4 if group == "logits" or given["groups"][0]["dtype"] == "F32" else 2  # type: ignore[index]
    header = 256 if group == "logits" else 384
    data = bytes(i * 37 % 251 for i in range(size))
    if framed:  # numbers from 1 to 2: every field is 0
        data = data[:header] + b"".join(struct.pack("<H", CENTRE + i % 128) for i in range((size - header) // 2))
    words = [int.from_bytes(data[at : at + each][-2:], "little") for at in range(header, size, each)]
    rows = len(words) // sum(widths) if widths else 0
    minus = [CENTRE if widths else 0] * (rows * sum(widths)) or [0] * len(words)
    moved = [(word - centre) % 2**16 for word, centre in zip(words, minus, strict=True)]
    fields = bytes(word >> 7 & 0xFF for word in moved)
    body = _plane(struct.pack("<H", CENTRE) * sum(widths))
    body += _plane(fields, _frame(fields) if framed else None)
    body += _plane(bytes(word >> 8 & 0x80 | word & 0x7F for word in moved))
    if each == 4:
        body += _plane(b"".join(data[at : at + 2] for at in range(header, size, 4)))
    body += _plane(data[:header])
    c.ok(f"{name} (block {block})", "planes", ref.sha256(data).hex(), layout=given, index=index, body=body)


def _narrow(c: Cases, name: str, given: dict[str, object], widths: list[int], number: Callable[[int], int]) -> None:
    """The first chunk of a layout with numbers of one byte; `number` makes them."""
    size = geometry.chunks(given)[0][3]
    numbers = bytes(number(i) for i in range(size - 384))
    data = bytes(384) + numbers
    fields = bytes((each - NARROW_CENTRE) % 2**8 for each in numbers)
    body = _plane(bytes([NARROW_CENTRE]) * sum(widths))
    body += _plane(fields, _frame(fields) if len(set(fields)) == 1 else None)
    body += _plane(data[:384])
    c.ok(name, "planes", ref.sha256(data).hex(), layout=given, index=0, body=body)


def _plane(plane: bytes, packed: bytes | None = None) -> bytes:
    """A plane in a body: its length and its bytes, nothing when it has none."""
    sent = plane if packed is None else packed
    return struct.pack(">I", len(sent)) + sent if plane else b""


def _frame(plane: bytes) -> bytes:
    """A zstd frame (RFC 8878) of one block, shorter than any `plane`: its first byte, repeated."""
    if len(set(plane)) != 1:
        raise ValueError("only a plane of one byte value has such a frame")
    return b"\x28\xb5\x2f\xfd\x00\x38" + (len(plane) << 3 | 1 << 1 | 1).to_bytes(3, "little") + plane[:1]
