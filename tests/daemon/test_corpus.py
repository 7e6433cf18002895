"""`kvsync library ingest` beside a running daemon: its worker computes, the library is filled here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kvsync.cli import main
from kvsync.config import Home, Settings
from kvsync.daemon.client import DaemonClient


def test_a_running_daemon_computes_the_passages(
    new_home: Callable[..., Home],
    start: Callable[[Home], int],
    tiny_model_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    home = new_home(settings=Settings(free_floor_bytes=0, threads=1))
    start(home)
    (tmp_path / "docs").mkdir()
    for number in range(3):
        (tmp_path / "docs" / f"{number}.txt").write_text(f"w1 w2 the door code of town{number} is w{number}\n")

    def run(*words: str) -> dict[str, object]:
        capsys.readouterr()
        status = main(["--home", str(home.root), "--json", *words, "--model", str(tiny_model_dir)])
        found = json.loads(capsys.readouterr().out)
        assert status == 0, found
        return found

    ingest = ("library", "ingest", str(tmp_path / "docs"), "--library", "site", "--max-tokens", "40")
    report = run(*ingest)
    assert (report["daemon"], report["passages"]) == (True, {"all": 3, "computed": 3, "removed": 0})
    assert [job.state.value for job in DaemonClient(home).jobs()] == ["done"] * 3
    again = run(*ingest)
    assert again["passages"] == {"all": 3, "computed": 0, "removed": 0}
    asked = run("ask", "What is the door code of town2?", "--library", "site", "--max-tokens", "2")
    assert asked["cited"]["document"] == "2.txt"
    assert asked["cost"]["grafted"] == asked["cited"]["tokens"]
