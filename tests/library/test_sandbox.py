"""The sandbox: every limit is met by a program that breaks it, and what it did stays inside."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvsync.errors import UsageError
from kvsync.library.sandbox import ISOLATION, Ended, Limits, run_program

LIMITS = Limits(wall_s=20, cpu_s=10)


def python(code: str, *, limits: Limits = LIMITS, **more: object) -> Ended:
    return run_program([sys.executable, "-I", "-B", "-c", code], limits=limits, **more)  # type: ignore[arg-type]


def said(ended: Ended) -> str:
    return (ended.stdout + ended.stderr).decode()


def test_a_program_gets_its_files_its_input_and_nothing_of_the_environment(monkeypatch):
    monkeypatch.setenv("KVSYNC_SECRET_OF_THE_TEST", "secret")
    ended = python(
        "import os, sys; print(sorted(os.listdir()), sys.stdin.read(), sorted(os.environ), os.getuid())",
        files={"a.txt": "1", "b.txt": "2"},
        stdin="given",
    )
    assert ended.well
    assert said(ended).startswith("['a.txt', 'b.txt'] given ['HOME', 'LANG', 'OMP_NUM_THREADS', 'PATH', 'TMPDIR']")


def test_a_program_that_hangs_is_ended():
    ended = python("import time; print('begun', flush=True); time.sleep(1000)", limits=Limits(wall_s=1))
    assert (ended.status, ended.broke, ended.stdout) == (None, "wall_s", b"begun\n")


def test_a_program_that_computes_for_ever_is_ended():
    ended = python("while True: pass", limits=Limits(wall_s=60, cpu_s=1))
    assert ended.broke == "cpu_s"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("x = bytearray(2 << 30)", "MemoryError"),
        ("open('large', 'wb').write(bytes(17 << 20))", "File too large"),
        ("for n in range(9): open(str(n), 'wb').write(bytes(15 << 20))", "No space left on device"),
        ("kept = [open(str(n), 'w') for n in range(5000)]", "Too many open files"),
        ("import os\nwhile True: os.fork()", "Resource temporarily unavailable"),
        ("import os; os.setuid(0)", "Error"),
    ],
    ids=["memory", "one file", "all files", "open files", "fork bomb", "root"],
)
def test_a_program_that_takes_too_much_is_refused_it(code, error):
    ended = python(code)
    assert not ended.well
    assert error in said(ended)


def test_the_number_of_processes_is_the_program_s_own():
    code = (
        "import os, time\nmade = 0\ntry:\n"
        "    while True:\n        if os.fork() == 0: time.sleep(100)\n        made += 1\n"
        "except BlockingIOError: print(made)"
    )
    assert python(code, limits=Limits(wall_s=20, processes=5)).stdout == b"4\n"


def test_output_without_end_is_cut_off():
    ended = python("while True: print('x' * 1000)", limits=Limits(wall_s=20, output=10_000))
    assert ended.broke == "output"
    assert len(ended.stdout) == 10_000


@pytest.mark.parametrize("place", ["{outside}", "/usr/kvsync-test", "/kvsync-test", "/tmp/kvsync-test", "/dev/shm/x"])
def test_a_program_that_writes_outside_its_folder_fails_and_leaves_nothing(tmp_path, place):
    path = place.format(outside=tmp_path / "written")
    ended = python(
        f"import os\nos.makedirs(os.path.dirname({path!r}), exist_ok=True)\nopen({path!r}, 'w').write('x')"
    )
    assert ended.status == 1
    assert "Error" in said(ended)
    assert not Path(path).exists()


def test_a_program_sees_none_of_the_user_s_files_and_changes_no_modes(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    ended = python(
        f"import os\nprint(os.path.exists({str(secret)!r}), os.path.exists({str(Path.cwd() / 'pyproject.toml')!r}))\n"
        f"for path in ('/usr', {sys.prefix!r}):\n    try: os.chmod(path, 0o777)\n    except OSError: print('refused')"
    )
    assert ended.stdout == b"False False\nrefused\nrefused\n"


def test_a_program_reaches_no_socket_of_the_host(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(str(tmp_path / "s"))
        local.listen()
        server.settimeout(0.2)
        code = (
            f"import socket\nfor family, place in ((socket.AF_INET, {server.getsockname()!r}), (socket.AF_UNIX, "
            f"{str(tmp_path / 's')!r}), (40, (2, 1))):\n    try:\n        socket.socket(family).connect(place)\n"
            "        print('reached')\n    except OSError as error: print(type(error).__name__)"
        )
        ended = python(code)
        with pytest.raises(TimeoutError):
            server.accept()
    assert ended.stdout == b"OSError\nFileNotFoundError\nOSError\n"


def test_nothing_that_a_program_started_outlives_it():
    mark = f"left-behind-{os.getpid()}"
    code = (
        "import os, sys, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        f"        os.execv(sys.executable, ['python', '-I', '-c', 'import time; time.sleep(1000)', {mark!r}])\n"
        "    os._exit(0)\ntime.sleep(0.5)"
    )
    ended = python(code)
    assert ended.well
    give_up = time.monotonic() + 10
    while (left := [path for path in Path("/proc").glob("[0-9]*/cmdline") if mark in _read(path)]) and (
        time.monotonic() < give_up
    ):
        time.sleep(0.05)
    assert left == []


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""


def test_a_program_cannot_end_the_jail_s_own_process():
    code = "import os, signal\nfor s in (2, 9, 15): os.kill(1, s)\nprint('still here')"
    ended = python(code)
    assert (ended.status, ended.stdout) == (0, b"still here\n")


def test_a_signal_is_told_apart_from_an_exit():
    assert python("import os; os.kill(os.getpid(), 11)").status == -11


@pytest.mark.parametrize(
    ("argv", "more", "code"),
    [
        (["no-such-program"], {}, "sandbox.program"),
        (["sh"], {"files": {"../x": ""}}, "sandbox.file"),
        (["sh"], {"files": {"": ""}}, "sandbox.file"),
        (["sh"], {"without": ["everything"]}, "sandbox.without"),
    ],
)
def test_what_cannot_be_run_is_one_error(argv, more, code):
    with pytest.raises(UsageError) as refused:
        run_program(argv, **more)
    assert refused.value.code == code


BARE = """
import sys
from kvsync.errors import PolicyError
from kvsync.library.sandbox import run_program
try:
    print(run_program(["sh", "-c", "echo ran"], without=sys.argv[1].split()).stdout.decode().strip())
except PolicyError as error:
    print(error.code, *error.fields["missing"])
"""


def in_a_host_without_namespaces(without: str) -> str:
    """A user namespace of one user, in which no further one may be made."""
    script = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    command = ["unshare", "-Ur", "sh", "-c", script, "sh", sys.executable, "-c", BARE, without]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_host_that_cannot_isolate_refuses_and_says_which():
    assert in_a_host_without_namespaces("") == "sandbox.isolation files network processes"
    assert in_a_host_without_namespaces("files processes") == "sandbox.isolation network"


def test_a_host_that_cannot_isolate_runs_when_told_to_do_without():
    assert in_a_host_without_namespaces(" ".join(ISOLATION)) == "ran"


def test_an_ordinary_user_gets_the_same_isolation():
    command = ["unshare", "-U", "--map-user=1000", "--map-group=1000", sys.executable, "-c", BARE, "processes"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "ran\n"
