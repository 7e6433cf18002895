"""What auditors have signed about artifacts, and what this node's own audits have refuted.

    artifacts/<64 hex>/attestations/<digest of the payload>.json   envelopes, gone with the artifact
    refuted/<64 hex of the artifact>.json                          an own audit that found other bytes: never gone

Who counts is the caller's question: only signatures of the keys it names are kept. The number is capped, and
an attestation that says no more than another of the same signers makes room.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from kvsync.errors import NotFoundError, StoreError
from kvsync.store.artifacts import ATTESTATIONS, ArtifactFiles
from kvsync.store.folder import Folder
from kvsync.store.temp import TempFiles
from kvsync_protocol import attestation as format_
from kvsync_protocol.attestation import Attestation, Signed
from kvsync_protocol.digest import ArtifactId, Digest, sha256
from kvsync_protocol.envelope import Envelope, VerifiedPayload
from kvsync_protocol.errors import ProtocolError
from kvsync_protocol.limits import MAX_ATTESTATIONS, MAX_ENVELOPE_BYTES
from kvsync_protocol.manifest import Manifest
from kvsync_protocol.signing import PublicKey

PER_SIGNER = 8
"""Attestations kept of one signer about one artifact."""
_END = ".json"


@dataclass(frozen=True, slots=True)
class Refutation:
    """This node has computed a leaf of an artifact itself and found other bytes."""

    attestation: Attestation
    envelope: Envelope


class AttestationFiles:
    """Attestations beside their artifacts. Holds no state; writes happen under the index's transaction."""

    def __init__(self, files: ArtifactFiles, temp: TempFiles) -> None:
        self._files = files
        self._temp = temp

    def envelopes(self, artifact: ArtifactId) -> list[Envelope]:
        """All that are here; damaged ones are left to fsck. Raises NotFoundError `store.unknown_artifact`."""
        found = []
        with self._files.open(artifact) as parent:
            for name in self.names(parent):
                with parent.child(ATTESTATIONS) as folder:
                    try:
                        found.append(_load(folder, name))
                    except (ProtocolError, StoreError, NotFoundError):
                        continue
        return found

    def signed(self, manifest: Manifest, keys: Collection[PublicKey]) -> list[Signed]:
        """Those by `keys` that are really about this artifact. Raises as `envelopes`."""
        return judged(self.envelopes(manifest.artifact), keys, manifest)

    def add(self, envelope: Envelope, manifest: Manifest, keys: Collection[PublicKey]) -> bool:
        """Keep an attestation with its signatures by `keys`; False when it adds nothing, or too many are here.

        Raises:
            NotFoundError: `store.unknown_artifact`.
            ProtocolError: as `kvsync_protocol.attestation.read`.
        """
        new = format_.read(envelope, keys, manifest)
        name = sha256(envelope.payload).hex + _END
        with self._files.open(manifest.artifact) as parent:
            held = {other: _judge(parent, other, keys, manifest) for other in self.names(parent)}
            if name in held:
                return self._merge(parent, name, envelope.endorsed(keys), keys)
            if any(signed is not None and _says_all(signed, new) for signed in held.values()):
                return False
            outdone = [other for other, signed in held.items() if signed is None or _says_all(new, signed)]
            left = [signed for other, signed in held.items() if other not in outdone and signed is not None]
            if len(left) >= MAX_ATTESTATIONS or any(
                sum(key in signed.signers for signed in left) >= PER_SIGNER for key in new.signers
            ):
                return False
            with parent.child(ATTESTATIONS, create=True) as folder:
                self._temp.publish(envelope.endorsed(keys).encode(), folder, name)
                for other in outdone:
                    folder.unlink(other)
                folder.sync()
            parent.sync()
        return True

    def _merge(self, parent: Folder, name: str, envelope: Envelope, keys: Collection[PublicKey]) -> bool:
        with parent.child(ATTESTATIONS) as folder:
            try:
                held = _load(folder, name)
            except (ProtocolError, StoreError):
                held = envelope  # damaged: written anew
            merged = held.merged(envelope, keys)
            if merged == held and held is not envelope:
                return False
            self._temp.publish(merged.encode(), folder, name)
            folder.sync()
        return True

    def drop(self, artifact: ArtifactId, envelope: Envelope) -> None:
        """Remove one, whoever signed it."""
        with self._files.open(artifact) as parent:
            name = sha256(envelope.payload).hex + _END
            if name in self.names(parent):
                with parent.child(ATTESTATIONS) as folder:
                    folder.unlink(name)
                    folder.sync()

    @staticmethod
    def names(parent: Folder) -> list[str]:
        """Files in the attestations folder of an artifact's folder."""
        if parent.status(ATTESTATIONS) is None:
            return []
        with parent.child(ATTESTATIONS) as folder:
            return [name for name in folder.names() if name.endswith(_END)]

    @staticmethod
    def check(parent: Folder, name: str, artifact: ArtifactId) -> None:
        """Raises ProtocolError or StoreError unless the file is an attestation of this artifact."""
        with parent.child(ATTESTATIONS) as folder:
            envelope = _load(folder, name)
        found = Attestation.parse(VerifiedPayload(envelope.payload_type, envelope.payload, ()))
        if found.artifact != artifact or name != sha256(envelope.payload).hex + _END:
            raise StoreError("store.attestation", "it is another artifact's attestation")

    @staticmethod
    def set_aside(parent: Folder, name: str, quarantine: Folder, new_name: str) -> None:
        with parent.child(ATTESTATIONS) as folder:
            folder.move(name, quarantine, new_name)


class RefutedFiles:
    """The refuted/ folder: artifacts that this node has found to be wrong, here or not."""

    def __init__(self, folder: Folder, temp: TempFiles) -> None:
        self._folder = folder
        self._temp = temp

    def add(self, envelope: Envelope) -> None:
        found = Attestation.parse(VerifiedPayload(envelope.payload_type, envelope.payload, ()))
        self._temp.publish(envelope.encode(), self._folder, found.artifact.hex + _END)
        self._folder.sync()

    def remove(self, artifact: ArtifactId) -> None:
        self._folder.unlink(artifact.hex + _END)
        self._folder.sync()

    def ids(self) -> frozenset[ArtifactId]:
        names = [name.removesuffix(_END) for name in self._folder.names()]
        return frozenset(ArtifactId(Digest.parse(name)) for name in names)

    def get(self, artifact: ArtifactId) -> Refutation | None:
        """Raises StoreError `store.refutation_damaged`."""
        try:
            envelope = Envelope.parse(self._folder.read(artifact.hex + _END, MAX_ENVELOPE_BYTES))
            found = Attestation.parse(VerifiedPayload(envelope.payload_type, envelope.payload, ()))
        except NotFoundError:
            return None
        except ProtocolError as error:
            path = self._folder.path / (artifact.hex + _END)
            raise StoreError(
                "store.refutation_damaged", f"{path} is damaged: {error.message}", hint="remove it and audit again"
            ) from error
        return Refutation(found, envelope)


def judged(envelopes: Collection[Envelope], keys: Collection[PublicKey], manifest: Manifest) -> list[Signed]:
    """Attestations by `keys` about this artifact; others say nothing and are passed over."""
    found = []
    for envelope in envelopes:
        try:
            found.append(format_.read(envelope, keys, manifest))
        except ProtocolError:
            continue
    return found


def _load(folder: Folder, name: str) -> Envelope:
    return Envelope.parse(folder.read(name, MAX_ENVELOPE_BYTES))


def _judge(parent: Folder, name: str, keys: Collection[PublicKey], manifest: Manifest) -> Signed | None:
    """A stored attestation; None when it is damaged or nobody who counts has signed it."""
    with parent.child(ATTESTATIONS) as folder:
        try:
            return format_.read(_load(folder, name), keys, manifest)
        except (ProtocolError, StoreError, NotFoundError):
            return None


def _says_all(one: Signed, other: Signed) -> bool:
    """True when `other` by its signers says nothing that `one` does not."""
    a, b = one.attestation, other.attestation
    if (a.numerics, a.differs) != (b.numerics, b.differs) or not set(other.signers) <= set(one.signers):
        return False
    return set(b.audited()) <= set(a.audited()) and a.logits >= b.logits
