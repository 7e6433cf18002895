"""What a transfer did, or would do, as plain values."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from kvsync.sync.share import Share
from kvsync_protocol.digest import ArtifactId


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one policy says. `code` is the error's when it refuses, empty when it allows."""

    policy: str
    allowed: bool
    detail: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """One peer's part in a transfer. `ended` is the code of what it was given up for, empty otherwise."""

    peer: str
    chunks: int
    bytes: int
    wrong: int
    ended: str = ""

    @classmethod
    def of(cls, share: Share) -> Source:
        ended = "" if share.ended is None else share.ended.code
        return cls(share.name, share.chunks, share.bytes, share.wrong, ended)


@dataclass(frozen=True, slots=True)
class Report:
    """Numbers of one transfer; in a dry run, of the transfer that would be.

    `chunks_moved` and `bytes_moved` count chunks and their uncompressed bytes, `bytes_wire` what went over the
    network for them, `bytes_unencrypted` the part of it that anybody on the way could read, `bytes_here` what the
    receiving side had already. `seconds` is the whole transfer, `moving_seconds` the part in which chunks moved, to
    which `mb_per_s` (10^6) refers.
    """

    peer: str
    artifact: ArtifactId | None
    name: str | None
    dry_run: bool
    chunks: int = 0
    chunks_moved: int = 0
    bytes_total: int = 0
    bytes_moved: int = 0
    bytes_wire: int = 0
    bytes_unencrypted: int = 0
    bytes_here: int = 0
    resent: int = 0
    streams: int = 0
    seconds: float = 0.0
    moving_seconds: float = 0.0
    verdicts: tuple[Verdict, ...] = ()
    sources: tuple[Source, ...] = ()

    @property
    def allowed(self) -> bool:
        """False when a dry run found a policy that refuses."""
        return all(verdict.allowed for verdict in self.verdicts)

    @property
    def mb_per_s(self) -> float:
        return self.bytes_moved / 1e6 / self.moving_seconds if self.moving_seconds else 0.0

    def as_dict(self) -> dict[str, object]:
        """Plain JSON values."""
        found: dict[str, object] = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        found["artifact"] = str(self.artifact) if self.artifact is not None else None
        found["verdicts"] = [dataclasses.asdict(verdict) for verdict in self.verdicts]
        found["sources"] = [dataclasses.asdict(source) for source in self.sources]
        return {**found, "mb_per_s": self.mb_per_s, "allowed": self.allowed}


@dataclass(frozen=True, slots=True)
class PullReport(Report):
    """`resent` counts chunks fetched again because wrong bytes came.

    With `position` the pull was for a graft there, and `chunks` and `bytes_total` are of that part of the artifact.
    """

    position: int | None = None


@dataclass(frozen=True, slots=True)
class PushReport(Report):
    """`resent` counts chunks sent again because wrong bytes arrived."""
