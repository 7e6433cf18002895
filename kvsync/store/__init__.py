"""The content-addressed store: chunks, artifacts, drafts, refs, gc and fsck behind `Store`."""

from kvsync.store.computing import ComputeDraft
from kvsync.store.divergences import StoredDivergence
from kvsync.store.drafts import PullDraft
from kvsync.store.evidence import Evidence
from kvsync.store.fsck import Finding, FsckReport, RepairSource
from kvsync.store.garbage import GcReport
from kvsync.store.quota import StoreLimits, Usage
from kvsync.store.refs import StoredRef
from kvsync.store.resign import resign
from kvsync.store.serving import Served
from kvsync.store.store import Store
from kvsync.store.stored import StoredArtifact

__all__ = [
    "ComputeDraft",
    "Evidence",
    "Finding",
    "FsckReport",
    "GcReport",
    "PullDraft",
    "RepairSource",
    "Served",
    "Store",
    "StoreLimits",
    "StoredArtifact",
    "StoredDivergence",
    "StoredRef",
    "Usage",
    "resign",
]
