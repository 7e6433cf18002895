"""The rules of this host, each asked before anything large moves, each with a verdict in the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from kvsync.errors import PolicyError
from kvsync.keys import TrustList
from kvsync.store import Store
from kvsync.sync.report import Verdict
from kvsync_protocol import manifest as manifest_format
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import CodedError, IntegrityError, TrustError
from kvsync_protocol.fingerprint import Fingerprints
from kvsync_protocol.manifest import Manifest
from kvsync_protocol.ref import Ref
from kvsync_protocol.signing import PublicKey


class Policies:
    """Collects verdicts. A refusal is raised, or in a dry run only noted where the next rule can still be asked."""

    def __init__(self, *, dry_run: bool) -> None:
        self._dry_run = dry_run
        self._verdicts: list[Verdict] = []

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return tuple(self._verdicts)

    def allow(self, policy: str, detail: str) -> None:
        self._verdicts.append(Verdict(policy, True, detail))

    def refuse(self, policy: str, error: CodedError) -> None:
        """Raises `error`, except in a dry run."""
        self._verdicts.append(Verdict(policy, False, error.message, error.code))
        if not self._dry_run:
            raise error

    def ask(self, policy: str, question: Callable[[], str]) -> None:
        """Note the detail of an answer. Raises the PolicyError that `question` raises, except in a dry run."""
        try:
            detail = question()
        except PolicyError as error:
            self.refuse(policy, error)
        else:
            self.allow(policy, detail)

    def signer(self, envelope: Envelope, keys: Collection[PublicKey], wanted: ArtifactId) -> Manifest:
        """The manifest, once a trusted signature stands under these very bytes and they are what was asked for.

        Raises, in a dry run too, because nothing further can be asked of bytes that nobody vouches for:
            TrustError: `trust.untrusted_signer`, `trust.payload_type`.
            IntegrityError: `integrity.artifact`.
            MalformedError, VersionError: as `Manifest.parse`.
        """
        verified = envelope.verify(manifest_format.PAYLOAD_TYPE, keys)
        manifest = Manifest.parse(verified)
        check_wanted(manifest, wanted)
        self.allow("signer", f"signed by {', '.join(key.key_id for key in verified.signers)}")
        return manifest

    def ref(self, envelope: Envelope, trust: TrustList, name: str, store: Store) -> Ref:
        """What a name stands for; expired, outdated and strangers' ones are refused.

        Raises:
            TrustError: `trust.untrusted_signer`, `trust.payload_type`, `trust.rollback`, `trust.expired`,
                `trust.name`, `trust.ref_name`, `trust.ref_owner`.
        """
        ref, signers = trust.judge_ref(envelope)
        check_named(ref, name)
        try:
            ref.check_fresh(int(time.time()))
            store.check_ref(ref, signers, trust.owners(name, signers))
        except TrustError as error:
            self.refuse("name", error)
        else:
            self.allow("name", f"sequence {ref.sequence} of {', '.join(key.key_id for key in signers)}")
        return ref

    def size(self, size: int, limit: int) -> None:
        """Of what is asked for, in bytes. Raises PolicyError `policy.size`."""
        if size <= limit:
            self.allow("size", f"{size} bytes")
            return
        error = PolicyError(
            "policy.size",
            f"{size} bytes are more than the {limit} allowed here",
            hint="raise max_artifact_bytes",
        )
        self.refuse("size", error)

    def model(self, ours: Fingerprints | None, manifest: Manifest, accept: str) -> None:
        """Compare fingerprints, where there is a model here to compare with.

        Raises:
            MismatchError: `mismatch.compatibility`, `mismatch.numerics`, `mismatch.canary`, naming the fields.
        """
        if ours is None:
            self.allow("fingerprints", "not compared: carried for others, no model was named")
            return
        try:
            tolerated = ours.check(manifest.fingerprints, accept=accept)
        except CodedError as error:
            self.refuse("fingerprints", error)
            return
        names = ", ".join(difference.field for difference in tolerated)
        self.allow("fingerprints", f"equal canary; {names} differ" if tolerated else "equal")


def check_wanted(manifest: Manifest, wanted: ArtifactId) -> None:
    """Sound as it may be, it has to be what was asked for. Raises IntegrityError `integrity.artifact`."""
    if manifest.artifact != wanted:
        raise IntegrityError(
            "integrity.artifact", "the peer sent another artifact than the one asked for", artifact=wanted
        )


def check_named(ref: Ref, name: str) -> None:
    """The same of a name. Raises TrustError `trust.ref_name`."""
    if ref.name != name:
        raise TrustError("trust.ref_name", f"the peer answered with the name {ref.name!r}")
