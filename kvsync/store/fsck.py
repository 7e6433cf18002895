"""fsck: every byte of the store against its digest, bad files set aside, bad chunks fetched again.

    chunk bytes ──► bad: moved to quarantine/     artifact files ──► bad: moved to quarantine/
         └─► what artifacts lack ──► RepairSource ──► verified, stored
    index ──► at odds with the files: rebuilt

What a killed process leaves is no finding: unpublished writes, drafts and counts that lag behind are
part of normal life, and the next open or gc deals with them. Knows no peer: a repair brings its source.
"""

from __future__ import annotations

import logging
import secrets
import sqlite3
from dataclasses import dataclass, replace
from typing import Final, Protocol

from kvsync.errors import KvsyncError, NotFoundError, StoreError
from kvsync.progress import Progress
from kvsync.store.artifacts import is_damage
from kvsync.store.folder import Folder
from kvsync.store.hashing import bad_chunks
from kvsync.store.index import Snapshot, add_chunks, snapshot
from kvsync.store.inspection import stray_files
from kvsync.store.locks import DraftLock
from kvsync.store.parts import Parts
from kvsync.store.quarantine import set_aside_chunks
from kvsync.store.reconcile import rebuild, reconcile
from kvsync.store.records import artifact_ids, remove_artifact, set_meta_bytes
from kvsync.store.stored import ATTESTATIONS
from kvsync_protocol.digest import ArtifactId, Digest, sha256
from kvsync_protocol.errors import CodedError, ProtocolError
from kvsync_protocol.leaves import Leaf

_log = logging.getLogger(__name__)


class RepairSource(Protocol):
    """Where fsck gets a chunk again, for example the peers that have the artifact."""

    def fetch(self, artifact: ArtifactId, index: int, leaf: Leaf) -> bytes:
        """The bytes of a leaf, which fsck checks. Any CodedError means it cannot be had here."""
        ...


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. Codes: `integrity.chunk`, `store.missing_chunk`, `store.symlink`,
    `store.foreign`, `store.lax_mode`, `store.ref_damaged`, `store.index_stale`, and for artifact files
    those of the parsers (`integrity.*`, `json.*`, `manifest.*`, …)."""

    code: str
    name: str
    """A path relative to the store, or a digest."""
    detail: str
    artifacts: tuple[ArtifactId, ...] = ()
    """Who needs it."""
    repaired: bool = False
    """Nothing is left to do about it."""


@dataclass(frozen=True, slots=True)
class FsckReport:
    """`clean` when nothing was wrong, `sound` when nothing is wrong any more."""

    chunks: int
    bytes: int
    artifacts: int
    findings: tuple[Finding, ...]

    @property
    def clean(self) -> bool:
        return not self.findings

    @property
    def sound(self) -> bool:
        return all(finding.repaired for finding in self.findings)


def check_store(parts: Parts, repair: RepairSource | None, progress: Progress) -> FsckReport:
    """Raises as `Store.fsck`; what is wrong with the store's content is reported, not raised."""
    findings = [Finding(s.code, s.path, s.detail, repaired=s.handled) for s in stray_files(parts)]
    present = parts.chunks.scan_all()
    bad = set_aside_chunks(parts, bad_chunks(parts.chunks, present, progress))
    lacking, damaged, count = _check_artifacts(parts)
    findings += damaged
    findings += _chunk_findings(parts, bad, lacking, repair, progress)
    findings += _check_refs(parts)
    findings += _check_evidence(parts)
    findings += _check_index(parts)
    for finding in findings:
        _log.warning("%s: %s: %s%s", finding.code, finding.name, finding.detail, " (repaired)" * finding.repaired)
    return FsckReport(len(present), sum(present.values()), count, tuple(findings))


@dataclass(frozen=True, slots=True)
class _Need:
    """A leaf of an artifact whose chunk is not here."""

    artifact: ArtifactId
    index: int
    leaf: Leaf


def _check_artifacts(parts: Parts) -> tuple[dict[Digest, list[_Need]], list[Finding], int]:
    """What sound artifacts lack, findings for the others, and how many there are."""
    lacking: dict[Digest, list[_Need]] = {}
    findings, ids = [], parts.files.ids()
    for artifact in ids:
        try:
            stored, table, _tokens = parts.files.verify(artifact)
        except NotFoundError:
            continue  # removed meanwhile
        except (KvsyncError, ProtocolError) as error:
            if not is_damage(error):
                raise
            findings.append(_set_aside_artifact(parts, artifact, error))
            continue
        for index in parts.lacking(stored, table):
            leaf = table.leaves[index]
            lacking.setdefault(leaf.digest, []).append(_Need(artifact, index, leaf))
    return lacking, findings, len(ids)


def _set_aside_artifact(parts: Parts, artifact: ArtifactId, error: CodedError) -> Finding:
    """Move a damaged artifact to quarantine; its chunks stay until gc, so pulling it again is cheap."""
    with parts.index.writing() as db:
        if parts.files.has(artifact):
            parts.files.move_to(parts.folder("quarantine"), artifact, f"{artifact.hex}.{secrets.token_hex(4)}")
        remove_artifact(db, artifact)
    return Finding(error.code, f"artifacts/{artifact.hex}", f"{error.message}; set aside, pull it again", (artifact,))


def _chunk_findings(
    parts: Parts,
    bad: dict[Digest, str],
    lacking: dict[Digest, list[_Need]],
    repair: RepairSource | None,
    progress: Progress,
) -> list[Finding]:
    findings = []
    for digest in sorted(bad.keys() | lacking.keys()):
        needs = lacking.get(digest, [])
        finding = Finding(
            "integrity.chunk" if digest in bad else "store.missing_chunk",
            str(digest),
            bad.get(digest, "the chunk file is missing"),
            tuple(dict.fromkeys(need.artifact for need in needs)),
            repaired=not needs,  # nobody lacks it; a draft fetches it again by itself
        )
        if needs and repair is not None:
            finding = _repair(parts, finding, needs, repair)
        findings.append(finding)
        if repair is not None:
            progress("repairing", len(findings), len(bad.keys() | lacking.keys()), "chunks")
    return findings


def _repair(parts: Parts, finding: Finding, needs: list[_Need], source: RepairSource) -> Finding:
    """Ask for the chunk on behalf of one artifact after the other until it is had."""
    said = ""
    for need in needs:
        try:
            data = source.fetch(need.artifact, need.index, need.leaf)
        except CodedError as error:
            said = f"{error.message} ({error.code})"
            continue
        if len(data) != need.leaf.size or sha256(data) != need.leaf.digest:
            said = "the source gave other bytes"
            continue
        parts.chunks.publish(need.leaf.digest, need.leaf.size, (memoryview(data),))
        parts.chunks.sync((need.leaf.digest,))
        with parts.index.writing() as db:
            add_chunks(db, {need.leaf.digest: need.leaf.size})
        return replace(finding, detail=f"{finding.detail}; fetched again", repaired=True)
    return replace(finding, detail=f"{finding.detail}; not repaired: {said}")


def _check_refs(parts: Parts) -> list[Finding]:
    findings = []
    for name in parts.refs.file_names():
        try:
            parts.refs.check_file(name)
        except StoreError as error:
            findings.append(Finding(error.code, f"refs/{name}", error.message))
    return findings


def _check_evidence(parts: Parts) -> list[Finding]:
    """Damaged attestations are set aside, since others have them; what this node alone knows stays where it is."""
    findings = []
    for artifact in parts.files.ids():
        try:
            with parts.files.open(artifact) as folder:
                findings += _check_attestations(parts, folder, artifact)
        except NotFoundError:
            continue  # removed meanwhile
    for artifact in parts.refuted.ids():
        try:
            parts.refuted.get(artifact)
        except StoreError as error:
            findings.append(Finding(error.code, f"refuted/{artifact.hex}.json", error.message, (artifact,)))
    for name in parts.divergences.names():
        try:
            parts.divergences.load(name)
        except StoreError as error:
            findings.append(Finding(error.code, f"divergences/{name}", error.message))
    return findings


def _check_attestations(parts: Parts, folder: Folder, artifact: ArtifactId) -> list[Finding]:
    findings = []
    for name in parts.attestations.names(folder):
        try:
            parts.attestations.check(folder, name, artifact)
        except (ProtocolError, StoreError) as error:
            with parts.index.writing() as db:
                new_name = f"{name}.{secrets.token_hex(4)}"
                parts.attestations.set_aside(folder, name, parts.folder("quarantine"), new_name)
                set_meta_bytes(db, artifact, parts.files.meta_bytes(artifact))
            path = f"artifacts/{artifact.hex}/{ATTESTATIONS}/{name}"
            findings.append(Finding(error.code, path, f"{error.message}; set aside", (artifact,), repaired=True))
    return findings


def _check_index(parts: Parts) -> list[Finding]:
    """Rebuild the index if it says anything else than the files do."""
    with parts.spending_reserve(), parts.index.writing() as db:
        reconcile(db, parts, thorough=True)
        _count_all_chunks(db, parts)
        _measure_all_artifacts(db, parts)
        db.execute("SAVEPOINT comparison")
        for again in (True, True, False):
            before = snapshot(db)
            rebuild(db, parts)
            differing = _differing(before, snapshot(db), parts)
            if not again or not differing or not set(differing) <= set(_OF_DRAFTS):
                break
            # Perhaps a draft's process has ended meanwhile: then this settles its row. One that is stale stays so.
            db.execute("ROLLBACK TO comparison")
            reconcile(db, parts, thorough=True)
        if differing:
            detail = f"the tables {', '.join(differing)} differed from the files; rebuilt"
            return [Finding("store.index_stale", "index.sqlite", detail, repaired=True)]
        db.execute("ROLLBACK TO comparison")
    return []


def _differing(before: Snapshot, after: Snapshot, parts: Parts) -> list[str]:
    """Tables that were at odds with the files, apart from what others were changing at that very moment.

    Chunks land and drafts come and go without this transaction; what they change in the index waits for it.
    """
    at_rest: dict[tuple[object, ...], bool] = {}

    def quiet(row: tuple[object, ...]) -> bool:
        kind, raw = name = row[:2]
        if name not in at_rest:
            lock = DraftLock.attempt(parts.folder(str(kind)), raw.hex()) if isinstance(raw, bytes) else None
            at_rest[name] = lock is not None
            if lock is not None:
                lock.release()
        return at_rest[name]

    found = {name for name, rows in after.items() if rows != before[name]} - {"chunks", "totals", *_OF_DRAFTS}
    found |= {name for name in _OF_DRAFTS if any(quiet(row) for row in before[name] ^ after[name])}
    if not before["chunks"] <= after["chunks"]:
        found.add("chunks")
    if before["totals"] != {(sum(int(str(size)) for _, size in before["chunks"]), len(before["chunks"]))}:
        found.add("totals")
    return sorted(found)


_OF_DRAFTS: Final = ("drafts", "leases")


def _measure_all_artifacts(db: sqlite3.Connection, parts: Parts) -> None:
    """A file that found room on a full disk when its count found none, or a kill between the two, is no finding."""
    for artifact in artifact_ids(db):
        set_meta_bytes(db, artifact, parts.files.meta_bytes(artifact))


def _count_all_chunks(db: sqlite3.Connection, parts: Parts) -> None:
    """A power cut may have lost the last counts; that is no finding."""
    present = parts.chunks.scan_all()
    recorded = {Digest(raw) for (raw,) in db.execute("SELECT digest FROM chunks")}
    db.executemany("DELETE FROM chunks WHERE digest = ?", [(d.raw,) for d in recorded - present.keys()])
    add_chunks(db, present)
