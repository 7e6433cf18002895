"""The program behind the 50-of-50 figure runs and counts; what it runs is tested in tests/evidence."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from tests.engines.tiny_models import Models, save_letters

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "exactness.py"


def test_a_small_run_is_exact_and_says_so(tiny: Models, tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny.folder("llama"), tmp_path / "model"))
    save_letters(model)
    command = [sys.executable, str(PROGRAM), "--json", "--samples", "3", "--threads", "1", "--dtype", "F32"]
    done = subprocess.run([*command, "--model", str(model)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    (run,) = found["runs"]
    assert found["exact"]
    assert (run["samples"], run["modes"]) == (3, {"whole": 2, "prefix": 1})
    assert [path["equal"] for path in run["paths"].values()] == [3, 3, 3]
