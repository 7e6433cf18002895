"""How keys stand right now: which keys count in place of a listed one, and which count for nothing.

    listed key ── successor statement ──► next key ── … ──► newest key
       counts until the overlap ends         likewise         counts
    a revoked key never counts

Computed from the lists and statements on disk, so that there is nothing to apply and nothing to lose half-way.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvsync.config import Home
from kvsync.keys.signers import Signer, load_signers
from kvsync.keys.statements import Held, Statements
from kvsync_protocol.signing import PublicKey
from kvsync_protocol.successor import SIGNER, Successor


@dataclass(frozen=True, slots=True)
class Standing:
    """`successors` by kind and old key; `now` in Unix seconds."""

    successors: Mapping[tuple[str, PublicKey], Successor]
    revoked: frozenset[PublicKey]
    now: int

    def chain(self, kind: str, key: PublicKey) -> tuple[PublicKey, ...]:
        """`key` and all that follow it, whether or not they count."""
        found = [key]
        while (step := self.successors.get((kind, found[-1]))) is not None and step.new not in found:
            found.append(step.new)
        return tuple(found)

    def current(self, kind: str, key: PublicKey) -> tuple[PublicKey, ...]:
        """The keys that count where `key` is listed, oldest first."""
        return tuple(k for k in self.chain(kind, key) if self._in_time(kind, k) and k not in self.revoked)

    def before(self, kind: str, key: PublicKey) -> tuple[PublicKey, ...]:
        """The keys that `key` follows and that still count, newest first."""
        return tuple(k for k in self.follows(kind, key) if self._in_time(kind, k) and k not in self.revoked)

    def follows(self, kind: str, key: PublicKey) -> tuple[PublicKey, ...]:
        """All the keys that `key` follows, newest first."""
        found = [key]
        steps = {(step.kind, step.new): step for step in self.successors.values()}
        while (step := steps.get((kind, found[-1]))) is not None and step.old not in found:
            found.append(step.old)
        return tuple(found[1:])

    def _in_time(self, kind: str, key: PublicKey) -> bool:
        step = self.successors.get((kind, key))
        return step is None or self.now <= step.until


def standing(home: Home, now: float | None = None) -> Standing:
    """Raises StoreError `trust.damaged`, `statements.damaged`."""
    seconds = int(time.time() if now is None else now)
    return standing_of(Statements(home).held(), load_signers(home.trust_file), seconds)


def standing_of(held: Held, signers: Iterable[Signer], now: int) -> Standing:
    """The same of what is at hand."""
    successors = {(s.kind, s.old): s for s, _ in held.successors}
    free = Standing(successors, frozenset(), now)
    trusted = authorities(held, signers, free)
    revoked = frozenset(
        key
        for found, _ in held.revocations
        for key in found.keys
        if found.authority in trusted or found.authority == key
    )
    return Standing(successors, revoked, now)


def authorities(held: Held, signers: Iterable[Signer], now: Standing) -> frozenset[PublicKey]:
    """Who revokes for this node: those it lists as authorities, with the keys that follow them, and itself."""
    listed = (key for s in signers if s.authority for key in now.chain(SIGNER, s.key))
    return frozenset({*held.own, *listed})
