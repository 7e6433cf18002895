"""Private keys under a passphrase: the file's form, where the passphrase comes from, and every way to fail."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from kvsync.config import Home
from kvsync.errors import StoreError, UsageError
from kvsync.keys import KeyRing, NodeKeys, key_file
from kvsync.keys.key_file import is_encrypted, read_key, write_key
from kvsync.keys.passphrase import find_passphrase
from kvsync_protocol.errors import CodedError
from kvsync_protocol.signing import SigningKey

KEY = SigningKey(bytes([5]) * 32)
WORDS = b"correct horse"


@pytest.fixture(autouse=True)
def no_passphrase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_file, "SCRYPT_P", 1)  # a fifth of the time; the form is the same
    for name in ("KVSYNC_PASSPHRASE", "KVSYNC_PASSPHRASE_FILE", "CREDENTIALS_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.create()
    NodeKeys.create(home)
    return home


def test_an_encrypted_key_opens_with_its_passphrase_and_with_no_other(tmp_path: Path) -> None:
    path = tmp_path / "signer.key"
    write_key(path, KEY, WORDS)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert KEY.seed not in path.read_bytes()
    assert KEY.seed.hex().encode() not in path.read_bytes()
    assert is_encrypted(path)
    assert read_key(path, lambda: WORDS).seed == KEY.seed


@pytest.mark.parametrize("what", ["wrong padding", "right padding"])
def test_a_wrong_passphrase_is_called_so_also_when_what_it_decrypts_to_is_padded_rightly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """One wrong passphrase in 256 ends in bytes that look like padding: with few costs, one is soon found."""
    monkeypatch.setattr(key_file, "SCRYPT_N", 2)
    path = tmp_path / "signer.key"
    write_key(path, KEY, WORDS)
    pem = path.read_bytes().partition(b"\n")[2]

    def pads(words: bytes) -> bool:
        try:
            serialization.load_pem_private_key(pem, words)
        except ValueError as error:
            return "password" not in str(error).lower()
        return True

    words = next(w for n in range(100_000) if pads(w := b"wrong %d" % n) == (what == "right padding"))
    with pytest.raises(StoreError) as caught:
        read_key(path, lambda: words)
    assert caught.value.code == "keys.passphrase"


def test_an_empty_passphrase_opens_nothing(tmp_path: Path) -> None:
    """What somebody gives who only presses return."""
    path = tmp_path / "signer.key"
    write_key(path, KEY, WORDS)
    with pytest.raises(StoreError) as caught:
        read_key(path, lambda: b"")
    assert caught.value.code == "keys.passphrase"


def test_a_key_that_was_encrypted_before_there_was_a_digest_still_opens(tmp_path: Path) -> None:
    path = tmp_path / "signer.key"
    write_key(path, KEY, WORDS)
    first, _, pem = path.read_bytes().partition(b"\n")
    old = first.rpartition(b" ")[0] + b"\n" + pem
    path.write_bytes(old)
    assert read_key(path, lambda: WORDS).seed == KEY.seed
    with pytest.raises(StoreError) as wrong:
        read_key(path, lambda: b"wrong")
    assert wrong.value.code == "keys.passphrase"
    path.write_bytes(old.replace(str(KEY.public).encode(), str(SigningKey.generate().public).encode()))
    with pytest.raises(StoreError) as other:
        read_key(path, lambda: WORDS)
    assert other.value.code == "keys.damaged"


def test_no_changed_byte_of_an_encrypted_key_gives_another_key(tmp_path: Path) -> None:
    path = tmp_path / "signer.key"
    write_key(path, KEY, WORDS)
    good = path.read_bytes()
    for at in range(0, len(good), 37):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(StoreError) as caught:
            read_key(path, lambda: WORDS)
        assert caught.value.code == "keys.damaged"


def test_all_keys_of_a_home_are_encrypted_and_decrypted_together(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    before = NodeKeys.load(home)
    KeyRing(home).rotate("signer", 86_400)
    monkeypatch.setenv("KVSYNC_PASSPHRASE", WORDS.decode())
    assert len(KeyRing(home).encrypt(WORDS)) == 3
    assert KeyRing(home).encrypt(WORDS) == []
    assert NodeKeys.load(home).peer.seed == before.peer.seed
    monkeypatch.delenv("KVSYNC_PASSPHRASE")
    with pytest.raises(StoreError) as caught:
        NodeKeys.load(home)
    assert caught.value.code == "keys.locked"
    assert NodeKeys.load(home, WORDS.decode).peer.seed == before.peer.seed
    with pytest.raises(StoreError) as wrong:
        KeyRing(home).encrypt(b"another")
    assert wrong.value.code == "keys.passphrase"
    assert len(KeyRing(home, WORDS.decode).decrypt()) == 3
    assert NodeKeys.load(home).peer.seed == before.peer.seed


def test_a_home_that_is_half_encrypted_opens_and_is_finished(home: Home) -> None:
    seed = NodeKeys.load(home).signer.seed
    write_key(home.keys_dir / "signer.key", NodeKeys.load(home).signer, WORDS)
    assert NodeKeys.load(home, WORDS.decode).signer.seed == seed
    assert KeyRing(home).encrypt(WORDS) == [home.keys_dir / "peer.key"]


def test_a_rotation_of_encrypted_keys_makes_an_encrypted_key(home: Home) -> None:
    KeyRing(home).encrypt(WORDS)
    made = KeyRing(home, WORDS.decode).rotate("signer", 86_400)
    assert is_encrypted(home.keys_dir / f"signer-{made.new.key_id}.key")
    assert NodeKeys.load(home, WORDS.decode).signer.public == made.new


def test_a_person_is_asked_once_and_only_where_it_is_needed(home: Home) -> None:
    asked = []

    def ask() -> str:
        asked.append(1)
        return WORDS.decode()

    NodeKeys.load(home, ask)
    assert asked == []
    KeyRing(home).encrypt(WORDS)
    NodeKeys.load(home, ask)
    assert asked == [1]


def test_the_passphrase_comes_from_variable_file_credential_or_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_passphrase(lambda: "asked") == b"asked"
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials))
    assert find_passphrase(lambda: "asked") == b"asked"
    credential = credentials / "kvsync-passphrase"
    credential.write_text("of systemd\n")
    credential.chmod(0o600)
    assert find_passphrase() == b"of systemd"
    file = tmp_path / "file"
    file.write_text("of a file \r\n")
    file.chmod(0o600)
    monkeypatch.setenv("KVSYNC_PASSPHRASE_FILE", str(file))
    assert find_passphrase() == b"of a file "
    monkeypatch.setenv("KVSYNC_PASSPHRASE", "of the environment")
    assert find_passphrase() == b"of the environment"


def test_a_passphrase_is_bytes_wherever_it_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One written in Latin-1, say: no text, and not the key file's fault."""
    words = "Käse".encode("latin-1")
    path, file = tmp_path / "signer.key", tmp_path / "words"
    write_key(path, KEY, words)
    file.write_bytes(words)
    file.chmod(0o600)
    monkeypatch.setenv("KVSYNC_PASSPHRASE_FILE", str(file))
    assert read_key(path, find_passphrase).seed == KEY.seed
    monkeypatch.setenv("KVSYNC_PASSPHRASE", os.fsdecode(words))
    assert read_key(path, find_passphrase).seed == KEY.seed


@pytest.mark.parametrize("name", ["KVSYNC_PASSPHRASE", "KVSYNC_PASSPHRASE_FILE"])
def test_an_empty_variable_is_an_error(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "")
    with pytest.raises(UsageError) as caught:
        find_passphrase()
    assert caught.value.code == "keys.variable"


@pytest.mark.parametrize(("mode", "text", "code"), [(0o640, "x", "keys.lax_mode"), (0o600, "\n", "keys.variable")])
def test_a_lax_or_empty_passphrase_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, text: str, code: str
) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    file.chmod(mode)
    monkeypatch.setenv("KVSYNC_PASSPHRASE_FILE", str(file))
    with pytest.raises(CodedError) as caught:
        find_passphrase()
    assert caught.value.code == code
