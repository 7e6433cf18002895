"""fsck: every kind of damage is found, named, set aside and, with a source, repaired."""

from __future__ import annotations

import contextlib
import os
import threading

import pytest

from kvsync.errors import NotFoundError, StoreError, UnavailableError
from kvsync.store import Store, StoreLimits
from kvsync.store.locks import DraftLock
from kvsync_protocol.digest import sha256
from kvsync_protocol.errors import CodedError
from kvsync_protocol.signing import SigningKey


class Source:
    """A RepairSource that has some artifacts' chunks, or lies, and remembers what it was asked."""

    def __init__(self, *artifacts, lie=False):
        self.artifacts = {artifact.id: artifact for artifact in artifacts}
        self.lie = lie
        self.asked = []

    def fetch(self, artifact, index, leaf):
        self.asked.append((artifact, index))
        if artifact not in self.artifacts:
            raise UnavailableError("peer.unreachable", "the peer cannot be reached")
        data = self.artifacts[artifact].chunks[index]
        assert (sha256(data), len(data)) == (leaf.digest, leaf.size)
        return data[::-1] if self.lie else data


def chunk_path(root, chunk):
    name = sha256(chunk).hex
    return root / "chunks" / name[:2] / name


def use(store, artifact):
    stored = store.artifact(artifact)
    stored.leaves()
    stored.tokens()


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def test_a_sound_store_is_clean_and_progress_reaches_the_total(store, make_artifact, fill):
    artifact = make_artifact(1, 60)
    fill(store, artifact)
    seen = []
    report = store.fsck(progress=lambda stage, done, total, unit: seen.append((stage, done, total, unit)))
    total = sum(map(len, artifact.chunks))
    assert report.clean
    assert (report.chunks, report.bytes, report.artifacts) == (len(artifact.chunks), total, 1)
    assert seen[0] == ("checking", 0, total, "bytes")
    assert seen[-1] == ("checking", total, total, "bytes")


@pytest.mark.parametrize("damage", ["flipped", "truncated", "emptied", "grown", "removed"])
def test_a_bad_chunk_is_named_never_served_and_fetched_again(store, root, make_artifact, fill, damage):
    artifact = make_artifact(1, 60)
    fill(store, artifact)
    path = chunk_path(root, artifact.chunks[2])
    good = path.read_bytes()
    {
        "flipped": lambda: flip(path),
        "truncated": lambda: path.write_bytes(good[:-1]),
        "emptied": lambda: path.write_bytes(b""),
        "grown": lambda: path.write_bytes(good + b"\0"),
        "removed": path.unlink,
    }[damage]()
    report = store.fsck()
    assert not report.clean
    assert not report.sound
    (finding,) = report.findings
    assert finding.code == ("store.missing_chunk" if damage == "removed" else "integrity.chunk")
    assert finding.name == str(sha256(good))
    assert finding.artifacts == (artifact.id,)
    with pytest.raises(NotFoundError):
        store.open_chunk(sha256(good))
    assert len(list((root / "quarantine").iterdir())) == (damage != "removed")

    source = Source(artifact)
    report = store.fsck(repair=source)
    assert report.sound
    assert source.asked == [(artifact.id, 2)]
    assert path.read_bytes() == good
    assert store.fsck().clean


def test_repair_asks_on_behalf_of_every_artifact_until_it_has_the_bytes(store, root, make_artifact, fill):
    base = make_artifact(1, 60)
    grown = make_artifact(2, 60, head=base.token_ids[:32])
    fill(store, base)
    fill(store, grown)
    flip(chunk_path(root, base.chunks[0]))
    (finding,) = store.fsck(repair=Source(base, grown, lie=True)).findings
    assert not finding.repaired
    assert "other bytes" in finding.detail
    assert set(finding.artifacts) == {base.id, grown.id}
    (finding,) = store.fsck(repair=Source()).findings
    assert not finding.repaired
    assert "peer.unreachable" in finding.detail
    for holder in (base, grown):
        chunk_path(root, base.chunks[0]).unlink(missing_ok=True)
        assert store.fsck(repair=Source(holder)).sound
    assert store.fsck().clean


def test_a_bad_chunk_that_only_a_draft_needs_is_set_aside(store, root, make_artifact):
    artifact = make_artifact(1, 60)
    with store.pull_draft(*artifact.parts) as draft:
        draft.put(0, artifact.chunks[0])
        draft.put(1, artifact.chunks[1])
    flip(chunk_path(root, artifact.chunks[0]))
    (finding,) = store.fsck().findings
    assert (finding.code, finding.repaired, finding.artifacts) == ("integrity.chunk", True, ())
    with store.pull_draft(*artifact.parts) as draft:
        assert draft.missing() == [i for i in range(len(artifact.chunks)) if i != 1]


@pytest.mark.parametrize(
    ("name", "damage", "code"),
    [
        ("envelope.json", b"", "json.syntax"),
        ("envelope.json", b"{}", "envelope.missing"),
        ("envelope.json", None, "integrity.artifact"),
        ("leaves", b"", "integrity.leaf_table"),
        ("leaves", b"\0" * 40, "integrity.leaf_table"),
        ("leaves", None, "integrity.artifact"),
        ("tokens", b"\0\0\0\0", "integrity.tokens"),
        ("tokens", None, "integrity.artifact"),
        ("envelope.json", "another", "integrity.artifact"),
        ("leaves", "another", "integrity.leaf_table"),
        ("tokens", "another", "integrity.tokens"),
    ],
)
def test_damaged_artifact_files_are_refused_set_aside_and_cheap_to_pull_again(
    store, root, make_artifact, fill, name, damage, code
):
    artifact, another = make_artifact(1, 40), make_artifact(2, 40)
    fill(store, artifact)
    fill(store, another)
    path = root / "artifacts" / artifact.id.hex / name
    if damage is None:
        path.unlink()
    else:
        path.write_bytes((root / "artifacts" / another.id.hex / name).read_bytes() if damage == "another" else damage)
    with pytest.raises(CodedError) as refused:
        use(store, artifact.id)
    assert refused.value.code == code
    report = store.fsck()
    (finding,) = report.findings
    assert (finding.code, finding.artifacts, finding.repaired) == (code, (artifact.id,), False)
    assert [s.artifact for s in store.artifacts()] == [another.id]
    with store.pull_draft(*artifact.parts) as draft:
        assert draft.missing() == []
        draft.publish()
    assert store.fsck().clean


def test_damage_is_no_reason_to_lose_the_other_artifacts(store, root, make_artifact, fill):
    artifact, another = make_artifact(1, 40), make_artifact(2, 40)
    fill(store, artifact)
    fill(store, another)
    (root / "artifacts" / artifact.id.hex / "envelope.json").write_bytes(b"damaged")
    assert [s.artifact for s in store.artifacts()] == [another.id]
    store.rebuild_index()
    assert [s.artifact for s in store.artifacts()] == [another.id]


LINKS = [
    "chunks/{shard}/{chunk}",
    "chunks/{shard}",
    "artifacts/{artifact}",
    "artifacts/{artifact}/leaves",
    "artifacts/{artifact}/envelope.json",
    "tmp/0123",
    "pins/{artifact}",
    "elsewhere",
]


@pytest.mark.parametrize("place", LINKS)
def test_links_are_never_followed(store, root, tmp_path, make_artifact, fill, place):
    artifact = make_artifact(1, 40)
    fill(store, artifact)
    chunk = sha256(artifact.chunks[0]).hex
    path = root / place.format(shard=chunk[:2], chunk=chunk, artifact=artifact.id.hex)
    outside = tmp_path / "outside"
    if path.exists():
        path.rename(outside)
    else:
        outside.write_bytes(b"secret")
    before = outside.stat()
    path.symlink_to(outside)
    if place.startswith("chunks"):
        with pytest.raises(StoreError) as refused:
            store.open_chunk(sha256(artifact.chunks[0]))
        assert refused.value.code == "store.symlink"
    if place.startswith("artifacts"):
        with pytest.raises(StoreError) as refused:
            store.artifact(artifact.id).leaves()
        assert refused.value.code == "store.symlink"
    store.gc(dry_run=True)
    report = store.fsck(repair=Source(artifact))
    assert [f.name for f in report.findings if f.code == "store.symlink"] == [str(path.relative_to(root))]
    assert outside.stat() == before
    if place != "elsewhere":
        assert not path.is_symlink()
    if place.startswith("chunks"):
        assert report.sound
        assert store.fsck().clean


@pytest.mark.parametrize("place", ["", "chunks", "artifacts", "tmp", "index.sqlite"])
def test_a_store_reached_through_a_link_is_not_opened(tmp_path, place):
    root = tmp_path / "store"
    Store.open(root).close()
    path = root / place
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    with pytest.raises(StoreError) as refused:
        Store.open(root)
    assert refused.value.code == "store.symlink"


@pytest.mark.parametrize("place", ["", "chunks", "refs", "tmp", "index.sqlite"])
def test_a_store_open_to_others_is_not_opened(root, place):
    Store.open(root).close()
    path = root / place
    path.chmod(path.stat().st_mode | 0o040)
    with pytest.raises(StoreError) as refused:
        Store.open(root)
    assert refused.value.code == "store.lax_mode"


def test_files_open_to_others_are_refused_and_tightened(store, root, make_artifact, fill):
    artifact = make_artifact(1, 40)
    fill(store, artifact)
    chunk, leaves = chunk_path(root, artifact.chunks[0]), root / "artifacts" / artifact.id.hex / "leaves"
    chunk.chmod(0o644)
    leaves.chmod(0o604)
    for call in (lambda: store.open_chunk(sha256(artifact.chunks[0])), store.artifact(artifact.id).leaves):
        with pytest.raises(StoreError) as refused:
            call()
        assert refused.value.code == "store.lax_mode"
    report = store.fsck()
    assert sorted(f.code for f in report.findings) == ["store.lax_mode", "store.lax_mode"]
    assert report.sound
    assert store.fsck().clean


def test_something_else_in_the_place_of_a_chunk_is_moved_away(store, root, make_artifact, fill):
    artifact = make_artifact(1, 40)
    fill(store, artifact)
    pipe, folder = (chunk_path(root, artifact.chunks[i]) for i in (0, 1))
    for path in (pipe, folder):
        path.unlink()
    os.mkfifo(pipe, 0o600)
    folder.mkdir(0o700)
    for index in (0, 1):
        with pytest.raises(StoreError) as refused:
            store.open_chunk(sha256(artifact.chunks[index]))
        assert refused.value.code == "store.foreign"
    report = store.fsck(repair=Source(artifact))
    assert sorted(f.code for f in report.findings) == [*["store.foreign"] * 2, *["store.missing_chunk"] * 2]
    assert report.sound
    assert store.fsck().clean


def test_a_file_that_is_nobodys_is_reported_and_left(store, root):
    (root / "notes.txt").write_bytes(b"mine")
    report = store.fsck()
    assert [(f.code, f.name, f.repaired) for f in report.findings] == [("store.foreign", "notes.txt", False)]
    assert (root / "notes.txt").read_bytes() == b"mine"


def test_what_a_killed_process_leaves_is_no_finding(store, root, make_artifact, fill):
    artifact = make_artifact(1, 40)
    fill(store, artifact)
    half = root / "tmp" / "0123456789ab"
    half.write_bytes(b"half a chunk")
    half.chmod(0o600)
    (root / "artifacts" / artifact.id.hex / "lock").touch(0o600)
    early = root / "partial" / make_artifact(2, 40).id.hex
    early.mkdir(0o700)
    (early / "lock").touch(0o600)
    orphan = make_artifact(3, 40).chunks[0]
    path = chunk_path(root, orphan)
    path.parent.mkdir(0o700, exist_ok=True)
    path.write_bytes(orphan)
    path.chmod(0o600)
    assert store.fsck().clean
    report = store.gc()
    assert (report.chunks, report.temp_files, report.drafts) == (1, 1, 1)
    assert not early.exists()


def test_signatures_of_all_signers_survive_fsck(store, make_artifact, fill):
    artifact = make_artifact(1, 40)
    fill(store, artifact)
    second = SigningKey(b"\x05" * 32)
    store.add_signatures(artifact.manifest.seal(second), {second.public})
    assert store.fsck().clean
    assert len(store.artifact(artifact.id).envelope.signatures) == 2


def test_work_under_way_is_no_finding(store, root, make_artifact, fill):
    """A draft is locked, then its files are written, then it is registered; chunks land before they are counted."""
    for seed in range(3):
        fill(store, make_artifact(seed, 20))
    artifact = make_artifact(9, 40)
    lock = DraftLock.acquire(store._parts.folder("partial"), artifact.id.hex, None)
    for name, data in (("envelope.json", artifact.envelope.encode()), ("tokens", artifact.tokens)):
        store._parts.temp.publish(data, lock.folder, name)
    assert store.fsck().clean
    store._parts.temp.publish(artifact.leaves, lock.folder, "leaves")
    lock.release()
    stop = threading.Event()

    def churn():
        with Store.open(root, StoreLimits(free_floor_bytes=0)) as other:
            while not stop.is_set():
                fill(other, artifact)
                with contextlib.suppress(StoreError):
                    other.remove(artifact.id)
                other.gc()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        findings = [finding for _ in range(40) for finding in store.fsck().findings]
    finally:
        stop.set()
        thread.join()
    assert findings == []
