"""The ladder: what answers, in which order, at what cost, and what is left when it ends."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import kvsync
from kvsync.engines import load_engine
from kvsync.engines.engine import Engine
from kvsync.errors import PolicyError, UsageError
from kvsync.library.decoding import Sampling, decode, decode_rows
from kvsync.library.library import Library, artifact_name
from kvsync.library.problem import Problem
from kvsync.library.recipe import Recipe
from kvsync.library.wording import Wording
from kvsync_protocol.errors import TrustError
from kvsync_protocol.prefix import tokens_digest
from tests.library.conftest import Knows

FIRST = "w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w11 w12"
OTHER = "w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w11 w13"
SHORT = Recipe(max_tokens=6, samples=2, stops=("w99999",))


def greedy_answer(engine: Engine, problem: str, limit: int = 6) -> str:
    """What the model says unaided, by the engine's own greedy decoding."""
    context = engine.new_context()
    logits = engine.prefill(context, Wording(engine).ask(problem), engine.schedule)
    return engine.decode(engine.decode_greedy(context, logits, limit)[0])


def test_a_problem_is_solved_unaided_once_stored_and_then_answered_from_the_library(library: Library, engine: Engine):
    verifier = Knows(greedy_answer(engine, FIRST))
    first = library.solve(FIRST, engine, verifier, budget=100, recipe=SHORT)
    assert (first.strategy, first.answer) == ("greedy", verifier.answer)
    assert first.cost.decoded == 6
    assert first.costs["greedy"].prefilled == len(Wording(engine).ask(FIRST))
    assert first.deposited is not None
    assert first.deposited.refused == ""
    (stored,) = library.find(Problem.of(FIRST).address)
    assert stored.entry.cost.decoded == 6
    assert stored.entry.solution == verifier.answer

    again = library.solve(f"  {FIRST.replace(' ', chr(10))} ", engine, verifier, budget=100, recipe=SHORT)
    assert (again.strategy, again.answer) == ("exact", verifier.answer)
    assert again.costs["exact"].grafted == stored.entry.tokens
    assert again.deposited is None
    assert len(library.entries()) == 1


def test_an_answer_that_is_not_decoded_again_is_given_as_stored_and_costs_no_token(library: Library, engine: Engine):
    library.add(FIRST, "w20 w21", engine, Knows("w20 w21"))
    recipe = dataclasses.replace(SHORT, recall="stored")
    solved = library.solve(FIRST, engine, Knows("w20 w21"), budget=100, recipe=recipe)
    assert (solved.strategy, solved.answer) == ("exact", "w20 w21")
    assert (solved.cost.decoded, solved.cost.prefilled) == (0, 0)
    assert solved.cost.grafted == library.entries()[0].entry.tokens
    fallen_back = library.solve(FIRST, engine, Knows("w20 w21"), budget=100, recipe=SHORT)
    assert [attempt.detail for attempt in fallen_back.attempts] == ["", "stored text"]
    assert fallen_back.answer == "w20 w21"
    assert fallen_back.cost.decoded > 0


def test_a_grafted_answer_is_token_by_token_that_of_the_same_tokens_as_a_plain_prompt(
    library: Library, engine: Engine
):
    stored = library.add(FIRST, "w20 w21 w22", engine, Knows("w20 w21 w22"))
    solved = library.solve(OTHER, engine, Knows("never"), budget=6, recipe=SHORT)
    (attempt,) = (attempt for attempt in solved.attempts if attempt.strategy == "related")
    assert attempt.graft == "whole"
    assert attempt.cost.grafted == stored.entry.tokens

    wording = Wording(engine)
    example = wording.example(FIRST, "w20 w21 w22")
    tokens = [*example, *wording.follow(FIRST, "w20 w21 w22", OTHER)]
    assert attempt.prompt == tokens_digest(tokens)
    schedule = engine.schedule.with_boundary(len(example))
    context = engine.new_context()
    logits = engine.prefill(context, tokens, schedule)
    plain, plain_logits = engine.decode_greedy(context, logits, 6)
    assert attempt.tokens == tokens_digest(plain)

    graft = library.client.graft(engine, tokens, artifact=stored.entry.artifact)
    first = engine.prefill(graft.context, graft.next_tokens, graft.schedule)
    assert first.sha256() == logits.sha256()
    _, grafted_logits = engine.decode_greedy(graft.context, first, 6)
    assert grafted_logits.sha256() == plain_logits.sha256()
    assert engine.state_digest(graft.context) == engine.state_digest(context)


def test_the_strategies_come_in_the_order_of_the_recipe_and_share_one_budget(library: Library, engine: Engine):
    library.add(FIRST, "w20", engine, Knows("w20"))
    solved = library.solve(OTHER, engine, Knows("never"), budget=15, recipe=SHORT)
    assert [a.strategy for a in solved.attempts] == ["related", "greedy", "sampled"]
    assert [a.cost.decoded for a in solved.attempts] == [6, 6, 3]
    assert (solved.answer, solved.deposited, solved.cost.decoded) == (None, None, 15)
    turned = dataclasses.replace(SHORT, order=("sampled", "greedy"))
    solved = library.solve(OTHER, engine, Knows("never"), budget=100, recipe=turned)
    assert [a.strategy for a in solved.attempts] == ["sampled", "sampled", "greedy"]
    assert len(library.entries()) == 1


def test_an_example_that_shares_too_few_words_does_not_pass_the_gate(library: Library, engine: Engine):
    library.add(FIRST, "w20", engine, Knows("w20"))
    solved = library.solve("w1 w50 w51 w52", engine, Knows("never"), budget=6, recipe=SHORT)
    assert [(a.strategy, a.passed_over) for a in solved.attempts] == [("related", "solve.gate"), ("greedy", "")]


def test_sampling_repeats_under_its_seed_and_differs_under_others(library: Library, engine: Engine):
    def sampled(seed: int) -> list[object]:
        recipe = dataclasses.replace(SHORT, order=("sampled",), seed=seed)
        solved = library.solve(FIRST, engine, Knows("never"), budget=100, recipe=recipe)
        return [attempt.tokens for attempt in solved.attempts]

    one = sampled(1)
    assert one == sampled(1)
    assert len({*one, *sampled(2)}) == 4


def test_a_draw_keeps_to_the_most_likely_tokens_and_follows_its_number(engine: Engine):
    context = engine.new_context()
    logits = engine.prefill(context, [1, 2, 3], engine.schedule)
    assert logits.draw(1.0, 1e-9, 0.999) == logits.argmax()[0]
    assert logits.draw(1e-3, 1.0, 0.5) == logits.argmax()[0]
    drawn = {logits.draw(5.0, 1.0, number / 50) for number in range(50)}
    assert len(drawn) > 20
    numbers = [Sampling(1.0, 1.0, 7, 0).number(step) for step in range(1000)]
    assert all(0 <= number < 1 for number in numbers)
    assert 0.45 < sum(numbers) / 1000 < 0.55


def test_decoding_ends_at_a_stop_text_and_does_not_show_it(engine: Engine):
    context = engine.new_context()
    prompt = Wording(engine).ask(FIRST)
    logits = engine.prefill(context, prompt, engine.schedule)
    free = decode(engine, context, logits, engine.schedule, 8)
    words = free.text.split()
    context = engine.new_context()
    logits = engine.prefill(context, prompt, engine.schedule)
    stop = next(word for word in words if words.index(word) >= 2)
    stopped = decode(engine, context, logits, engine.schedule, 8, stops=(stop,))
    assert len(stopped.tokens) < len(free.tokens)
    assert stop not in stopped.text
    assert free.text.startswith(stopped.text)


def test_what_a_weak_verifier_passes_answers_but_is_not_stored(library: Library, engine: Engine):
    weak = Knows(greedy_answer(engine, FIRST), deposits=False)
    solved = library.solve(FIRST, engine, weak, budget=50, recipe=SHORT)
    assert (solved.strategy, solved.deposited) == ("greedy", None)
    with pytest.raises(PolicyError) as refused:
        library.add(FIRST, weak.answer, engine, weak)
    assert refused.value.code == "library.weak_verifier"
    with pytest.raises(PolicyError) as wrong:
        library.add(FIRST, "w1", engine, Knows("w2"))
    assert wrong.value.code == "library.not_verified"
    assert library.entries() == []


def test_an_entry_that_fails_its_own_verifier_is_quarantined_and_answers_no_more(library: Library, engine: Engine):
    stored = library.add(FIRST, "w20", engine, Knows("w20"))
    other_opinion = library.solve(FIRST, engine, Knows("w21"), budget=6, recipe=SHORT)
    assert (other_opinion.answer, other_opinion.quarantined) == (None, ())

    class Changed(Knows):
        """The same name, version and parameters, and the mended judgement."""

        def verify(self, problem, candidate):
            return Knows("w21").verify(problem, candidate)

    solved = library.solve(FIRST, engine, Changed("w20"), budget=6, recipe=SHORT)
    assert solved.quarantined == (stored.digest,)
    assert library.find(Problem.of(FIRST).address) == []
    (apart,) = library.store.listing().quarantined
    assert apart.entry == stored.digest
    assert "fails knows 1" in apart.history[0].reason


def test_a_stored_answer_that_leaves_no_room_to_ask_again_is_given_as_it_is(
    library: Library, tiny_model_dir: Path, tmp_path: Path
):
    folder = tmp_path / "short"
    shutil.copytree(tiny_model_dir, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 64}))
    short = load_engine(folder, threads=1, block_tokens=16)
    problem = " ".join(["w1"] * 40)
    library.add(problem, "w20", short, Knows("w20"))
    solved = library.solve(problem, short, Knows("w20"), budget=9, recipe=SHORT)
    assert [(a.passed_over, a.detail) for a in solved.attempts] == [("engine.too_long", ""), ("", "stored text")]
    assert (solved.answer, solved.cost.decoded) == ("w20", 0)


def test_a_budget_of_nothing_is_one_clear_error(library: Library, engine: Engine):
    with pytest.raises(UsageError) as nothing:
        library.solve(FIRST, engine, Knows("w20"), budget=0)
    assert nothing.value.code == "solve.budget"


def test_an_entry_of_another_model_is_passed_over(
    library: Library, engine: Engine, tmp_path: Path, tiny_model_dir: Path
):
    import torch
    from transformers import AutoModelForCausalLM

    library.add(FIRST, "w20", engine, Knows("w20"))
    other_dir = tmp_path / "other"
    shutil.copytree(tiny_model_dir, other_dir)
    model = AutoModelForCausalLM.from_pretrained(other_dir)
    with torch.no_grad():
        model.lm_head.weight.mul_(1.5)
    model.save_pretrained(other_dir)
    other = load_engine(other_dir, threads=1, block_tokens=16)
    solved = library.solve(FIRST, other, Knows("never"), budget=6, recipe=SHORT)
    assert [(a.strategy, a.passed_over) for a in solved.attempts] == [("exact", "entry.other_model"), ("greedy", "")]


def test_a_library_that_is_emptied_or_removed_meanwhile_is_a_clean_miss(library: Library, engine: Engine):
    answer = greedy_answer(engine, FIRST)
    stored = library.add(FIRST, answer, engine, Knows(answer))
    library.client.store.remove_ref(artifact_name(library.name, stored.digest))
    library.client.store.remove(stored.entry.artifact)
    kept = dataclasses.replace(SHORT, deposit=False)
    gone = library.solve(FIRST, engine, Knows(answer), budget=20, recipe=kept)
    assert [(a.strategy, a.passed_over) for a in gone.attempts] == [
        ("exact", "store.unknown_artifact"),
        ("greedy", ""),
    ]
    library.remove(stored.digest)
    assert library.find(Problem.of(FIRST).address) == []
    shutil.rmtree(library.store.shelf.path)
    solved = library.solve(FIRST, engine, Knows(answer), budget=20, recipe=SHORT)
    assert (solved.strategy, solved.answer) == ("greedy", answer)
    assert solved.deposited is not None
    assert solved.deposited.refused == "library.unknown"


def test_an_entry_of_a_signer_who_is_not_trusted_any_more_does_not_answer(
    library: Library, engine: Engine, make_client: Callable[..., kvsync.Client]
):
    theirs = Library.create(make_client("other"), "maths/easy")
    stored = theirs.add(FIRST, "w20", engine, Knows("w20"))
    envelope = theirs.store.shelf.read_entry(stored.digest)
    with pytest.raises(TrustError) as forged:
        library.store.add(envelope)
    assert forged.value.code == "trust.untrusted_signer"
    trust = library.client.trust
    trust.add("other", theirs.client.keys.signer.public)
    assert library.store.add(envelope)
    assert not library.store.add(envelope)
    assert len(library.find(Problem.of(FIRST).address)) == 1
    trust.remove("other")
    assert library.find(Problem.of(FIRST).address) == []
    assert [e.signers for e in library.entries()] == [()]


def test_attempts_side_by_side_are_counted_each_and_repeat(library: Library, engine: Engine):
    recipe = dataclasses.replace(SHORT, order=("sampled",), samples=5, rows=4)
    solved = library.solve(FIRST, engine, Knows("never"), budget=100, recipe=recipe)
    assert [a.cost.decoded for a in solved.attempts] == [6] * 5
    assert [a.cost.prefilled > 0 for a in solved.attempts] == [True, False, False, False, True]
    again = library.solve(FIRST, engine, Knows("never"), budget=100, recipe=recipe)
    assert [a.tokens for a in again.attempts] == [a.tokens for a in solved.attempts]
    assert len({a.tokens for a in solved.attempts}) == 5

    second = solved.attempts[1].answer
    found = library.solve(FIRST, engine, Knows(second), budget=100, recipe=recipe)
    assert (found.answer, found.strategy) == (second, "sampled")
    assert found.costs["sampled"].decoded == 24  # those beside it are paid for
    scarce = library.solve(OTHER, engine, Knows("never"), budget=10, recipe=recipe)
    assert [a.cost.decoded for a in scarce.attempts] == [6, 4]  # whole answers, as long as there is budget for them
    wide = library.solve(OTHER, engine, Knows("never"), budget=20, recipe=recipe)
    assert [a.cost.decoded for a in wide.attempts] == [6, 6, 6, 2]
    assert [a.cost.prefilled > 0 for a in wide.attempts] == [True, False, False, True]


def test_as_many_rows_share_a_budget_as_answers_were_long_so_far(library: Library, engine: Engine):
    free = dataclasses.replace(SHORT, order=("sampled",), max_tokens=12, samples=8, rows=2)
    words = [a.answer.split() for a in library.solve(FIRST, engine, Knows("never"), budget=96, recipe=free).attempts]
    stops = tuple(dict.fromkeys((words[0][2], words[1][3])))
    recipe = dataclasses.replace(free, stops=stops, rows=8)
    solved = library.solve(FIRST, engine, Knows("never"), budget=30, recipe=recipe)
    batches = [a.cost.prefilled > 0 for a in solved.attempts]
    lengths = [a.cost.decoded for a in solved.attempts]
    assert sum(lengths) <= 30
    assert lengths[:2] == [3, 4]
    second = batches.index(True, 1)
    assert second == 30 // 12
    mean = -(-sum(lengths[:second]) // second)
    assert [*batches[second:], True].index(True, 1) == min(8 - second, (30 - sum(lengths[:second])) // mean)


def test_rows_say_what_each_of_them_would_say_alone_but_for_the_last_bits(engine: Engine):
    prompt = Wording(engine).ask(FIRST)
    context = engine.new_context()
    logits = engine.prefill(context, prompt, engine.schedule)
    cache = context.repeated(2)
    computed = engine.step_rows(cache, [5, 6])
    for row, token in enumerate((5, 6)):
        alone = engine.new_context()
        engine.prefill(alone, prompt, engine.schedule)
        assert computed.at(row).max_abs(engine.prefill(alone, [token], engine.schedule)) < 1e-4
    assert context.position == len(prompt)
    ways = [Sampling(1.0, 1.0, 7, number) for number in range(2)]
    rows = decode_rows(engine, context, logits, 4, ways, budget=8)
    assert [len(row.tokens) for row in rows] == [4, 4]
    scarce = decode_rows(engine, context, logits, 4, ways, budget=5)
    assert [row.tokens for row in scarce] == [rows[0].tokens[:3], rows[1].tokens[:2]]


def test_a_row_that_has_ended_leaves_the_batch_and_changes_no_other(engine: Engine):
    context = engine.new_context()
    logits = engine.prefill(context, Wording(engine).ask(FIRST), engine.schedule)
    ways = [Sampling(1.0, 1.0, 7, number) for number in range(6)]
    free = decode_rows(engine, context, logits, 8, ways, budget=48)
    stop = free[0].text.split()[2]
    stopped = decode_rows(engine, context, logits, 8, ways, budget=48, stops=(stop,))
    assert len(stopped[0].tokens) < 8
    for whole, cut in zip(free, stopped, strict=True):
        assert whole.tokens[: len(cut.tokens)] == cut.tokens
        assert (len(cut.tokens) == 8) == (stop not in whole.text.split()[:-1])
