"""The sabotage matrix: every check with an attack that only it catches. Writes docs/sabotage.md.

python -m tests.sabotage.matrix          run every row and write the table
python -m tests.sabotage.matrix --check  run every row and fail when the table is another
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from kvsync_protocol.errors import CodedError
from tests.sabotage import attacks_on_bytes as on_bytes
from tests.sabotage import attacks_on_evidence as on_evidence
from tests.sabotage import attacks_on_meaning as on_meaning
from tests.sabotage import attacks_on_names as on_names
from tests.sabotage.checks import CHECKS, without
from tests.sabotage.models import Engines
from tests.sabotage.world import RIGHT, Outcome, World

PAGE = Path(__file__).parents[2] / "docs" / "sabotage.md"
BEGIN, END = "<!-- table: written by tests/sabotage/matrix.py -->", "<!-- end of the table -->"

Attack = Callable[[World], Awaitable[str]]


@dataclass(frozen=True)
class Row:
    """An attack, the one check that stops it, and the code it is stopped with."""

    check: str
    attack: Attack
    code: str

    @property
    def name(self) -> str:
        return f"{self.check}: {self.attack.__name__.replace('_', ' ')}"


ROWS = (
    Row("signature", on_bytes.signature, "trust.bad_signature"),
    Row("key trust", on_bytes.stranger, "trust.untrusted_signer"),
    Row("Merkle root", on_bytes.two_trees, "integrity.root"),
    Row("chunk digest", on_bytes.flipped_on_the_way, "integrity.chunk"),
    Row("chunk digest", on_bytes.flipped_on_disk, "integrity.chunk"),
    Row("chunk size", on_bytes.small_promise, "leaves.layout"),
    Row("block header", on_bytes.foreign_header, "integrity.header"),
    Row("compatibility fingerprint", on_meaning.other_weights, "mismatch.compatibility"),
    Row("compatibility fingerprint", on_meaning.other_scaling, "mismatch.compatibility"),
    Row("numerics fingerprint", on_meaning.other_attention, "mismatch.numerics"),
    Row("canary", on_meaning.another_build, "mismatch.canary"),
    Row("signed token ids", on_bytes.other_tokens, "integrity.tokens"),
    Row("caller's token ids", on_meaning.another_document, "mismatch.tokens"),
    Row("caller's token ids", on_meaning.another_place, "mismatch.tokens"),
    Row("place of a cut", on_meaning.inside_a_block, "mismatch.position"),
    Row("live position", on_meaning.moved_meanwhile, "engine.context"),
    Row("sliding window", on_meaning.other_window, "mismatch.window"),
    Row("layer kinds", on_meaning.other_kinds, "mismatch.layer_kind"),
    Row("layer classes", on_meaning.unknown_layers, "engine.unsupported_layer"),
    Row("complete state", on_meaning.kept_elsewhere, "engine.unsupported_model"),
    Row("tensor layout", on_meaning.other_type, "mismatch.layout"),
    Row("template digest", on_meaning.other_template, "mismatch.template"),
    Row("weights in memory", on_meaning.rewritten_weights, "engine.weights_changed"),
    Row("audits", on_evidence.never_audited, "policy.audited"),
    Row("refutation", on_evidence.found_wrong, "evidence.refuted"),
    Row("independent signers", on_evidence.one_against_two, "policy.signers"),
    Row("divergence", on_evidence.word_against_word, "divergence.unsettled"),
    Row("own audits", on_evidence.found_wrong_here, "evidence.refuted"),
    Row("artifact asked for", on_bytes.another_artifact, "integrity.artifact"),
    Row("artifact on disk", on_bytes.exchanged_on_disk, "integrity.artifact"),
    Row("artifact size", on_bytes.too_large, "policy.size"),
    Row("name asked for", on_names.another_name, "trust.ref_name"),
    Row("names of a signer", on_names.name_out_of_bounds, "trust.name"),
    Row("ref sequence", on_names.rollback, "trust.rollback"),
    Row("ref expiry", on_names.freeze, "trust.expired"),
    Row("ref owner", on_names.taken_over, "trust.ref_owner"),
)


@dataclass(frozen=True)
class Result:
    """A row's three parts."""

    row: Row
    on: Outcome
    off: Outcome
    again: Outcome

    @property
    def sound(self) -> bool:
        """Refused by this check's code with nothing touched, reached without it, refused again."""
        refused = Outcome(refused=self.row.code)
        return self.on == self.again == refused and self.off.reached not in ("", "nothing", RIGHT)


def run(row: Row, root: Path, engines: Engines) -> Result:
    """The attack with the check on, off, and on again, each in a world of its own."""

    def attempt(part: str) -> Outcome:
        world = World(root / part, engines)
        try:
            with without(row.check) if part == "off" else nullcontext():
                return asyncio.run(_attempt(world, row.attack))
        finally:
            world.close()

    return Result(row, attempt("on"), attempt("off"), attempt("again"))


async def _attempt(world: World, attack: Attack) -> Outcome:
    world.begin()
    try:
        return Outcome(reached=await attack(world))
    except CodedError as error:
        return Outcome(refused=error.code, touched=not world.untouched())


def table(results: list[Result]) -> str:
    """One line for each row, as Markdown."""
    lines = [
        "| check | attack | check on | only this check off | on again |",
        "|---|---|---|---|---|",
    ]
    for found in results:
        attack = " ".join((found.row.attack.__doc__ or "").split()).rstrip(".")
        cells = [
            f"{found.row.check} (`{CHECKS[found.row.check].place}`)",
            attack,
            *(_cell(outcome) for outcome in (found.on, found.off, found.again)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(outcome: Outcome) -> str:
    refused = f"`{outcome.refused}`" + (", **something touched**" if outcome.touched else "")
    return refused if outcome.refused else outcome.reached


def page(results: list[Result]) -> str:
    """The committed page with this run's table in it."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return f"{before}{BEGIN}\n\n{table(results)}\n\n{END}{rest.split(END)[1]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when something differs")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in ("cache", "models", "rows"):
            (root / name).mkdir()
        os.environ["KVSYNC_CACHE"] = str(root / "cache")
        engines, results = Engines(root / "models"), []
        for number, row in enumerate(ROWS):
            found = run(row, root / "rows" / str(number), engines)
            results.append(found)
            parts = "  ".join(_cell(part) for part in (found.on, found.off, found.again))
            print(f"{'ok ' if found.sound else 'BAD'} {row.name:<46} {parts}", file=sys.stderr, flush=True)
    text = page(results)
    if check:
        return 0 if text == PAGE.read_text(encoding="utf-8") and all(found.sound for found in results) else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0 if all(found.sound for found in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
