"""From nothing to a verified pull with one line on each host, and what the lists of keys say on the way."""

from __future__ import annotations

import json
import stat

import pytest

from kvsync.config import Home, Settings
from kvsync_protocol.signing import SigningKey

KEY = str(SigningKey(bytes([7]) * 32).public)


@pytest.fixture
def lab(kvsync, tmp_path):
    """A second home, its daemon running."""
    root = tmp_path / "lab"
    assert kvsync("--home", root, "init").status == 0
    Settings(stall_timeout_s=15).save(Home(root))
    assert kvsync("--home", root, "daemon", "start").status == 0
    yield root
    kvsync("--home", root, "daemon", "stop")


def files(root):
    """The lists of a home, to show that nothing changed."""
    return {path.name: path.read_bytes() for path in root.glob("*.json")}


def test_two_lines_and_a_pull_works(kvsync, home, lab, tmp_path, tiny_model_dir):
    document = tmp_path / "document.txt"
    document.write_text(" ".join(f"w{number * 7 % 100}" for number in range(300)))
    made = kvsync("--home", lab, "compute", document, "--model", tiny_model_dir, "--name", "team/doc", "--local")
    assert made.status == 0
    invited = kvsync(
        "--home", lab, "invite", "--expires", "10m", "--role", "getter", "--name", "laptop", "--json"
    ).json
    assert invited["roles"] == ["get"]
    joined = kvsync("join", invited["ticket"], "--name", "lab", "--trust-signer", "--json").json
    assert (joined["name"], joined["granted"], joined["signer_trusted"]) == ("lab", ["get"], True)
    assert joined["models"] == []  # this node has computed nothing yet
    assert kvsync("--home", lab, "peer", "ls", "--json").json["peers"][0]["name"] == "laptop"
    assert kvsync("pull", "lab", "team/doc").status == 0
    kvsync("compute", document, "--model", tiny_model_dir, "--local")
    again = kvsync("join", kvsync("--home", lab, "invite", "-q").out.strip())
    assert again.status == 0
    assert "both sides compute the same bytes" in again.out


def test_a_ticket_that_is_no_good_is_one_line_and_changes_nothing(kvsync, home, lab):
    ticket = kvsync("--home", lab, "invite", "-q").out.strip()
    before = files(home)
    for word, code in (
        (ticket[:-3], "ticket.check"),
        (ticket[:30] + ("A" if ticket[30] != "A" else "B") + ticket[31:], "ticket.check"),
        ("kvt9" + ticket[4:], "version.ticket"),
        ("hello", "ticket.syntax"),
        ("", "ticket.syntax"),
    ):
        answer = kvsync("join", word, "--json")
        assert (answer.status, answer.code) == (3, code)
        shown = kvsync("join", word)
        assert shown.out == ""
        assert len(shown.err.splitlines()) <= 2
    assert files(home) == before
    assert kvsync("join", ticket).status == 0
    kvsync("peer", "rm", kvsync("peer", "ls", "--json").json["peers"][0]["name"])
    kvsync("--home", lab, "peer", "rm", kvsync("--home", lab, "peer", "ls", "--json").json["peers"][0]["name"])
    before = files(home)
    spent = kvsync("join", ticket, "--json")
    assert (spent.status, spent.code) == (5, "ticket.spent")
    assert files(home) == before


def test_withdrawn_tickets_are_refused(kvsync, home, lab):
    ticket = kvsync("--home", lab, "invite", "-q").out.strip()
    assert kvsync("--home", lab, "invite", "--withdraw", "--json").json == {"withdrawn": 1}
    assert kvsync("join", ticket, "--json").code == "join.closed"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--expires", "soon"], "ticket.expires"),
        (["--expires", "0h"], "ticket.expires"),
        (["--expires", "31d"], "ticket.expires"),
        (["--role", "king"], "peer.role"),
        (["--names", "*/x"], "names.pattern"),
        (["--address", "nowhere"], "ticket.address"),
        (["--name", "../x"], "ref.name"),
    ],
)
def test_a_senseless_invitation_is_refused(kvsync, home, words, code):
    answer = kvsync("invite", "--address", "192.0.2.1:7410", *words, "--json")
    assert answer.code == code
    assert not (home / "invitations.json").exists()


def test_an_invitation_without_an_address_says_what_to_do(kvsync, home):
    answer = kvsync("invite", "--json")
    assert answer.code == "invite.no_address"
    assert "daemon start" in answer.json["error"]["hint"]
    listed = kvsync("invite", "--address", "[2001:db8::1]:7410", "--address", "lab.example:7410", "--json").json
    assert listed["addresses"] == ["[2001:db8::1]:7410", "lab.example:7410"]


def test_keys_rotate_and_show_what_follows_what(kvsync, home):
    before = kvsync("keys", "show", "--json").json
    made = kvsync("keys", "rotate", "--overlap", "10", "--json").json
    assert made["signer"]["old"] == before["signer"]["key"]
    after = kvsync("keys", "show", "--json").json
    assert after["signer"]["key"] == made["signer"]["new"]
    assert after["peer"]["key"] == before["peer"]["key"]  # presented later
    assert {entry["kind"] for entry in after["rotations"]} == {"signer", "peer"}
    again = kvsync("keys", "rotate", "--signer", "--json")
    assert (again.status, again.code) == (2, "keys.rotating")
    assert kvsync("keys", "resign", "--json").json == {"artifacts": 0, "names": 0}


def test_artifacts_of_the_old_key_are_signed_anew(kvsync, home, tmp_path, tiny_model_dir):
    document = tmp_path / "document.txt"
    document.write_text(" ".join(f"w{number * 3 % 100}" for number in range(300)))
    kvsync("compute", document, "--model", tiny_model_dir, "--name", "doc", "--local")
    made = kvsync("keys", "rotate", "--signer", "--json").json
    assert made["resigned"] == {"artifacts": 1, "names": 1}
    kvsync("trust", "revoke", made["signer"]["old"])
    assert kvsync("verify", "doc").status == 0


def test_after_a_theft_nothing_is_signed_anew_and_the_old_keys_are_gone(kvsync, home, tmp_path, tiny_model_dir):
    document = tmp_path / "document.txt"
    document.write_text(" ".join(f"w{number * 3 % 100}" for number in range(300)))
    kvsync("compute", document, "--model", tiny_model_dir, "--name", "doc", "--local")
    made = kvsync("keys", "rotate", "--stolen", "--json").json
    assert "resigned" not in made
    shown = kvsync("keys", "show", "--json").json
    assert shown["signer"]["key"] == made["signer"]["new"]
    assert shown["peer"]["key"] == made["peer"]["new"]  # a stolen identity is presented no more
    revoked = {entry["key"] for entry in kvsync("trust", "revoked", "--json").json["revoked"]}
    assert revoked == {made["signer"]["old"], made["peer"]["old"]}
    assert kvsync("verify", "doc", "--json").code == "trust.untrusted_signer"


def test_a_key_is_revoked_once_and_for_all(kvsync, home):
    kvsync("trust", "add", "alice", KEY, "--names", "team/*", "--authority")
    assert kvsync("trust", "ls", "--json").json["signers"][0]["counting"] == [KEY]
    said = kvsync("trust", "revoke", "alice", "--json").json
    assert (said["key"], said["sequence"]) == (KEY, 1)
    assert kvsync("trust", "ls", "--json").json["signers"][0]["counting"] == []
    assert "revoked" in kvsync("trust", "ls").out
    (entry,) = kvsync("trust", "revoked", "--json").json["revoked"]
    assert (entry["key"], entry["effective"]) == (KEY, True)
    kvsync("trust", "rm", "alice")
    kvsync("trust", "add", "alice", KEY)
    assert kvsync("trust", "ls", "--json").json["signers"][0]["counting"] == []


def test_the_own_key_in_use_is_not_revoked_but_the_one_before_it_is(kvsync, home):
    own = kvsync("keys", "show", "--json").json["signer"]["key"]
    assert kvsync("trust", "revoke", own, "--json").code == "trust.own_key"
    kvsync("keys", "rotate", "--signer")
    said = kvsync("trust", "revoke", own, "--json").json
    assert said["authority"] == own  # in its own name: whoever knows it believes it


@pytest.mark.parametrize("word", ["nobody", "ed25519:short", ""])
def test_revoking_nobody_is_an_error(kvsync, home, word):
    answer = kvsync("trust", "revoke", word, "--json")
    assert answer.code == "key.syntax"
    assert not (home / "statements.json").exists()


def test_encrypted_keys_need_their_passphrase_everywhere(kvsync, home, monkeypatch):
    assert kvsync("keys", "encrypt", "--json").code == "keys.locked"
    monkeypatch.setenv("KVSYNC_PASSPHRASE", "correct horse")
    assert kvsync("keys", "encrypt", "--json").json == {"changed": 2}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (home / "keys").iterdir()} == {0o600}
    shown = kvsync("keys", "show").out
    monkeypatch.setenv("KVSYNC_PASSPHRASE", "wrong")
    assert kvsync("keys", "show", "--json").code == "keys.passphrase"
    monkeypatch.delenv("KVSYNC_PASSPHRASE")
    assert kvsync("daemon", "start", "--json").code == "keys.locked"
    secret = home / "passphrase"
    secret.write_text("correct horse\n")
    secret.chmod(0o600)
    monkeypatch.setenv("KVSYNC_PASSPHRASE_FILE", str(secret))
    assert kvsync("daemon", "start").status == 0
    assert kvsync("daemon", "stop").status == 0
    assert kvsync("keys", "decrypt", "--json").json == {"changed": 2}
    monkeypatch.delenv("KVSYNC_PASSPHRASE_FILE")
    assert kvsync("keys", "show").out == shown


def test_a_daemon_is_found_in_the_local_network(kvsync, home):
    from kvsync.peer.lan import discover

    Settings(lan_discovery=True).save(Home(home))
    status = kvsync("daemon", "start", "--json").json
    try:
        found = next(
            (
                {str(each.key): each.addresses for each in listed}
                for seconds in (2.5, 5, 10)
                if (listed := discover(seconds, ["127.0.0.1"]))
            ),
            {},
        )
        assert found[status["peer_key"]] == (status["address"],)
        assert kvsync("peer", "discover", "--seconds", "1").status == 0
    finally:
        kvsync("daemon", "stop")


def test_a_peer_is_limited_to_names(kvsync, home):
    kvsync("peer", "add", "site-b", KEY, "--role", "audit", "--role", "compute", "--names", "team/*")
    (peer,) = kvsync("peer", "ls", "--json").json["peers"]
    assert (peer["roles"], peer["names"]) == (["audit", "compute"], ["team/*"])
    stored = json.loads((home / "peers.json").read_bytes())
    assert stored["version"] == 2
