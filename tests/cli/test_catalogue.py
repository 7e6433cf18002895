"""The catalogue says what the modules make, and a command imports no other command's module."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
import typer

from kvsync.cli._catalogue import CATALOGUE


@pytest.mark.parametrize("module", sorted({entry.module for entry in CATALOGUE.values()}))
def test_a_module_makes_what_the_catalogue_says_and_says_the_same_of_it(module):
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    importlib.import_module(f"kvsync.cli.{module}").add_commands(app)
    made = {name: command.get_short_help_str(500) for name, command in typer.main.get_group(app).commands.items()}
    assert made == {name: entry.text for name, entry in CATALOGUE.items() if entry.module == module}


def _loaded(*words: str) -> set[str]:
    program = "import sys; from kvsync.cli import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, check=True)
    return set(done.stderr.decode().split())


def test_help_imports_no_command():
    loaded = _loaded("--help")
    assert "kvsync.cli._catalogue" in loaded
    assert not loaded & {f"kvsync.cli.{entry.module}" for entry in CATALOGUE.values()}
    assert not {name for name in loaded if name.startswith(("kvsync.store", "kvsync.keys", "kvsync_protocol.layout"))}


def test_a_list_imports_its_own_module_and_nothing_that_only_others_need(home):
    loaded = _loaded("--home", str(home), "ls")
    others = {f"kvsync.cli.{entry.module}" for entry in CATALOGUE.values()} - {"kvsync.cli.artifacts"}
    assert "kvsync.cli.artifacts" in loaded
    assert not loaded & {*others, "pydantic", "torch", "numpy", "aiohttp", "asyncio", "kvsync.graft", "kvsync.peer"}


def test_a_word_that_is_no_command_is_told_the_nearest(kvsync):
    found = kvsync("lss", "--json")
    assert found.status == 2
    assert "'ls'" in found.json["error"]["message"]
