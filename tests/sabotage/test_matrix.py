"""Every check refuses its attack, only it does, and the published table says so."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kvsync_protocol.errors import IntegrityError
from kvsync_protocol.leaves import Leaf
from tests.sabotage.checks import CHECKS, without
from tests.sabotage.conftest import Results
from tests.sabotage.forging import honest
from tests.sabotage.liar import Story
from tests.sabotage.matrix import PAGE, ROWS, Outcome, Row, page
from tests.sabotage.models import GEMMA, LLAMA, Engines
from tests.sabotage.world import DOCUMENT, RIGHT, World


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_the_attack_is_refused_by_its_check_and_by_no_other(row: Row, results: Results) -> None:
    found = results(row)
    assert found.on == found.again == Outcome(refused=row.code)
    assert found.off.refused == ""
    assert found.sound, f"with the check off the attack reached: {found.off.reached}"


def test_the_published_table_is_what_a_run_gives(results: Results) -> None:
    assert PAGE.read_text(encoding="utf-8") == page([results(row) for row in ROWS])


def test_every_check_has_an_attack_of_its_own() -> None:
    assert {row.check for row in ROWS} == set(CHECKS)


@pytest.mark.parametrize("family", [LLAMA, GEMMA])
def test_what_is_honest_passes_and_gives_the_right_logits(family: str, engines: Engines, tmp_path: Path) -> None:
    world = World(tmp_path, engines)
    engine = world.uses(engines.victim(family))
    assert asyncio.run(world.takes(Story(honest(engine, DOCUMENT)), engine)) == RIGHT
    world.close()


def test_a_check_is_on_again_even_after_a_failure_inside() -> None:
    original = Leaf.names

    def fails() -> None:
        with without("chunk digest"):
            assert Leaf.names is not original
            raise IntegrityError("integrity.chunk", "an attack that failed")

    with pytest.raises(IntegrityError):
        fails()
    assert Leaf.names is original
