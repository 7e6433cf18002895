"""Bad input of every kind: its own error code, its exit status, and a home in which nothing changed."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvsync_protocol.envelope import Envelope
from kvsync_protocol.manifest import PAYLOAD_TYPE
from kvsync_protocol.signing import SigningKey

KEY = str(SigningKey(bytes([7]) * 32).public)
OTHER = str(SigningKey(bytes([8]) * 32).public)
DIGEST = "sha256:" + "ab" * 32


@dataclass
class World:
    """What a case may prepare and name: a home with one artifact `doc`, a model, and a place for files."""

    home: Path
    tmp: Path
    artifact: Any
    model: Path
    kvsync: Callable[..., Any]

    def file(self, name: str, content: bytes | str = b"w1 w2 w3") -> Path:
        path = self.tmp / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def folder(self, *without: str, **instead: str) -> Path:
        """A copy of the model without some files, others with another content."""
        copy = self.tmp / "model"
        shutil.copytree(self.model, copy)
        for name in without:
            (copy / name).unlink()
        for name, content in instead.items():
            (copy / name.replace("_json", ".json")).write_text(content)
        return copy

    def cut(self, name: str) -> Path:
        """A copy of the model of which one file lacks its second half."""
        copy = self.folder()
        data = (copy / name).read_bytes()
        (copy / name).write_bytes(data[: len(data) // 2])
        return copy

    def bare(self) -> Path:
        """A folder with nothing in it."""
        (self.tmp / "bare").mkdir()
        return self.tmp / "bare"

    def chunk(self, index: int) -> Path:
        name = self.artifact.manifest.check_leaves(self.artifact.leaves).leaves[index].digest.hex
        return self.home / "store" / "chunks" / name[:2] / name

    def index_version(self, version: int) -> None:
        with sqlite3.connect(self.home / "store" / "index.sqlite") as db:
            db.execute(f"PRAGMA user_version = {version}")
        db.close()

    def resign(self, **members: object) -> None:
        """The artifact's manifest, with other members, under a trusted signature."""
        statement = json.loads(self.artifact.envelope.payload)
        statement["predicate"].update(members)
        sealed = Envelope.seal(PAYLOAD_TYPE, json.dumps(statement).encode(), self.artifact.key)
        _damage(self.artifact_file("envelope.json"), lambda data: sealed.encode())

    def artifact_file(self, name: str) -> Path:
        return self.home / "store" / "artifacts" / self.artifact.id.hex / name

    def configure(self, text: str) -> None:
        (self.home / "config.toml").write_text(text)


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """Where the first case leaves a copy of its home for the others."""
    return tmp_path_factory.mktemp("template") / "home"


@pytest.fixture(scope="module")
def closed_port() -> Iterator[int]:
    """A loopback port that refuses: it is bound, so nobody else takes it, and not listened on."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


@pytest.fixture
def world(kvsync, request, make_artifact, tmp_path, tiny_model_dir, template, closed_port, monkeypatch) -> World:
    home = tmp_path / "home"
    artifact = make_artifact(1, 40)
    if template.exists():
        shutil.copytree(template, home)
        monkeypatch.setenv("KVSYNC_HOME", str(home))
    else:
        request.getfixturevalue("put")(artifact, name="doc")
        kvsync("trust", "add", "alice", KEY)
        kvsync("peer", "add", "site-b", KEY, "--address", f"127.0.0.1:{closed_port}")
        kvsync("peer", "add", "nowhere", OTHER)
        kvsync("gc")
        shutil.copytree(home, template)
    return World(home, tmp_path, artifact, tiny_model_dir, kvsync)


def _damage(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.chmod(0o600)
    path.write_bytes(change(path.read_bytes()))


def _edit(path: Path, **members: object) -> None:
    _damage(path, lambda data: json.dumps({**json.loads(data), **members}).encode())


def _nothing(world: World) -> None:
    pass


Words = Callable[[World], tuple[object, ...]]


@dataclass(frozen=True)
class Case:
    """One bad input: what is prepared, the command line, and the refusal."""

    name: str
    code: str
    status: int
    words: Words
    prepare: Callable[[World], object] = _nothing


CASES = [
    # names, ids, keys, addresses, roles
    Case("an unknown name", "store.unknown_name", 7, lambda w: ("show", "no/such/name")),
    Case("an unknown id", "store.unknown_artifact", 7, lambda w: ("verify", DIGEST)),
    Case("an id with capitals", "store.unknown_name", 7, lambda w: ("show", DIGEST.upper())),
    Case("a path for a name", "store.unknown_name", 7, lambda w: ("rm", "../../etc/passwd")),
    Case("an empty name", "store.unknown_name", 7, lambda w: ("pin", "")),
    Case("a name longer than allowed", "store.unknown_name", 7, lambda w: ("unpin", "a" * 201)),
    Case("a name with a control character", "store.unknown_name", 7, lambda w: ("show", "a\x1b[2J")),
    Case("a pinned artifact removed", "store.pinned", 9, lambda w: ("rm", "doc"), lambda w: w.kvsync("pin", "doc")),
    Case("a key cut short", "key.syntax", 3, lambda w: ("trust", "add", "bob", KEY[:-1])),
    Case("a key of another kind", "key.syntax", 3, lambda w: ("peer", "add", "bob", "ssh-ed25519 AAAA")),
    Case("a key that proves nothing", "key.weak", 3, lambda w: ("trust", "add", "bob", "ed25519:" + "A" * 43)),
    Case("a signer's name taken", "trust.exists", 2, lambda w: ("trust", "add", "alice", OTHER)),
    Case("a signer's name that is none", "ref.name", 3, lambda w: ("trust", "add", "Alice Smith", OTHER)),
    Case("an unknown signer removed", "trust.unknown", 7, lambda w: ("trust", "rm", "bob")),
    Case("a peer's key taken", "peer.exists", 2, lambda w: ("peer", "add", "site-c", KEY)),
    Case("an unknown peer removed", "peer.unknown", 7, lambda w: ("peer", "rm", "bob")),
    Case("an address without a port", "peer.address", 2, lambda w: ("peer", "add", "x", OTHER, "--address", "host")),
    Case("a port out of range", "peer.address", 2, lambda w: ("peer", "add", "x", OTHER, "--address", "host:65536")),
    Case(
        "an IPv6 address in no brackets",
        "peer.address",
        2,
        lambda w: ("peer", "add", "x", OTHER, "--address", "::1:7"),
    ),
    Case("an unknown role", "peer.role", 2, lambda w: ("peer", "add", "x", OTHER, "--role", "root")),
    # transfers
    Case("an unknown peer", "peer.unknown", 7, lambda w: ("pull", "bob", "doc")),
    Case("a peer without an address", "peer.no_address", 2, lambda w: ("pull", "nowhere", "doc")),
    Case("an unreachable peer", "peer.unreachable", 8, lambda w: ("pull", "site-b", "doc")),
    Case("an unreachable peer, dry run", "peer.unreachable", 8, lambda w: ("pull", "site-b", "doc", "--dry-run")),
    Case("a push to an unreachable peer", "peer.unreachable", 8, lambda w: ("push", "site-b", "doc")),
    Case("a push of what is not here", "store.unknown_name", 7, lambda w: ("push", "site-b", "other")),
    Case(
        "a pull for an unknown model", "model.unknown", 7, lambda w: ("pull", "site-b", "doc", "--model", "nomodel")
    ),
    Case("a repair from nobody", "fsck.source", 2, lambda w: ("fsck", "--repair")),
    Case("a repair from an unknown peer", "peer.unknown", 7, lambda w: ("fsck", "--repair", "--from", "bob")),
    Case(
        "a repair from an unreachable peer", "peer.unreachable", 8, lambda w: ("fsck", "--repair", "--from", "site-b")
    ),
    # documents
    Case("a missing document", "document.missing", 7, lambda w: ("compute", w.tmp / "none.txt", "--model", w.model)),
    Case("an empty document", "document.empty", 2, lambda w: ("compute", w.file("d", b""), "--model", w.model)),
    Case("a document that is a folder", "document.kind", 2, lambda w: ("compute", w.tmp, "--model", w.model)),
    Case(
        "a document that is no text",
        "document.encoding",
        3,
        lambda w: ("compute", w.file("d", b"a\xff\xfe"), "--model", w.model),
    ),
    Case(
        "a document that is a loop of links",
        "document.unreadable",
        9,
        lambda w: ("compute", w.tmp / "loop", "--model", w.model),
        lambda w: (w.tmp / "loop").symlink_to("loop"),
    ),
    Case(
        "a document beyond the model's positions",
        "engine.too_long",
        10,
        lambda w: ("compute", w.file("d", b"w1 " * 32_769), "--model", w.model),
    ),
    Case(
        "a bad name for an artifact",
        "ref.name",
        3,
        lambda w: ("compute", w.file("d"), "--model", w.model, "--name", "Bad Name"),
    ),
    Case("a demo of a missing document", "document.missing", 7, lambda w: ("demo", "--doc", w.tmp / "none.txt")),
    Case("a demo of a model not fetched", "model.unknown", 7, lambda w: ("demo", "--model", "nomodel")),
    Case("neither artifact nor document", "graft.source", 2, lambda w: ("graft", "--model", w.model)),
    Case(
        "both artifact and document",
        "graft.source",
        2,
        lambda w: ("graft", "doc", "--doc", w.file("d"), "--model", w.model),
    ),
    # models
    Case("an unknown model", "model.unknown", 7, lambda w: ("compute", w.file("d"), "--model", "nomodel")),
    Case(
        "a model folder that is missing",
        "model.missing",
        7,
        lambda w: ("compute", w.file("d"), "--model", w.tmp / "none"),
    ),
    Case("a model that is a file", "model.missing", 7, lambda w: ("fingerprint", "show", "--model", w.file("m"))),
    Case(
        "a model not fetched yet", "model.not_fetched", 7, lambda w: ("fingerprint", "show", "--model", "gemma3-270m")
    ),
    Case("an unknown model to fetch", "model.unknown", 7, lambda w: ("model", "fetch", "gpt-9")),
    Case(
        "a model folder without anything",
        "engine.config",
        10,
        lambda w: ("fingerprint", "show", "--model", w.bare()),
    ),
    Case(
        "a device that is none",
        "engine.device",
        10,
        lambda w: ("fingerprint", "show", "--model", w.model, "--device", "abacus"),
    ),
    Case("an artifact of another model", "mismatch.compatibility", 6, lambda w: ("graft", "doc", "--model", w.model)),
    Case("a side that is nothing", "fingerprint.unknown", 7, lambda w: ("fingerprint", "explain", "doc", "nothing")),
    # home, keys, settings, lists
    Case("an unknown setting", "config.unknown", 2, lambda w: ("ls",), lambda w: w.configure("colour = 'red'")),
    Case("a setting of another type", "config.type", 2, lambda w: ("ls",), lambda w: w.configure("streams = '2'")),
    Case("a setting out of range", "config.value", 2, lambda w: ("ls",), lambda w: w.configure("streams = 99")),
    Case("settings that are no TOML", "config.syntax", 2, lambda w: ("gc",), lambda w: w.configure("streams = = 2")),
    Case(
        "settings that are no text",
        "config.syntax",
        2,
        lambda w: ("gc",),
        lambda w: (w.home / "config.toml").write_bytes(b"\xff"),
    ),
    Case("settings without an end", "file.too_large", 9, lambda w: ("ls",), lambda w: w.configure("#" * 300_000)),
    Case(
        "a key file of no key",
        "keys.damaged",
        9,
        lambda w: ("keys", "show"),
        lambda w: (w.home / "keys/peer.key").write_text("zz"),
    ),
    Case(
        "a key file cut short",
        "keys.damaged",
        9,
        lambda w: ("ls",),
        lambda w: (w.home / "keys/signer.key").write_text("00" * 31),
    ),
    Case(
        "a key file open to others",
        "keys.lax_mode",
        9,
        lambda w: ("keys", "show"),
        lambda w: (w.home / "keys/signer.key").chmod(0o644),
    ),
    Case("a home open to others", "home.lax_mode", 9, lambda w: ("ls",), lambda w: w.home.chmod(0o755)),
    Case(
        "a keys folder open to others",
        "home.lax_mode",
        9,
        lambda w: ("keys", "show"),
        lambda w: (w.home / "keys").chmod(0o750),
    ),
    Case(
        "a trust list of another version",
        "trust.damaged",
        9,
        lambda w: ("trust", "ls"),
        lambda w: _edit(w.home / "trust.json", version=99),
    ),
    Case(
        "a trust list cut short",
        "trust.damaged",
        9,
        lambda w: ("verify", "doc"),
        lambda w: _damage(w.home / "trust.json", lambda d: d[:-1]),
    ),
    Case(
        "a peer list with a foreign entry",
        "peers.damaged",
        9,
        lambda w: ("peer", "ls"),
        lambda w: _edit(w.home / "peers.json", entries=[1]),
    ),
    # the store
    Case(
        "an envelope cut short",
        "json.syntax",
        3,
        lambda w: ("show", "doc"),
        lambda w: _damage(w.artifact_file("envelope.json"), lambda d: d[:-1]),
    ),
    Case(
        "an envelope that is too large",
        "store.file_too_large",
        9,
        lambda w: ("show", "doc"),
        lambda w: _damage(w.artifact_file("envelope.json"), lambda d: d + b" " * 3_000_000),
    ),
    Case(
        "an envelope of a stranger",
        "trust.untrusted_signer",
        5,
        lambda w: ("verify", "doc"),
        lambda w: w.kvsync("trust", "rm", w.artifact.key.public),
    ),
    Case(
        "a manifest of another artifact",
        "integrity.artifact",
        4,
        lambda w: ("verify", "doc"),
        lambda w: w.resign(numerics={"torch": "other"}),
    ),
    Case(
        "a leaf table cut short",
        "integrity.leaf_table",
        4,
        lambda w: ("verify", "doc"),
        lambda w: _damage(w.artifact_file("leaves"), lambda d: d[:-1]),
    ),
    Case(
        "token ids that were changed",
        "integrity.tokens",
        4,
        lambda w: ("verify", "doc"),
        lambda w: _damage(w.artifact_file("tokens"), lambda d: b"\1" + d[1:]),
    ),
    Case(
        "a chunk cut short",
        "integrity.chunk",
        4,
        lambda w: ("verify", "doc"),
        lambda w: _damage(w.chunk(1), lambda d: d[:-1]),
    ),
    Case("a chunk that is missing", "integrity.chunk", 4, lambda w: ("verify", "doc"), lambda w: w.chunk(0).unlink()),
    Case("an index of a newer version", "version.index", 3, lambda w: ("ls",), lambda w: w.index_version(10_000)),
    Case(
        "a store folder open to others",
        "home.lax_mode",
        9,
        lambda w: ("ls",),
        lambda w: (w.home / "store").chmod(0o777),
    ),
    Case(
        "a quota that is too small",
        "store.quota",
        9,
        lambda w: ("compute", w.file("d", b"w1 " * 600), "--model", w.model),
        lambda w: w.configure("quota_bytes = 1000"),
    ),
    Case(
        "a disk without room",
        "store.full",
        9,
        lambda w: ("compute", w.file("d", b"w1 " * 600), "--model", w.model),
        lambda w: w.configure(f"free_floor_bytes = {2**59}"),
    ),
    # models that cannot be run exactly
    Case(
        "a model without a tokenizer",
        "engine.no_tokenizer",
        10,
        lambda w: ("compute", w.file("d"), "--model", w.folder("tokenizer.json", "tokenizer_config.json")),
    ),
    Case(
        "a model without weights",
        "engine.weights",
        10,
        lambda w: ("compute", w.file("d"), "--model", w.folder("model.safetensors")),
    ),
    Case(
        "a model without a configuration",
        "engine.config",
        10,
        lambda w: ("compute", w.file("d"), "--model", w.folder("config.json")),
    ),
    Case(
        "a model whose configuration is no JSON",
        "engine.config",
        10,
        lambda w: ("compute", w.file("d"), "--model", w.folder(config_json="{")),
    ),
    Case(
        "a model of an unknown kind",
        "engine.config",
        10,
        lambda w: ("compute", w.file("d"), "--model", w.folder(config_json='{"model_type": "abacus"}')),
    ),
    Case(
        "a model whose weights are cut short",
        "engine.weights",
        10,
        lambda w: ("compute", w.file("d"), "--model", w.cut("model.safetensors")),
    ),
    # the daemon
    Case("the status of no daemon", "daemon.not_running", 8, lambda w: ("daemon", "status")),
    Case("a stop of no daemon", "daemon.not_running", 8, lambda w: ("daemon", "stop")),
    Case("a start in no home", "home.missing", 9, lambda w: ("daemon", "start", "--home", w.tmp / "none")),
    # the command line
    Case("an unknown command", "usage.arguments", 2, lambda w: ("nonsense",)),
    Case("an unknown option", "usage.arguments", 2, lambda w: ("ls", "--nonsense")),
    Case("a number that is none", "usage.arguments", 2, lambda w: ("graft", "doc", "--tokens", "many")),
    Case("a precision that is none", "usage.arguments", 2, lambda w: ("compute", "d", "--dtype", "fp8")),
    Case("a home that is no home", "home.missing", 9, lambda w: ("ls", "--home", w.tmp)),
    Case("a home that is a file", "home.missing", 9, lambda w: ("ls", "--home", w.file("f"))),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_bad_input_has_its_own_code_and_changes_nothing(kvsync, world, tree_hash, case):
    case.prepare(world)
    words = case.words(world)
    before = tree_hash(world.home)
    told = kvsync(*words, "--json")
    assert (told.code, told.status) == (case.code, case.status)
    assert told.json["error"]["exit_status"] == case.status
    assert told.err == ""
    assert tree_hash(world.home) == before


def test_there_are_enough_cases_and_no_two_alike():
    assert len({case.name for case in CASES}) == len(CASES) >= 80


def test_a_home_variable_that_is_set_but_empty_is_an_error(kvsync, monkeypatch):
    monkeypatch.setenv("KVSYNC_HOME", "")
    told = kvsync("ls", "--json")
    assert (told.status, told.code) == (2, "home.variable")


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_home_option_that_is_empty_is_not_the_current_directory(kvsync, monkeypatch, tmp_path, place):
    monkeypatch.chdir(tmp_path)
    option = ["--home", ""]
    result = kvsync(*(option if place == "before" else []), "init", *(option if place == "after" else []), "--json")
    assert (result.status, result.code) == (2, "home.empty")
    assert list(tmp_path.iterdir()) == []


def test_a_home_of_nobody_is_an_error(kvsync):
    result = kvsync("--home", "~no-such-user-here/home", "ls", "--json")
    assert (result.status, result.code) == (2, "home.user")


def test_a_model_or_document_that_cannot_be_looked_at_says_so(kvsync, home, tmp_path):
    long = str(tmp_path / ("x" * 300))
    text = tmp_path / "text"
    text.write_text("words")
    model = kvsync("compute", str(text), "--model", long, "--json")
    assert (model.status, model.code) == (10, "engine.unreadable")
    document = kvsync("compute", long, "--json")
    assert (document.status, document.code) == (9, "document.unreadable")
    assert "Errno" not in model.json["error"]["message"] + document.json["error"]["message"]


def test_a_port_that_is_taken_is_told_by_the_daemon_that_wanted_it(kvsync, home, tree_hash):
    kvsync("gc")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        (home / "config.toml").write_text(f"listen_port = {taken.getsockname()[1]}\n")
        before = tree_hash(home / "store"), tree_hash(home / "keys")
        told = kvsync("daemon", "start", "--json")
    assert (told.status, told.code) == (8, "peer.listen")
    assert kvsync("daemon", "status", "--json").code == "daemon.not_running"
    assert (tree_hash(home / "store"), tree_hash(home / "keys")) == before


@pytest.mark.parametrize("words", [("ls",), ("keys", "show"), ("daemon", "start"), ("gc",)], ids=" ".join)
def test_a_home_this_user_may_not_read_is_refused(kvsync, home, tree_hash, words):
    before = tree_hash(home)
    with _unprivileged(home):
        told = kvsync(*words, "--json")
    assert (told.status, told.code) == (9, "home.unreadable")
    assert tree_hash(home) == before


@contextmanager
def _unprivileged(home: Path) -> Iterator[None]:
    """Be somebody who may not look into `home`: another user for root, nobody with a right for others."""
    if os.geteuid() == 0:
        os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(0)
        return
    mode = home.stat().st_mode
    home.chmod(0)
    try:
        yield
    finally:
        home.chmod(mode)
