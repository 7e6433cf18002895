"""A graft continues exactly as the fresh computation, or refuses with its reason and an empty cache."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from kvsync.engines import load_engine
from kvsync.errors import UsageError
from kvsync.pack import VerifiedChunks
from kvsync_protocol.digest import ArtifactId, sha256
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.layout import DType
from kvsync_protocol.manifest import PAYLOAD_TYPE
from kvsync_protocol.signing import SigningKey
from tests.graft.bench import BLOCK, Bench, words


@pytest.mark.parametrize("document", [1, 5, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 7, 6 * BLOCK])
@pytest.mark.parametrize("new", [1, 4, BLOCK, 2 * BLOCK + 3])
def test_a_whole_graft_equals_the_fresh_run_cut_at_its_end(bench: Bench, document: int, new: int) -> None:
    tokens = words(document + new)
    bench.deposit(tokens[:document])
    found = bench.graft(tokens)
    report = found.report
    assert (report.mode, report.tokens_grafted, report.tokens_recomputed) == ("whole", document, new)
    assert found.next_input_ids.tolist() == [list(found.next_tokens)]
    assert bench.continued(found) == bench.fresh(tokens, (document,))


def test_without_advance_all_new_positions_are_left_to_the_caller(bench: Bench) -> None:
    """A question that crosses a cut: two calls, every logit of both comparable with the fresh run's."""
    document, new = 2 * BLOCK - 2, 7
    tokens = words(document + new)
    bench.deposit(tokens[:document])
    found = bench.graft(tokens, advance=False)
    assert list(found.next_tokens) == tokens[document:]
    schedule = bench.engine.schedule.with_boundary(document)
    context = bench.engine.new_context()
    bench.engine.prefill(context, tokens[:document], schedule)
    fresh = bench.engine.extend(context, tokens[document:], schedule)
    grafted = bench.engine.extend(found.context, found.next_tokens, found.schedule)
    assert (grafted.positions, grafted.sha256()) == (new, fresh.sha256())


@pytest.mark.parametrize("shared", [BLOCK, BLOCK + 5, 3 * BLOCK, 4 * BLOCK - 1])
def test_a_prefix_graft_equals_the_fresh_run_under_the_callers_cuts(bench: Bench, shared: int) -> None:
    bench.deposit(words(5 * BLOCK + 3))
    tokens = words(shared) + words(2 * BLOCK + 1, seed=5)
    found = bench.graft(tokens)
    assert (found.report.mode, found.report.tokens_grafted) == ("prefix", shared // BLOCK * BLOCK)
    assert bench.continued(found) == bench.fresh(tokens, ())


def test_the_artifact_itself_starts_decoding_from_its_stored_logits(bench: Bench) -> None:
    tokens = words(2 * BLOCK + 3)
    bench.deposit(tokens)
    found = bench.graft(tokens)
    assert found.next_tokens == ()
    assert found.next_input_ids.shape == (1, 0)
    assert found.final_logits is not None
    context = bench.engine.new_context()
    logits = bench.engine.prefill(context, tokens, bench.engine.schedule.with_boundary(len(tokens)))
    assert found.final_logits.sha256() == logits.sha256()
    fresh = bench.engine.decode_greedy(context, logits, 8)
    grafted = bench.engine.decode_greedy(found.context, found.final_logits, 8)
    assert (grafted[0], grafted[1].sha256()) == (fresh[0], fresh[1].sha256())


def test_the_cache_goes_straight_into_generate(bench: Bench) -> None:
    import torch

    tokens = words(3 * BLOCK + 4)
    bench.deposit(tokens[: 2 * BLOCK + 1])
    found = bench.graft(tokens)
    model = bench.engine.model  # type: ignore[attr-defined]
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    out = model.generate(
        torch.tensor([tokens]), **{name: found.cache}, max_new_tokens=6, do_sample=False, eos_token_id=-1
    )
    again = bench.graft(tokens)
    logits = bench.engine.extend(again.context, again.next_tokens, again.schedule)
    assert out[0, len(tokens) :].tolist() == bench.engine.decode_greedy(again.context, logits, 6)[0]


def test_the_longest_match_wins_and_earlier_boundaries_are_kept(bench: Bench) -> None:
    tokens = words(6 * BLOCK)
    bench.deposit(tokens[: BLOCK + 3])
    long = bench.deposit(tokens[: 3 * BLOCK + 2], boundaries=(BLOCK + 3,))
    found = bench.graft(tokens)
    assert (found.report.artifact, found.report.tokens_grafted) == (long.artifact, 3 * BLOCK + 2)
    assert bench.continued(found) == bench.fresh(tokens, (BLOCK + 3, 3 * BLOCK + 2))


def test_nothing_stored_is_a_miss_with_an_empty_cache_or_a_canonical_one(bench: Bench) -> None:
    tokens = words(2 * BLOCK + 2)
    found = bench.graft(tokens)
    assert found.report.refused is not None
    assert (found.report.refused.code, found.report.tokens_grafted) == ("graft.miss", 0)
    assert (found.context.position, list(found.next_tokens)) == (0, tokens)
    computed = bench.graft(tokens, recompute=True)
    assert computed.context.position == 2 * BLOCK
    assert bench.continued(computed) == bench.fresh(tokens, ())


def test_no_tokens_is_a_usage_error(bench: Bench) -> None:
    with pytest.raises(UsageError) as refused:
        bench.graft([])
    assert refused.value.code == "graft.empty"


def _refused(bench: Bench, tokens: list[int], **options: object) -> str:
    found = bench.graft(tokens, **options)
    assert found.report.refused is not None
    assert found.report.tokens_grafted == 0
    assert found.context.position == 0
    assert list(found.next_tokens) == tokens
    return found.report.refused.code


def test_every_kind_of_damage_is_refused_by_its_own_check(bench: Bench, tmp_path: Path, tiny_model_dir: Path) -> None:
    tokens = words(3 * BLOCK + 5)
    stored = bench.deposit(tokens[:-2])
    folder = tmp_path / "store" / "artifacts" / stored.artifact.hex
    chunks = [
        tmp_path / "store" / "chunks" / leaf.digest.hex[:2] / leaf.digest.hex for leaf in stored.leaves().leaves
    ]

    def flipped(path: Path) -> str:
        original = path.read_bytes()
        path.chmod(0o600)
        path.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
        code = _refused(bench, tokens, artifact=stored.artifact)
        path.write_bytes(original)  # a bad chunk was set aside, so this may be a new file
        path.chmod(0o600)
        return code

    assert {flipped(chunk) for chunk in chunks[:-1]} == {"integrity.chunk"}
    assert flipped(folder / "leaves") == "integrity.leaf_table"
    assert flipped(folder / "tokens") == "integrity.tokens"
    envelope = folder / "envelope.json"
    genuine = envelope.read_bytes()
    envelope.chmod(0o600)
    stranger = Envelope.seal(PAYLOAD_TYPE, Envelope.parse(genuine).payload, SigningKey.generate())
    envelope.write_bytes(stranger.encode())
    assert _refused(bench, tokens, artifact=stored.artifact) == "trust.untrusted_signer"
    envelope.write_bytes(genuine)
    chunks[1].unlink()
    assert _refused(bench, tokens, artifact=stored.artifact) == "store.unknown_chunk"
    assert _refused(bench, tokens, artifact=ArtifactId(sha256(b"no such"))) == "store.unknown_artifact"


@pytest.mark.parametrize("extra", [5, -9])
def test_a_damaged_description_of_the_best_match_is_a_refusal_and_no_failure(
    extra: int, bench: Bench, tmp_path: Path
) -> None:
    """Whole and by prefix: what is found by its keys alone may be unreadable."""
    document = words(3 * BLOCK + 5)
    stored = bench.deposit(document)
    envelope = tmp_path / "store" / "artifacts" / stored.artifact.hex / "envelope.json"
    envelope.chmod(0o600)
    envelope.write_bytes(envelope.read_bytes()[:-20])
    tokens = [*document, *words(extra, 5)] if extra > 0 else [*document[:extra], *words(7, 5)]
    assert _refused(bench, tokens) == "json.syntax"


def test_a_second_graft_in_a_process_takes_verified_bytes_and_a_reopened_one_does_not(
    bench: Bench, tmp_path: Path
) -> None:
    tokens = words(3 * BLOCK + 5)
    stored = bench.deposit(tokens[:-2])
    expected = bench.fresh(tokens, (len(tokens) - 2,))
    with VerifiedChunks(1 << 30) as verified:
        first = bench.graft(tokens, verified=verified)
        assert first.report.bytes_verified_before == 0
        for leaf in stored.leaves().leaves:
            path = tmp_path / "store" / "chunks" / leaf.digest.hex[:2] / leaf.digest.hex
            path.write_bytes(bytes(leaf.size))
        second = bench.graft(tokens, verified=verified)
        assert second.report.bytes_verified_before == second.report.bytes == first.report.bytes > 0
        assert bench.continued(first) == bench.continued(second) == expected
    with VerifiedChunks(1 << 30) as reopened:
        refused = bench.graft(tokens, verified=reopened).report.refused
        assert refused is not None
        assert refused.code == "integrity.chunk"


def test_other_tokens_templates_and_arithmetic_are_refused(bench: Bench, tiny_model_dir: Path) -> None:
    tokens = words(2 * BLOCK + 1)
    stored = bench.deposit(tokens, template=sha256(b"a template"))
    assert _refused(bench, words(40, seed=3), artifact=stored.artifact) == "mismatch.tokens"
    code = _refused(bench, [*tokens, 5], artifact=stored.artifact, template=sha256(b"another"))
    assert code == "mismatch.template"
    half = load_engine(tiny_model_dir, dtype=DType.BF16, block_tokens=BLOCK)
    other = Bench(half, bench.store, bench.key, bench.store_path)
    assert _refused(other, [*tokens, 5], artifact=stored.artifact) == "mismatch.compatibility"
    eager = load_engine(tiny_model_dir, attention="eager", block_tokens=BLOCK)
    assert _refused(
        Bench(eager, bench.store, bench.key, bench.store_path), [*tokens, 5], artifact=stored.artifact
    ) == ("mismatch.numerics")


def test_a_refusal_leaves_a_live_context_as_it_was(bench: Bench, tmp_path: Path) -> None:
    tokens = words(2 * BLOCK + 5)
    stored = bench.deposit(tokens[:-1])
    live = bench.graft(tokens).context
    before = bench.engine.state_digest(live)
    leaf = stored.leaves().leaves[2]
    path = tmp_path / "store" / "chunks" / leaf.digest.hex[:2] / leaf.digest.hex
    path.chmod(0o600)
    path.write_bytes(bytes(leaf.size))
    assert _refused(bench, tokens) == "integrity.chunk"
    assert bench.engine.state_digest(live) == before


def test_the_report_is_complete_and_plain(bench: Bench) -> None:
    tokens = words(BLOCK + 3)
    stored = bench.deposit(tokens[:-1])
    report = bench.graft(tokens).report
    shown = report.as_dict()
    assert shown["artifact"] == str(stored.artifact)
    assert shown["checks"] == [
        "signature",
        "merkle root",
        "token ids",
        "compatibility",
        "numerics",
        "template and layout",
        "chunks",
        "positions",
    ]
    assert shown["refused"] is None
    assert report.chunks == 2
    assert set(report.seconds) == {"lookup", "verify", "restore"}
