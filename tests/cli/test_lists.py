"""Keys, trusted signers and peers from the command line."""

from __future__ import annotations

import stat

from kvsync_protocol.signing import SigningKey

KEY = str(SigningKey(bytes([7]) * 32).public)


def test_init_makes_a_private_home_and_may_be_repeated(kvsync, home):
    first = kvsync("keys", "show").out
    again = kvsync("init", "--json").json
    assert again["created"] is False
    assert kvsync("keys", "show").out == first
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (home / "keys").iterdir()} == {0o600}


def test_private_keys_are_never_shown(kvsync, home):
    shown = kvsync("keys", "show", "--json").out + kvsync("init", "--json").out + kvsync("keys", "show").out
    for path in (home / "keys").iterdir():
        assert path.read_text().strip() not in shown


def test_a_signer_is_trusted_listed_and_removed(kvsync, home):
    said = {"name": "alice", "key": KEY, "names": [], "authority": False}
    assert kvsync("trust", "add", "alice", KEY, "--json").json == said
    listed = kvsync("trust", "ls", "--json").json
    assert listed["signers"] == [{**said, "counting": [KEY]}]
    assert listed["own"] == kvsync("keys", "show", "--json").json["signer"]["key"]
    assert "alice" in kvsync("trust", "ls").out
    assert kvsync("trust", "rm", KEY).out == "alice is no longer trusted\n"
    assert kvsync("trust", "ls", "--json").json["signers"] == []


def test_a_peer_is_known_changed_and_forgotten(kvsync, home):
    kvsync("peer", "add", "site-b", KEY, "--address", "127.0.0.1:7410", "--address", "[::1]:7410")
    assert kvsync("peer", "ls", "--json").json["peers"] == [
        {
            "name": "site-b",
            "key": KEY,
            "addresses": ["127.0.0.1:7410", "[::1]:7410"],
            "roles": ["get"],
            "names": [],
            "rate": 0,
            "paused": False,
            "counting": [KEY],
        }
    ]
    kvsync("peer", "add", "site-b", KEY, "--role", "push", "--role", "get", "--role", "push")
    assert kvsync("peer", "ls", "--json").json["peers"][0]["roles"] == ["push", "get"]
    assert "site-b" in kvsync("peer", "ls").out
    assert kvsync("peer", "rm", "site-b").out == "site-b is forgotten\n"
    assert kvsync("peer", "ls", "--json").json == {"peers": []}


def test_a_signer_is_no_peer_and_a_peer_no_signer(kvsync, home):
    kvsync("trust", "add", "alice", KEY)
    assert kvsync("peer", "ls", "--json").json["peers"] == []
    kvsync("trust", "rm", "alice")
    kvsync("peer", "add", "alice", KEY)
    assert kvsync("trust", "ls", "--json").json["signers"] == []
