"""Trusted signers, in `trust.json`: whose signatures count here, and for which names."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kvsync.config import Home
from kvsync.errors import NotFoundError, UsageError
from kvsync.files import exclusive
from kvsync.keys.patterns import check_patterns
from kvsync.keys.signers import Signer, load_signers, save_signers
from kvsync.keys.standing import Standing, standing
from kvsync_protocol import ref as ref_format
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import TrustError
from kvsync_protocol.ref import Ref, check_name
from kvsync_protocol.signing import PublicKey
from kvsync_protocol.successor import SIGNER


class TrustList:
    """Trusted signers. The node's own signer is always among `keys`, unless it is revoked."""

    def __init__(self, home: Home, own: PublicKey) -> None:
        self.home = home
        self.own = own

    def signers(self) -> list[Signer]:
        """As listed. Raises StoreError `trust.damaged`."""
        return load_signers(self.home.trust_file)

    def keys(self, name: str | None = None) -> frozenset[PublicKey]:
        """Every key whose signatures count now; with `name`, those that may give that name.

        Raises:
            StoreError: `trust.damaged`, `statements.damaged`.
        """
        now = standing(self.home)
        own = {*now.current(SIGNER, self.own), *now.before(SIGNER, self.own)}
        listed = (s.key for s in self.signers() if name is None or s.gives(name))
        return frozenset(own.union(*(now.current(SIGNER, key) for key in listed)))

    def owners(self, name: str, signers: Iterable[PublicKey]) -> frozenset[PublicKey]:
        """The keys that hold on to `name` against a ref of `signers`: those that count for it, except the keys
        which the signers follow."""
        now = standing(self.home)
        followed = {
            old for (kind, old) in now.successors if kind == SIGNER and set(now.chain(SIGNER, old)[1:]) & set(signers)
        }
        return self.keys(name) - followed

    def judge_ref(self, envelope: Envelope) -> tuple[Ref, tuple[PublicKey, ...]]:
        """A ref and those of its signers that may give its name.

        Raises:
            TrustError: `trust.untrusted_signer`, `trust.payload_type`, `trust.name` when those who signed are
                trusted, but not with this name.
            MalformedError: as `Ref.parse`.
        """
        verified = envelope.verify(ref_format.PAYLOAD_TYPE, self.keys())
        ref = Ref.parse(verified)
        signers = tuple(sorted(self.keys(ref.name).intersection(verified.signers)))
        if not signers:
            raise TrustError(
                "trust.name",
                f"{', '.join(key.key_id for key in verified.signers)} may not give the name {ref.name!r} here",
                hint="kvsync trust add --names",
                name=ref.name,
            )
        return ref, signers

    def standing(self) -> Standing:
        return standing(self.home)

    def add(self, name: str, key: PublicKey, *, names: Collection[str] = (), authority: bool = False) -> None:
        """Trust a signer; the same name and key again replaces what was said of it.

        Raises:
            UsageError: `trust.exists` when name or key is taken by another, `trust.full`, `names.pattern`.
        """
        with exclusive(self.home.lock_file):
            self.add_locked(name, key, names=names, authority=authority)

    def add_locked(self, name: str, key: PublicKey, *, names: Collection[str] = (), authority: bool = False) -> None:
        """`add` for a caller that holds the home's lock already."""
        signer = Signer(check_name(name), key, check_patterns(names), authority)
        kept = self.check_free(name, key)
        save_signers(self.home.trust_file, [*kept, signer])

    def check_free(self, name: str, key: PublicKey) -> list[Signer]:
        """The other signers, none of whom has this name or key. Raises UsageError `trust.exists`."""
        kept = [s for s in self.signers() if (s.name, s.key) != (name, key)]
        if any(s.name == name or s.key == key for s in kept):
            raise UsageError("trust.exists", f"{name!r} or its key is already trusted", hint="kvsync trust ls")
        return kept

    def remove(self, name_or_key: str) -> Signer:
        """Raises NotFoundError `trust.unknown`."""
        with exclusive(self.home.lock_file):
            signers, now = self.signers(), standing(self.home)
            found = next((s for s in signers if name_or_key in (s.name, *map(str, now.chain(SIGNER, s.key)))), None)
            if found is None:
                raise NotFoundError(
                    "trust.unknown", f"{name_or_key!r} is not a trusted signer", hint="kvsync trust ls"
                )
            save_signers(self.home.trust_file, [s for s in signers if s != found])
        return found
