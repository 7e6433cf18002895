"""What the documents say is so: commands, options, settings, names, links, examples."""

from __future__ import annotations

import ast
import dataclasses
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

import kvsync
from kvsync.cli._app import build
from kvsync.config import Settings
from kvsync.errors import EXIT_STATUS

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
REFERENCE = ROOT / "docs" / "reference.md"


@cache
def tracked() -> tuple[Path, ...]:
    """Every file of the repository, as git knows it."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    return tuple(path for name in names if name and (path := ROOT / name).is_file())


def documents() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".md"]


def blocks(path: Path, language: str) -> list[str]:
    """Fenced code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)


def rows(path: Path, heading: str) -> list[list[str]]:
    """Cells of the table below a heading, without its header."""
    section = path.read_text().partition(f"\n{heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@cache
def application() -> Any:
    return typer.main.get_command(build())


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with the words that lead to it."""
    for name, command in (group or application()).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def invocations(text: str) -> list[list[str]]:
    """The words of every `kvsync …` line of a shell text, without comments."""
    found = []
    for line in text.splitlines():
        words = shlex.split(line.strip(), comments=True)
        if words[:1] == ["kvsync"]:
            found.append(words[1:])
    return found


def find(words: list[str]) -> tuple[tuple[str, ...], Any]:
    """The command that `words` begin with; fails when there is none."""
    known = dict(commands())
    path = next((tuple(words[:n]) for n in (2, 1) if tuple(words[:n]) in known), None)
    assert path is not None, f"there is no command: kvsync {' '.join(words)}"
    return path, known[path]


def options(command: Any) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {
        "--help"
    }


SHELL_LINES = [words for path in documents() for block in blocks(path, "sh") for words in invocations(block)]


@pytest.mark.parametrize("words", SHELL_LINES, ids=" ".join)
def test_every_command_and_option_in_the_documents_exists(words):
    _, command = find(words)
    unknown = {word for word in words if word.startswith("-") and word != "-"} - options(command)
    assert not unknown


def test_the_readme_shows_every_command():
    shown = {find(words)[0] for block in blocks(README, "sh") for words in invocations(block)}
    assert shown == {path for path, _ in commands()}


def test_every_command_and_option_has_a_help_text():
    for path, command in commands():
        assert command.help, path
        first = command.help.partition("\n")[0]
        assert len(first) <= 64, f"{path}: the first line of its help is cut short in the list of commands"
        for parameter in command.params:
            assert parameter.name == "context" or parameter.help, f"{path}: {parameter.name}"


def test_every_command_takes_the_global_options():
    for path, command in commands():
        assert {"--home", "--json", "--quiet", "--verbose"} <= options(command), path


def hints() -> Iterator[tuple[Path, str]]:
    """The texts of every `hint=…` in the sources."""
    for path in tracked():
        if path.suffix == ".py" and ROOT / "kvsync" in path.parents:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.keyword) and node.arg == "hint":
                    for part in ast.walk(node.value):
                        if isinstance(part, ast.Constant) and isinstance(part.value, str):
                            yield path, part.value


def test_every_command_that_a_hint_names_exists():
    named = [
        (path, text) for path, hint in hints() for text in re.findall(r"kvsync((?: (?:--)?[a-z][a-z-]*)+)", hint)
    ]
    assert len(named) > 20
    for path, text in named:
        _, command = find(text.split())
        assert {w for w in text.split() if w.startswith("--")} <= options(command), f"{path}: kvsync{text}"


def test_every_setting_is_documented_with_its_default():
    documented = {cells[0]: cells[1] for cells in rows(REFERENCE, "## Settings")}
    expected = {}
    for field in dataclasses.fields(Settings):
        shown = f'"{field.default}"' if isinstance(field.default, str) else str(field.default).replace("()", "[]")
        expected[f"`{field.name}`"] = f"`{shown}`"
    assert documented == expected


def test_every_exit_status_is_documented_with_its_classes():
    documented = {
        int(cells[0]): set(re.findall(r"`(\w+)`", cells[1])) for cells in rows(REFERENCE, "## Exit statuses")
    }
    expected: dict[int, set[str]] = {0: set(), 1: set(), 130: set()}
    for kind, status in EXIT_STATUS.items():
        expected.setdefault(status, set()).add(kind.__name__)
    assert documented == expected


def test_every_environment_variable_is_documented():
    documented = {
        name for cells in rows(REFERENCE, "## Environment") for name in re.findall(r"`(KVSYNC_\w+)`", cells[0])
    }
    sources = [path for path in tracked() if path.suffix == ".py" and ROOT / "kvsync" in path.parents]
    used = {name for path in sources for name in re.findall(r"[\"'](KVSYNC_[A-Z_]+)[\"']", path.read_text())}
    assert documented == used


def test_every_exported_name_is_documented_and_importable():
    documented = {cells[0] for cells in rows(REFERENCE, "## Python")}
    assert documented == {f"`kvsync.{name}`" for name in kvsync.__all__}
    for name in kvsync.__all__:
        assert getattr(kvsync, name).__doc__


def test_links_inside_the_repository_resolve():
    broken = []
    for path in documents():
        text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            linked = (path.parent / name).resolve() if name else path
            if not linked.exists() or (anchor and anchor not in anchors(linked)):
                broken.append(f"{path.relative_to(ROOT)}: {target}")
    assert broken == []


def anchors(path: Path) -> set[str]:
    """Anchors of a document's headings, as forges make them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_no_path_of_the_machine_it_was_written_on_is_in_the_repository():
    private = re.compile(
        "|".join((r"/wo" + r"rk/", r"/tmp/" + r"ws", r"/opt/" + r"(?:wheels|pypi)", r"/ro" + r"ot/"))
    )
    found = []
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {line.strip()}" for line in text.splitlines() if private.search(line)]
    assert found == []


def test_make_has_every_target_that_the_documents_name():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    named = {name for path in documents() for name in re.findall(r"`make ([a-z]+)`", path.read_text())}
    assert {"demo", "test"} <= named <= targets


@pytest.fixture
def node(tmp_path, monkeypatch) -> Path:
    """A home for examples, and the installed `kvsync` on the path."""
    monkeypatch.setenv("KVSYNC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KVSYNC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    subprocess.run(["kvsync", "init"], check=True, capture_output=True)
    return tmp_path


@pytest.fixture
def document(tmp_path) -> Path:
    path = tmp_path / "document.txt"
    path.write_text(" ".join(f"w{number * 7 % 100}" for number in range(300)))
    return path


def run(*words: object) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_graft_example_runs(node, document, tiny_model_dir):
    told = run(sys.executable, "examples/graft.py", tiny_model_dir, document, "w1 w2 w3")
    assert "grafted    300 tokens, 3 left to compute" in told
    assert "answer" in told


def test_the_two_nodes_example_runs(node, document, tiny_model_dir):
    told = run("bash", "examples/two_nodes.sh", tiny_model_dir, document)
    assert "is whole" in told
    assert "tokens grafted     300" in told
    assert "team/excerpt" in told


def test_the_readme_s_python_runs(node, document, tiny_model_dir, capsys):
    [code] = blocks(README, "python")
    names: dict[str, Any] = {"model_dir": tiny_model_dir, "text": document.read_text()}
    exec(compile(code, "README.md", "exec"), names)  # noqa: S102 (it is ours)
    assert names["graft"].report.tokens_grafted == 300
    assert names["answer"].shape[1] > 300
    assert capsys.readouterr().out == ""


def test_every_example_is_run_by_a_test():
    examples = {path.name for path in tracked() if ROOT / "examples" in path.parents}
    tests = Path(__file__).read_text()
    assert {name for name in examples if f"examples/{name}" not in tests} == set()
