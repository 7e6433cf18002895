"""What is stored: list, show, verify, pin, remove, collect, check."""

from __future__ import annotations

import pytest

from kvsync.store import Store, StoreLimits
from kvsync_protocol.ref import Ref
from kvsync_protocol.signing import SigningKey


def chunk_path(home, artifact, index):
    name = artifact.manifest.check_leaves(artifact.leaves).leaves[index].digest.hex
    return home / "store" / "chunks" / name[:2] / name


def damage(path, change=lambda data: bytes([data[0] ^ 1]) + data[1:]):
    path.chmod(0o600)
    path.write_bytes(change(path.read_bytes()))


def test_an_empty_store_lists_nothing_and_says_how_to_begin(kvsync, home):
    listed = kvsync("ls")
    assert (listed.status, listed.out) == (0, "")
    assert "kvsync compute" in listed.err
    assert kvsync("ls", "--json").json == {"artifacts": []}


def test_artifacts_are_listed_with_name_size_and_trust(kvsync, home, put, make_artifact):
    stranger = make_artifact(1, key=SigningKey(bytes(32)))
    ours = make_artifact(2)
    put(ours, name="team/handbook")
    put(stranger)
    kvsync("trust", "rm", stranger.key.public)
    listed = {entry["artifact"]: entry for entry in kvsync("ls", "--json").json["artifacts"]}
    assert set(listed) == {str(ours.id), str(stranger.id)}
    assert listed[str(ours.id)]["names"] == ["team/handbook"]
    assert listed[str(ours.id)]["bytes"] == ours.manifest.tree.total_bytes
    assert (listed[str(ours.id)]["trusted_signers"], listed[str(stranger.id)]["trusted_signers"]) == (1, 0)
    rows = kvsync("ls").out.splitlines()
    assert len(rows) == 3
    assert any(ours.id.short in row and "team/handbook" in row and "yes" in row for row in rows)


def test_show_tells_geometry_fingerprints_and_who_signed(kvsync, home, put, make_artifact):
    artifact = make_artifact(3, 40, boundaries=(20,))
    put(artifact, name="doc")
    shown = kvsync("show", "doc", "--json").json
    assert shown["artifact"] == str(artifact.id)
    assert shown["tokens"]["count"] == 40
    assert shown["schedule"] == {"block_tokens": 16, "boundaries": [20, 40]}
    assert [(g["name"], g["kind"], g["window"]) for g in shown["groups"]] == [
        ("full", "full", None),
        ("sliding", "sliding", 24),
    ]
    assert shown["tree"] == {"root": str(artifact.manifest.tree.root), "size": artifact.manifest.tree.size}
    assert shown["compatibility"]["fields"] == {"weights": "tiny"}
    assert [(s["key"], s["trusted"]) for s in shown["signers"]] == [(str(artifact.key.public), True)]
    text = kvsync("show", artifact.id.hex[:8]).out
    assert "earlier cuts" in text
    assert "sliding" in text
    assert str(artifact.manifest.fingerprints.numerics.digest) in text


def test_show_says_when_nobody_trusted_signed(kvsync, home, put, make_artifact):
    artifact = make_artifact(4)
    put(artifact)
    kvsync("trust", "rm", artifact.key.public)
    [signer] = kvsync("show", artifact.id, "--json").json["signers"]
    assert signer["trusted"] is False
    assert artifact.key.public.key_id in signer["key"]
    assert "(unknown)" in kvsync("show", artifact.id).out


def test_verify_reads_every_chunk_and_says_which_checks_held(kvsync, home, put, make_artifact, tree_hash):
    artifact = make_artifact(5)
    put(artifact, name="doc")
    before = tree_hash(home / "store" / "chunks")
    found = kvsync("verify", "doc", "--json")
    assert found.status == 0
    assert found.json["verified"] is True
    assert found.json["chunks"] == artifact.manifest.tree.size
    assert len(found.json["checks"]) == 5
    assert kvsync("verify", "doc").out.splitlines()[-1] == f"{artifact.id} is whole"
    assert tree_hash(home / "store" / "chunks") == before


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda data: bytes([data[0] ^ 1]) + data[1:], id="first byte flipped"),
        pytest.param(lambda data: data[:-1] + bytes([data[-1] ^ 0x80]), id="last byte flipped"),
        pytest.param(lambda data: data[:-1], id="one byte short"),
        pytest.param(lambda data: data + b"\0", id="one byte long"),
        pytest.param(lambda data: b"", id="empty"),
    ],
)
def test_verify_fails_for_every_kind_of_damage(kvsync, home, put, make_artifact, change):
    artifact = make_artifact(6)
    put(artifact)
    damage(chunk_path(home, artifact, 2), change)
    found = kvsync("verify", artifact.id, "--json")
    assert (found.status, found.code) == (4, "integrity.chunk")
    leaf = artifact.manifest.check_leaves(artifact.leaves).leaves[2]
    assert found.json["error"]["fields"] == {"damaged": 1, "chunks": [str(leaf.digest)]}


def test_verify_counts_missing_chunks_to_the_end(kvsync, home, put, make_artifact):
    artifact = make_artifact(7)
    put(artifact)
    for index in (0, 1, 3):
        chunk_path(home, artifact, index).unlink()
    assert kvsync("verify", artifact.id, "--json").json["error"]["fields"]["damaged"] == 3


def test_verify_fails_without_a_trusted_signature(kvsync, home, put, make_artifact):
    artifact = make_artifact(8)
    put(artifact)
    kvsync("trust", "rm", artifact.key.public)
    assert kvsync("verify", artifact.id, "--json").code == "trust.untrusted_signer"
    assert kvsync("verify", artifact.id).status == 5


def test_a_pin_keeps_an_artifact_until_it_is_taken_away(kvsync, home, put, make_artifact):
    artifact = make_artifact(9)
    put(artifact, name="doc")
    assert kvsync("pin", "doc", "--json").json == {"artifact": str(artifact.id), "pinned": True}
    assert kvsync("rm", "doc", "--json").code == "store.pinned"
    assert kvsync("ls", "--json").json["artifacts"][0]["pinned"] is True
    assert kvsync("pin", "--rm", "doc").out == f"{artifact.id} is not pinned\n"
    kvsync("pin", "doc")
    assert kvsync("unpin", "doc", "--json").json == {"artifact": str(artifact.id), "pinned": False}
    assert kvsync("rm", "doc").status == 0


def test_rm_takes_the_names_along_and_gc_the_chunks(kvsync, home, put, make_artifact):
    artifact, other = make_artifact(10), make_artifact(11)
    put(artifact, name="doc")
    put(other, name="other")
    assert kvsync("rm", "doc", "--json").json == {"artifact": str(artifact.id), "names": ["doc"]}
    assert kvsync("show", "doc", "--json").code == "store.unknown_name"
    dry = kvsync("gc", "--dry-run", "--json").json
    assert dry["dry_run"] is True
    assert dry["chunks"] == artifact.manifest.tree.size
    assert chunk_path(home, artifact, 0).exists()
    assert "nothing was changed" in kvsync("gc", "--dry-run").err
    assert kvsync("gc", "--json").json["bytes"] == artifact.manifest.tree.total_bytes
    assert not chunk_path(home, artifact, 0).exists()
    assert kvsync("verify", "other").status == 0
    assert kvsync("gc", "--json").json["chunks"] == 0


def test_rm_forgets_names_that_lead_nowhere_or_are_expired(kvsync, home, make_artifact):
    artifact = make_artifact(13)
    with Store.open(home / "store", StoreLimits(free_floor_bytes=0)) as store:
        for name, expires in (("gone", None), ("expired", 1_600_000_000)):
            ref = Ref(name, artifact.id if expires is None else make_artifact(14).id, 1, expires)
            store.set_ref(ref, ref.seal(artifact.key), artifact.key.public)
    for name in ("gone", "expired"):
        assert kvsync("rm", name, "--json").json["names"] == [name]
        assert kvsync("rm", name, "--json").code == "store.unknown_name"
    assert kvsync("rm", str(artifact.id), "--json").code == "store.unknown_artifact"


def test_fsck_is_clean_on_a_sound_store(kvsync, home, put, make_artifact):
    put(make_artifact(12))
    checked = kvsync("fsck", "--json")
    assert checked.status == 0
    assert (checked.json["clean"], checked.json["sound"], checked.json["findings"]) == (True, True, [])
    assert kvsync("fsck").out.startswith("clean: 1 artifact, ")


def test_fsck_names_what_is_bad_and_who_needs_it(kvsync, home, put, make_artifact):
    artifact = make_artifact(13)
    put(artifact)
    path = chunk_path(home, artifact, 1)
    damage(path)
    checked = kvsync("fsck", "--json")
    assert checked.status == 4
    assert checked.json["sound"] is False
    assert any(path.name in f["name"] and f["artifacts"] == [str(artifact.id)] for f in checked.json["findings"])
    assert not path.exists()
    again = kvsync("fsck")
    assert again.status == 4
    assert "hint: kvsync fsck --repair --from PEER" in again.err
