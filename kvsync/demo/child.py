"""Steps of the demo that need a model, each in a process of its own: `python -m kvsync.demo.child STEP`.

Parameters come as one JSON object on standard input, the result goes as one to standard output.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvsync.config import Home
from kvsync.demo.continuation import continue_fresh, continue_graft
from kvsync.demo.tamper import refuse_all
from kvsync.engines import load_engine
from kvsync.engines.engine import Engine
from kvsync_protocol.errors import CodedError
from kvsync_protocol.layout import DType


def fingerprints(engine: Engine, params: dict[str, Any]) -> dict[str, object]:
    """Both fingerprint records of this host for the model."""
    pair = engine.fingerprints
    return {"compatibility": pair.compatibility.as_json(), "numerics": pair.numerics.as_json()}


STEPS: dict[str, Callable[[Engine, dict[str, Any]], dict[str, object]]] = {
    "fingerprints": fingerprints,
    "fresh": continue_fresh,
    "graft": continue_graft,
    "tamper": refuse_all,
}


def main() -> int:
    params = json.load(sys.stdin)
    params["home"] = Home(Path(params["home"]))
    try:
        engine = load_engine(Path(params["model"]), dtype=DType(params["dtype"]), device=params["device"])
        result = STEPS[sys.argv[1]](engine, params)
    except CodedError as error:
        sys.stdout.write(json.dumps({"error": error.as_dict()}))
        return 1
    sys.stdout.write(json.dumps({"result": result}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
