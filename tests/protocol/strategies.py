"""Hypothesis strategies for protocol values. Small by default: properties do not need size."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st

from kvsync_protocol.digest import ArtifactId, Digest, sha256
from kvsync_protocol.fingerprint import Fingerprint, FingerprintKind, Fingerprints
from kvsync_protocol.layout import AnyGroup, DType, Group, LayerKind, Layout, StateGroup, StatePart
from kvsync_protocol.leaves import Leaf, LeafTable
from kvsync_protocol.manifest import Manifest, TokenRecord, Tree
from kvsync_protocol.prefix import encode_tokens
from kvsync_protocol.schedule import Schedule
from kvsync_protocol.signing import PublicKey, SigningKey

few = settings(max_examples=40)
"""For properties of whole artifacts, each of which takes milliseconds to make."""

KEYS = [SigningKey(bytes([number]) * 32) for number in range(1, 5)]

texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=40)
digests = st.binary(min_size=32, max_size=32).map(Digest)
artifacts = digests.map(ArtifactId)
public_keys: st.SearchStrategy[PublicKey] = st.sampled_from([key.public for key in KEYS])


@st.composite
def attention_groups(draw: st.DrawFn, name: str, layers: tuple[int, ...]) -> Group:
    window = draw(st.none() | st.integers(2, 40))
    return Group(
        name=name,
        kind=LayerKind.FULL if window is None else draw(st.sampled_from([LayerKind.SLIDING, LayerKind.CHUNKED])),
        layers=layers,
        kv_heads=draw(st.integers(1, 3)),
        key_dim=draw(st.integers(1, 5)),
        value_dim=draw(st.integers(1, 5)),
        dtype=draw(st.sampled_from(DType)),
        window=window,
    )


@st.composite
def state_groups(draw: st.DrawFn, name: str, layers: tuple[int, ...]) -> StateGroup:
    parts = [
        StatePart(
            part, tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))), draw(st.sampled_from(DType))
        )
        for part in draw(st.sampled_from([("conv0",), ("conv0", "state0"), ("a", "b1", "c")]))
    ]
    return StateGroup(name, layers, tuple(parts), draw(st.integers(1, 5)))


@st.composite
def group_lists(draw: st.DrawFn) -> tuple[AnyGroup, ...]:
    """One to three groups of any kind that share out one to six layers."""
    layers = draw(st.integers(1, 6))
    owner = [draw(st.integers(0, 2)) for _ in range(layers)]
    groups: list[AnyGroup] = []
    for number in sorted(set(owner)):
        mine = tuple(layer for layer, one in enumerate(owner) if one == number)
        name = f"group{number}"
        groups.append(draw(attention_groups(name, mine) | attention_groups(name, mine) | state_groups(name, mine)))
    return tuple(groups)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    return Layout(
        tokens=draw(st.integers(1, 60)),
        block_tokens=draw(st.integers(1, 12)),
        groups=draw(group_lists()),
        vocab=draw(st.integers(1, 50)),
        logits_dtype=draw(st.sampled_from(DType)),
    )


@st.composite
def schedules(draw: st.DrawFn, most: int = 80) -> Schedule:
    block = draw(st.integers(1, 12))
    places = draw(st.sets(st.integers(1, most), max_size=6))
    return Schedule(block, tuple(sorted(place for place in places if place % block)))


@st.composite
def fingerprints(draw: st.DrawFn, kind: FingerprintKind) -> Fingerprint:
    names = st.from_regex(r"[A-Za-z0-9._-]{1,12}", fullmatch=True)
    return Fingerprint(kind, draw(st.dictionaries(names, texts, min_size=1, max_size=4)))


pairs = st.builds(Fingerprints, fingerprints(FingerprintKind.COMPATIBILITY), fingerprints(FingerprintKind.NUMERICS))


@st.composite
def artifacts_described(draw: st.DrawFn) -> tuple[Manifest, bytes, bytes]:
    """A manifest with its leaf table and token ids; chunks are only named."""
    layout = draw(layouts())
    tokens = draw(st.lists(st.integers(0, 2**32 - 1), min_size=layout.tokens, max_size=layout.tokens))
    table = LeafTable.of([Leaf(sha256(b"%d" % span.index), span.size) for span in layout.chunks()])
    ids = encode_tokens(tokens)
    earlier = tuple(place for place in sorted(draw(st.sets(st.integers(1, 60), max_size=3))) if place < layout.tokens)
    schedule = Schedule(layout.block_tokens, tuple(p for p in earlier if p % layout.block_tokens))
    manifest = Manifest(
        TokenRecord(sha256(ids), layout.tokens, draw(st.none() | digests), draw(st.none() | digests)),
        schedule.with_boundary(layout.tokens),
        layout,
        sha256(table.encode()),
        Tree.of(table),
        draw(pairs),
    )
    return manifest, table.encode(), ids
