"""What the commands around libraries share: their options, a verifier by its text, an entry as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kvsync.library.entries import StoredEntry
    from kvsync.library.verifiers import Verdict, Verifier
    from kvsync_protocol.entry import Entry

LibraryArgument = Annotated[str, typer.Argument(metavar="NAME", help="A library's name, for example maths/easy.")]
VerifierOption = Annotated[
    str, typer.Option("--verifier", metavar="SPEC", help="What judges answers, for example number:answer=42.")
]


def open_verifier(text: str) -> Verifier:
    """Raises UsageError `verifier.*`; NotFoundError `verifier.unknown`."""
    from kvsync.library.verifiers import load_verifier

    return load_verifier(text)


def reverifier() -> Callable[[Entry], Verdict]:
    """Runs the verifier that an entry names, with its parameters."""
    from kvsync.library.problem import Problem
    from kvsync.library.verifiers import load_verifier

    def judge(entry: Entry) -> Verdict:
        verifier = load_verifier(entry.verifier.as_json())
        return verifier.verify(Problem.of(entry.problem), entry.solution)

    return judge


def entry_json(stored: StoredEntry) -> dict[str, object]:
    """An entry, its name and who signed it."""
    entry = stored.entry
    return {
        "entry": str(stored.digest),
        "signers": [str(key) for key in stored.signers],
        "problem": entry.problem,
        "address": str(entry.address),
        "solution": entry.solution,
        "verifier": entry.verifier.as_json(),
        "artifact": str(entry.artifact),
        "tokens": entry.tokens,
        "compatibility": str(entry.compatibility),
        "cost": entry.cost.as_json(),
    }
