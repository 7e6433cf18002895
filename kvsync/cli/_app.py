"""The command line as a whole: which commands there are, and what happens to an error none of them caught."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from kvsync.cli._command import HomeOption, JsonOption, QuietOption, VerboseOption
from kvsync.cli._commands import Commands
from kvsync.cli._render import INTERRUPTED, Outcome, Terminal
from kvsync_protocol.errors import CodedError

PROGRAM: Final = "kvsync"
COMPLETE_VARIABLE: Final = "_KVSYNC_COMPLETE"


def build(*, completion: bool = False) -> typer.Typer:
    """The application. `completion` adds what answers a shell that completes a word."""
    app = typer.Typer(
        name=PROGRAM, cls=Commands, rich_markup_mode=None, add_completion=completion, pretty_exceptions_enable=False
    )
    app.callback()(_root)
    return app


def _version(context: typer.Context, wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        terminal: Terminal = context.obj
        found = version(PROGRAM)
        terminal.show(Outcome({"version": found}, [f"{PROGRAM} {found}"]))
        raise typer.Exit


def _root(
    home: HomeOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version.")
    ] = False,
) -> None:
    """Move the KV state of a frozen language model between machines as a verified artifact.

    Exit statuses: 0 done, 1 unexpected error, 2 usage, 3 malformed, 4 damaged, 5 not trusted or not
    allowed, 6 other model or arithmetic, 7 not found, 8 not reachable, 9 store or home, 10 engine,
    130 interrupted.
    """


def run(arguments: Sequence[str]) -> int:
    """Parse and run one command line; every error becomes text and a status here."""
    words = list(arguments)
    flags = words[: words.index("--")] if "--" in words else words
    # Only for errors in the command line itself; what was parsed replaces it.
    terminal = Terminal(as_json="--json" in flags, verbose="--verbose" in flags or "-v" in flags)
    application = typer.main.get_command(build(completion=COMPLETE_VARIABLE in os.environ))
    try:
        status = application.main(
            args=words or ["--help"],
            prog_name=PROGRAM,
            complete_var=COMPLETE_VARIABLE,
            standalone_mode=False,
            obj=terminal,
        )
    except CodedError as error:
        return terminal.error(error)
    except typer.TyperException as error:
        return terminal.usage(_sentence(error.format_message()), f"{_command_path(error)} --help")
    except (KeyboardInterrupt, typer.Abort):
        return terminal.interrupted()
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 (the last place where it can become one line instead of a traceback)
        return terminal.unexpected(error)
    if status == INTERRUPTED:
        return terminal.interrupted()
    return int(status or 0)


def _sentence(message: str) -> str:
    text = " ".join(message.split()).rstrip(".")
    return text[:1].lower() + text[1:]


def _command_path(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return str(context.command_path) if context is not None else PROGRAM
