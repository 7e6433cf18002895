"""Attestations: a key says that it recomputed these blocks of this artifact, and what it found (SPEC 7.5).

A payload holds no time and no signer, so equal findings of several auditors are one payload under several
signatures. Whether a signer counts is asked of the envelope; what its word is worth is `Coverage`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from kvsync_protocol import strictjson
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.envelope import Envelope, VerifiedPayload
from kvsync_protocol.errors import MalformedError, MismatchError, TrustError
from kvsync_protocol.layout import Layout
from kvsync_protocol.limits import MAX_ATTESTATION_BYTES, MAX_LEAVES, MAX_LIST_ENTRIES, MAX_TOKENS
from kvsync_protocol.manifest import Manifest
from kvsync_protocol.signing import PublicKey, SigningKey

PAYLOAD_TYPE = "application/vnd.kvsync.attestation+json"


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """The first audited leaf whose chunk was computed with other bytes, and the digest of those."""

    leaf: int
    found: Digest


@dataclass(frozen=True, slots=True)
class Attestation:
    """`blocks` are half-open ranges of recomputed blocks, ascending, with gaps between.

    `numerics` is the digest of the auditor's own numerics fingerprint. `logits` tells whether the final
    logits were computed as well. `differs` is None when all of it had the signed bytes.
    `Attestation.parse(verified) == a` for a verified payload of `a.encode()`.
    """

    artifact: ArtifactId
    numerics: Digest
    blocks: tuple[tuple[int, int], ...]
    logits: bool
    differs: Discrepancy | None = None

    @classmethod
    def of(
        cls,
        artifact: ArtifactId,
        numerics: Digest,
        blocks: Iterable[int],
        *,
        logits: bool,
        differs: Discrepancy | None,
    ) -> Attestation:
        """For single blocks in any order; those past the number of ranges that a reader takes are left out."""
        return cls(artifact, numerics, ranges(blocks)[:MAX_LIST_ENTRIES], logits, differs)

    def audited(self) -> Iterator[int]:
        """Every block that was recomputed."""
        for start, stop in self.blocks:
            yield from range(start, stop)

    def encode(self) -> bytes:
        found = None if self.differs is None else {"leaf": self.differs.leaf, "found": str(self.differs.found)}
        return strictjson.dumps(
            {
                "artifact": str(self.artifact),
                "numerics": str(self.numerics),
                "blocks": [list(pair) for pair in self.blocks],
                "logits": self.logits,
                "differs": found,
            }
        )

    def seal(self, key: SigningKey) -> Envelope:
        return Envelope.seal(PAYLOAD_TYPE, self.encode(), key)

    @classmethod
    def parse(cls, verified: VerifiedPayload) -> Attestation:
        """Raises MalformedError `json.*`, `digest.syntax`, `attestation.*`; TrustError `trust.payload_type`."""
        if verified.payload_type != PAYLOAD_TYPE:
            raise TrustError("trust.payload_type", "not an attestation")
        value = strictjson.loads(verified.payload, limit=MAX_ATTESTATION_BYTES, what="the attestation")
        fields = strictjson.Fields(value, "attestation")
        found = cls(
            ArtifactId(fields.digest("artifact")),
            fields.digest("numerics"),
            _ranges(fields),
            fields.boolean("logits"),
            fields.optional("differs", lambda name: _discrepancy(fields.mapping(name))),
        )
        fields.done()
        if found.encode() != verified.payload:
            raise MalformedError("attestation.canonical", "the attestation is not in its one canonical spelling")
        return found

    def about(self, artifact: ArtifactId) -> None:
        """Raises MismatchError `mismatch.attestation` for one of another artifact."""
        if self.artifact != artifact:
            raise MismatchError("mismatch.attestation", "the attestation is of another artifact")

    def check(self, manifest: Manifest) -> None:
        """Refuse one of another artifact, or about blocks and leaves that this one does not have.

        Raises:
            MismatchError: `mismatch.attestation`.
        """
        layout = manifest.layout
        self.about(manifest.artifact)
        if self.blocks and self.blocks[-1][1] > layout.blocks:
            raise MismatchError("mismatch.attestation", "the attestation names blocks that the artifact lacks")
        if self.differs is not None and self.differs.leaf >= layout.leaf_count:
            raise MismatchError("mismatch.attestation", "the attestation names a leaf that the artifact lacks")

    def refutes(self, manifest: Manifest) -> bool:
        """True when the same arithmetic gave other bytes; other arithmetic may well do so."""
        return self.differs is not None and self.numerics == manifest.fingerprints.numerics.digest


@dataclass(frozen=True, slots=True)
class Signed:
    """An attestation and those of the trusted keys that signed it."""

    attestation: Attestation
    signers: tuple[PublicKey, ...]


def read(envelope: Envelope, keys: Collection[PublicKey], manifest: Manifest) -> Signed:
    """An attestation about this artifact by at least one of `keys`.

    Raises:
        TrustError: `trust.untrusted_signer`, `trust.payload_type`.
        MalformedError: as `Attestation.parse`.
        MismatchError: `mismatch.attestation`.
    """
    verified = envelope.verify(PAYLOAD_TYPE, keys)
    found = Attestation.parse(verified)
    found.check(manifest)
    return Signed(found, verified.signers)


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of an artifact auditors have recomputed with equal bytes.

    The last block counts only together with the final logits, which are computed with it.
    """

    blocks: int
    covered: frozenset[int]
    signers: tuple[PublicKey, ...]
    """Keys whose attestations cover something, each once."""

    @classmethod
    def of(cls, layout: Layout, found: Iterable[Signed]) -> Coverage:
        """Attestations that found a difference cover nothing."""
        covered: set[int] = set()
        signers: set[PublicKey] = set()
        last = layout.blocks - 1
        for signed in found:
            if signed.attestation.differs is None:
                blocks = {b for b in signed.attestation.audited() if b != last or signed.attestation.logits}
                covered |= blocks
                signers.update(signed.signers if blocks else ())
        return cls(layout.blocks, frozenset(covered), tuple(sorted(signers)))

    @property
    def percent(self) -> int:
        """Whole percents, rounded down."""
        return int(Fraction(100 * len(self.covered), self.blocks))


def independent(found: Iterable[Signed], signers: Collection[PublicKey]) -> Iterator[Signed]:
    """Attestations, each with those keys only beside which another of `signers` vouches for the artifact.

    A key that audits what it alone has signed says nothing new.
    """
    for signed in found:
        kept = tuple(key for key in signed.signers if set(signers) - {key})
        if kept:
            yield Signed(signed.attestation, kept)


def ranges(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Half-open ranges of whole numbers, ascending."""
    found: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if found and found[-1][1] == number:
            found[-1] = (found[-1][0], number + 1)
        else:
            found.append((number, number + 1))
    return tuple(found)


def _ranges(fields: strictjson.Fields) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    last = -1
    for entry in fields.array("blocks", limit=MAX_LIST_ENTRIES):
        pair: Sequence[int] = strictjson.Fields({"blocks": entry}, "attestation").integers(
            "blocks", 0, MAX_TOKENS, limit=2
        )
        if len(pair) != 2 or not last < pair[0] < pair[1]:
            raise MalformedError("attestation.range", "blocks are no pairs, empty, adjacent or out of order")
        found.append((pair[0], pair[1]))
        last = pair[1]
    if not found:
        raise MalformedError("attestation.range", "an attestation is about one block at least")
    return tuple(found)


def _discrepancy(value: dict[str, object]) -> Discrepancy:
    fields = strictjson.Fields(value, "attestation")
    found = Discrepancy(fields.integer("leaf", 0, MAX_LEAVES - 1), fields.digest("found"))
    fields.done()
    return found
