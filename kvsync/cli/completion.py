"""`kvsync completion`: the script a shell sources to complete kvsync's commands and options."""

from __future__ import annotations

import contextlib
import enum
import io
import os
from typing import Annotated

import typer

from kvsync.cli._command import Run, command
from kvsync.cli._render import Outcome


class Shell(enum.StrEnum):
    """Shells with a completion script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def add_commands(app: typer.Typer) -> None:
    command(app, "completion")(completion)


def completion(run: Run, shell: Annotated[Shell, typer.Argument(help="bash, zsh or fish.")]) -> Outcome:
    """Print a shell's completion script.

    For example: source <(kvsync completion bash)
    """
    script = _script(shell)
    return Outcome({"shell": shell.value, "script": script}, script.splitlines())


def _script(shell: Shell) -> str:
    """Ask typer's own completion for its script; it answers on stdout, to an environment variable."""
    from kvsync.cli._app import COMPLETE_VARIABLE, PROGRAM, build

    application = typer.main.get_command(build(completion=True))
    os.environ[COMPLETE_VARIABLE] = f"source_{shell.value}"
    answer = io.StringIO()
    try:
        with contextlib.redirect_stdout(answer), contextlib.suppress(SystemExit):
            application.main(args=[], prog_name=PROGRAM, complete_var=COMPLETE_VARIABLE)
    finally:
        del os.environ[COMPLETE_VARIABLE]
    return answer.getvalue().strip()
