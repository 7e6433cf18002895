"""Grafts on artifacts that are here in part: exact wherever what is here allows, refused or shorter elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvsync.errors import StoreError
from kvsync.evidence.audit import audit
from kvsync.graft.match import best_matches
from kvsync.store import Store, StoredArtifact
from kvsync_protocol.prefix import encode_tokens
from kvsync_protocol.signing import SigningKey
from tests.engines.tiny_kinds import KindModels
from tests.engines.tiny_models import FAMILIES, Models, some_tokens
from tests.graft.bench import Bench

SIGNER = SigningKey(bytes(range(32)))
BLOCKS = 6
ENGINES = [
    "llama",
    "gemma3, window of two tokens",
    "mistral, window above a block",
    "granite 4, mamba-2",
    "inkling, windows and four convolutions in a layer",
]


@pytest.fixture(scope="module")
def make_bench(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Bench, Bench]]:
    """An engine over two stores: where an artifact is computed, and where parts of it arrive."""
    kinds, models = KindModels(tmp_path_factory.mktemp("kinds")), Models(tmp_path_factory.mktemp("models"))

    def make(name: str) -> tuple[Bench, Bench]:
        engine = (models if name in FAMILIES else kinds).engine(name)
        root = tmp_path_factory.mktemp("stores")
        benches = [Bench(engine, Store.open(root / side), SIGNER, root / side) for side in ("from", "to")]
        return benches[0], benches[1]

    return make


def carry(source: Store, target: Store, stored: StoredArtifact, *positions: int) -> StoredArtifact:
    """What a prefix pull does, without a network."""
    leaves = stored.leaves().encode()
    tokens = encode_tokens(stored.tokens())
    with target.pull_draft(stored.envelope, stored.manifest, leaves, tokens, positions=positions or None) as draft:
        for index in draft.missing():
            with open(source.open_chunk(draft.leaves.leaves[index].digest), "rb") as file:  # noqa: PTH123
                draft.put(index, file.read())
        return draft.publish()


@pytest.mark.parametrize("name", ENGINES)
def test_a_graft_on_a_part_continues_exactly_as_the_fresh_run(name: str, make_bench) -> None:
    origin, here = make_bench(name)
    size = origin.engine.schedule.block_tokens
    document = some_tokens(BLOCKS * size + 5)
    stored = origin.deposit(document)
    layout = stored.manifest.layout
    places = sorted({layout.restorable(k * size) for k in range(1, BLOCKS + 1)} - {0})
    middle = places[len(places) // 2]
    carry(origin.store, here.store, stored, middle)
    for shared in (middle, middle + 3, layout.tokens):
        tokens = document[:shared] + some_tokens(size + 3, 7)
        found = here.graft(tokens)
        assert (found.report.mode, found.report.tokens_grafted) == ("prefix", middle), found.report
        assert here.continued(found) == here.fresh(tokens, ())
    below = document[: middle - size + 1] + some_tokens(size + 3, 9)
    found = here.graft(below)
    assert found.report.tokens_grafted == here.store.artifact(stored.artifact).restorable(middle - size)
    assert here.continued(here.graft(below, recompute=True)) == here.fresh(below, ())
    assert here.graft(document).final_logits is None

    carry(origin.store, here.store, stored, layout.tokens)  # the end as well
    question = [*document, *some_tokens(4, 8)]
    found = here.graft(question)
    assert (found.report.mode, found.report.tokens_grafted) == ("whole", len(document))
    assert here.continued(found) == here.fresh(question, (len(document),))
    assert here.graft(document).final_logits is not None
    assert here.store.fsck().clean


def test_another_artifact_that_is_complete_serves_where_the_part_does_not(make_bench) -> None:
    origin, here = make_bench("mistral, window above a block")
    size = origin.engine.schedule.block_tokens
    document = some_tokens(BLOCKS * size)
    long, short = origin.deposit(document), origin.deposit(document[: 3 * size + 2])
    carry(origin.store, here.store, long, 5 * size)
    carry(origin.store, here.store, short)
    tokens = document[: 4 * size + 1] + some_tokens(9, 5)
    positions = [
        (match.artifact, match.position)
        for match in best_matches(here.store, tokens, here.engine.fingerprints, here.engine.schedule)
    ]
    assert positions[0] == (short.artifact, 3 * size + 2)
    assert here.continued(here.graft(tokens)) == here.fresh(tokens, (3 * size + 2,))
    longer = document[: 5 * size + 1] + some_tokens(9, 5)
    assert here.graft(longer).report.artifact == long.artifact


def test_a_part_that_ends_elsewhere_is_a_refusal_that_says_so(make_bench) -> None:
    origin, here = make_bench("mistral, window above a block")
    size = origin.engine.schedule.block_tokens
    document = some_tokens(BLOCKS * size)
    stored = origin.deposit(document)
    carry(origin.store, here.store, stored, 5 * size)
    tokens = document[:size] + some_tokens(9, 5)
    found = here.graft(tokens, artifact=stored.artifact)
    assert found.report.refused is not None
    assert (found.report.refused.code, found.report.tokens_grafted) == ("store.partial", 0)
    assert "pull" in found.report.refused.hint


def test_a_part_is_neither_audited_nor_taken_over_by_a_deposit(make_bench, tmp_path: Path) -> None:
    origin, here = make_bench("llama")
    size = origin.engine.schedule.block_tokens
    document = some_tokens(3 * size + 1)
    stored = origin.deposit(document)
    carry(origin.store, here.store, stored, 2 * size)
    with pytest.raises(StoreError) as refused:
        audit(here.store, here.engine, SIGNER, stored.artifact)
    assert refused.value.code == "store.incomplete"
    assert "pull" in refused.value.hint
    again = here.deposit(document)
    assert (again.artifact, again.extent) == (stored.artifact, None)
    assert audit(here.store, here.engine, SIGNER, stored.artifact).passed
