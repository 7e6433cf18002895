"""Task files are read strictly, and families are the same everywhere, solvable and large enough."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsync.cli._app import run
from kvsync.errors import NotFoundError, UsageError
from kvsync.library.tasks import (
    FAMILIES,
    HELD_OUT,
    TRAIN,
    corpus,
    generate,
    parse_tasks,
    read_tasks,
    split_of,
    write_tasks,
)
from kvsync_protocol.digest import sha256
from kvsync_protocol.errors import MalformedError

FAMILY = pytest.mark.parametrize("family", list(FAMILIES))


def lines(*tasks: object) -> bytes:
    return b"".join((task if isinstance(task, bytes) else json.dumps(task).encode()) + b"\n" for task in tasks)


def test_aime_style_files_work_as_they_are():
    data = lines(
        {"problem": "What is $6\\cdot 7$?", "answer": 42},
        {"ID": "2024-I-2", "Problem": "Find it.", "Answer": "025", "Solution": "long", "year": 2024},
        {"id": 7, "problem": "And this?", "answer": 0},
    )
    first, second, third = parse_tasks(data)
    assert first.id == f"p-{first.problem.address.short}"
    assert first.verifier().verify(first.problem, "so \\boxed{42}").passed
    assert not first.verifier().verify(first.problem, "41").passed
    assert (second.id, second.solution, second.spec.parameters["answer"]) == ("2024-I-2", "", "25")
    assert (third.id, third.spec.name) == ("7", "number")


@pytest.mark.parametrize(
    ("task", "name", "parameters"),
    [
        ({"problem": "a", "answer": "Blue"}, "normalised", {"answer": "Blue"}),
        ({"problem": "a", "answer": 3}, "number", {"answer": "3"}),
        ({"problem": "a", "tests": "assert f(1)"}, "python", {"tests": "assert f(1)"}),
        (
            {"problem": "a", "answer": "0.5", "verifier": "number:tolerance=0.1"},
            "number",
            {"tolerance": "0.1", "answer": "0.5"},
        ),
        (
            {"problem": "a", "answer": "x", "verifier": {"name": "text", "version": "1"}, "split": "train"},
            "text",
            {"answer": "x"},
        ),
    ],
)
def test_a_task_s_truth_is_among_its_verifier_s_parameters(task, name, parameters):
    [read] = parse_tasks(lines(task))
    assert (read.spec.name, dict(read.spec.parameters)) == (name, parameters)
    assert parse_tasks(write_tasks([read])) == [read]
    read.verifier()


GOOD = {"id": "good", "problem": "good?", "answer": 1, "split": TRAIN}


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ({"id": "x", "problem": "a"}, "no_answer", "neither answer nor tests"),
        ({"id": "x", "problem": "a", "answer": None}, "no_answer", "neither answer nor tests"),
        ({"id": "good", "problem": "b", "answer": 1}, "duplicate_id", "stands in line 1 already"),
        ({"id": "x", "problem": " good?\n", "answer": 1, "split": HELD_OUT}, "both_splits", "the problem of line 1"),
        ({"id": "x", "answer": 1}, "line", "the problem is missing"),
        ({"id": "x", "problem": "  ", "answer": 1}, "line", "the problem is empty"),
        ({"id": "x", "problem": 1, "answer": 1}, "line", "problem is not text"),
        ({"id": "x", "problem": "a", "answer": True}, "line", "neither text nor a whole number"),
        ({"id": "x", "problem": "a", "answer": [1]}, "line", "neither text nor a whole number"),
        ({"id": "x", "problem": "a", "answer": 0.5}, "line", "only whole numbers"),
        ({"id": "", "problem": "a", "answer": 1}, "line", "id is no short printable text"),
        ({"id": "x", "problem": "a", "answer": 1, "split": "test"}, "line", "split is neither"),
        (
            {"problem": "a", "answer": 1, "split": TRAIN, "verifer": "x"},
            "line",
            "unknown member 'verifer'",
        ),
        ({"id": "x", "problem": "a", "answer": 1, "verifier": "NUMBER"}, "line", "not the name of a verifier"),
        ({"id": "x", "problem": "a", "answer": 1, "verifier": 3}, "line", "verifier is neither"),
        ({"id": "x", "problem": "a", "answer": 1, "verifier": "oracle"}, "line", "no verifier 'oracle'"),
        (b"{", "line", "is not JSON"),
        (b"[1]", "line", "is not a JSON object"),
        (b"\xff", "line", "is not UTF-8"),
        (b'{"problem": "a", "problem": "b", "answer": 1}', "line", "stands twice"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_bad_line_is_one_error_that_names_it(line, code, said):
    with pytest.raises(MalformedError) as refused:
        parse_tasks(lines(GOOD, b"", line), "file")
    assert refused.value.code == f"tasks.{code}"
    assert refused.value.message.startswith("file, line 3: ")
    assert said in refused.value.message


def test_a_file_without_tasks_is_refused():
    with pytest.raises(MalformedError, match="holds no task"):
        parse_tasks(b"\n \n")


@given(
    st.binary(max_size=60) | st.dictionaries(st.sampled_from(["problem", "answer", "id", "x"]), st.text(max_size=5))
)
def test_any_bytes_are_tasks_or_malformed(line):
    try:
        assert parse_tasks(lines(line))
    except MalformedError as error:
        assert error.code.startswith("tasks.")  # noqa: PT017 (tasks or this error, either will do)


@FAMILY
def test_a_family_is_large_enough_and_its_splits_are_fixed_by_the_ids(family):
    tasks = generate(family, seed=1, count=1000)
    assert parse_tasks(write_tasks(tasks)) == tasks
    assert all(task.split == split_of(task.id) for task in tasks)
    for split in (TRAIN, HELD_OUT):
        assert sum(task.split == split for task in tasks) >= 400
    assert len({task.problem.address for task in tasks}) == 1000


@FAMILY
def test_a_longer_file_begins_with_the_shorter_one_and_another_seed_has_other_problems(family):
    tasks = generate(family, seed=1, count=60)
    assert generate(family, seed=1, count=90)[:60] == tasks
    others = {task.problem.address for task in generate(family, seed=2, count=60)}
    assert not others & {task.problem.address for task in tasks}


DIGESTS = {
    "handbook": "d9187023561db7e7c18fd30612608b2fc21e5d9a09036c83ec0d085b193496b4",
    "procedures": "0b5397752daa42a694ffb0e62b1e80afa6bd10b9ecdb46e0a945816ea71a875f",
    "labels": "26bec7d395144b3f2d12bd7e543bc1dc7d6cdbd6a78ba7db83556570ea6cc2db",
    "programs": "487b67548ba7f0871445d950b751d054ffd0c3b0363ad5cfd830e28265a00dd0",
}


@FAMILY
def test_a_seed_means_the_same_tasks_for_ever(family):
    assert sha256(write_tasks(generate(family, seed=7, count=50))).hex == DIGESTS[family]


@FAMILY
def test_worked_solutions_pass_and_those_of_other_tasks_do_not(family):
    tasks = generate(family, seed=3, count=5)
    for task, other in zip(tasks, [*tasks[1:], tasks[0]], strict=True):
        verifier = task.verifier()
        assert verifier.verify(task.problem, task.solution).passed, task.id
        assert not verifier.verify(task.problem, other.solution).passed, task.id


def test_quoting_the_handbook_s_page_is_no_answer():
    task = generate("handbook", seed=3, count=1)[0]
    page = task.solution.partition("\n")[2]
    assert not task.verifier().verify(task.problem, page).passed


def test_the_handbook_s_answers_stand_in_its_documents():
    documents = corpus("handbook", seed=4, count=100)
    for task in generate("handbook", seed=4, count=100):
        assert str(task.spec.parameters["answer"]) in documents[task.source]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: generate("poems", seed=0, count=1), NotFoundError),
        (lambda: generate("handbook", seed=0, count=0), UsageError),
        (lambda: generate("procedures", seed=0, count=5000), UsageError),
        (lambda: generate("handbook", seed=-1, count=1), UsageError),
        (lambda: corpus("programs", seed=0, count=1), UsageError),
    ],
)
def test_families_that_are_not_there_are_one_error(make, error):
    with pytest.raises(error):
        make()


def test_the_command_writes_tasks_and_their_documents(tmp_path, capsys):
    out, folder = tmp_path / "tasks.jsonl", tmp_path / "pages"
    words = [
        "library",
        "tasks",
        "handbook",
        "--seed",
        "5",
        "--count",
        "20",
        "--out",
        str(out),
        "--corpus",
        str(folder),
    ]
    assert run([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["tasks"], told["documents"]) == (20, 3)
    assert read_tasks(out) == generate("handbook", seed=5, count=20)
    assert len(list(folder.iterdir())) == 3
    assert run(words) == 2
    assert "exists already" in capsys.readouterr().err
    assert run(["library", "tasks", "poems", "--out", str(tmp_path / "x")]) == 7
    assert run(["library", "tasks", "programs", "--out", str(tmp_path / "a" / "x")]) == 2
