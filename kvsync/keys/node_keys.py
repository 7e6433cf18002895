"""This node's own keys: `signer` vouches for what it computes, `peer` is its identity on the network.

    keys/signer.key, keys/peer.key            made by `init`
    keys/signer-<key id>.key, peer-<…>.key    made by a rotation; they count once the statement that one
                                              follows the other is stored, and no file is ever removed

A new signer signs at once, since both keys count during the overlap. A new peer key is presented only near the
overlap's end: until then not every peer has heard of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from kvsync.config import Home
from kvsync.errors import NotFoundError, UsageError
from kvsync.files import exclusive
from kvsync.keys.key_file import Passphrase, is_encrypted, read_key, write_key
from kvsync.keys.passphrase import Ask, find_passphrase
from kvsync.keys.standing import standing
from kvsync.keys.statements import Held, Statements
from kvsync_protocol.signing import PublicKey, SigningKey
from kvsync_protocol.successor import PEER, SIGNER, Successor

KINDS: Final = (SIGNER, PEER)
DAY_S: Final = 86_400
MAX_OVERLAP_DAYS: Final = 366
EARLY_S: Final = 7_200
"""So long before the overlap's end, or a quarter of it before if that is less, the next peer key is presented:
clocks may differ by an hour, and whoever is ahead refuses the old key first."""


@dataclass(frozen=True, slots=True)
class NodeKeys:
    """The keys in use now."""

    signer: SigningKey
    peer: SigningKey
    home: Home

    @classmethod
    def create(cls, home: Home) -> NodeKeys:
        """Write fresh keys, 0600. Existing ones are kept, so `init` may be run twice, even at once."""
        with exclusive(home.lock_file):
            for kind in KINDS:
                if not first_file(home, kind).exists():
                    write_key(first_file(home, kind), SigningKey.generate(), None)
        return cls.load(home)

    @classmethod
    def load(cls, home: Home, ask: Ask | None = None, *, now: float | None = None) -> NodeKeys:
        """`ask` is called for a passphrase that is to be had in no other way.

        Raises:
            StoreError: `home.*`, `keys.lax_mode`, `keys.damaged`, `keys.locked`, `keys.passphrase`,
                `statements.damaged`.
        """
        home.require()
        ring = KeyRing(home, ask)
        return cls(ring.active(SIGNER, now), ring.active(PEER, now), home)

    def current(self, now: float | None = None) -> NodeKeys:
        """These keys, or those to use instead by now. Raises as `load`."""
        seconds = time.time() if now is None else now
        follow = {(step.kind, step.old): step for step, _ in Statements(self.home).held().successors}
        signer, peer = follow.get((SIGNER, self.signer.public)), follow.get((PEER, self.peer.public))
        if signer is None and (peer is None or waits(self.home, peer, seconds)):
            return self
        return NodeKeys.load(self.home, now=seconds)


class KeyRing:
    """All keys that this node has or had. A passphrase is asked for once."""

    def __init__(self, home: Home, ask: Ask | None = None) -> None:
        self.home = home
        self._passphrase = _once(partial(find_passphrase, ask))
        self._read: dict[Path, SigningKey] = {}

    def first(self, kind: str) -> SigningKey:
        return self._key(first_file(self.home, kind))

    def chain(self, kind: str) -> list[SigningKey]:
        """Every key of this kind, oldest first."""
        found = [self.first(kind)]
        while (step := self._step(kind, found[-1].public)) is not None:
            found.append(self._key(key_file(self.home, kind, step.new)))
        return found

    def active(self, kind: str, now: float | None = None) -> SigningKey:
        """The key to use at this time: for a signer the newest."""
        seconds = time.time() if now is None else now
        key = self.first(kind)
        while (step := self._step(kind, key.public)) is not None:
            if kind == PEER and waits(self.home, step, seconds):
                break
            key = self._key(key_file(self.home, kind, step.new))
        return key

    def find(self, public: PublicKey) -> SigningKey | None:
        """The private key of one of this node's own public keys."""
        return next((key for kind in KINDS for key in self.chain(kind) if key.public == public), None)

    def rotate(self, kind: str, overlap_s: int, *, now: float | None = None) -> Successor:
        """Make a new key that follows the newest. What is stored last, the statement, makes it count.

        Raises:
            UsageError: `keys.overlap`; `keys.rotating` while an earlier overlap has not ended.
            StoreError: as `NodeKeys.load`, `store.full`.
        """
        if not 0 < overlap_s <= MAX_OVERLAP_DAYS * DAY_S:
            raise UsageError("keys.overlap", f"an overlap lasts up to {MAX_OVERLAP_DAYS} days")
        seconds = int(time.time() if now is None else now)
        newest = self.chain(kind)[-1]
        fresh = SigningKey.generate()
        encrypted = is_encrypted(first_file(self.home, kind))

        def add(held: Held) -> Held:
            last = next((s for s, _ in held.successors if s.kind == kind and s.new == newest.public), None)
            if any(s.old == newest.public and s.kind == kind for s, _ in held.successors):
                raise UsageError("keys.rotating", "another rotation came first", hint="kvsync keys show")
            if last is not None and seconds <= last.until:
                raise UsageError(
                    "keys.rotating", "the overlap of the last rotation has not ended", hint="kvsync keys show"
                )
            path = key_file(self.home, kind, fresh.public)
            write_key(path, fresh, self._passphrase() if encrypted else None)
            step = Successor(kind, newest.public, fresh.public, 1, seconds, seconds + overlap_s)
            return held.with_successor(step, step.seal(newest, fresh))

        held = Statements(self.home).change(add)
        return next(s for s, _ in held.successors if s.new == fresh.public)

    def encrypt(self, passphrase: bytes) -> list[Path]:
        """Encrypt every key file that is not; those that are must open with the same passphrase.

        Each file changes at once, so that a kill leaves all of them readable with this passphrase.
        """
        self._passphrase = lambda: passphrase
        return self._rewrite(passphrase, lambda path: not is_encrypted(path))

    def decrypt(self) -> list[Path]:
        """Write every encrypted key file in the clear, still mode 0600."""
        return self._rewrite(None, is_encrypted)

    def _rewrite(self, passphrase: bytes | None, wanted: Callable[[Path], bool]) -> list[Path]:
        with exclusive(self.home.lock_file):
            paths = sorted(self.home.keys_dir.glob("*.key"))
            keys = {path: self._key(path) for path in paths}  # all of them open, or nothing is changed
            changed = [path for path in paths if wanted(path)]
            for path in changed:
                write_key(path, keys[path], passphrase)
        return changed

    def _key(self, path: Path) -> SigningKey:
        if path not in self._read:
            self._read[path] = read_key(path, self._passphrase)
        return self._read[path]

    def _step(self, kind: str, old: PublicKey) -> Successor | None:
        held = Statements(self.home).held()
        step = next((s for s, _ in held.successors if (s.kind, s.old) == (kind, old)), None)
        if step is not None and not key_file(self.home, kind, step.new).exists():
            raise NotFoundError(
                "keys.missing", f"the file of key {step.new.key_id} is gone", hint="restore keys/ from a backup"
            )
        return step


def first_file(home: Home, kind: str) -> Path:
    return home.keys_dir / f"{kind}.key"


def key_file(home: Home, kind: str, key: PublicKey) -> Path:
    return home.keys_dir / f"{kind}-{key.key_id}.key"


def presented_from(step: Successor) -> float:
    """Unix time from which this node presents the next peer key."""
    return step.until - min(EARLY_S, (step.until - step.since) / 4)


def waits(home: Home, step: Successor, now: float) -> bool:
    """True while the old peer key is still the one to present; one that is revoked is presented no more."""
    return now < presented_from(step) and step.old not in standing(home, now).revoked


def _once(find: Passphrase) -> Passphrase:
    found: list[bytes] = []

    def once() -> bytes:
        if not found:
            found.append(find())
        return found[0]

    return once
