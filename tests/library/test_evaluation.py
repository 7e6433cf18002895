"""`kvsync library eval`: four conditions and a stream on a tiny model, resumed, edited, given bad input."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvsync
from kvsync.engines.engine import Engine
from kvsync.errors import NotFoundError, StoreError, UsageError
from kvsync.library.evaluation.energy import EnergyMeter, Spent
from kvsync.library.evaluation.evaluation import Evaluation
from kvsync.library.evaluation.judged import Judged, judge_again
from kvsync.library.evaluation.plan import Plan, at_most, chosen, different, stream_of, unrelated_to
from kvsync.library.evaluation.record import clean, record, texts_room, tried
from kvsync.library.library import Library
from kvsync.library.problem import Problem
from kvsync.library.recipe import Recipe
from kvsync.library.report import Attempt, Cost, Solved
from kvsync.library.tasks import HELD_OUT, TRAIN, Task, generate, parse_tasks
from kvsync.library.verifiers import Verdict, VerifierSpec
from kvsync.progress import Progress
from kvsync_protocol import figure, strictjson
from kvsync_protocol.errors import IntegrityError
from kvsync_protocol.limits import MAX_RECEIPT_BYTES, MAX_RECORD_BYTES
from kvsync_protocol.receipt import Receipt
from kvsync_protocol.signing import SigningKey
from kvsync_protocol.trial import CONTROL, FILL, NEGATIVE, RECURRENCE, STREAM, TRANSFER, Asked, Tried
from kvsync_protocol.trial_score import SCORER, wilson
from tests.library.test_solve import greedy_answer

SHORT = Recipe(max_tokens=4, samples=2, stops=("w99999",))
METER = EnergyMeter(watts=10.0, rapl=Path("/nowhere"))


def task(number: int, split: str, *, answer: str = "w900", solution: str = "w900") -> Task:
    text = f"w1 w2 w3 w4 w5 w6 w{number + 20}"
    spec = VerifierSpec("normalised", None, {"answer": answer, "take": "whole"})
    return Task(f"t-{number}", "words", Problem.of(text), spec, split, solution)


TASKS = (*(task(n, TRAIN) for n in range(3)), *(task(n, HELD_OUT) for n in range(3, 5)))
UNRELATED = (task(50, TRAIN, answer="w7", solution="w7"),)
PLAN = Plan(TASKS, budget=9, recipe=SHORT, unrelated=UNRELATED, plain=2)


def evaluated(plan: Plan, engine: Engine, work: Path, **given: Any) -> tuple[list[Asked], Evaluation]:
    trial = Evaluation(plan, engine, "tiny", work, meter=METER, **given)
    return trial.run(), trial


def outcome(asked: Asked) -> dict[str, object]:
    """A record but for its times."""
    return {**asked.as_json(), "seconds": "", "cpu_seconds": "", "joules": ""}


class KilledError(Exception):
    """The run ends here."""


def killing(at: str) -> Progress:
    def die(stage: str, done: int, total: int, unit: str) -> None:
        if (stage, done) == (at, 2):
            raise KilledError

    return die


def sealed(trial: Evaluation, records: list[Asked], engine: Engine) -> Receipt:
    return Receipt.seal(
        SCORER,
        SigningKey(bytes(32)),
        [each.as_json() for each in records],
        run=trial.trial.as_json(),
        fingerprints=engine.fingerprints,
        software="kvsync test",
        time=1_800_000_000,
    )


@pytest.fixture(scope="module")
def asked(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Asked], Receipt]:
    records, trial = evaluated(PLAN, engine, tmp_path_factory.mktemp("eval") / "work")
    return records, sealed(trial, records, engine)


def test_four_numbers_are_kept_apart(asked: tuple[list[Asked], Receipt]) -> None:
    records, receipt = asked
    counts = {name: sum(each.condition == name for each in records) for name in receipt.header.run["conditions"]}  # type: ignore[attr-defined]
    assert counts == {CONTROL: 5, RECURRENCE: 3, TRANSFER: 2, NEGATIVE: 2}
    summary: Any = receipt.header.summary
    assert summary["conditions"][RECURRENCE]["answered"] == {"exact": 3}
    assert summary["conditions"][CONTROL]["passed"] == 0
    assert summary["conditions"][CONTROL]["decoded"] == 5 * 9
    assert summary["recurrence"]["never_solved_answered"] == 3
    assert summary["conditions"][FILL]["answered"] == {"deposit": 3}
    # The gate of the negative control is open: what is unrelated is grafted, too.
    for name in (TRANSFER, NEGATIVE):
        assert summary["conditions"][name]["attempts"]["related"] == 2
        assert summary["conditions"][name]["grafted"] > 0


def test_a_graft_gives_token_by_token_what_the_same_tokens_give_as_text(asked: tuple[list[Asked], Receipt]) -> None:
    summary: Any = asked[1].header.summary
    for name in (RECURRENCE, TRANSFER, NEGATIVE):
        assert summary["conditions"][name]["plain"] == {"checked": 2, "equal": 2}
    assert summary["conditions"][CONTROL]["plain"] == {"checked": 0, "equal": 0}


def test_verdicts_are_judged_again_without_the_model(asked: tuple[list[Asked], Receipt]) -> None:
    receipt = asked[1]
    every = sum(len(tried.candidates) for each in asked[0] for tried in each.attempts)
    assert judge_again(receipt.records) == Judged(every, 0, 0)
    lines = unsealed(receipt)
    lines[0]["verifier"].update(version="77")  # another release's word is taken as it is
    assert judge_again(lines[:1]) == Judged(0, sum(len(tried.candidates) for tried in asked[0][0].attempts), 0)


def unsealed(receipt: Receipt) -> list[dict[str, Any]]:
    """Its records, to be changed."""
    return [strictjson.loads(strictjson.dumps(each), limit=1 << 20, what="a record") for each in receipt.records]


def test_a_verdict_that_is_flipped_anywhere_is_found(engine: Engine, tmp_path: Path) -> None:
    recipe = dataclasses.replace(SHORT, samples=7, rows=3)
    records, trial = evaluated(dataclasses.replace(PLAN, budget=30, recipe=recipe), engine, tmp_path / "work")
    receipt = sealed(trial, records, engine)
    control = records[0].attempts
    assert [(each.strategy, each.tries, len(each.answers)) for each in control] == [
        ("greedy", 1, 0),
        ("sampled", 7, 7),
    ]
    flips = 0
    for index, each in enumerate(records):
        for place, made in enumerate(each.attempts):
            for number in range(len(made.candidates)):
                texts = [*made.candidates]
                texts[number] = "w901" if made.passed else "w900"
                for change in (
                    {"answer": texts[0]} if made.tries == 1 else {"answers": texts},
                    {"passed": not made.passed},
                ):
                    lines = unsealed(receipt)
                    lines[index]["attempts"][place].update(change)
                    with pytest.raises(IntegrityError) as caught:
                        judge_again(lines)
                    assert caught.value.code == "receipt.score"
                flips += 1
    assert flips == judge_again(receipt.records).every > 60


def test_python_is_judged_again_only_when_asked(engine: Engine, tmp_path: Path) -> None:
    spec = VerifierSpec("python", None, {"tests": "assert double(2) == 4"})
    code = "def double(n):\n    return n * 2"
    doubled = dataclasses.replace(TASKS[0], spec=spec, solution=code)
    plan = Plan(
        (doubled,), conditions=(CONTROL, RECURRENCE), budget=4, recipe=dataclasses.replace(SHORT, recall="stored")
    )
    records, trial = evaluated(plan, engine, tmp_path / "work")
    receipt = sealed(trial, records, engine)
    assert [each.passed for each in records] == [False, True, True]
    assert judge_again(receipt.records) == Judged(0, 3, 0)
    assert judge_again(receipt.records, run=True) == Judged(3, 0, 0)
    lines = unsealed(receipt)
    lines[2]["attempts"][0].update(answer="def double(n):\n    return n + 1")
    with pytest.raises(IntegrityError) as caught:
        judge_again(lines, run=True)
    assert caught.value.code == "receipt.score"


def test_energy_that_is_estimated_is_cpu_seconds_times_watts(asked: tuple[list[Asked], Receipt]) -> None:
    run = asked[1].header.run
    assert (run["energy"], run["watts"]) == ("estimate", "1e1")
    assert all(each.joules == round(10 * each.cpu_seconds, 6) for each in asked[0])
    assert sum(each.cpu_seconds for each in asked[0]) > 0


def test_a_killed_run_goes_on_where_it_was(
    engine: Engine, tmp_path: Path, asked: tuple[list[Asked], Receipt]
) -> None:
    for stage in (CONTROL, FILL, TRANSFER):
        with pytest.raises(KilledError):
            evaluated(PLAN, engine, tmp_path / "work", progress=killing(stage))
    journal = tmp_path / "work" / "journal"
    journal.write_bytes(journal.read_bytes() + b'{"half a rec')
    before = journal.read_bytes().count(b"\n")
    records, trial = evaluated(PLAN, engine, tmp_path / "work")
    assert before < journal.read_bytes().count(b"\n") == len(records) + 1
    assert list(map(outcome, records)) == list(map(outcome, asked[0]))
    sealed(trial, records, engine)
    with pytest.raises(UsageError) as other:
        Evaluation(dataclasses.replace(PLAN, budget=10), engine, "tiny", tmp_path / "work", meter=METER)
    assert other.value.code == "eval.other_run"
    journal.write_bytes(journal.read_bytes() + b"{}\n")
    with pytest.raises(StoreError) as damaged:
        evaluated(PLAN, engine, tmp_path / "work")
    assert damaged.value.code == "eval.damaged"
    trial.finish()
    assert list(tmp_path.iterdir()) == []


def test_what_the_control_finds_is_stored_where_a_task_has_no_solution(engine: Engine, tmp_path: Path) -> None:
    text = task(0, TRAIN).problem.text
    said = greedy_answer(engine, text, 4)
    tasks = (task(0, TRAIN, answer=said, solution=""), task(1, TRAIN, solution=""))
    plan = Plan(tasks, conditions=(CONTROL, RECURRENCE), budget=9, recipe=SHORT)
    records, trial = evaluated(plan, engine, tmp_path / "work")
    assert [each.task for each in records if each.condition == FILL] == ["t-0"]
    assert [(each.task, each.passed) for each in records if each.condition == RECURRENCE] == [
        ("t-0", True),
        ("t-1", False),
    ]
    sealed(trial, records, engine)


def test_a_stream_gets_cheaper_and_better_as_it_repeats_itself(engine: Engine, tmp_path: Path) -> None:
    tasks = tuple(task(n, TRAIN) for n in range(4))
    stream = stream_of(tasks, 12, 50, seed=3)
    recipe = dataclasses.replace(SHORT, recall="stored")
    plan = Plan(tasks, budget=20, recipe=recipe, stream=stream, repeats=50, teach=True)
    records, trial = evaluated(plan, engine, tmp_path / "work")
    steps = [each for each in records if each.condition == STREAM]
    assert [each.task for each in steps] == [each.id for each in stream]
    met: set[str] = set()
    for each in steps:
        assert each.passed == (each.task in met)
        assert each.answered == ("exact" if each.task in met else None)
        met.add(each.task)
    summary: Any = sealed(trial, records, engine).header.summary
    windows = summary["windows"]
    assert windows[0]["passed"] < windows[-1]["passed"]
    assert windows[0]["decoded"] > windows[-1]["decoded"]
    with pytest.raises(UsageError) as refused:
        Evaluation(plan, engine, "tiny", tmp_path / "other", meter=METER, library=object())  # type: ignore[arg-type]
    assert refused.value.code == "eval.stream_library"


def test_a_stream_that_was_killed_behind_an_answer_asks_as_if_nothing_were_known(
    engine: Engine, tmp_path: Path
) -> None:
    said = greedy_answer(engine, task(0, TRAIN).problem.text, 4)
    tasks = (task(0, TRAIN, answer=said, solution=""),)
    plan = Plan(tasks, budget=20, recipe=SHORT, stream=stream_of(tasks, 3, 0, seed=0))
    records, _ = evaluated(plan, engine, tmp_path / "work")
    assert [each.answered for each in records] == ["greedy", "exact", "exact"]
    journal = tmp_path / "work" / "journal"
    journal.write_bytes(journal.read_bytes().split(b"\n")[0] + b"\n")  # stored, and not written down
    again, _ = evaluated(plan, engine, tmp_path / "work")
    assert [each.answered for each in again] == ["greedy", "exact", "exact"]


def test_a_given_library_is_measured_as_it_is(
    engine: Engine, tmp_path: Path, library: Library, tiny_model_dir: Path
) -> None:
    library.add(TASKS[0].problem.text, "w900", engine, TASKS[0].verifier())
    library.add(TASKS[4].problem.text, "w900", engine, TASKS[4].verifier())
    records, trial = evaluated(PLAN, engine, tmp_path / "work", library=library)
    assert {each.task for each in records if each.condition == RECURRENCE} == {"t-0", "t-4"}
    assert {each.task for each in records if each.condition == TRANSFER} == {"t-1", "t-2", "t-3"}
    assert not [each for each in records if each.condition == FILL]
    assert len(library.entries()) == 2
    summary: Any = sealed(trial, records, engine).header.summary
    assert summary["recurrence"]["break_even"] is None


def test_entries_of_another_model_are_misses_and_are_counted(
    engine: Engine, tmp_path: Path, library: Library, tiny_model_dir: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from kvsync.engines import load_engine

    shutil.copytree(tiny_model_dir, tmp_path / "other")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "other")
    with torch.no_grad():
        model.lm_head.weight.mul_(1.5)
    model.save_pretrained(tmp_path / "other")
    other = load_engine(tmp_path / "other", threads=1, block_tokens=16)
    library.add(TASKS[0].problem.text, "w900", other, TASKS[0].verifier())
    plan = dataclasses.replace(PLAN, conditions=(CONTROL, RECURRENCE), plain=0)
    records, trial = evaluated(plan, engine, tmp_path / "work", library=library)
    summary: Any = sealed(trial, records, engine).header.summary
    assert summary["conditions"][RECURRENCE]["passed"] == 0
    assert summary["conditions"][RECURRENCE]["skipped"] == {"entry.other_model": 1}


def test_a_library_that_is_emptied_meanwhile_is_a_clean_miss(
    engine: Engine, tmp_path: Path, library: Library
) -> None:
    for each in TASKS[:3]:
        library.add(each.problem.text, "w900", engine, each.verifier())

    def empty(stage: str, done: int, total: int, unit: str) -> None:
        if (stage, done) == (RECURRENCE, 1):
            library.delete()

    records, trial = evaluated(PLAN, engine, tmp_path / "work", library=library, progress=empty)
    assert [each.answered for each in records if each.condition == RECURRENCE] == ["exact", None, None]
    sealed(trial, records, engine)


def test_a_verifier_that_hangs_is_killed_and_its_verdict_is_no(engine: Engine, tmp_path: Path) -> None:
    spec = VerifierSpec("command", None, {"argv": ["sh", "-c", "while :; do :; done"], "wall_s": 1})
    hanging = dataclasses.replace(TASKS[3], spec=spec)
    plan = Plan((hanging,), conditions=(CONTROL,), budget=2, recipe=dataclasses.replace(SHORT, order=("greedy",)))
    records, trial = evaluated(plan, engine, tmp_path / "work")
    assert not records[0].passed
    assert 1 <= records[0].seconds < 30
    assert judge_again(sealed(trial, records, engine).records) == Judged(0, 1, 0)


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: dataclasses.replace(PLAN, budget=0), "solve.budget"),
        (lambda: dataclasses.replace(PLAN, tasks=()), "eval.no_tasks"),
        (lambda: dataclasses.replace(PLAN, stream=TASKS[:1] * 70_000), "eval.too_many"),
        (lambda: chosen(["control", "luck"]), "eval.condition"),
        (
            lambda: Plan((dataclasses.replace(TASKS[0], spec=TASKS[0].spec.adding(answer="w" * 9000)),)),
            "eval.parameters",
        ),
        (lambda: Plan(different(TASKS, "text:colour=red")), "verifier.parameter"),
    ],
)
def test_what_cannot_be_asked_is_one_error(make: Callable[[], object], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert caught.value.code == code


def test_a_condition_that_would_ask_nothing_is_an_error_before_anything_is_asked(
    engine: Engine, tmp_path: Path, library: Library
) -> None:
    for plan, given in ((dataclasses.replace(PLAN, tasks=TASKS[:3]), None), (PLAN, library)):
        with pytest.raises(UsageError) as caught:
            Evaluation(plan, engine, "tiny", tmp_path / "work", meter=METER, library=given)
        assert caught.value.code == "eval.split"
    assert not (tmp_path / "work").exists()


def test_problems_that_differ_by_white_space_or_unicode_form_are_asked_once() -> None:
    data = [
        {"id": "1", "problem": "Caf\u00e9 au  lait?", "answer": 1, "split": TRAIN},
        {"id": "2", "problem": " Cafe\u0301 au\nlait? ", "answer": 1, "split": TRAIN},
        {"id": "3", "problem": "caf\u00e9 au lait?", "answer": 1, "split": TRAIN},
    ]
    tasks = parse_tasks("\n".join(map(json.dumps, data)).encode())
    assert [each.id for each in different(tasks)] == ["1", "3"]


def test_aime_files_are_judged_as_numbers_by_whichever_verifier_is_named() -> None:
    data = b'{"ID": "2024-I-1", "Problem": "Find m+n.", "Answer": "033", "Solution": "..."}\n'
    (found,) = different(parse_tasks(data))
    assert found.verifier().verify(found.problem, "so \\boxed{33}").passed
    (found,) = different(parse_tasks(data), "number:take=first")
    assert dict(found.verifier().parameters) == {"answer": "33", "take": "first", "tolerance": "0", "relative": "0"}
    assert found.verifier().verify(found.problem, "33, or 34").passed


def test_splits_streams_and_unrelated_tasks_follow_from_file_and_seed() -> None:
    assert [each.id for each in at_most(TASKS, 1)] == ["t-0", "t-3"]
    first = stream_of(TASKS, 30, 40, seed=1)
    assert first == stream_of(TASKS, 30, 40, seed=1) != stream_of(TASKS, 30, 40, seed=2)
    assert stream_of(TASKS, 10, 40, seed=1) == first[:10]
    assert {each.id for each in first} == {each.id for each in TASKS}
    assert [each.id for each in stream_of(TASKS, 5, 0, seed=1)] == [each.id for each in TASKS]
    assert {each.family for each in unrelated_to(generate("handbook", seed=1, count=2), 1)} == {"procedures"}
    assert {each.family for each in unrelated_to(TASKS, 1)} == {"handbook"}


def sampled(count: int, text: str, verdict: bool) -> list[Attempt]:
    return [Attempt("sampled", answer=text, verdict=Verdict.of(verdict, "said"), cost=Cost(7, 1, 0))] * count


def test_a_record_keeps_every_candidate_and_every_cost() -> None:
    attempts = (*sampled(300, "x" * 400, False), *sampled(1, "w900", True), *sampled(2, "y", False))
    made = tried(Solved("p", Problem.of("p").address, attempts), TASKS[0], texts_room(100))
    assert [(each.tries, each.passed, len(each.candidates)) for each in made] == [
        (300, False, 300),
        (1, True, 1),
        (2, False, 2),
    ]
    assert [each.decoded for each in made] == [2100, 7, 14]
    assert made == tuple(Tried.parse(each.as_json()) for each in made)


def test_what_a_record_has_no_room_for_is_added_up_without_verdicts_but_for_the_one_that_answered() -> None:
    attempts = (*sampled(300, "x" * 400, False), *sampled(30, "z" * 400, True))
    made = tried(Solved("p", Problem.of("p").address, attempts), TASKS[0], 8 * 1024)
    assert sum(each.decoded for each in made) == 330 * 7
    assert sum(each.tries for each in made) == 330
    assert [each.passed for each in made] == [False, True, False]
    assert [len(each.candidates) for each in made] == [19, 1, 0]
    asked = record(0, CONTROL, TASKS[0], made, (None, None), Spent(1, 1, 1)).as_json()
    assert len(strictjson.dumps(asked)) < 10 * 1024
    failing = [each for each in asked["attempts"] if not each["passed"]]  # type: ignore[attr-defined]
    assert judge_again([{**asked, "attempts": failing}]) == Judged(19, 0, 310)
    hidden = {**failing[-1], "skipped": "solve.gate"}
    assert judge_again([{**asked, "attempts": [hidden]}]) == Judged(0, 0, 310)


def test_the_end_of_a_candidate_that_is_too_long_is_what_is_judged() -> None:
    attempts = (*sampled(1, "w900" + "x" * (1 << 20), True), *sampled(1, "x" * (1 << 20) + "\nw900", True))
    line = dataclasses.replace(
        TASKS[0], spec=VerifierSpec("normalised", None, {"answer": "w900", "take": "last_line"})
    )
    made = tried(Solved("p", Problem.of("p").address, attempts), line, texts_room(1))
    assert [each.passed for each in made] == [False, True]
    assert len(strictjson.dumps([each.as_json() for each in made])) < MAX_RECORD_BYTES
    widest = tried(Solved("p", Problem.of("p").address, (*sampled(1, "\U00010000" * (1 << 18), False),)), TASKS[0], 1)
    assert [each.candidates for each in widest] == [()]
    assert 65_536 * texts_room(65_536) < MAX_RECEIPT_BYTES


def test_control_characters_leave_a_record_s_text_and_the_verdict_is_that_of_the_text() -> None:
    assert clean("a\tb\nc\rd\x00e\x85f\u2028é\u200b") == "a\tb\nc d e f\u2028é\u200b"
    exact = dataclasses.replace(TASKS[0], spec=VerifierSpec("text", None, {"answer": "a\rb"}))
    attempt = Attempt("greedy", answer="a\rb", verdict=Verdict.of(True, "equal"), cost=Cost(2))
    (made,) = tried(Solved("p", Problem.of("p").address, (attempt,)), exact, texts_room(1))
    assert (made.answer, made.passed) == ("a b", False)


def test_rapl_counters_are_read_where_they_can_be_and_begin_again(tmp_path: Path) -> None:
    package = tmp_path / "intel-rapl:0"
    package.mkdir()
    (package / "max_energy_range_uj").write_text("5000000")
    (package / "energy_uj").write_text("4000000")
    meter = EnergyMeter(rapl=tmp_path)
    assert (meter.source, meter.watts) == ("rapl", 0.0)
    stop = meter.start()
    (package / "energy_uj").write_text("1000000")
    assert stop().joules == 2.0
    assert EnergyMeter("cuda:0", rapl=tmp_path).source in (
        "nvml",
        "estimate",
    )  # the processor's energy is not the GPU's


def test_the_command_writes_a_receipt_that_check_and_show_read(
    make_client: Callable[..., kvsync.Client],
    tiny_model_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kvsync.cli._app import run
    from kvsync.library.tasks import write_tasks

    home = make_client().home.root
    monkeypatch.setenv("KVSYNC_HOME", str(home))
    file, out, plot, recipe = (tmp_path / name for name in ("t.jsonl", "t.receipt", "t.png", "r.toml"))
    file.write_bytes(write_tasks(TASKS))
    others = tmp_path / "others.jsonl"
    others.write_bytes(write_tasks(UNRELATED))
    recipe.write_text('max_tokens = 4\nsamples = 2\nrows = 2\nstops = ["w99999"]\n')
    words = ["library", "eval", file, "--model", tiny_model_dir, "--recipe", recipe, "--budget", 9, "--out", out]
    assert run([*map(str, [*words, "--unrelated", others, "--plot", plot, "--json"])]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["kind"] == "library"
    assert told["summary"]["conditions"]["recurrence"]["passed"] == 3
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert not out.with_name("t.receipt.work").exists()
    assert str(tmp_path) not in out.read_text()

    assert run(["receipts", "check", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "never solved unaided" in shown
    assert re.search(r"verdicts +(\d+) of \1 judged again\n", shown)
    assert run(["receipts", "check", str(out), "--reverify"]) == 2
    assert "--public-key" in capsys.readouterr().err
    words_of_check = ["receipts", "check", str(out), "--reverify", "--public-key", told["signer"], "--json"]
    assert run(words_of_check) == 0
    verdicts = json.loads(capsys.readouterr().out)["verdicts"]
    assert (verdicts["taken"], verdicts["unkept"]) == (0, 0)
    assert run(["receipts", "show", str(out)]) == 0
    assert "recurrence" in capsys.readouterr().out
    assert run(["receipts", "diff", str(out), str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["common"] == 15
    out.write_bytes(out.read_bytes().replace(b"w900", b"w901", 1))
    assert run(["receipts", "check", str(out)]) == 4
    capsys.readouterr()

    for given, status in ((["--budget", 0], 2), (["--conditions", "luck"], 2), (["--library", "none"], 7)):
        assert run([*map(str, [*words[:-2], *given, "--out", tmp_path / "x.receipt"])]) == status
        assert capsys.readouterr().err.count("\n") <= 3
    file.write_text('{"problem": "p"}\n')
    assert run([*map(str, words)]) != 0
    assert "neither answer nor tests" in capsys.readouterr().err


def test_a_run_that_is_killed_by_force_goes_on_when_the_same_command_is_given_again(
    make_client: Callable[..., kvsync.Client],
    engine: Engine,
    tiny_model_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kvsync.cli._app import run
    from kvsync.library.tasks import write_tasks

    monkeypatch.setenv("KVSYNC_HOME", str(make_client().home.root))
    tasks = (*(task(n, TRAIN) for n in range(3)), *(task(n, HELD_OUT) for n in range(3, 43)))
    file, others, recipe, out = (tmp_path / name for name in ("t.jsonl", "o.jsonl", "r.toml", "t.receipt"))
    file.write_bytes(write_tasks(tasks))
    others.write_bytes(write_tasks(UNRELATED))
    recipe.write_text('max_tokens = 4\nsamples = 2\nrows = 2\nstops = ["w99999"]\n')
    words = [
        "library",
        "eval",
        file,
        "--model",
        tiny_model_dir,
        "--recipe",
        recipe,
        "--unrelated",
        others,
        "--plain",
        2,
    ]
    words = [*map(str, [*words, "--budget", 9, "--quiet"]), "--out"]
    journal = tmp_path / "t.receipt.work" / "journal"
    with subprocess.Popen([sys.executable, "-m", "kvsync.cli", *words, str(out)]) as killed:
        while not (journal.exists() and journal.read_bytes().count(b"\n") > 5):
            assert killed.poll() is None
            time.sleep(0.01)
        killed.kill()
    before = journal.read_bytes()
    assert not out.exists()
    assert run([*words, str(tmp_path / "whole.receipt")]) == 0
    assert run([*words, str(out)]) == 0
    assert not journal.parent.exists()
    found, whole = (
        [Asked.parse(each) for each in Receipt.parse(path.read_bytes(), [SCORER]).records]
        for path in (out, tmp_path / "whole.receipt")
    )
    assert list(map(outcome, found)) == list(map(outcome, whole))
    kept = before[: before.rfind(b"\n")].split(b"\n")[1:]
    assert 5 <= len(kept) < len(found) == 3 + 40 + 3 + 3 + 40 + 40
    assert [strictjson.dumps(each.as_json()) for each in found[: len(kept)]] == kept


def test_a_stream_s_plot_and_bars_can_be_drawn(engine: Engine, tmp_path: Path) -> None:
    from kvsync.library.evaluation.chart import bars, places, save_png

    tasks = tuple(task(n, TRAIN) for n in range(2))
    plan = Plan(tasks, budget=6, recipe=SHORT, stream=stream_of(tasks, 4, 50, seed=3), repeats=50, teach=True)
    records, trial = evaluated(plan, engine, tmp_path / "work")
    summary = sealed(trial, records, engine).header.summary
    save_png(summary, "stream", tmp_path / "stream.png")
    assert (tmp_path / "stream.png").stat().st_size > 1000
    assert len(bars(places(summary))) == 8


def test_an_interval_that_misses_its_share_by_a_bit_can_be_drawn(tmp_path: Path) -> None:
    from kvsync.library.evaluation.chart import places, save_png

    low, high = wilson(10, 10)
    assert high < 1  # as rounded
    shown = {"problems": 10, "accuracy": "1e0", "low": figure.spell(low), "high": figure.spell(high)}
    summary = {"conditions": {"control": {**shown, "decoded": 10, "seconds": "1e0"}}}
    assert places(summary)[0].high == 1
    save_png(summary, "all", tmp_path / "all.png")
    assert (tmp_path / "all.png").stat().st_size > 1000


def test_a_library_that_vanishes_while_it_is_filled_is_one_error(engine: Engine, tmp_path: Path) -> None:
    def remove(stage: str, done: int, total: int, unit: str) -> None:
        if (stage, done) == (FILL, 1):
            shutil.rmtree(tmp_path / "work" / "home" / "libraries" / "filled")

    with pytest.raises(NotFoundError) as caught:
        evaluated(PLAN, engine, tmp_path / "work", progress=remove)
    assert caught.value.code == "library.unknown"
