"""Steps of the demo that need a model, each in a process of its own: `python -m kvsync.demo.child STEP`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kvsync.config import Home
from kvsync.demo.continuation import continue_fresh, continue_graft
from kvsync.demo.tamper import refuse_all
from kvsync.engines import load_engine
from kvsync.engines.engine import Engine
from kvsync.evidence.processes import Step, serve_step
from kvsync.progress import Progress
from kvsync_protocol.layout import DType


def fingerprints(engine: Engine, params: dict[str, Any]) -> dict[str, object]:
    """Both fingerprint records of this host for the model."""
    pair = engine.fingerprints
    return {"compatibility": pair.compatibility.as_json(), "numerics": pair.numerics.as_json()}


Work = Callable[[Engine, dict[str, Any]], dict[str, object]]
WORK: dict[str, Work] = {
    "fingerprints": fingerprints,
    "fresh": continue_fresh,
    "graft": continue_graft,
    "tamper": refuse_all,
}


def _step(work: Work) -> Step:
    def run(params: dict[str, Any], progress: Progress) -> Iterator[dict[str, Any]]:
        engine = load_engine(Path(params["model"]), dtype=DType(params["dtype"]), device=params["device"])
        yield work(engine, {**params, "home": Home(Path(params["home"]))})

    return run


if __name__ == "__main__":
    sys.exit(serve_step({name: _step(work) for name, work in WORK.items()}))
