"""The socket's address: private, replaceable, and reachable however deep the home lies."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from kvsync.daemon import endpoint
from kvsync.errors import StoreError, UnavailableError

DEPTHS = [0, 1, 4, 30]


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_socket_is_reached_at_any_depth(tmp_path: Path, depth: int) -> None:
    folder = tmp_path.joinpath(*["a-rather-long-name-of-a-directory"] * depth)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "api.sock"
    with endpoint.listen(path) as server:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with endpoint.connect(path, 5.0) as client:
            served, _ = server.accept()
            with served:
                assert endpoint.peer_uid(served) == os.geteuid()
                client.sendall(b"x")
                assert served.recv(1) == b"x"
    assert [entry.name for entry in folder.iterdir()] == ["api.sock"]


def test_the_socket_of_a_killed_daemon_is_no_daemon_and_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    endpoint.listen(path).close()
    assert path.is_socket()
    with pytest.raises(UnavailableError) as caught:
        endpoint.connect(path, 5.0)
    assert caught.value.code == "daemon.not_running"
    with endpoint.listen(path), endpoint.connect(path, 5.0):
        pass


def test_without_a_socket_no_daemon_runs(tmp_path: Path) -> None:
    for path in (tmp_path / "api.sock", tmp_path / "absent" / "api.sock", tmp_path / ("x" * 120) / "api.sock"):
        with pytest.raises(UnavailableError) as caught:
            endpoint.connect(path, 5.0)
        assert caught.value.code == "daemon.not_running"
        assert caught.value.hint == "kvsync daemon start"


def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    path.write_text("mine")
    for call in (endpoint.listen, endpoint.remove):
        with pytest.raises(StoreError) as caught:
            call(path)
        assert caught.value.code == "daemon.socket"
    assert path.read_text() == "mine"


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        endpoint.listen(tmp_path / "absent" / "api.sock")
    assert caught.value.code == "daemon.socket"


def test_the_kernel_names_the_user_at_the_other_end() -> None:
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        assert endpoint.peer_uid(one) == os.geteuid()
