"""Limits, pauses and blame on the command line."""

from __future__ import annotations

import pytest

from kvsync.cli._rates import parse_rate
from kvsync.config import Home
from kvsync.errors import UsageError
from kvsync.keys import NodeKeys, PeerBook
from kvsync.peer.blame import BlameBook
from kvsync_protocol.digest import sha256
from kvsync_protocol.errors import IntegrityError


@pytest.mark.parametrize(
    ("text", "number"),
    [("5MB/s", 5_000_000), ("512KiB/s", 524_288), ("2.5m", 2_500_000), ("1 GiB", 2**30), ("200000", 200_000),
     ("0", 0), ("none", 0), ("off", 0)],
)  # fmt: skip
def test_rates_are_read_as_people_write_them(text, number):
    assert parse_rate(text) == number


@pytest.mark.parametrize("text", ["", "fast", "-5MB/s", "5 MB per s", "1e9", "inf", "5TB/s", "٥MB", "5" * 40])
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(UsageError) as caught:
        parse_rate(text)
    assert caught.value.code == "rate.syntax"


@pytest.fixture
def site(kvsync, home, tmp_path):
    root = tmp_path / "other"
    assert kvsync("--home", root, "init").status == 0
    key = kvsync("--home", root, "keys", "show", "--json").json["peer"]["key"]
    assert kvsync("peer", "add", "site", key, "--address", "127.0.0.1:9").status == 0
    return key


def test_a_limit_is_set_shown_and_lifted(kvsync, home, site):
    assert kvsync("peer", "rate", "site", "5MB/s", "--json").json["rate"] == 5_000_000
    assert PeerBook(Home(home)).get("site").rate == 5_000_000
    assert "4.8 MiB/s" in kvsync("transfers", "ls").out
    assert kvsync("peer", "rate", "site", "none").status == 0
    assert PeerBook(Home(home)).get("site").rate == 0
    too_low = kvsync("peer", "rate", "site", "1KB/s", "--json")
    assert (too_low.status, too_low.code) == (2, "rate.range")
    unknown = kvsync("peer", "rate", "nobody", "5MB/s", "--json")
    assert (unknown.status, unknown.code) == (7, "peer.unknown")


def test_a_peer_and_the_node_are_paused_and_resumed(kvsync, home, site):
    assert kvsync("transfers", "pause", "site").status == 0
    assert kvsync("transfers", "ls", "--json").json["peers"] == [{"name": "site", "rate": 0, "paused": True}]
    assert kvsync("transfers", "resume", "site").status == 0
    for _ in range(2):
        assert kvsync("transfers", "pause").status == 0
    assert kvsync("transfers", "ls", "--json").json["paused"]
    for _ in range(2):
        assert kvsync("transfers", "resume").status == 0
    assert not kvsync("transfers", "ls", "--json").json["paused"]
    assert kvsync("transfers", "pause", "nobody", "--json").code == "peer.unknown"


def test_blame_is_listed_by_name_and_strange_files_are_passed_over(kvsync, home, site):
    assert "no peer has sent" in kvsync("peer", "ls", "--blame").err
    keys, peer = NodeKeys.load(Home(home)), PeerBook(Home(home)).get("site")
    error = IntegrityError("integrity.chunk", "wrong", found=sha256(b"what came"))
    BlameBook(Home(home)).note(keys.signer, peer.key, sha256(b"artifact"), 7, error)
    (home / "blame" / "strange.json").write_text("{}")
    (found,) = kvsync("peer", "ls", "--blame", "--json").json["blame"]
    assert (found["known_as"], found["leaf"], found["code"]) == ("site", 7, "integrity.chunk")
    assert found["found"] == str(sha256(b"what came"))
    assert "integrity.chunk" in kvsync("peer", "ls", "--blame").out


def test_a_pull_without_anybody_to_ask_and_with_too_many_words_is_refused(kvsync, home):
    nobody = kvsync("pull", "team/doc", "--json")
    assert (nobody.status, nobody.code) == (2, "pull.no_source")
    many = kvsync("pull", "a", "b", "c", "--json")
    assert (many.status, many.code) == (2, "pull.words")
    unknown = kvsync("pull", "team/doc", "--from", "nobody", "--json")
    assert (unknown.status, unknown.code) == (7, "peer.unknown")
