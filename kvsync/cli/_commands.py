"""The commands as a group whose members are imported when somebody asks for them by name.

kvsync --help    names and texts of the catalogue; no command is imported
kvsync ls        the one module that makes `ls`
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, MutableMapping
from typing import Any

import typer
from typer.core import TyperGroup

from kvsync.cli._catalogue import CATALOGUE


class Commands(TyperGroup):
    """The root of the command line."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = _OnDemand()
        _take_text_as_it_is(self)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.text) for name, entry in CATALOGUE.items()])


class _OnDemand(MutableMapping[str, Any]):
    """Commands by name; to take one imports the module that makes it."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made.update(_make(CATALOGUE[name].module))
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(CATALOGUE)

    def __len__(self) -> int:
        return len(CATALOGUE)


def _make(module: str) -> dict[str, Any]:
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    importlib.import_module(f"kvsync.cli.{module}").add_commands(app)
    made = dict(typer.main.get_group(app).commands)
    for command in made.values():
        _take_text_as_it_is(command)
    return made


class _AsItIs:
    """Stands in for typer's converter of a value that is what it has to be."""

    def coerce(self, value: object, param: object, ctx: object) -> object:
        return value


def _take_text_as_it_is(command: Any) -> None:
    """Keep typer from loading pydantic, a fifth of the time of a short command, to make text of text.

    A flag's value is none or a truth already. A release of typer without this inner attribute takes no notice.
    """
    for parameter in command.get_params(typer.Context(command)):
        kind = getattr(parameter, "type_descriptor", None)
        if kind is not None and kind.annotation in (str, bool) and parameter.nargs == 1 and not parameter.multiple:
            parameter._runtime_param = _AsItIs()
    for member in getattr(command, "commands", {}).values() if not isinstance(command, Commands) else ():
        _take_text_as_it_is(member)
