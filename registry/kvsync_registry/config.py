"""Caps and times of a registry. Knows no files: whoever embeds the registry fills this in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MINUTE_S: Final = 60
HOUR_S: Final = 60 * MINUTE_S
DAY_S: Final = 24 * HOUR_S


@dataclass(frozen=True, slots=True)
class RegistryLimits:
    """Times are seconds. A time to live outside its range is moved to the nearer end, never refused."""

    least_ttl_s: int = MINUTE_S
    most_ttl_s: int = DAY_S
    offers: int = 200_000
    """Artifacts that one provider may announce."""
    entries: int = 5_000_000
    """Index rows of all of them: one for each reader of an artifact, and one for each of its blocks and readers."""
    refs: int = 10_000
    """Names that one member may set."""
    attestations: int = 256
    """Of one artifact."""
    attestations_each: int = 16
    """Of one artifact, brought by one member: signers are made at will, members are not."""
    attestation_ttl_s: int = 30 * DAY_S
    sweep_every_s: float = MINUTE_S
    request_deadline_s: float = 20.0
    connections: int = 512
