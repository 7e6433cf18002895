"""Keys, trusted signers, known peers."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kvsync.config import Home
from kvsync.errors import NotFoundError, StoreError, UsageError
from kvsync.keys import NodeKeys, Peer, PeerBook, TrustList, split_address
from kvsync_protocol.errors import CodedError
from kvsync_protocol.signing import PublicKey, SigningKey


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.create()
    return home


def key(number: int) -> PublicKey:
    return SigningKey(bytes([number]) * 32).public


def test_keys_are_private_files_and_survive_a_second_init(home: Home) -> None:
    first = NodeKeys.create(home)
    again = NodeKeys.create(home)
    assert first.signer.public == again.signer.public
    assert first.peer.public == again.peer.public
    assert first.signer.public != first.peer.public
    for path in home.keys_dir.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["signer.key", "peer.key"])
def test_a_key_others_can_read_is_refused(home: Home, name: str) -> None:
    NodeKeys.create(home)
    (home.keys_dir / name).chmod(0o640)
    with pytest.raises(StoreError) as caught:
        NodeKeys.load(home)
    assert caught.value.code == "keys.lax_mode"


@pytest.mark.parametrize("content", [b"", b"zz" * 32, b"00" * 31, b"00" * 33, b"\xff" * 64])
def test_a_damaged_key_is_named_without_its_content(home: Home, content: bytes) -> None:
    NodeKeys.create(home)
    (home.keys_dir / "signer.key").write_bytes(content)
    with pytest.raises(CodedError) as caught:
        NodeKeys.load(home)
    assert caught.value.code in ("keys.damaged", "key.length")
    assert "zz" not in str(caught.value)


def test_inits_at_the_same_time_agree_on_one_pair_of_keys(home: Home) -> None:
    program = (
        "import sys, pathlib\n"
        "from kvsync.config import Home\n"
        "from kvsync.keys import NodeKeys\n"
        "keys = NodeKeys.create(Home(pathlib.Path(sys.argv[1])))\n"
        "print(keys.signer.public, keys.peer.public)\n"
    )
    answers = run_at_once([[program, str(home.root)]] * 3)
    assert len(set(answers)) == 1


def test_the_own_signer_is_always_trusted_and_others_once_added(home: Home) -> None:
    trust = TrustList(home, key(1))
    assert trust.keys() == {key(1)}
    trust.add("lab", key(2))
    trust.add("lab", key(2))
    assert trust.keys() == {key(1), key(2)}
    assert trust.remove(str(key(2))).name == "lab"
    assert trust.keys() == {key(1)}


def test_a_name_or_key_is_trusted_once(home: Home) -> None:
    trust = TrustList(home, key(1))
    trust.add("lab", key(2))
    for name, other in (("lab", key(3)), ("other", key(2))):
        with pytest.raises(UsageError) as caught:
            trust.add(name, other)
        assert caught.value.code == "trust.exists"
    with pytest.raises(NotFoundError):
        trust.remove("nobody")
    with pytest.raises(CodedError) as bad:
        trust.add("../lab", key(4))
    assert bad.value.code == "ref.name"
    assert [signer.name for signer in trust.signers()] == ["lab"]


def test_peers_are_replaced_by_name_and_key_and_found_by_either(home: Home) -> None:
    book = PeerBook(home)
    book.add(Peer("b", key(2), ("127.0.0.1:7000",)))
    book.add(Peer("b", key(2), ("[::1]:7000",), ("get", "push")))
    assert book.peers() == [Peer("b", key(2), ("[::1]:7000",), ("get", "push"))]
    assert book.get("b") == book.get(str(key(2))) == book.by_key(key(2))
    with pytest.raises(UsageError) as caught:
        book.add(Peer("c", key(2)))
    assert caught.value.code == "peer.exists"
    book.remove("b")
    with pytest.raises(NotFoundError) as gone:
        book.get("b")
    assert gone.value.code == "peer.unknown"


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":1", "host:0", "host:65536", "::1:80", "h:1²", "h" * 300 + ":1"]
)
def test_a_malformed_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError) as caught:
        split_address(address)
    assert caught.value.code == "peer.address"


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        Peer("b", key(2), roles=("admin",))
    assert caught.value.code == "peer.role"


ENTRY = {"name": "b", "key": str(key(2)), "addresses": [], "roles": []}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"version":1,"version":1,"entries":[]}',
        json.dumps({"version": 3, "entries": []}).encode(),
        json.dumps({"version": 1, "entries": [], "more": 1}).encode(),
        json.dumps({"version": 1, "entries": [ENTRY | {"more": 1}]}).encode(),
        json.dumps({"version": 1, "entries": [ENTRY | {"name": "../b"}]}).encode(),
        json.dumps({"version": 1, "entries": [ENTRY | {"key": "ed25519:short"}]}).encode(),
        json.dumps({"version": 1, "entries": [ENTRY | {"roles": ["admin"]}]}).encode(),
        json.dumps({"version": 1, "entries": [ENTRY | {"addresses": ["nowhere"]}]}).encode(),
    ],
)
def test_a_damaged_list_is_an_error_and_never_an_empty_list(home: Home, content: bytes) -> None:
    home.peers_file.write_bytes(content)
    with pytest.raises(StoreError) as caught:
        PeerBook(home).peers()
    assert caught.value.code == "peers.damaged"
    with pytest.raises(StoreError):
        PeerBook(home).add(Peer("c", key(3)))
    assert home.peers_file.read_bytes() == content


@pytest.mark.parametrize("lax", ["", "keys"])
def test_keys_are_not_loaded_where_others_could_replace_them(home: Home, lax: str) -> None:
    NodeKeys.create(home)
    (home.root / lax).chmod(0o770)
    with pytest.raises(StoreError) as caught:
        NodeKeys.load(home)
    assert caught.value.code == "home.lax_mode"


@pytest.mark.parametrize("host", ["a\0b", "h\u00f6st", "a b", "user@host", "a/b", "a?b", "a#b", "a\nb"])
def test_an_address_holds_a_host_and_nothing_else(host: str) -> None:
    with pytest.raises(UsageError) as caught:
        Peer("b", key(2), (f"{host}:1",))
    assert caught.value.code == "peer.address"


def test_a_list_is_never_written_longer_than_it_is_read(home: Home) -> None:
    keys = [SigningKey(number.to_bytes(32, "big")).public for number in range(1001)]
    entries = [{"name": f"s{number}", "key": str(each)} for number, each in enumerate(keys[:1000])]
    home.trust_file.write_text(json.dumps({"version": 1, "entries": entries}))
    trust = TrustList(home, key(1))
    with pytest.raises(UsageError) as caught:
        trust.add("one-more", keys[1000])
    assert caught.value.code == "trust.full"
    assert len(trust.signers()) == 1000


def test_processes_that_edit_the_lists_at_once_lose_no_entry(home: Home) -> None:
    program = (
        "import sys, pathlib\n"
        "from kvsync.config import Home\n"
        "from kvsync.keys import Peer, PeerBook, TrustList\n"
        "from kvsync_protocol.signing import SigningKey\n"
        "home, start = Home(pathlib.Path(sys.argv[1])), int(sys.argv[2])\n"
        "for number in range(start, start + 8):\n"
        "    public = SigningKey(bytes([number]) * 32).public\n"
        "    TrustList(home, public).add(f's{number}', public)\n"
        "    PeerBook(home).add(Peer(f'p{number}', public))\n"
    )
    run_at_once([[program, str(home.root), str(start)] for start in (10, 20, 30)])
    expected = sorted([*range(10, 18), *range(20, 28), *range(30, 38)])
    assert sorted(int(signer.name[1:]) for signer in TrustList(home, key(1)).signers()) == expected
    assert sorted(int(peer.name[1:]) for peer in PeerBook(home).peers()) == expected


def run_at_once(programs: list[list[str]]) -> list[str]:
    """Start every program, then wait for all; each must succeed."""
    started = [
        subprocess.Popen([sys.executable, "-c", *words], stdout=subprocess.PIPE, text=True) for words in programs
    ]
    answers = []
    for process in started:
        with process:
            answers.append(process.communicate(timeout=60)[0])
        assert process.returncode == 0
    return answers
