"""The home directory and its settings."""

from __future__ import annotations

import dataclasses
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsync.config import Home, Settings
from kvsync.errors import StoreError, UsageError


def test_the_home_is_the_explicit_one_else_the_variable_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSYNC_HOME", str(tmp_path / "from-variable"))
    assert Home.locate(tmp_path / "explicit").root == tmp_path / "explicit"
    assert Home.locate().root == tmp_path / "from-variable"
    monkeypatch.delenv("KVSYNC_HOME")
    assert Home.locate().root.name == "kvsync"


def test_an_empty_variable_is_an_error_and_not_the_current_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSYNC_HOME", "")
    with pytest.raises(UsageError) as caught:
        Home.locate()
    assert caught.value.code == "home.variable"


def test_create_makes_private_directories_and_may_be_repeated(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.create()
    home.create()
    for path in (home.root, home.keys_dir, home.store_dir, home.daemon_dir):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.parametrize("lax", ["", "keys", "store", "daemon"])
def test_a_home_open_to_others_is_refused(tmp_path: Path, lax: str) -> None:
    home = Home(tmp_path / "home")
    home.create()
    (home.root / lax).chmod(0o755)
    with pytest.raises(StoreError) as caught:
        home.create()
    assert caught.value.code == "home.lax_mode"


def test_a_missing_home_and_an_unreadable_one_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for root, code in ((tmp_path / "absent", "home.missing"), (tmp_path / "file", "home.missing")):
        with pytest.raises(StoreError) as caught:
            Home(root).require()
        assert caught.value.code == code
        assert caught.value.hint == "kvsync init"
    with pytest.raises(StoreError) as loop:
        Home(tmp_path / "loop").require()
    assert loop.value.code == "home.unreadable"


def test_without_a_file_every_setting_has_its_default(tmp_path: Path) -> None:
    assert Settings.load(Home(tmp_path)) == Settings()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"listen_port = ", "config.syntax"),
        (b"\xff\xfe", "config.syntax"),
        (b"listen_prot = 1", "config.unknown"),
        (b'listen_port = "1"', "config.type"),
        (b"listen_port = true", "config.type"),
        (b"listen_port = 1.0", "config.type"),
        (b"listen_port = 65536", "config.value"),
        (b"listen_port = -1", "config.value"),
        (b"streams = 0", "config.value"),
        (b'accept = "always"', "config.value"),
        (b'encoding = "gzip"', "config.value"),
        (b'listen_host = ""', "config.value"),
        (b'listen_host = "a b"', "config.value"),
        (b'unencrypted_bulk_networks = "10.0.0.0/8"', "config.type"),
        (b"unencrypted_bulk_networks = [1]", "config.type"),
        (b"unencrypted_bulk_networks = true", "config.type"),
        (b'listen_host = ["a"]', "config.type"),
        (b'unencrypted_bulk_networks = ["10.0.0.1/8"]', "config.value"),
        (b'unencrypted_bulk_networks = ["10.0.0.0/33"]', "config.value"),
        (b'unencrypted_bulk_networks = ["*"]', "config.value"),
        (b'unencrypted_bulk_networks = [""]', "config.value"),
    ],
)
def test_a_wrong_setting_is_an_error_that_says_which(tmp_path: Path, text: bytes, code: str) -> None:
    (tmp_path / "config.toml").write_bytes(text)
    with pytest.raises(UsageError) as caught:
        Settings.load(Home(tmp_path))
    assert caught.value.code == code


def test_a_configuration_nested_too_deeply_is_an_error_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(b"a=" + b"[" * 50_000)
    with pytest.raises(UsageError) as caught:
        Settings.load(Home(tmp_path))
    assert caught.value.code == "config.syntax"


def test_an_oversized_configuration_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(b"#" * (256 * 1024 + 1))
    with pytest.raises(StoreError) as caught:
        Settings.load(Home(tmp_path))
    assert caught.value.code == "file.too_large"


@settings(max_examples=25)  # each is an fsync
@given(
    host=st.sampled_from(["127.0.0.1", "::1", "node-a.example", "fe80::1%eth0"]),
    port=st.integers(0, 65535),
    quota=st.integers(0, 2**60),
    accept=st.sampled_from(["equal", "canary"]),
    networks=st.lists(st.sampled_from(["10.0.0.0/8", "127.0.0.1", "fd00::/8"])).map(tuple),
)
def test_saved_settings_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, host: str, port: int, quota: int, accept: str, networks: tuple[str, ...]
) -> None:
    home = Home(tmp_path_factory.getbasetemp() / "settings")
    home.root.mkdir(exist_ok=True)
    changed = dataclasses.replace(Settings(), listen_host=host, listen_port=port, quota_bytes=quota, accept=accept)
    changed = dataclasses.replace(changed, unencrypted_bulk_networks=networks)
    changed.save(home)
    assert Settings.load(home) == changed


def test_every_setting_has_a_type_that_the_file_can_hold() -> None:
    for field in dataclasses.fields(Settings):
        assert type(field.default) in (bool, int, str, tuple), field.name
