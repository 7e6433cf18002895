"""What an export or an import did, or would do, as plain values."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from kvsync.sync.report import Verdict
from kvsync_protocol.digest import ArtifactId


@dataclass(frozen=True, slots=True)
class Moved:
    """One artifact of a bundle. `positions` are those of the part that the bundle holds, None for all of it.

    `chunks` and `bytes_total` are of that part; `bytes_here` is what an importing store had before.
    """

    artifact: ArtifactId
    names: tuple[str, ...]
    positions: tuple[int, ...] | None
    chunks: int
    bytes_total: int
    bytes_here: int = 0
    verdicts: tuple[Verdict, ...] = ()

    def as_dict(self) -> dict[str, object]:
        found: dict[str, object] = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        verdicts = [dataclasses.asdict(verdict) for verdict in self.verdicts]
        positions = None if self.positions is None else list(self.positions)
        return {
            **found,
            "artifact": str(self.artifact),
            "names": list(self.names),
            "positions": positions,
            "verdicts": verdicts,
        }


@dataclass(frozen=True, slots=True)
class BundleReport:
    """`chunks_moved` and `bytes_moved` count distinct chunks and their uncompressed bytes, `bytes_file` the file's.

    `exporter` is who packed it: a key id, or the name under which the key is known here.
    """

    file: str
    exporter: str
    dry_run: bool
    artifacts: tuple[Moved, ...]
    chunks_moved: int
    bytes_moved: int
    bytes_file: int
    seconds: float

    @property
    def mb_per_s(self) -> float:
        """Of uncompressed chunks, in 10^6 bytes."""
        return self.bytes_moved / 1e6 / self.seconds if self.seconds else 0.0

    @property
    def refusals(self) -> tuple[Verdict, ...]:
        """What a dry run found against it."""
        return tuple(v for moved in self.artifacts for v in moved.verdicts if not v.allowed)

    def as_dict(self) -> dict[str, object]:
        """Plain JSON values."""
        found: dict[str, object] = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        artifacts = [moved.as_dict() for moved in self.artifacts]
        return {**found, "artifacts": artifacts, "mb_per_s": self.mb_per_s, "allowed": not self.refusals}
