"""Cases for layouts, block files and the chunks a graft needs."""

from __future__ import annotations

from typing import Any

import reference as ref
import tiny
from cases import Cases


def group(name: str, layers: list[int], **change: object) -> ref.Json:
    return {**tiny.GROUP, "name": name, "layers": layers, **change}


def sliding(name: str, layers: list[int], window: int, **change: object) -> ref.Json:
    return group(name, layers, kind="sliding", window=window, **change)


def states(name: str, layers: list[int], every: int, **change: object) -> ref.Json:
    parts = [
        {"name": "conv0", "shape": [6, 3], "dtype": "BF16"},
        {"name": "state0", "shape": [2, 3, 4], "dtype": "F32"},
    ]
    return {"name": name, "kind": "recurrent", "layers": layers, "parts": parts, "every": every, **change}


def shape(groups: list[ref.Json], **change: object) -> dict[str, Any]:
    return {"tokens": 6, "block_tokens": 4, "groups": groups, "vocab": 3, "logits_dtype": "F32", **change}


def chunks(geometry: dict[str, Any]) -> list[list[Any]]:
    """`[block, group, offset, size]` of every chunk, by laying the files out."""
    found = []
    size, total = geometry["block_tokens"], geometry["tokens"]
    full = total // size
    for block, begin in enumerate(range(0, total, size)):
        count = min(size, total - begin)
        late = []
        for one in geometry["groups"]:
            pieces = _pieces(block, one, count)
            if one["kind"] != "recurrent" or block >= full or (block + 1) % one["every"] == 0:
                found += pieces
            elif block == full - 1:
                late += pieces
        found += late
    dtype, vocab = geometry["logits_dtype"], geometry["vocab"]
    file = len(ref.header([("logits", [1, 1, vocab])], dtype)) + vocab * ref.SIZES[dtype]
    last = -(-total // size)
    return found + [[last, "logits", at, min(ref.CHUNK, file - at)] for at in range(0, file, ref.CHUNK)]


def _pieces(block: int, one: ref.Json, count: int) -> list[list[Any]]:
    if one["kind"] == "recurrent":
        numbers = len(one["layers"]) * sum(ref.tensor_size(part["shape"], part["dtype"]) for part in one["parts"])
        file = len(ref.state_header(one)) + numbers
    else:
        numbers = one["kv_heads"] * count * (one["key_dim"] + one["value_dim"]) * len(one["layers"])
        file = len(ref.block_header(one, count)) + numbers * ref.SIZES[one["dtype"]]
    return [[block, one["name"], at, min(ref.CHUNK, file - at)] for at in range(0, file, ref.CHUNK)]


def layout() -> Cases:
    c = Cases("SPEC 3.2 and 3.3: chunks as [block, group, offset, size], headers, and chunks a graft needs by index")
    big = group("full", [0, 2], kv_heads=8, key_dim=1024, value_dim=512, dtype="F32")
    mixed = shape([big, sliding("local", [1, 3], 300)], tokens=600, block_tokens=256, vocab=1_200_000)
    for name, geometry in {
        "the worked example": shape([tiny.GROUP]),
        "no partial block": shape([tiny.GROUP], tokens=8),
        "shorter than a block": shape([tiny.GROUP], tokens=3),
        "two groups, files of several chunks": mixed,
        "half-precision logits": shape([group("full", [0], dtype="F16")], logits_dtype="BF16"),
    }.items():
        spans = chunks(geometry)
        full = sum(block < geometry["tokens"] // geometry["block_tokens"] for block, *_ in spans)
        out = {"chunks": spans, "bytes": sum(span[3] for span in spans), "full_leaves": full}
        c.ok(name, "layout", out, **geometry)

    c.ok("a header", "header", ref.block_header(tiny.GROUP, 4), group=tiny.GROUP, tokens=4)
    wide = sliding("local", [7, 1023], 512, kv_heads=1024, key_dim=16384, value_dim=16384)
    c.ok("a header with the longest entries", "header", ref.block_header(wide, 4096), group=wide, tokens=4096)
    c.ok(
        "the logits' header",
        "logits_header",
        ref.header([("logits", [1, 1, 49152])], "F32"),
        vocab=49152,
        dtype="F32",
    )

    near = shape([tiny.GROUP, sliding("local", [1], 6)], tokens=18)
    names = [span[:2] for span in chunks(near)]
    for name, position, logits, least in [
        ("nothing", 0, False, {"full": 0, "local": 0}),
        ("the window spans two blocks", 12, False, {"full": 0, "local": 1}),
        ("the window begins at a block's last token", 8, False, {"full": 0, "local": 0}),
        ("the whole artifact with its logits", 18, True, {"full": 0, "local": 3}),
    ]:
        last = -(-position // 4)
        out = [n for n, (block, one) in enumerate(names) if one != "logits" and least[one] <= block < last]
        out += [n for n, (_, one) in enumerate(names) if one == "logits" and logits]
        c.ok(f"graft: {name}", "graft_chunks", out, **near, position=position, logits=logits)
    _malformed(c)
    _states(c)
    return c


def _states(c: Cases) -> None:
    """Chunked attention, and layers with states."""
    two = [states("state", [1, 2], 2), group("near", [0], kind="chunked", window=6)]
    for name, tokens, full in [
        ("snapshots at blocks 2 and 4, the end inside block 5", 19, 6),
        ("a snapshot behind the last full block that only the end puts there", 22, 7),
        ("an end at a block that has its snapshot anyway", 16, 6),
        ("an end at a block that has none otherwise", 12, 4),
        ("states of an artifact shorter than a block", 3, 0),
    ]:
        geometry = shape(two, tokens=tokens)
        spans = chunks(geometry)
        out = {"chunks": spans, "bytes": sum(span[3] for span in spans), "full_leaves": full}
        c.ok(name, "layout", out, **geometry)
    large = [states("state", [1], 3, parts=[{"name": "big", "shape": [1100, 1000], "dtype": "F32"}]), two[1]]
    spans = chunks(shape(large, tokens=20))
    out = {"chunks": spans, "bytes": sum(span[3] for span in spans), "full_leaves": 7}
    c.ok("snapshots of two chunks", "layout", out, **shape(large, tokens=20))
    c.ok("a header of states", "state_header", ref.state_header(two[0]), group=two[0])
    near = shape(two, tokens=22)
    for position, place in [(0, 0), (7, 0), (8, 8), (15, 8), (16, 16), (19, 16), (20, 20), (21, 20), (22, 22)]:
        c.ok(f"a graft at {position} of 22 tokens begins at {place}", "restorable", place, **near, position=position)
    c.ok("graft: a snapshot and a chunk", "graft_chunks", [3, 4, 5], **near, position=16, logits=False)
    c.ok("graft: the snapshot that the end put there", "graft_chunks", [5, 6, 7], **near, position=20, logits=False)
    one = two[0]
    part = one["parts"][0]
    for name, code, broken in [
        ("a group of states without parts", "layout.parts", {**one, "parts": []}),
        ("two parts of one name", "layout.parts", {**one, "parts": [part, part]}),
        ("nine parts", "manifest.range", {**one, "parts": [{**part, "name": f"p{n}"} for n in range(9)]}),
        ("a part named key", "layout.name", {**one, "parts": [{**part, "name": "key"}]}),
        ("a part named in capitals", "layout.name", {**one, "parts": [{**part, "name": "CONV"}]}),
        ("a part of no dimension", "layout.shape", {**one, "parts": [{**part, "shape": []}]}),
        ("a part of five dimensions", "manifest.range", {**one, "parts": [{**part, "shape": [1] * 5}]}),
        ("a part of 2^26 + 2 numbers", "layout.shape", {**one, "parts": [{**part, "shape": [2**25 + 1, 2]}]}),
        ("a part with a dimension of 0", "manifest.range", {**one, "parts": [{**part, "shape": [2, 0]}]}),
        ("a part of a dtype of the future", "version.dtype", {**one, "parts": [{**part, "dtype": "I8"}]}),
        ("a snapshot after every 0 blocks", "manifest.range", {**one, "every": 0}),
        ("a snapshot after 2^16 + 1 blocks", "manifest.range", {**one, "every": 2**16 + 1}),
        ("states with heads", "manifest.unknown", {**one, "kv_heads": 1}),
        ("states without an interval", "manifest.missing", {k: v for k, v in one.items() if k != "every"}),
        ("keys called recurrent", "manifest.missing", {**tiny.GROUP, "kind": "recurrent"}),
        ("chunked attention without a chunk", "layout.window", group("near", [0], kind="chunked")),
    ]:
        c.bad(name, "layout", code, **shape([broken]))


def _malformed(c: Cases) -> None:
    one = tiny.GROUP
    for name, code, geometry in [
        ("no tokens", "layout.tokens", shape([one], tokens=0)),
        ("more tokens than 2^24", "layout.tokens", shape([one], tokens=2**24 + 1)),
        ("blocks of 4,097", "layout.tokens", shape([one], block_tokens=4097)),
        ("no groups", "layout.groups", shape([])),
        ("33 groups", "layout.groups", shape([group(f"g{n}", [n]) for n in range(33)])),
        ("two groups of one name", "layout.groups", shape([one, group("full", [1])])),
        ("a layer in two groups", "layout.layers", shape([one, group("other", [0])])),
        ("a layer in no group", "layout.layers", shape([group("full", [0, 2])])),
        ("layers in another order", "layout.layers", shape([group("full", [1, 0])])),
        ("a layer twice", "layout.layers", shape([group("full", [0, 0])])),
        ("a group without layers", "layout.layers", shape([group("full", [])])),
        ("layer 1,024", "manifest.range", shape([group("full", [1024])])),
        ("a layer that is true", "manifest.type", shape([group("full", [True])])),
        ("layers that are a number", "manifest.type", shape([{**one, "layers": 1}])),
        ("an empty vocabulary", "layout.vocab", shape([one], vocab=0)),
        ("no heads", "manifest.range", shape([group("full", [0], kv_heads=0)])),
        ("a key of 16 Ki + 1 numbers", "manifest.range", shape([group("full", [0], key_dim=16385)])),
        ("heads that are true", "manifest.type", shape([group("full", [0], kv_heads=True)])),
        ("a group named logits", "layout.name", shape([group("logits", [0])])),
        ("a group named as a path", "layout.name", shape([group("../full", [0])])),
        ("a group named in Cyrillic", "layout.name", shape([group("fuӏӏ", [0])])),
        ("a window where attention is full", "layout.window", shape([group("full", [0], window=4)])),
        ("no window where attention slides", "layout.window", shape([group("local", [0], kind="sliding")])),
        ("a window of 1", "manifest.range", shape([sliding("local", [0], 1)])),
        ("a layer kind of the future", "version.layer_kind", shape([group("state", [0], kind="telepathic")])),
        ("a dtype of the future", "version.dtype", shape([group("full", [0], dtype="F4")])),
        ("a member too many", "manifest.unknown", shape([group("full", [0], rotated=True)])),
        ("a member too few", "manifest.missing", shape([{k: v for k, v in one.items() if k != "value_dim"}])),
        (
            "2^24 tokens of 1,024 wide layers",
            "layout.leaves",
            shape([group("full", list(range(1024)), kv_heads=1024, key_dim=16384)], tokens=2**24, block_tokens=1),
        ),
    ]:
        c.bad(name, "layout", code, **geometry)
