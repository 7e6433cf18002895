"""Tiny models for the matrix, and every row's result, computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from tests.sabotage.matrix import ROWS, Result, Row, run
from tests.sabotage.models import Engines

Results = Callable[[Row], Result]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """All engines of the matrix have the same arithmetic, in whichever test they are made."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVSYNC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield Engines(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def results(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The result of a row, run when it is first asked for."""
    root, known = tmp_path_factory.mktemp("rows"), dict[Row, Result]()

    def result(row: Row) -> Result:
        if row not in known:
            known[row] = run(row, root / str(ROWS.index(row)), engines)
        return known[row]

    return result
