"""Two nodes, one of them a real daemon process: status, pull, push, repair, and what happens without it."""

from __future__ import annotations

import pytest

from kvsync.config import Home, Settings


@pytest.fixture
def provider(kvsync, tmp_path, monkeypatch):
    """A second home, its daemon running; yields the home's path."""
    root = tmp_path / "provider"
    assert kvsync("--home", root, "init").status == 0
    Settings(stall_timeout_s=15).save(Home(root))
    assert kvsync("--home", root, "daemon", "start").status == 0
    yield root
    kvsync("--home", root, "daemon", "stop")


@pytest.fixture
def acquainted(kvsync, home, provider):
    """Both know each other; the home trusts the provider's signer."""
    theirs = kvsync("--home", provider, "keys", "show", "--json").json
    ours = kvsync("keys", "show", "--json").json
    address = kvsync("--home", provider, "daemon", "status", "--json").json["address"]
    kvsync("peer", "add", "provider", theirs["peer"]["key"], "--address", address)
    kvsync("trust", "add", "provider", theirs["signer"]["key"])
    kvsync("--home", provider, "peer", "add", "getter", ours["peer"]["key"], "--role", "get", "--role", "push")
    kvsync("--home", provider, "trust", "add", "getter", ours["signer"]["key"])
    return provider


@pytest.fixture
def document(tmp_path):
    path = tmp_path / "document.txt"
    path.write_text(" ".join(f"w{number * 7 % 100}" for number in range(300)))
    return path


@pytest.fixture
def offered(kvsync, acquainted, document, tiny_model_dir):
    """The provider has an artifact named `doc`; its daemon serves what another process has stored."""
    words = ("compute", document, "--model", tiny_model_dir, "--name", "doc", "--local", "--json")
    made = kvsync("--home", acquainted, *words)
    assert (made.status, made.json["daemon"]) == (0, False)
    return made.json["artifact"]


def chunk_files(root):
    return sorted(path for path in (root / "store" / "chunks").rglob("*") if path.is_file())


def test_a_part_is_pulled_shown_and_completed(kvsync, home, offered):
    for words in (("--tokens", "9"), ("--tokens", "9", "--blocks", "1")):
        refused = kvsync("pull", "provider", "doc", *words, "--json")
        assert (refused.status, refused.code) == (2, "pull.part")
    part = kvsync("pull", "provider", "doc", "--tokens", "270", "--json").json
    assert (part["position"], part["chunks"], part["chunks_moved"]) == (256, 1, 1)
    listed = kvsync("ls", "--json").json["artifacts"][0]
    assert (listed["positions"], listed["bytes"]) == ([256], part["bytes_moved"])
    assert "in part" in kvsync("ls").out
    shown = kvsync("show", "doc", "--json").json
    assert (shown["positions"], shown["bytes_here"]) == ([256], part["bytes_moved"])
    assert shown["bytes"] > shown["bytes_here"]
    assert "for grafts at token 256" in kvsync("show", "doc").out
    verified = kvsync("verify", "doc")
    assert (verified.status, "the rest was not pulled" in verified.out) == (0, True)
    assert kvsync("gc", "--json").json["left"]["partial"] == 1
    assert kvsync("fsck").status == 0
    assert kvsync("daemon", "start").status == 0
    again = kvsync("pull", "provider", "doc", "--blocks", "1", "--json").json
    assert (again["position"], again["chunks_moved"]) == (256, 0)
    rest = kvsync("pull", "provider", "doc", "--json").json
    assert (rest["position"], rest["chunks_moved"], rest["chunks"]) == (None, 2, 3)
    assert kvsync("ls", "--json").json["artifacts"][0]["positions"] is None
    assert kvsync("daemon", "stop").status == 0


def test_pull_fetches_verifies_and_names(kvsync, home, offered, tiny_model_dir, acquainted, tree_hash):
    before = tree_hash(home / "store" / "chunks")
    dry = kvsync("pull", "provider", "doc", "--dry-run", "--json")
    assert dry.status == 0
    assert (dry.json["dry_run"], dry.json["allowed"], dry.json["artifact"]) == (True, True, offered)
    assert dry.json["bytes_moved"] == dry.json["bytes_total"] > 0
    assert {verdict["policy"] for verdict in dry.json["verdicts"]} == {
        *("name", "signer", "size", "fingerprints"),
        *("audits", "audited", "signers", "divergence"),
    }
    assert "would be fetched" in kvsync("pull", "provider", "doc", "--dry-run").out
    assert tree_hash(home / "store" / "chunks") == before
    pulled = kvsync("pull", "provider", "doc", "--model", tiny_model_dir, "--json")
    assert pulled.status == 0
    assert pulled.json["bytes_moved"] == dry.json["bytes_moved"]
    assert kvsync("verify", "doc").status == 0
    assert kvsync("pull", "provider", offered, "--json").json["bytes_moved"] == 0
    grafted = kvsync("graft", "doc", "--model", tiny_model_dir, "--tokens", "2", "--json").json
    assert grafted["report"]["tokens_grafted"] == 300
    assert chunk_files(home) == [home / path.relative_to(acquainted) for path in chunk_files(acquainted)]


def test_a_pull_that_a_policy_forbids_moves_nothing(kvsync, home, offered, tiny_model_dir, tree_hash):
    wrong = ("pull", "provider", "doc", "--model", tiny_model_dir, "--dtype", "bf16")
    dry = kvsync(*wrong, "--dry-run", "--json")
    assert dry.status == 6
    refused = [v for v in dry.json["verdicts"] if not v["allowed"]]
    assert [(v["policy"], v["code"]) for v in refused] == [("fingerprints", "mismatch.compatibility")]
    assert "no (mismatch.compatibility)" in kvsync(*wrong, "--dry-run").out
    (home / "config.toml").write_text("max_artifact_bytes = 1000\n")
    large = kvsync("pull", "provider", "doc", "--dry-run", "--json")
    assert (large.status, [v["code"] for v in large.json["verdicts"] if not v["allowed"]]) == (5, ["policy.size"])
    assert kvsync("pull", "provider", "doc", "--json").code == "policy.size"
    (home / "config.toml").unlink()
    before = tree_hash(home / "store" / "chunks")
    real = kvsync(*wrong, "--json")
    assert (real.status, real.code) == (6, "mismatch.compatibility")
    kvsync("trust", "rm", "provider")
    stranger = kvsync("pull", "provider", offered, "--json")
    assert (stranger.status, stranger.code) == (5, "trust.untrusted_signer")
    assert tree_hash(home / "store" / "chunks") == before
    assert kvsync("ls", "--json").json["artifacts"] == []


def test_chunks_without_encryption_are_announced_everywhere(kvsync, home, offered, acquainted):
    """The daemon over there, this node's doctor, the report for programs and the one for people."""
    Settings(stall_timeout_s=15, unencrypted_bulk_networks=("127.0.0.0/8",)).save(Home(acquainted))
    Settings(unencrypted_bulk_networks=("127.0.0.0/8", "0.0.0.0/0")).save(Home(home))
    assert kvsync("--home", acquainted, "daemon", "stop").status == 0
    assert "UNENCRYPTED" in kvsync("--home", acquainted, "daemon", "start").out
    told = kvsync("--home", acquainted, "daemon", "status", "--json").json
    assert told["unencrypted_bulk_networks"] == ["127.0.0.0/8"]
    assert "UNENCRYPTED" in kvsync("--home", acquainted, "daemon", "status").out
    key = kvsync("--home", acquainted, "keys", "show", "--json").json["peer"]["key"]
    kvsync("peer", "add", "provider", key, "--address", told["address"])
    pulled = kvsync("pull", "provider", "doc", "--json").json
    assert pulled["bytes_unencrypted"] == pulled["bytes_wire"] > 0
    check = next(check for check in kvsync("doctor", "--json").json["checks"] if check["name"] == "encryption")
    assert check["state"] == "note"
    assert "UNENCRYPTED" in check["detail"]
    assert "0.0.0.0/0 is no private network" in check["hint"]
    assert kvsync("rm", "doc").status == 0
    assert kvsync("gc").status == 0
    assert "UNENCRYPTED" in kvsync("pull", "provider", "doc").out


def test_push_sends_what_the_peer_allows(kvsync, home, acquainted, document, tiny_model_dir):
    made = kvsync("compute", document, "--model", tiny_model_dir, "--name", "mine", "--json").json
    assert made["daemon"] is False
    dry = kvsync("push", "provider", "mine", "--dry-run", "--json")
    assert (dry.status, dry.json["allowed"]) == (0, True)
    assert kvsync("--home", acquainted, "ls", "--json").json["artifacts"] == []
    sent = kvsync("push", "provider", "mine")
    assert sent.status == 0
    assert "sent" in sent.out
    assert kvsync("--home", acquainted, "verify", "mine").status == 0
    peer = kvsync("keys", "show", "--json").json["peer"]["key"]
    kvsync("--home", acquainted, "peer", "add", "getter", peer, "--role", "get")
    refused = kvsync("push", "provider", "mine", "--json")
    assert (refused.status, refused.code) == (5, "peer.role")
    assert kvsync("push", "provider", "mine", "--dry-run").status == 5


def test_a_daemon_pulls_for_its_node(kvsync, home, offered):
    assert kvsync("daemon", "start").status == 0
    try:
        pulled = kvsync("pull", "provider", "doc", "--json")
        assert pulled.status == 0
        assert pulled.json["artifact"] == offered
        assert kvsync("daemon", "status", "--json").json["jobs"]["done"] == 1
        assert kvsync("pull", "provider", "nothing/here", "--json").code == "peer.unknown_name"
        assert kvsync("pull", "provider", "doc", "--local").status == 0
        assert kvsync("daemon", "status", "--json").json["jobs"]["done"] == 1
    finally:
        assert kvsync("daemon", "stop").status == 0
    assert kvsync("verify", "doc").status == 0


def test_fsck_repair_fetches_only_what_is_bad(kvsync, home, offered):
    kvsync("pull", "provider", "doc")
    files = chunk_files(home)
    bad, gone = files[0], files[-1]
    bad.chmod(0o600)
    bad.write_bytes(bytes(bad.stat().st_size))
    gone.unlink()
    untouched = {path: path.stat().st_ino for path in files[1:-1]}
    assert kvsync("verify", "doc").status == 4
    repaired = kvsync("fsck", "--repair", "--from", "provider", "--json")
    assert repaired.status == 0
    assert (repaired.json["clean"], repaired.json["sound"]) == (False, True)
    assert all(finding["repaired"] for finding in repaired.json["findings"])
    assert kvsync("verify", "doc").status == 0
    assert {path: path.stat().st_ino for path in untouched} == untouched
    assert kvsync("fsck", "--repair", "--from", "provider", "--json").json["clean"] is True


def test_a_daemon_computes_for_its_node(kvsync, provider, document, tiny_model_dir):
    at = ("--home", provider)
    made = kvsync(*at, "compute", document, "--model", tiny_model_dir, "--name", "doc", "--json")
    assert (made.status, made.json["daemon"], made.json["tokens"]) == (0, True, 300)
    assert kvsync(*at, "verify", "doc").status == 0
    here = kvsync(*at, "compute", document, "--model", tiny_model_dir, "--local", "--json")
    assert here.json["artifact"] == made.json["artifact"]
    document.write_text("w1 " * 33_000)
    long = kvsync(*at, "compute", document, "--model", tiny_model_dir, "--json")
    assert (long.status, long.code) == (10, "engine.too_long")


def test_the_daemon_tells_where_it_is_and_ends_once(kvsync, provider):
    at = ("--home", provider)
    status = kvsync(*at, "daemon", "status", "--json").json
    assert status["running"] is True
    assert status["home"] == str(provider)
    assert status["peer_key"] == kvsync(*at, "keys", "show", "--json").json["peer"]["key"]
    assert status["address"] in kvsync(*at, "daemon", "status").out
    assert kvsync(*at, "daemon", "start", "--json").code == "daemon.already_running"
    assert "pid" in kvsync(*at, "doctor", "--json").out
    assert kvsync(*at, "daemon", "stop", "--json").json == {"running": False, "pid": status["pid"]}
    assert kvsync(*at, "daemon", "stop", "--json").code == "daemon.not_running"


@pytest.mark.parametrize("daemon", [False, True])
def test_an_artifact_comes_from_whoever_has_it(kvsync, home, offered, daemon):
    if daemon:
        assert kvsync("daemon", "start").status == 0
    theirs = kvsync("keys", "show", "--json").json["signer"]["key"]  # any key that is nobody's peer
    assert kvsync("peer", "add", "away", theirs, "--address", "127.0.0.1:9").status == 0
    pulled = kvsync("pull", "doc", "--from", "away", "--from", "provider", "--json")
    assert (pulled.status, pulled.json["artifact"]) == (0, offered)
    assert [source["peer"] for source in pulled.json["sources"]] == ["provider"]
    assert kvsync("pull", "doc", "--json").json["bytes_moved"] == 0
    if daemon:
        assert kvsync("daemon", "stop").status == 0
