"""Small private files: atomic, capped, locked."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kvsync.errors import NotFoundError, StoreError
from kvsync.files import exclusive, make_private_dir, make_private_file, read_limited, write_atomic


def test_a_written_file_is_private_and_leaves_no_temporary_behind(tmp_path: Path) -> None:
    write_atomic(tmp_path / "note", b"one")
    write_atomic(tmp_path / "note", b"two")
    assert (tmp_path / "note").read_bytes() == b"two"
    assert stat.S_IMODE((tmp_path / "note").stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["note"]


def test_a_private_file_is_made_once_and_the_locks_on_it_stay(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    assert stat.S_IMODE(make_private_file(path).st_mode) == 0o600
    with path.open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        assert make_private_file(path).st_ino == path.stat().st_ino
        code = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        taken = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
        assert "BlockingIOError" in taken.stderr
    (tmp_path / "link").symlink_to(path)
    for name in ("link", "."):
        with pytest.raises(OSError, match=r"levels of symbolic links|No such device or address"):
            make_private_file(tmp_path / name)


def test_a_failed_write_keeps_the_old_content_and_names_the_path(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "inside").touch()
    with pytest.raises(StoreError) as caught:
        write_atomic(tmp_path / "target", b"cannot replace a directory")
    assert caught.value.code == "store.unwritable"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["target"]


def test_a_full_disk_is_its_own_error() -> None:
    with pytest.raises(StoreError) as caught:
        _fill(Path("/dev/full"))
    assert caught.value.code == "store.full"


def _fill(path: Path) -> None:
    from kvsync.files import write_error

    try:
        with path.open("wb", buffering=0) as file:
            file.write(b"x")
    except OSError as error:
        raise write_error(error, path) from error


def test_reading_stops_at_the_limit(tmp_path: Path) -> None:
    (tmp_path / "exact").write_bytes(b"x" * 10)
    (tmp_path / "large").write_bytes(b"x" * 11)
    assert read_limited(tmp_path / "exact", 10, what="the file") == b"x" * 10
    with pytest.raises(StoreError) as caught:
        read_limited(tmp_path / "large", 10, what="the file")
    assert caught.value.code == "file.too_large"


def test_a_link_and_a_missing_file_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "target").write_bytes(b"secret")
    with pytest.raises(StoreError) as caught:
        read_limited(tmp_path / "link", 10, what="the file")
    assert caught.value.code == "file.unreadable"
    with pytest.raises(NotFoundError) as absent:
        read_limited(tmp_path / "absent", 10, what="the file")
    assert absent.value.code == "file.missing"


def test_a_directory_open_to_others_is_refused(tmp_path: Path) -> None:
    made = make_private_dir(tmp_path / "a" / "b")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    made.chmod(0o750)
    with pytest.raises(StoreError) as caught:
        make_private_dir(made)
    assert caught.value.code == "home.lax_mode"
    assert "chmod 700" in caught.value.hint


def test_a_file_in_the_directory_s_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError) as caught:
        make_private_dir(tmp_path / "file" / "below")
    assert caught.value.code == "home.unwritable"


def test_the_lock_keeps_a_second_holder_out_until_the_first_leaves(tmp_path: Path) -> None:
    order: list[str] = []
    entered = threading.Event()

    def second() -> None:
        entered.set()
        with exclusive(tmp_path / "lock"):
            order.append("second")

    with exclusive(tmp_path / "lock"):
        other = threading.Thread(target=second)
        other.start()
        entered.wait()
        other.join(0.2)
        order.append("first")
    other.join()
    assert order == ["first", "second"]


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    program = (
        "import sys, time, pathlib\n"
        "from kvsync.files import exclusive\n"
        "with exclusive(pathlib.Path(sys.argv[1])):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "lock")], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        holder.kill()
    with exclusive(tmp_path / "lock"):
        assert holder.returncode == -9


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, bind])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "f")
    with pytest.raises(StoreError) as caught:
        read_limited(tmp_path / "f", 100, what="the list")
    assert caught.value.code == "file.unreadable"
