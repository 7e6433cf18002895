"""An audit finds what is wrong, where it begins, and nothing else; its findings are signed and add up."""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import comb
from pathlib import Path

import pytest

from benchmarks.forger import consistent, flip
from kvsync.engines import load_engine
from kvsync.engines.engine import Engine
from kvsync.errors import NotFoundError, StoreError
from kvsync.evidence.audit import audit
from kvsync.evidence.selection import Selection
from kvsync.store import Store
from kvsync_protocol.attestation import Coverage
from kvsync_protocol.errors import MismatchError
from kvsync_protocol.layout import DType
from kvsync_protocol.signing import SigningKey
from tests.graft.bench import BLOCK, Bench, words

AUDITOR = SigningKey(bytes(range(2, 34)))
FORGER = SigningKey(bytes(range(3, 35)))
BLOCKS = 7
TOKENS = (BLOCKS - 1) * BLOCK + 5


@pytest.fixture(scope="module")
def engine(tiny_model_dir: Path) -> Engine:
    return load_engine(tiny_model_dir, threads=1, block_tokens=BLOCK)


@pytest.fixture
def bench(engine: Engine, tmp_path: Path) -> Iterator[Bench]:
    with Store.open(tmp_path / "store") as store:
        yield Bench(engine, store, SigningKey(bytes(range(1, 33))), tmp_path / "store")


def run(bench: Bench, artifact: object, blocks: str = "all", share: str = "1/1", seed: int | None = None, **more):
    selection = Selection.parse(blocks, share, seed)
    return audit(bench.store, bench.engine, AUDITOR, artifact, selection, **more)


@pytest.mark.parametrize("tokens", [1, BLOCK, BLOCK + 1, 3 * BLOCK, TOKENS])
def test_an_honest_artifact_passes_and_all_of_it_is_attested(bench: Bench, tokens: int) -> None:
    stored = bench.deposit(words(tokens))
    report = run(bench, stored.artifact)
    assert (report.passed, report.first_wrong, report.logits) == (True, None, True)
    assert report.blocks == tuple(range(stored.manifest.layout.blocks))
    assert report.tokens == tokens  # nothing is computed twice
    [signed] = bench.store.evidence.signed(stored.manifest, [AUDITOR.public])
    assert Coverage.of(stored.manifest.layout, [signed]).percent == 100
    assert (signed.attestation.artifact, signed.attestation.differs) == (stored.artifact, None)


def test_an_artifact_with_cuts_of_a_conversation_passes(bench: Bench) -> None:
    stored = bench.deposit(words(4 * BLOCK + 3), boundaries=(5, BLOCK + 7, 2 * BLOCK + 1))
    assert run(bench, stored.artifact).passed
    for block in range(5):
        assert audit(bench.store, bench.engine, AUDITOR, stored.artifact, Selection(1, seed=block)).passed


@pytest.mark.parametrize("seed", range(12))
def test_one_flipped_bit_anywhere_is_found_by_a_full_audit(bench: Bench, seed: int) -> None:
    rng = random.Random(seed)
    stored, block = bench.deposit(words(TOKENS)), rng.randrange(BLOCKS)
    forged = flip(bench.store, stored, FORGER, block, rng)
    report = run(bench, forged.artifact)
    assert (report.passed, report.first_wrong, report.exactly) == (False, block, True)
    first = report.wrong[0]
    table, honest = forged.leaves().leaves, stored.leaves().leaves
    assert [i for i in range(len(table)) if table[i] != honest[i]] == [first.leaf]
    assert (first.signed, first.found) == (table[first.leaf].digest, honest[first.leaf].digest)
    assert run(bench, stored.artifact).passed


@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_consistent_forgery_is_found_exactly_where_it_begins(bench: Bench, block: int) -> None:
    """Later blocks are what the corrupt state gives, so only the block itself shows the fault."""
    stored = bench.deposit(words(TOKENS))
    forged = consistent(bench.store, bench.engine, stored, FORGER, block, random.Random(block))
    assert {wrong.block for wrong in run(bench, forged.artifact).wrong} == {block}
    others = [b for b in range(BLOCKS) if b != block]
    for other in others:
        seed = next(s for s in range(1000) if Selection(1, seed=s).blocks(stored.manifest.layout) == (other,))
        assert run(bench, forged.artifact, "1", seed=seed).passed


def test_three_blocks_by_chance_find_a_consistent_forgery_at_the_hypergeometric_rate(bench: Bench) -> None:
    stored = bench.deposit(words(TOKENS))
    forged = consistent(bench.store, bench.engine, stored, FORGER, 4, random.Random(0))
    draws = [run(bench, forged.artifact, "3", seed=seed) for seed in range(35)]
    assert all(report.passed == (4 not in report.blocks) for report in draws)
    found = sum(not report.passed for report in draws)
    expected = 1 - comb(BLOCKS - 1, 3) / comb(BLOCKS, 3)
    assert abs(found / 35 - expected) < 0.2  # the draws are fixed by their seeds: 15 of 35 are expected


def test_wrong_final_logits_are_found_after_the_last_block(bench: Bench) -> None:
    stored = bench.deposit(words(TOKENS))
    forged = flip(bench.store, stored, FORGER, BLOCKS - 1, random.Random(1))
    layout = stored.manifest.layout
    logits = _with_wrong_logits(bench, stored)
    report = run(bench, logits)
    assert [(wrong.block, wrong.group) for wrong in report.wrong] == [(layout.blocks, "logits")]
    assert report.first_wrong == BLOCKS
    assert run(bench, forged.artifact).first_wrong == BLOCKS - 1


def _with_wrong_logits(bench: Bench, stored):
    from benchmarks import forger

    chunks = forger._read(bench.store, stored)
    leaves = list(stored.leaves().leaves)
    data = bytearray(chunks.data[leaves[-1].digest])
    data[-4] ^= 1
    leaves[-1] = chunks.append(bytes(data))
    return forger._publish(bench.store, stored, FORGER, leaves, chunks).artifact


@pytest.mark.parametrize("count", [2, 3, 7])
def test_shares_are_disjoint_cover_everything_and_add_up_to_full_coverage(bench: Bench, count: int) -> None:
    stored = bench.deposit(words(TOKENS))
    reports = [run(bench, stored.artifact, share=f"{number}/{count}") for number in range(1, count + 1)]
    assert sorted(block for report in reports for block in report.blocks) == list(range(BLOCKS))
    assert sum(report.tokens for report in reports) == TOKENS
    assert reports[-1].coverage.percent == 100
    assert len(bench.store.attestations(stored.artifact)) == 1  # one signer, one attestation that says it all


def test_an_audit_that_fails_stays_beside_the_artifact_and_ends_its_use(bench: Bench) -> None:
    tokens = words(TOKENS + 2)
    stored = bench.deposit(tokens[:TOKENS])
    forged = consistent(bench.store, bench.engine, stored, bench.key, 2, random.Random(2))
    assert bench.graft(tokens, artifact=forged.artifact).report.refused is None
    assert bench.graft(tokens).report.artifact == forged.artifact  # the last one stored is matched first
    report = run(bench, forged.artifact)
    assert report.first_wrong == 2
    refused = bench.graft(tokens, artifact=forged.artifact).report.refused
    assert refused is not None
    assert refused.code == "evidence.refuted"
    assert bench.graft(tokens).report.artifact == stored.artifact
    assert bench.continued(bench.graft(tokens)) == bench.fresh(tokens, (TOKENS,))
    bench.store.remove(forged.artifact)
    bench.store.gc()
    assert bench.store.evidence.refutation(forged.artifact) is not None


def test_a_refutation_that_was_this_nodes_own_fault_is_withdrawn_by_the_next_audit(bench: Bench) -> None:
    from kvsync_protocol.attestation import Attestation, Discrepancy
    from kvsync_protocol.digest import sha256

    stored = bench.deposit(words(TOKENS))
    numerics = bench.engine.fingerprints.numerics.digest
    wrong = Attestation(stored.artifact, numerics, ((3, 4),), False, Discrepancy(3, sha256(b"a hot day"))).seal(
        AUDITOR
    )
    bench.store.add_attestation(wrong, [AUDITOR.public])
    bench.store.evidence.refute(wrong)
    run(
        bench,
        stored.artifact,
        "1",
        seed=next(s for s in range(1000) if Selection(1, seed=s).blocks(stored.manifest.layout) == (0,)),
    )
    assert bench.store.evidence.refutation(stored.artifact) is not None  # block 0 says nothing about leaf 3
    assert run(bench, stored.artifact).coverage.percent == 100
    assert bench.store.evidence.refutation(stored.artifact) is None
    assert all(s.attestation.differs is None for s in bench.store.evidence.signed(stored.manifest, [AUDITOR.public]))


def test_what_is_computed_here_and_contradicts_what_was_taken_from_others_is_a_divergence(bench: Bench) -> None:
    honest = bench.deposit(words(TOKENS))
    forged = consistent(bench.store, bench.engine, honest, FORGER, 2, random.Random(1))
    bench.store.remove(honest.artifact)
    assert bench.store.evidence.divergences() == []
    longer = bench.deposit([*words(TOKENS), 5, 6, 7])
    [record] = bench.store.evidence.divergences()
    assert set(record.artifacts) == {longer.artifact, forged.artifact}
    assert (record.divergence.block, record.settled) == (2, False)
    assert not run(bench, forged.artifact).passed
    assert [record.settled for record in bench.store.evidence.divergences()] == [True]


def test_an_artifact_of_other_arithmetic_or_another_model_cannot_be_audited(
    bench: Bench, tiny_model_dir: Path
) -> None:
    stored = bench.deposit(words(BLOCK + 1))
    for engine, code in (
        (load_engine(tiny_model_dir, dtype=DType.BF16, block_tokens=BLOCK), "mismatch.compatibility"),
        (load_engine(tiny_model_dir, attention="eager", block_tokens=BLOCK), "mismatch.numerics"),
    ):
        with pytest.raises(MismatchError) as caught:
            audit(bench.store, engine, AUDITOR, stored.artifact)
        assert caught.value.code == code
    assert bench.store.attestations(stored.artifact) == []


def test_an_incomplete_or_absent_artifact_cannot_be_audited(bench: Bench) -> None:
    stored = bench.deposit(words(3 * BLOCK))
    leaf = stored.leaves().leaves[1]
    (bench.store_path / "chunks" / leaf.digest.hex[:2] / leaf.digest.hex).unlink()
    with pytest.raises(StoreError) as caught:
        run(bench, stored.artifact)
    assert caught.value.code == "store.incomplete"
    bench.store.remove(stored.artifact)
    with pytest.raises(NotFoundError) as missing:
        run(bench, stored.artifact)
    assert missing.value.code == "store.unknown_artifact"


def test_an_audit_under_an_equal_canary_names_what_it_tolerated_and_refutes_nobody(bench: Bench) -> None:
    from dataclasses import replace

    from kvsync_protocol.fingerprint import Fingerprint, Fingerprints

    stored = bench.deposit(words(TOKENS))
    forged = flip(bench.store, stored, FORGER, 1, random.Random(1))
    pair = forged.manifest.fingerprints
    numerics = Fingerprint(pair.numerics.kind, {**pair.numerics.fields, "torch": "another"})
    elsewhere = replace(
        forged, manifest=replace(forged.manifest, fingerprints=Fingerprints(pair.compatibility, numerics))
    )
    from benchmarks import forger

    chunks = forger._read(bench.store, forged)
    other = forger._publish(
        bench.store, replace(forged, manifest=elsewhere.manifest), FORGER, list(forged.leaves().leaves), chunks
    )
    with pytest.raises(MismatchError):
        run(bench, other.artifact)
    report = run(bench, other.artifact, accept="canary")
    assert ([d.field for d in report.tolerated], report.first_wrong) == (["torch"], 1)
    assert bench.store.evidence.refutation(other.artifact) is None
