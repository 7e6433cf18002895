"""What was packed on one host and taken on another is the same; what must not be taken is not."""

from __future__ import annotations

import io
import subprocess
import tarfile
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvsync.bundle import export_bundle, import_bundle
from kvsync.errors import NotFoundError, PolicyError, StoreError, UsageError
from kvsync.store import StoreLimits
from kvsync_protocol.attestation import Attestation
from kvsync_protocol.errors import IntegrityError, MismatchError, TrustError
from kvsync_protocol.signing import SigningKey
from tests.conftest import SIGNER, build_artifact, fingerprints

STRANGER = SigningKey(b"\x07" * 32)
AUDITOR = SigningKey(b"\x08" * 32)


def audit(artifact, key=AUDITOR, blocks=range(3)):
    numerics = artifact.manifest.fingerprints.numerics.digest
    return Attestation.of(artifact.id, numerics, blocks, logits=True, differs=None).seal(key)


@pytest.mark.parametrize("encoding", ["identity", "zstd", "planes", "auto"])
def test_what_is_packed_on_one_host_is_whole_on_the_other(sender, taker, encoding):
    artifact = build_artifact(1, 40, heads=4, dim=64)
    sender.keep(artifact)
    sender.give("team/handbook", artifact.id)
    report = taker.take(sender.pack(artifact.id, encoding=encoding))
    assert taker.holds(artifact)
    assert [(ref.name, ref.artifact) for ref in taker.store.refs()] == [("team/handbook", artifact.id)]
    assert (report.exporter, report.bytes_moved) == ("sender", artifact.manifest.tree.total_bytes)
    assert taker.store.fsck().clean


def test_any_tar_program_lists_and_unpacks_a_bundle(sender, tmp_path):
    artifact = build_artifact(1)
    sender.keep(artifact)
    path = tmp_path / "bundle.tar"
    data = sender.pack(artifact.id, path=path)
    listed = subprocess.run(["tar", "-tf", path], capture_output=True, text=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(data)) as found:
        assert found.getnames() == listed.stdout.split()
        assert all(member.isfile() and member.mode == 0o600 for member in found)
        member = found.extractfile("artifacts/0/tokens")
        assert member is not None
        assert member.read() == artifact.tokens
    assert listed.stderr == ""
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_chunk_that_two_artifacts_share_is_packed_once(sender, taker):
    short = build_artifact(1, 40, head=tuple(range(32)))
    long = build_artifact(2, 80, head=tuple(range(32)))
    shared = set(short.chunks) & set(long.chunks)
    assert shared
    for artifact in (short, long):
        sender.keep(artifact)
    data = sender.pack(short.id, long.id)
    with tarfile.open(fileobj=io.BytesIO(data)) as found:
        chunks = [name for name in found.getnames() if name.startswith("chunks/")]
    assert len(chunks) == len(set(chunks)) == len(set(short.chunks) | set(long.chunks))
    report = taker.take(data)
    assert taker.holds(short)
    assert taker.holds(long)
    assert report.chunks_moved == len(chunks)


def test_a_part_of_an_artifact_is_packed_as_that_part_and_adds_up(sender, taker):
    artifact = build_artifact(1, 100)
    with sender.store.pull_draft(*artifact.parts, positions=[32]) as draft:
        for index in draft.missing():
            draft.put(index, artifact.chunks[index])
        draft.publish()
    report = taker.take(sender.pack(artifact.id))
    assert report.artifacts[0].positions == (32,)
    stored = taker.store.artifact(artifact.id)
    assert stored.extent is not None
    assert stored.extent.positions == (32,)
    sender.keep(artifact)
    assert taker.take(sender.pack(artifact.id)).artifacts[0].bytes_here == stored.bytes
    assert taker.holds(artifact)


def test_findings_of_trusted_auditors_travel_and_those_of_strangers_stay_out(sender, taker):
    artifact = build_artifact(1)
    sender.keep(artifact)
    for key in (AUDITOR, STRANGER):
        sender.store.add_attestation(audit(artifact, key), {key.public})
    taker.trust.add("auditor", AUDITOR.public)
    taker.take(sender.pack(artifact.id))
    [kept] = taker.store.attestations(artifact.id)
    assert kept.signers({AUDITOR.public, STRANGER.public}) == (AUDITOR.public,)


def test_an_import_that_was_killed_goes_on_with_what_is_missing(sender, taker):
    artifact = build_artifact(1, 100)
    sender.keep(artifact)
    data = sender.pack(artifact.id)
    cut = data.index(b"chunks/" + artifact.manifest.check_leaves(artifact.leaves).leaves[3].digest.hex.encode())
    with pytest.raises(Exception, match="ends too early"):
        taker.take(data[:cut])
    assert taker.empty
    assert taker.take(data).chunks_moved == len(artifact.chunks) - 3
    assert taker.holds(artifact)
    assert taker.take(data).chunks_moved == 0
    assert taker.store.fsck().clean


def test_a_dry_run_says_what_would_be_taken_and_changes_nothing(sender, taker):
    artifact = build_artifact(1)
    sender.keep(artifact)
    report = taker.take(sender.pack(artifact.id), dry_run=True, settings={"max_artifact_bytes": 1})
    assert report.bytes_moved == artifact.manifest.tree.total_bytes
    assert [verdict.code for verdict in report.refusals] == ["policy.size"]
    assert taker.empty
    assert taker.store.usage().drafts == 0


def test_a_dry_run_of_an_export_writes_no_file(sender, tmp_path):
    artifact = build_artifact(1)
    sender.keep(artifact)
    path = tmp_path / "bundle"
    report = export_bundle(sender.store, [artifact.id], path, keys=sender.keys, dry_run=True)
    assert (report.bytes_moved, report.bytes_file) == (artifact.manifest.tree.total_bytes, 0)
    assert not path.exists()


def test_what_strangers_have_packed_is_refused_before_anything_of_it_is_read(sender, make_site):
    artifact = build_artifact(1)
    sender.keep(artifact)
    data = sender.pack(artifact.id)
    alone = make_site("alone")
    with pytest.raises(TrustError) as refused:
        alone.take(data)
    assert refused.value.code == "bundle.exporter"
    alone.trust.add("sender", sender.keys.signer.public)
    alone.take(data)
    assert alone.holds(artifact)


def test_an_artifact_whose_signer_nobody_trusts_is_refused_with_all_of_its_bundle(sender, taker):
    good, foreign = build_artifact(1), build_artifact(2, key=STRANGER)
    for artifact in (good, foreign):
        sender.keep(artifact)
    with pytest.raises(TrustError) as refused:
        taker.take(sender.pack(good.id, foreign.id))
    assert refused.value.code == "trust.untrusted_signer"
    assert taker.empty
    assert not any((taker.home.store_dir / "chunks").iterdir())


REFUSALS = {
    "too large": (PolicyError, "policy.size", {"settings": {"max_artifact_bytes": 1000}}),
    "too few signers": (PolicyError, "policy.signers", {"settings": {"require_signers": 2}}),
    "audited by nobody": (PolicyError, "policy.audited", {"settings": {"require_audited_percent": 50}}),
    "of another model": (MismatchError, "mismatch.compatibility", {"fingerprints": fingerprints("other")}),
    "of other arithmetic": (MismatchError, "mismatch.canary", {"fingerprints": fingerprints(canary="c1")}),
}


@pytest.mark.parametrize("case", REFUSALS, ids=str)
def test_the_rules_for_pulls_hold_for_bundles(sender, taker, case):
    kind, code, options = REFUSALS[case]
    artifact = build_artifact(1)
    sender.keep(artifact)
    with pytest.raises(kind) as refused:
        taker.take(sender.pack(artifact.id), **options)
    assert refused.value.code == code
    assert taker.empty


def test_audits_in_the_bundle_count_for_the_rule_that_asks_for_them(sender, taker):
    artifact = build_artifact(1)
    sender.keep(artifact)
    sender.store.add_attestation(audit(artifact), {AUDITOR.public})
    taker.trust.add("auditor", AUDITOR.public)
    taker.take(sender.pack(artifact.id), settings={"require_audited_percent": 100})
    assert taker.holds(artifact)


def test_an_older_name_is_refused_unless_names_are_left_out(sender, taker):
    old, new = build_artifact(1), build_artifact(2)
    for artifact in (old, new):
        sender.keep(artifact)
    sender.give("team/handbook", old.id, 1)
    before = sender.pack(old.id)
    sender.give("team/handbook", new.id, 2)
    taker.take(sender.pack(new.id))
    with pytest.raises(TrustError) as refused:
        taker.take(before)
    assert refused.value.code == "trust.rollback"
    assert not taker.holds(old)
    taker.take(before, names=False)
    assert taker.holds(old)
    assert [ref.artifact for ref in taker.store.refs()] == [new.id]


def test_names_that_have_expired_are_not_packed(sender, taker):
    artifact = build_artifact(1)
    sender.keep(artifact)
    sender.give("team/handbook", artifact.id, 1, expires=1)
    taker.take(sender.pack(artifact.id))
    assert taker.holds(artifact)
    assert taker.store.refs() == []


def test_a_quota_refuses_the_bundle_and_nothing_is_seen_of_it(sender, make_site):
    artifacts = [build_artifact(seed, 40, heads=4, dim=64) for seed in range(3)]
    for artifact in artifacts:
        sender.keep(artifact)
    quota = 2 * artifacts[0].manifest.tree.total_bytes
    small = make_site("small", limits=StoreLimits(quota_bytes=quota, free_floor_bytes=0))
    small.know(sender)
    with pytest.raises(StoreError) as refused:
        small.take(sender.pack(*(artifact.id for artifact in artifacts)))
    assert refused.value.code == "store.quota"
    assert small.empty


def test_a_damaged_chunk_here_is_not_packed_and_leaves_no_file(sender, tmp_path):
    artifact = build_artifact(1)
    stored = sender.keep(artifact)
    digest = stored.leaves().leaves[0].digest
    path = sender.home.store_dir / "chunks" / digest.hex[:2] / digest.hex
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError) as refused:
        sender.pack(artifact.id, path=tmp_path / "bundle")
    assert refused.value.code == "integrity.chunk"
    assert [each.name for each in tmp_path.iterdir()] == ["sender"]


def test_a_bundle_replaces_no_file_and_holds_only_what_is_here(sender, tmp_path):
    artifact = build_artifact(1)
    sender.keep(artifact)
    path = tmp_path / "bundle"
    path.write_text("mine")
    with pytest.raises(UsageError) as refused:
        sender.pack(artifact.id, path=path)
    assert (refused.value.code, path.read_text()) == ("bundle.exists", "mine")
    with pytest.raises(NotFoundError):
        sender.pack(build_artifact(2).id)
    with pytest.raises(UsageError) as refused:
        sender.pack()
    assert refused.value.code == "bundle.nothing"


def test_what_an_audit_here_has_refuted_is_not_taken(sender, taker):
    artifact = build_artifact(1)
    sender.keep(artifact)
    finding = Attestation.of(
        artifact.id, artifact.manifest.fingerprints.numerics.digest, [0], logits=False, differs=None
    )
    taker.store.evidence.refute(finding.seal(SIGNER))
    with pytest.raises(PolicyError) as refused:
        taker.take(sender.pack(artifact.id))
    assert refused.value.code == "evidence.refuted"


def test_packing_and_taking_hold_one_chunk_at_a_time(sender, taker, tmp_path):
    """Whatever the size: a bundle of 40 MiB is made and taken with less than an eighth of that."""
    artifact = build_artifact(1, 256 * 10, block_tokens=256, heads=8, dim=128)
    sender.keep(artifact)
    total, identity = artifact.manifest.tree.total_bytes, artifact.id
    del artifact
    path = tmp_path / "large"
    tracemalloc.start()
    try:
        export_bundle(sender.store, [identity], path, keys=sender.keys)
        with path.open("rb", buffering=0) as file:
            import_bundle(taker.store, taker.trust, file, name="large", keys=taker.keys, settings=taker.settings)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total >= 40 << 20
    assert most < total / 8


def test_two_imports_of_overlapping_bundles_at_once_end_and_take_each_chunk_once(sender, taker):
    """Each wants several artifacts for itself: nobody waits in a circle."""
    made = [build_artifact(seed, 60) for seed in range(4)]
    for artifact in made:
        sender.keep(artifact)
    bundles = [sender.pack(*(a.id for a in made[:3])), sender.pack(*(a.id for a in made[1:]))] * 2
    with ThreadPoolExecutor(4) as pool:
        reports = list(pool.map(taker.take, bundles))
    assert all(map(taker.holds, made))
    assert sum(report.chunks_moved for report in reports) == sum(len(artifact.chunks) for artifact in made)
    assert taker.store.fsck().clean
