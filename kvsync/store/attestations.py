"""What auditors have signed about artifacts, and what this node's own audits have refuted.

    artifacts/<64 hex>/attestations/<digest of the payload>.json   envelopes, gone with the artifact
    refuted/<64 hex of the artifact>.json                          an own audit that found other bytes: never gone

Who counts is the caller's question: only signatures of the keys it names are kept. The number is capped, and
an attestation that says no more than another of the same signers makes room.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from kvsync.errors import NotFoundError, StoreError
from kvsync.store.artifacts import ArtifactFiles
from kvsync.store.folder import Folder
from kvsync.store.stored import ATTESTATIONS
from kvsync.store.temp import TempFiles
from kvsync_protocol import attestation as format_
from kvsync_protocol.attestation import Attestation, Signed
from kvsync_protocol.digest import ArtifactId, Digest, sha256
from kvsync_protocol.envelope import Envelope, Signature, VerifiedPayload
from kvsync_protocol.errors import ProtocolError
from kvsync_protocol.limits import MAX_ATTESTATIONS, MAX_ENVELOPE_BYTES, MAX_SIGNATURES
from kvsync_protocol.manifest import Manifest
from kvsync_protocol.signing import PublicKey

PER_SIGNER = 8
"""Attestations kept of one signer about one artifact."""
_END = ".json"
_NAME = re.compile(r"([0-9a-f]{64})\.json", re.ASCII)


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
        signed = format_.read(envelope, keys, manifest)
        kept = _labelled(envelope, signed.signers)
        new = _Held(signed.attestation, frozenset(s.key_id for s in kept.signatures))
        name = sha256(envelope.payload).hex + _END
        with self._files.open(manifest.artifact) as parent:
            held = {other: _read(parent, other, keys) for other in self.names(parent)}
            if name in held:
                return self._merge(parent, name, kept, keys)
            if any(other is not None and _says_all(other, new) for other in held.values()):
                return False
            outdone = [other for other, found in held.items() if found is None or _says_all(new, found)]
            left = [found for other, found in held.items() if other not in outdone and found is not None]
            if len(left) >= MAX_ATTESTATIONS or any(
                sum(key_id in found.signers for found in left) >= PER_SIGNER for key_id in new.signers
            ):
                return False
            with parent.child(ATTESTATIONS, create=True) as folder:
                self._temp.publish(kept.encode(), folder, name)
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
            return [name for name in folder.names() if _NAME.fullmatch(name)]

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
        """Files of other names are strangers, which fsck reports."""
        found = (_NAME.fullmatch(name) for name in self._folder.names())
        return frozenset(ArtifactId(Digest.parse(name.group(1))) for name in found if name)

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


@dataclass(frozen=True, slots=True)
class _Held:
    """An attestation and the key ids of its signers, which this store has written itself."""

    attestation: Attestation
    signers: frozenset[str]


def _labelled(envelope: Envelope, signers: Collection[PublicKey]) -> Envelope:
    """The envelope with one valid signature of each signer, under the signer's own key id whatever it claimed."""
    found = [(key, envelope.endorsed([key]).signatures[0].signature) for key in signers]
    signatures = tuple(Signature(key.key_id, signature) for key, signature in found)
    return Envelope(envelope.payload_type, envelope.payload, signatures[:MAX_SIGNATURES])


def _read(parent: Folder, name: str, keys: Collection[PublicKey]) -> _Held | None:
    """A stored attestation; None when it is damaged or none of `keys` is among its signers.

    Signatures were verified when it was kept, and are again when it is used.
    """
    with parent.child(ATTESTATIONS) as folder:
        try:
            envelope = _load(folder, name)
            found = Attestation.parse(VerifiedPayload(envelope.payload_type, envelope.payload, ()))
        except (ProtocolError, StoreError, NotFoundError):
            return None
    signers = {key.key_id for key in keys} & {signature.key_id for signature in envelope.signatures}
    return _Held(found, frozenset(signers)) if signers else None


def _says_all(one: _Held, other: _Held) -> bool:
    """True when `other` by its signers says nothing that `one` does not."""
    a, b = one.attestation, other.attestation
    if (a.numerics, a.differs) != (b.numerics, b.differs) or not other.signers <= one.signers:
        return False
    return set(b.audited()) <= set(a.audited()) and a.logits >= b.logits
