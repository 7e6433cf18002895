"""Plays every scenario on a tiny file system with room for 0, 1, 2, … pages or files: play.py MOUNT_POINT [NAME …]

Run in a mount namespace of its own. With --sizes nothing is mounted: files may not grow beyond 0, 1, 2, … pages,
which any process can have, and which is a full disk too where no database is concerned. Prints a line of JSON for
each scenario: what went wrong, how often it was refused, and by which codes.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

sys.path.insert(0, str(Path(__file__).parents[2]))

from kvsync_protocol.errors import CodedError
from tests.full.scenarios import SCENARIOS, Scenario, check

PAGE = os.sysconf("SC_PAGESIZE")
PAGES, FILES = 4096, 600
ENOUGH = 400
"""No scenario needs so many pages, nor so many files."""
Left: TypeAlias = Callable[[Path, int], AbstractContextManager[None]]
_HALF_WRITTEN = re.compile(r"\.[^/]+\.[0-9a-f]{12}")


@contextmanager
def pages_left(root: Path, count: int) -> Iterator[None]:
    """Use up the disk but for so many pages."""
    filler = root / "filler"
    descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT)
    try:
        free = os.statvfs(root).f_bavail * os.statvfs(root).f_frsize
        if free > count * PAGE:
            os.posix_fallocate(descriptor, 0, free - count * PAGE)
        yield
    finally:
        os.close(descriptor)
        filler.unlink()


@contextmanager
def files_left(root: Path, count: int) -> Iterator[None]:
    """Use up the disk's inodes but for so many."""
    fillers = root / "fillers"
    fillers.mkdir()
    for number in range(max(0, os.statvfs(root).f_ffree - count)):
        os.close(os.open(fillers / str(number), os.O_WRONLY | os.O_CREAT))
    try:
        yield
    finally:
        shutil.rmtree(fillers)


@contextmanager
def sizes_left(root: Path, count: int) -> Iterator[None]:
    """Let no file grow beyond so many pages."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count * PAGE, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def play(name: str, root: Path, ways: tuple[Left, ...]) -> dict[str, object]:
    """With ever more room until the scenario is not refused any more."""
    codes: dict[str, int] = {}
    refused = 0
    for left in ways:
        folder = root / "played"
        folder.mkdir(mode=0o700)
        scenario = None
        try:
            scenario = SCENARIOS[name](folder)
            for room in range(ENOUGH):
                with left(root, room):
                    code = attempt(scenario)
                if code is None:
                    break
                refused += 1
                codes[code] = codes.get(code, 0) + 1
            else:
                raise RuntimeError(f"refused with {left.__name__} {ENOUGH}")
            scenario.sound(done=True)
        finally:
            if scenario is not None:
                scenario.close()
            shutil.rmtree(folder)
    return {"scenario": name, "refused": refused, "codes": codes}


def attempt(scenario: Scenario) -> str | None:
    """The code of the refusal, if it was one; everything must be sound on the full disk either way."""
    code = None
    try:
        scenario.act()
    except CodedError as error:
        if error.code not in scenario.codes:
            raise
        code = error.code
    scenario.sound(code is None)
    left = [path for path in scenario.home.root.rglob("*") if _HALF_WRITTEN.fullmatch(path.name)]
    left += list((scenario.home.store_dir / "tmp").glob("*"))
    check(not left, f"half-written files stayed: {left}")
    return code


if __name__ == "__main__":
    only_sizes = sys.argv[1] == "--sizes"
    mount_point, *names = sys.argv[1 + only_sizes :]
    root = Path(mount_point)
    size = f"size={PAGES * PAGE},nr_inodes={FILES},mode=700"
    if not only_sizes:
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", str(root)], check=True)
    ways = (sizes_left,) if only_sizes else (pages_left, files_left)
    for each in names or [name for name in SCENARIOS if not (only_sizes and SCENARIOS[name].database)]:
        try:
            told = play(each, root, ways)
        except Exception as error:  # noqa: BLE001  told to the test, which fails
            text = "".join(traceback.format_exception(error))
            told = {"scenario": each, "wrong": f"{type(error).__name__}: {error}", "trace": text}
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
