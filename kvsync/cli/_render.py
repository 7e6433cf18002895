"""Every rule about the terminal: what goes where, how it looks, and how an error is told.

Results go to stdout and everything else to stderr. Sentences are lower case without a full stop, advice
starts with `hint:`. Colour appears on a terminal only. With `--json` stdout carries exactly one JSON
object, also when the command fails: `{"error": {"code", "message", "hint", "fields"}}`.

Texts may come from other hosts (names, fingerprint fields), so control characters never reach the
terminal. Knows nothing of stores, peers or models.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TextIO

from kvsync.errors import exit_status
from kvsync.progress import Progress, silent
from kvsync_protocol.errors import CodedError

INTERRUPTED: Final = 130
UNEXPECTED: Final = 1

_BOLD, _DIM, _RED, _GREEN, _RESET = "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headers; columns named in `right` are aligned to the right."""

    headers: Sequence[str]
    rows: Sequence[Sequence[object]]
    right: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values, one pair a line."""

    pairs: Sequence[tuple[str, object]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command found out. `data` is the JSON object, `view` what a person reads instead.

    `notes` go to stderr. `status` is not 0 when the command worked and the answer is no: a `verify`
    that found damage, a `doctor` that found something broken.
    """

    data: Mapping[str, object]
    view: Sequence[str | Table | Facts] = ()
    notes: Sequence[str] = ()
    status: int = 0


class Terminal:
    """Where a command's words end up. One per run of the program."""

    def __init__(
        self,
        *,
        as_json: bool = False,
        quiet: bool = False,
        verbose: bool = False,
        out: TextIO | None = None,
        err: TextIO | None = None,
    ) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.verbose = verbose
        self._out = out or sys.stdout
        self._err = err or sys.stderr

    def configure(self, *, as_json: bool, quiet: bool, verbose: bool) -> None:
        """Take over what the parsed command line says."""
        self.as_json, self.quiet, self.verbose = as_json, quiet, verbose

    def show(self, outcome: Outcome) -> None:
        """Print a result."""
        for note in outcome.notes:
            self.note(note)
        if self.as_json:
            self._print_json(outcome.data)
            return
        for part in outcome.view:
            self._out.write("".join(f"{line}\n" for line in self._lines(part)))
        self._out.flush()

    def note(self, text: str) -> None:
        """Something worth knowing that is not the result."""
        if not self.quiet:
            self._err.write(printable(text) + "\n")

    def error(self, error: CodedError) -> int:
        """Tell a coded error; returns the exit status."""
        return self._tell(error.as_dict(), exit_status(error), error)

    def usage(self, message: str, hint: str) -> int:
        """Tell that the command line makes no sense."""
        return self._tell({"code": "usage.arguments", "message": message, "hint": hint}, 2, None)

    def interrupted(self) -> int:
        return self._tell({"code": "run.interrupted", "message": "interrupted"}, INTERRUPTED, None)

    def unexpected(self, error: Exception) -> int:
        """Tell an error nobody planned for: a bug, or a system that behaves like one."""
        kind = type(error).__name__
        found = {
            "code": "run.unexpected",
            "message": f"unexpected error: {kind}: {error}",
            "hint": "run it again with --verbose for the traceback, and report it",
        }
        return self._tell(found, UNEXPECTED, error)

    def _tell(self, found: Mapping[str, object], status: int, error: Exception | None) -> int:
        if self.verbose and error is not None:
            self._err.write("".join(traceback.format_exception(error)))
        if self.as_json:
            self._print_json({"error": {"exit_status": status, **found}})
        else:
            label = self._styled("error:", _RED, self._err)
            self._err.write(f"{label} {printable(str(found['message']))}\n")
            if found.get("hint"):
                self._err.write(f"{self._styled('hint:', _DIM, self._err)} {printable(str(found['hint']))}\n")
        return status

    @property
    def has_person(self) -> bool:
        """True when somebody can be asked."""
        return is_terminal(self._err) and is_terminal(sys.stdin)

    def ask_passphrase(self, prompt: str = "passphrase: ") -> str:
        """Read without showing it. Raises KeyboardInterrupt at the end of input."""
        import getpass

        try:
            return getpass.getpass(prompt, self._err)
        except EOFError as error:
            raise KeyboardInterrupt from error

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Bars on stderr where a person sits there, silence elsewhere."""
        if self.quiet or self.as_json or not is_terminal(self._err):
            yield silent
            return
        from kvsync.cli._progress import bars

        with bars(self._err) as progress:
            yield progress

    def _print_json(self, data: Mapping[str, object]) -> None:
        indent = 2 if is_terminal(self._out) else None
        self._out.write(json.dumps(data, indent=indent, ensure_ascii=False, allow_nan=False) + "\n")
        self._out.flush()

    def _lines(self, part: str | Table | Facts) -> Iterator[str]:
        if isinstance(part, str):
            yield printable(part)
        elif isinstance(part, Facts):
            width = max((len(name) for name, _ in part.pairs), default=0)
            for name, value in part.pairs:
                yield f"{self._styled(f'{name:<{width}}', _DIM, self._out)}  {self._cell(value)}"
        else:
            yield from self._table_lines(part)

    def _table_lines(self, table: Table) -> Iterator[str]:
        rows = [[printable(str(value)) for value in row] for row in table.rows]
        widths = [max(map(len, column)) for column in zip(table.headers, *rows, strict=True)]
        right = [header in table.right for header in table.headers]

        def aligned(cells: Sequence[str]) -> str:
            parts = [
                cell.rjust(width) if to_right else cell.ljust(width)
                for cell, width, to_right in zip(cells, widths, right, strict=True)
            ]
            return "  ".join(parts).rstrip()

        yield self._styled(aligned(list(table.headers)), _BOLD, self._out)
        for row in rows:
            yield aligned(row)

    def _cell(self, value: object) -> str:
        text = printable(str(value))
        if value is True or value is False:
            text = "yes" if value else "no"
            return self._styled(text, _GREEN if value else _RED, self._out)
        return text

    def _styled(self, text: str, style: str, stream: TextIO) -> str:
        return f"{style}{text}{_RESET}" if colours(stream) else text


def is_terminal(stream: TextIO) -> bool:
    return stream.isatty()


def colours(stream: TextIO) -> bool:
    """True on a terminal, unless the user says otherwise (https://no-color.org)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def printable(text: str) -> str:
    """`text` without anything a terminal would obey: control characters become U+FFFD."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def size(count: int) -> str:
    """Bytes for people: `512 B`, `70.4 MiB`."""
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1024:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} PiB"


def moment(unix_seconds: float) -> str:
    """`2026-11-30T00:21:09Z`; the bare number where the calendar has no such year, which a signer may well claim."""
    try:
        return f"{datetime.fromtimestamp(unix_seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return str(int(unix_seconds))


def plural(count: int, noun: str) -> str:
    """`1 chunk`, `2 chunks`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def seconds(value: float) -> str:
    """A duration for people: `3.2 ms`, `1.5 s`, `2 min 5 s`."""
    if value < 1:
        return f"{value * 1000:.1f} ms"
    if value < 120:
        return f"{value:.1f} s"
    return f"{int(value // 60)} min {int(value % 60)} s"
