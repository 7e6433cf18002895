"""Block files ⇄ chunks ⇄ tensors in memory. Bytes and offsets only; no tensors, no network."""

from kvsync.pack.reader import ArtifactReader, ReadReport
from kvsync.pack.scatter import Target
from kvsync.pack.verified import VerifiedChunks
from kvsync.pack.writer import ArtifactWriter

__all__ = ["ArtifactReader", "ArtifactWriter", "ReadReport", "Target", "VerifiedChunks"]
