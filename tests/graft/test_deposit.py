"""Deposits: once, resumable, sharing what they share, and never half-published."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvsync.errors import EngineError, UsageError
from kvsync.store import Store, StoredArtifact
from kvsync.store.worth import read_cost
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.signing import SigningKey
from tests.graft.bench import BLOCK, Bench, words

CHILD = """
import sys
from pathlib import Path
from kvsync.engines import load_engine
from kvsync.graft import deposit
from kvsync.store import Store
from kvsync_protocol.signing import SigningKey
from tests.graft.bench import BLOCK, words

model, root, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
engine = load_engine(model, threads=1, block_tokens=BLOCK)

def told(stage, done, total, unit):
    print(done, flush=True)

with Store.open(root) as store:
    deposit(store, engine, SigningKey(bytes(range(1, 33))), words(count), progress=told)
"""


class _Counting:
    """A progress that remembers how many tokens were computed."""

    def __init__(self) -> None:
        self.total = 0

    def __call__(self, stage: str, done: int, total: int, unit: str) -> None:
        if stage == "prefill":
            self.total = total


def test_the_same_document_twice_is_computed_once(bench: Bench) -> None:
    first = bench.deposit(words(50))
    counting = _Counting()
    again = bench.deposit(words(50), progress=counting, name="team/handbook")
    assert (again.artifact, counting.total) == (first.artifact, 0)
    assert bench.store.resolve("team/handbook") == first.artifact


def test_what_a_computation_took_is_kept_for_the_choice_of_what_goes_first(bench: Bench) -> None:
    whole = bench.deposit(words(50))
    longer = bench.deposit(words(60))  # goes on from the shared blocks, and would have taken as much again without
    costs = [read_cost(stored.files, stored.artifact) for stored in (whole, longer)]
    assert all(cost is not None and cost > 0 for cost in costs)
    assert bench.store.fsck().clean


def test_two_hosts_that_compute_the_same_make_the_same_artifact(bench: Bench, tmp_path: Path) -> None:
    with Store.open(tmp_path / "other") as store:
        other = Bench(bench.engine, store, SigningKey.generate(), tmp_path / "other")
        assert other.deposit(words(50)).artifact == bench.deposit(words(50)).artifact


def test_a_longer_document_starts_at_its_longest_stored_prefix(bench: Bench, tmp_path: Path) -> None:
    bench.deposit(words(3 * BLOCK + 2))
    counting = _Counting()
    long = bench.deposit(words(6 * BLOCK), progress=counting)
    assert counting.total == 3 * BLOCK
    with Store.open(tmp_path / "other") as store:
        fresh = Bench(bench.engine, store, bench.key, tmp_path / "other").deposit(words(6 * BLOCK))
        assert fresh.artifact == long.artifact


def damage(bench: Bench, stored: StoredArtifact, index: int) -> None:
    """Flip one bit of a stored chunk; its size stays."""
    digest = stored.leaves().leaves[index].digest
    path = bench.store_path / "chunks" / digest.hex[:2] / digest.hex
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("index", range(8))
def test_a_damaged_chunk_is_refused_once_and_then_computed_anew(bench: Bench, index: int) -> None:
    tokens = words(3 * BLOCK + 5)
    stored = bench.deposit(tokens)
    assert len(stored.leaves().leaves) in (5, 9)  # a full model's, a sliding one's
    index = min(index, len(stored.leaves().leaves) - 2)
    damage(bench, stored, index)
    refused = bench.graft([*tokens, 5], artifact=stored.artifact).report.refused
    assert refused is not None
    assert refused.code == "integrity.chunk"
    assert not bench.store.has_chunk(stored.leaves().leaves[index].digest)
    assert bench.deposit(tokens).artifact == stored.artifact
    assert bench.graft([*tokens, 5]).report.tokens_grafted == len(tokens)
    assert bench.store.fsck().clean


@pytest.mark.parametrize("index", range(6))
def test_a_longer_document_is_right_whichever_shared_chunk_was_damaged(
    bench: Bench, tmp_path: Path, index: int
) -> None:
    short = bench.deposit(words(3 * BLOCK + 2))
    damage(bench, short, min(index, len(short.leaves().leaves) - 3))
    long = bench.deposit(words(6 * BLOCK))
    with Store.open(tmp_path / "other") as store:
        clean = Bench(bench.engine, store, bench.key, tmp_path / "other").deposit(words(6 * BLOCK))
        assert clean.artifact == long.artifact
    assert bench.graft([*words(6 * BLOCK), 5]).report.tokens_grafted == 6 * BLOCK


def test_blocks_of_a_signer_who_is_not_this_node_are_not_vouched_for(bench: Bench) -> None:
    bench.deposit(words(3 * BLOCK))
    stranger = Bench(bench.engine, bench.store, SigningKey.generate(), bench.store_path)
    counting = _Counting()
    stranger.deposit(words(4 * BLOCK), progress=counting)
    assert counting.total == 4 * BLOCK


@pytest.mark.parametrize("blocks", [1, 3, 6])
def test_a_killed_deposit_resumes_at_its_last_stored_block(bench: Bench, tiny_model_dir: Path, blocks: int) -> None:
    count = 8 * BLOCK + 5
    root = bench.store_path
    command = [sys.executable, "-c", CHILD, str(tiny_model_dir), str(root), str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) >= blocks * BLOCK:
                child.send_signal(signal.SIGKILL)
                break
    assert child.returncode == -signal.SIGKILL
    assert bench.store.artifacts() == []
    counting = _Counting()
    stored = bench.deposit(words(count), progress=counting)
    assert counting.total <= count - blocks * BLOCK
    assert bench.store.fsck().clean
    tokens = [*words(count), 9]
    assert bench.continued(bench.graft(tokens)) == bench.fresh(tokens, (count,))
    assert stored.manifest.tokens.count == count


def test_what_makes_no_sense_is_refused_before_anything_is_stored(bench: Bench) -> None:
    cases = [
        (UsageError, "deposit.empty", [], {}),
        (UsageError, "deposit.boundary", words(20), {"boundaries": (20,)}),
        (UsageError, "deposit.boundary", words(20), {"boundaries": (0,)}),
        (MalformedError, "ref.name", words(20), {"name": "../etc"}),
        (EngineError, "engine.token", [1, 100_000], {}),
        (EngineError, "engine.too_long", words(40_000), {}),
    ]
    for kind, code, tokens, options in cases:
        with pytest.raises(kind) as refused:
            bench.deposit(tokens, **options)
        assert refused.value.code == code
    usage = bench.store.usage()
    assert (usage.artifacts, usage.chunks) == (0, 0)
