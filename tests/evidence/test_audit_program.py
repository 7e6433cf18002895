"""The program behind the audit's figures runs and says what it found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "audit.py"


def test_a_small_run_finds_every_forgery(tmp_path: Path, tiny_model_dir: Path) -> None:
    command = [sys.executable, str(PROGRAM), "--json", "--seeds", "2", "--model", str(tiny_model_dir)]
    command += ["--tokens", "1100", "--shares", "2"]
    environment = {**os.environ, "KVSYNC_CACHE": str(tmp_path), "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    found = json.loads(done.stdout)
    for name in ("one_flipped_bit", "consistent_forgery"):
        row = found[name]
        assert (row["seeds"], row["found_by_all_blocks"], row["found_exactly_where_it_begins"]) == (2, 2, 2)
    [row] = found["scaling"]["by_shares"]
    assert (found["scaling"]["blocks"], row["shares"], len(row["share_s"])) == (5, 2, 2)
