"""What every command shares: the global options, this node's home, and how a result leaves.

A command is a function of a `Run` and its own arguments that returns an `Outcome`. It neither prints nor
exits. `command` registers it with the four global options added, so that they work before and after the
command's name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec

import typer
from typer.core import TyperGroup

from kvsync.cli._render import Outcome, Terminal
from kvsync.config import Home, Settings
from kvsync.errors import UsageError
from kvsync.files import make_private_dir

if TYPE_CHECKING:
    from kvsync.keys import KeyRing, NodeKeys, PeerBook, TrustList
    from kvsync.progress import Progress
    from kvsync.store import Store

P = ParamSpec("P")

HomeOption = Annotated[
    str | None,
    typer.Option("--home", metavar="DIR", help="This node's home; default $KVSYNC_HOME or the user's data folder."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, errors included.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print results and errors only.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Show tracebacks.")]

GLOBAL_OPTIONS = {"home": HomeOption, "json": JsonOption, "quiet": QuietOption, "verbose": VerboseOption}


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one command: where this node lives and whom to talk to."""

    home: Home
    terminal: Terminal

    def node(self) -> Home:
        """The home, once it is known to exist and to be closed to other users.

        Raises:
            StoreError: `home.missing`, `home.unreadable`, `home.lax_mode`.
        """
        self.home.require()
        for path in (self.home.root, self.home.keys_dir, self.home.store_dir, self.home.daemon_dir):
            if path.is_dir():
                make_private_dir(path)
        return self.home

    def settings(self) -> Settings:
        return Settings.load(self.node())

    def keys(self) -> NodeKeys:
        from kvsync.keys import NodeKeys

        return NodeKeys.load(self.node(), self.terminal.ask_passphrase if self.terminal.has_person else None)

    def key_ring(self) -> KeyRing:
        """Every key this node has or had."""
        from kvsync.keys import KeyRing

        return KeyRing(self.node(), self.terminal.ask_passphrase if self.terminal.has_person else None)

    def trust(self) -> TrustList:
        from kvsync.keys import TrustList

        return TrustList(self.home, self.keys().signer.public)

    def peers(self) -> PeerBook:
        from kvsync.keys import PeerBook

        return PeerBook(self.node())

    @contextmanager
    def store(self) -> Iterator[Store]:
        """The node's store, under the limits of its settings."""
        from kvsync.store import Store, StoreLimits

        home = self.node()
        with Store.open(home.store_dir, StoreLimits.of(self.settings())) as store:
            yield store

    def progress(self) -> AbstractContextManager[Progress]:
        return self.terminal.progress()


def command(
    app: typer.Typer, name: str
) -> Callable[[Callable[Concatenate[Run, P], Outcome]], Callable[Concatenate[Run, P], Outcome]]:
    """Register a function of a `Run` as command `name` of `app`, with the global options added."""

    def register(function: Callable[Concatenate[Run, P], Outcome]) -> Callable[Concatenate[Run, P], Outcome]:
        body: Callable[..., Outcome] = function

        def run(*, context: typer.Context, **given: Any) -> None:
            options = {option: given.pop(option) for option in GLOBAL_OPTIONS}
            _finish(context, options, lambda frame: body(frame, **given))

        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        keyword = inspect.Parameter.KEYWORD_ONLY
        shared = [
            inspect.Parameter(option, keyword, default=None if option == "home" else False, annotation=kind)
            for option, kind in GLOBAL_OPTIONS.items()
        ]
        first = inspect.Parameter("context", keyword, annotation=typer.Context)
        parameters = [first, *(p.replace(kind=keyword) for p in own), *shared]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        run.__doc__ = function.__doc__
        app.command(name)(run)
        return function

    return register


def add_group(
    app: typer.Typer,
    name: str,
    text: str,
    functions: Mapping[str, Callable[..., Outcome]],
    kind: type[TyperGroup] = TyperGroup,
) -> None:
    """Register a group of commands: `kvsync NAME COMMAND`."""
    group = typer.Typer(name=name, help=text, rich_markup_mode=None, cls=kind)
    for each, function in functions.items():
        command(group, each)(function)
    app.add_typer(group)


def _finish(context: typer.Context, options: dict[str, object], function: Callable[[Run], Outcome]) -> None:
    """Merge the global options of both places, run the command, show its outcome."""
    before = context.find_root().params
    terminal: Terminal = context.obj
    terminal.configure(
        as_json=bool(options["json"] or before["json"]),
        quiet=bool(options["quiet"] or before["quiet"]),
        verbose=bool(options["verbose"] or before["verbose"]),
    )
    home = before["home"] if options["home"] is None else options["home"]
    if home == "":
        # Path("") is the current directory: an unset variable in a script must not put keys there.
        raise UsageError("home.empty", "--home is empty", hint="name a directory")
    outcome = function(Run(Home.locate(None if home is None else Path(str(home))), terminal))
    terminal.show(outcome)
    if outcome.status:
        raise typer.Exit(outcome.status)
