"""Registries, offered models and computations on a peer, as the command line shows them."""

from __future__ import annotations

import json

import pytest

from kvsync.config import Home, Settings
from kvsync_protocol.signing import SigningKey

KEY, OTHER = (str(SigningKey(bytes([number]) * 32).public) for number in (7, 8))


@pytest.fixture
def lab(kvsync, tmp_path):
    """A second home, its daemon running on one thread."""
    root = tmp_path / "lab"
    assert kvsync("--home", root, "init").status == 0
    Settings(threads=1, free_floor_bytes=0).save(Home(root))
    assert kvsync("--home", root, "daemon", "start").status == 0
    yield root
    kvsync("--home", root, "daemon", "stop")


def test_registries_are_listed_shown_and_removed(kvsync, home):
    assert kvsync("registry", "add", "team", KEY, "--address", "registry.example:7420").status == 0
    assert kvsync("peer", "add", "site-a", OTHER, "--address", "a.example:1").status == 0
    assert kvsync("registry", "add", "site-a", "--readers", "tenant:red").status == 0
    listed = kvsync("registry", "ls", "--json").json
    assert [(each["name"], each["readers"], each["state"]) for each in listed["registries"]] == [
        ("site-a", "tenant:red", "no daemon runs"),
        ("team", "peers", "no daemon runs"),
    ]
    assert listed["embedded"] is None
    checks = {check["name"]: check for check in kvsync("doctor", "--json").json["checks"]}
    assert checks["registries"]["detail"] == "2 listed, none in use while no daemon runs"
    for words, status, code in (
        (("registry", "add", "other", KEY, "--address", "b.example:1"), 2, "registry.exists"),
        (("registry", "add", "nowhere", KEY), 2, "registry.address"),
        (("registry", "add", "team", KEY, "--address", "b.example"), 2, "peer.address"),
        (("registry", "add", "team", "ed25519:x", "--address", "b.example:1"), 3, "key.syntax"),
        (
            ("registry", "add", "team", KEY, "--address", "b.example:1", "--readers", "everybody"),
            2,
            "registry.readers",
        ),
        (("registry", "add", "nobody"), 7, "peer.unknown"),
        (("registry", "rm", "nobody"), 7, "registry.unlisted"),
    ):
        answer = kvsync(*words, "--json")
        assert (answer.status, answer.code) == (status, code), words
    assert kvsync("registry", "rm", KEY).status == 0
    assert kvsync("registry", "rm", "site-a").status == 0
    assert kvsync("registry", "ls", "--json").json["registries"] == []
    (home / "registries.json").write_text("{")
    assert kvsync("registry", "ls", "--json").code == "registries.damaged"


def test_a_ticket_with_the_own_registry_makes_the_joiner_use_it(kvsync, home, lab):
    address = kvsync("--home", lab, "daemon", "status", "--json").json["address"]
    ticket = kvsync("--home", lab, "invite", "--role", "publisher", "--role", "get", "--registry", address, "-q").out
    joined = kvsync("join", ticket.strip(), "--name", "lab", "--json").json
    assert (joined["registry"], joined["registry_used"]) == (address, True)
    assert [each["name"] for each in kvsync("registry", "ls", "--json").json["registries"]] == ["lab"]
    ticket = kvsync("--home", lab, "invite", "--registry", "other.example:1", "-q").out
    again = kvsync("join", ticket.strip())
    assert again.status == 0
    assert "kvsync registry add" in again.err
    shown = kvsync("--home", lab, "registry", "ls", "--json").json
    assert shown["embedded"]["name"] == "this node"
    assert "registry" in kvsync("--home", lab, "daemon", "status").out


def test_a_peer_computes_with_a_model_that_it_offers(kvsync, home, lab, tmp_path, tiny_model_dir):
    Settings(threads=1, free_floor_bytes=0).save(Home(home))
    document = tmp_path / "document.txt"
    document.write_text(" ".join(f"w{number * 7 % 100}" for number in range(600)))
    ticket = kvsync("--home", lab, "invite", "--role", "get", "--role", "compute", "-q").out.strip()
    assert kvsync("join", ticket, "--name", "lab", "--trust-signer").status == 0
    words = ("compute", document, "--on", "lab", "--model", tiny_model_dir, "--json")
    refused = kvsync(*words)
    assert (refused.status, refused.code) == (7, "compute.unknown_model")
    offer = kvsync("--home", lab, "model", "offer", tiny_model_dir, "--json").json
    assert kvsync("--home", lab, "model", "offered", "--json").json["models"] == [offer]
    computed = kvsync(*words, "--name", "team/doc").json
    assert (computed["peer"], computed["name"], computed["daemon"]) == ("lab", "team/doc", False)
    assert kvsync("verify", "team/doc").status == 0
    by_digest = kvsync("compute", document, "--on", "lab", "--model", offer["compatibility"], "--json").json
    assert (by_digest["artifact"], by_digest["bytes_moved"]) == (computed["artifact"], 0)
    asked = json.dumps(kvsync("--home", lab, "daemon", "status", "--json").json["jobs"])
    assert '"done": 2' in asked
    kvsync("--home", lab, "model", "withdraw", tiny_model_dir)
    assert kvsync(*words).code == "compute.unknown_model"
    assert kvsync("--home", lab, "model", "withdraw", tiny_model_dir, "--json").code == "offered.unknown"
    assert kvsync("compute", document, "--on", "nobody", "--model", tiny_model_dir, "--json").code == "peer.unknown"
