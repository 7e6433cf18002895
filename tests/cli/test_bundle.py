"""`kvsync export` and `import`: from one home to another by a file, or through a pipe, and every refusal in words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from kvsync.config import Home
from kvsync.store import Store, StoreLimits
from tests.conftest import SIGNER, build_artifact


@pytest.fixture
def stored(put):
    """The name of an artifact in the first home."""
    put(build_artifact(1), name="team/handbook")
    return "team/handbook"


@pytest.fixture
def other(kvsync, home, tmp_path):
    """A second home that trusts the first one's signer, and the artifact's."""
    root = tmp_path / "other"
    assert kvsync("--home", root, "init").status == 0
    key = kvsync("keys", "show", "--json").json["signer"]["key"]
    assert kvsync("--home", root, "trust", "add", "home", key).status == 0
    assert kvsync("--home", root, "trust", "add", "signer", SIGNER.public).status == 0
    return root


def test_an_artifact_goes_from_home_to_home_in_a_file(kvsync, home, other, stored, tmp_path):
    bundle = tmp_path / "handbook.kvb"
    planned = kvsync("export", stored, "--out", bundle, "--dry-run", "--json").json
    assert (planned["bytes_file"], bundle.exists()) == (0, False)
    packed = kvsync("export", stored, "--out", bundle, "--json").json
    assert packed["bytes_file"] == bundle.stat().st_size
    looked = kvsync("--home", other, "import", bundle, "--dry-run")
    assert looked.status == 0
    assert "would be taken" in looked.out
    assert "signed by" in looked.out
    taken = kvsync("--home", other, "import", bundle, "--json").json
    assert (taken["exporter"], taken["allowed"], taken["bytes_moved"]) == ("home", True, packed["bytes_moved"])
    assert taken["artifacts"][0]["names"] == [stored]
    assert kvsync("--home", other, "verify", stored).status == 0


def test_a_bundle_can_come_through_a_pipe(home, kvsync, other, stored, tmp_path):
    bundle = tmp_path / "handbook.kvb"
    kvsync("export", stored, "--out", bundle, "--encoding", "zstd")
    command = [sys.executable, "-m", "kvsync.cli", "--home", other, "import", "-"]
    with bundle.open("rb") as file:
        done = subprocess.run(command, stdin=file, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "taken" in done.stdout


REFUSED = {
    "no such artifact": (("export", "nobody", "--out", "{out}"), 7, "store.unknown_name"),
    "an encoding nobody knows": (("export", "{name}", "--out", "{out}", "--encoding", "gzip"), 2, "bundle.encoding"),
    "a folder that is not there": (("export", "{name}", "--out", "{out}/no/such"), 9, "store.unwritable"),
    "a file that is there": (("export", "{name}", "--out", "{text}"), 2, "bundle.exists"),
    "no such bundle": (("import", "{out}"), 7, "file.missing"),
    "a folder": (("import", "{folder}"), 9, "file.unreadable"),
    "a pipe by its name": (("import", "{pipe}"), 9, "file.unreadable"),
    "a device": (("import", "/dev/zero"), 9, "file.unreadable"),
    "another file": (("import", "{text}"), 3, "bundle.truncated"),
    "a file of zeros": (("import", "{zeros}"), 3, "bundle.member"),
}


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_what_makes_no_sense_is_refused_in_one_line(kvsync, home, stored, tmp_path, case):
    words, status, code = REFUSED[case]
    (tmp_path / "text").write_text("not a bundle")
    (tmp_path / "zeros").write_bytes(bytes(10_240))
    os.mkfifo(tmp_path / "pipe")
    places = {name: tmp_path / name for name in ("out", "text", "zeros", "pipe")}
    given = [word.format(name=stored, folder=tmp_path, **places) for word in words]
    told = kvsync(*given, "--json")
    assert (told.status, told.code) == (status, code)
    assert len(kvsync(*given).err.splitlines()) <= 2
    assert not (tmp_path / "out").exists()


def test_strangers_are_told_whose_key_is_missing(kvsync, home, stored, tmp_path):
    bundle, alone = tmp_path / "handbook.kvb", tmp_path / "alone"
    kvsync("export", stored, "--out", bundle)
    kvsync("--home", alone, "init")
    told = kvsync("--home", alone, "import", bundle, "--json")
    assert (told.status, told.code) == (5, "bundle.exporter")
    assert "trust add" in told.json["error"]["hint"]


def test_an_import_that_was_killed_goes_on(home, kvsync, tmp_path):
    """SIGKILL while chunks come through a pipe that then stands still; the next import takes the rest."""
    artifact = build_artifact(1, 400, heads=8, dim=64)
    root = tmp_path / "killed"
    kvsync("--home", root, "init")
    limits = StoreLimits(free_floor_bytes=0)
    with Store.open(Home(root).store_dir, limits) as store, store.pull_draft(*artifact.parts) as draft:
        for index in draft.missing():
            draft.put(index, artifact.chunks[index])
        draft.publish()
    bundle = tmp_path / "large.kvb"
    assert kvsync("--home", root, "export", artifact.id, "--out", bundle).status == 0
    keys = kvsync("--home", root, "keys", "show", "--json").json
    kvsync("trust", "add", "signer", str(artifact.key.public))
    kvsync("peer", "add", "killed", keys["peer"]["key"])
    data = bundle.read_bytes()
    command = [sys.executable, "-m", "kvsync.cli", "--home", home, "import", "-"]
    chunks = home / "store" / "chunks"
    with subprocess.Popen(command, stdin=subprocess.PIPE) as importing:
        assert importing.stdin is not None
        importing.stdin.write(data[: len(data) * 2 // 3])
        importing.stdin.flush()
        until = time.monotonic() + 60
        while sum(1 for _ in chunks.rglob("?" * 64)) < 5 and time.monotonic() < until:
            time.sleep(0.02)
        importing.send_signal(signal.SIGKILL)
    here = sum(1 for _ in chunks.rglob("?" * 64))
    assert here >= 5
    assert kvsync("ls", "--json").json["artifacts"] == []
    taken = kvsync("import", bundle, "--json").json
    assert taken["chunks_moved"] <= len(artifact.chunks) - here
    assert kvsync("verify", artifact.id).status == 0
    assert kvsync("fsck").status == 0


def test_what_was_computed_is_grafted_on_the_other_side(kvsync, home, other, tiny_model_dir, tmp_path):
    document, bundle = tmp_path / "document.txt", tmp_path / "document.kvb"
    document.write_text(" ".join(f"w{number * 7 % 100}" for number in range(300)))
    assert kvsync("compute", document, "--model", tiny_model_dir, "--name", "doc", "--local").status == 0
    assert kvsync("export", "doc", "--out", bundle, "--encoding", "planes").status == 0
    words = ("--home", other, "import", bundle, "--model", tiny_model_dir, "--json")
    taken = kvsync(*words).json
    verdicts = {v["policy"]: v["detail"] for v in taken["artifacts"][0]["verdicts"]}
    assert verdicts["fingerprints"] == "equal"
    asked = ("graft", "doc", "--model", tiny_model_dir, "--question", "w1 w2 w3", "--tokens", "4", "--json")
    here, there = kvsync(*asked).json, kvsync("--home", other, *asked).json
    assert there["report"]["tokens_grafted"] == here["report"]["tokens_grafted"] == 300
    assert there["text"] == here["text"]
