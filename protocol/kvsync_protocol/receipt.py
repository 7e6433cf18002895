"""Receipts: signed records of one run that anyone can check again without the model (SPEC 7.6).

    line 1     DSSE envelope over the header, one signature by the key that the header names
    line 2…    one record each, RFC 8785 JSON; their Merkle root and number stand in the header

Knows the form. What the records of a kind mean, and what follows from them, is its scorer's; the summary in the
header is never believed, it is computed again. Preregistrations have the same form under another payload type.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from kvsync_protocol import strictjson
from kvsync_protocol.digest import Digest, sha256
from kvsync_protocol.envelope import Envelope, Signature
from kvsync_protocol.errors import IntegrityError, MalformedError, TrustError, VersionError
from kvsync_protocol.fingerprint import Fingerprint, FingerprintKind, Fingerprints
from kvsync_protocol.limits import (
    MAX_MANIFEST_BYTES,
    MAX_NAME_CHARS,
    MAX_RECEIPT_BYTES,
    MAX_RECORD_BYTES,
    MAX_RECORDS,
)
from kvsync_protocol.merkle import leaf_hash, root
from kvsync_protocol.signing import PublicKey, SigningKey

FORMAT: Final = 1
PAYLOAD_TYPE: Final = "application/vnd.kvsync.receipt+json"

Record = Mapping[str, object]


class Scorer(Protocol):
    """What the records of one kind mean. Pure: the same records always give the same summary."""

    @property
    def kind(self) -> str: ...
    @property
    def payload_type(self) -> str: ...

    def score(self, run: Record, records: Sequence[Record]) -> dict[str, object]:
        """Check settings and records against each other and compute the summary.

        Raises:
            MalformedError: `receipt.*` for what is not of the kind's form.
            IntegrityError: `receipt.score` for a record that contradicts itself or the settings.
        """

    def inputs(self, record: Record) -> str:
        """Names what went in: records of two receipts with equal inputs can be compared."""

    def outputs(self, record: Record) -> dict[str, str]:
        """Digests of what came out, by name."""


@dataclass(frozen=True, slots=True)
class Header:
    """What is signed. `time` is Unix seconds; `run` are the kind's settings, `summary` what its scorer computed."""

    kind: str
    software: str
    time: int
    signer: PublicKey
    run: Record
    fingerprints: Fingerprints
    count: int
    root: Digest
    summary: Record

    def encode(self) -> bytes:
        return strictjson.dumps(
            {
                "format": FORMAT,
                "kind": self.kind,
                "software": self.software,
                "time": self.time,
                "signer": str(self.signer),
                "run": self.run,
                "compatibility": self.fingerprints.compatibility.as_json(),
                "numerics": self.fingerprints.numerics.as_json(),
                "count": self.count,
                "root": str(self.root),
                "summary": self.summary,
            }
        )

    @classmethod
    def parse(cls, payload: bytes) -> Header:
        """Raises MalformedError `json.*`, `receipt.*`, `fingerprint.*`; VersionError `version.format`."""
        fields = _header_fields(payload)
        header = cls(
            kind=fields.string("kind", limit=MAX_NAME_CHARS),
            software=fields.string("software", limit=MAX_NAME_CHARS),
            time=fields.integer("time", 0, strictjson.MAX_SAFE_INTEGER),
            signer=PublicKey.parse(fields.take("signer")),
            run=fields.mapping("run"),
            fingerprints=Fingerprints(
                Fingerprint.parse(FingerprintKind.COMPATIBILITY, fields.take("compatibility")),
                Fingerprint.parse(FingerprintKind.NUMERICS, fields.take("numerics")),
            ),
            count=fields.integer("count", 1, MAX_RECORDS),
            root=fields.digest("root"),
            summary=fields.mapping("summary"),
        )
        fields.done()
        return header


@dataclass(frozen=True, slots=True)
class Receipt:
    """A whole receipt. `Receipt.parse(r.encode(), scorers) == r` for one that `seal` made."""

    header: Header
    envelope: Envelope
    records: tuple[Record, ...]

    @property
    def digest(self) -> Digest:
        """SHA-256 of the signed header: names the receipt, records included."""
        return sha256(self.envelope.payload)

    @classmethod
    def seal(
        cls,
        scorer: Scorer,
        key: SigningKey,
        records: Sequence[Record],
        *,
        run: Record,
        fingerprints: Fingerprints,
        software: str,
        time: int,
    ) -> Receipt:
        """Score and sign. Raises as the scorer, so that nothing is signed that would not check."""
        lines = [strictjson.dumps(record) for record in records]
        header = Header(
            kind=scorer.kind,
            software=software,
            time=time,
            signer=key.public,
            run=run,
            fingerprints=fingerprints,
            count=len(lines),
            root=records_root(lines),
            summary=scorer.score(run, records),
        )
        return cls(header, Envelope.seal(scorer.payload_type, header.encode(), key), tuple(records))

    def encode(self) -> bytes:
        lines = [self.envelope.encode(), *(strictjson.dumps(record) for record in self.records)]
        return b"".join(line + b"\n" for line in lines)

    @classmethod
    def parse(cls, data: bytes, scorers: Collection[Scorer], keys: Collection[PublicKey] = ()) -> Receipt:
        """Check everything: form, signature, root, count, records, every figure, the summary.

        Args:
            scorers: the kinds that the caller knows.
            keys: whose receipts count; none for "by whoever it names".

        Raises:
            MalformedError: `json.*`, `envelope.*`, `receipt.form`, `receipt.canonical`, `receipt.kind`,
                `receipt.figure` and others.
            VersionError: `version.format`.
            TrustError: `trust.bad_signature`, `trust.untrusted_signer`.
            IntegrityError: `receipt.count`, `receipt.root`, `receipt.score`, `receipt.summary`.
        """
        first, *lines = _lines(data)
        envelope = Envelope.parse(first)
        header = _verified(envelope, first, keys)
        scorer = _scorer(scorers, header.kind, envelope.payload_type)
        if len(lines) != header.count:
            raise IntegrityError("receipt.count", f"{len(lines)} records where {header.count} were signed")
        if records_root(lines) != header.root:
            raise IntegrityError("receipt.root", "the records are not those that were signed")
        records = tuple(map(_record, lines))
        # As bytes: in Python true equals 1.
        if strictjson.dumps(scorer.score(header.run, records)) != strictjson.dumps(header.summary):
            raise IntegrityError("receipt.summary", "the signed summary does not follow from the records")
        return cls(header, envelope, records)


def records_root(lines: Sequence[bytes]) -> Digest:
    """Root of the tree whose leaf i is record i, without its line end. RFC 9162 2.1.1."""
    return root([leaf_hash(line) for line in lines])


def _lines(data: bytes) -> list[bytes]:
    if len(data) > MAX_RECEIPT_BYTES:
        raise MalformedError("receipt.form", f"larger than {MAX_RECEIPT_BYTES} bytes")
    if not data.endswith(b"\n"):
        raise MalformedError("receipt.form", "the last line has no end: the file is cut short or is no receipt")
    lines = data[:-1].split(b"\n")
    if len(lines) > MAX_RECORDS + 1 or any(len(line) > MAX_RECORD_BYTES for line in lines[1:]):
        raise MalformedError("receipt.form", "too many records, or one that is too long")
    return lines


def _header_fields(payload: bytes) -> strictjson.Fields:
    """The header's members, once its format is known to be this one."""
    fields = strictjson.Fields(strictjson.loads(payload, limit=MAX_MANIFEST_BYTES, what="the header"), "receipt")
    if fields.integer("format", 0, strictjson.MAX_SAFE_INTEGER) != FORMAT:
        raise VersionError("version.format", "a receipt of another format", hint="use the kvsync that wrote it")
    return fields


def _verified(envelope: Envelope, line: bytes, keys: Collection[PublicKey]) -> Header:
    """The header under its own signer's signature, and under one of `keys` where there are any."""
    # Read before it is verified, for the version and the key alone.
    signer = PublicKey.parse(_header_fields(envelope.payload).take("signer"))
    if envelope.signers([signer]) != (signer,) or len(envelope.signatures) != 1:
        raise TrustError("trust.bad_signature", "not signed by the key that it names")
    if keys and signer not in keys:
        raise TrustError(
            "trust.untrusted_signer",
            f"signed by {signer}, which is none of the keys that count",
            hint="give it with --public-key, once you know whose it is",
        )
    only = Signature(signer.key_id, envelope.signatures[0].signature)
    if Envelope(envelope.payload_type, envelope.payload, (only,)).encode() != line:
        raise MalformedError("receipt.canonical", "the envelope is written in another form than its one form")
    header = Header.parse(envelope.payload)
    if header.encode() != envelope.payload:
        raise MalformedError("receipt.canonical", "the header is written in another form than its one form")
    return header


def _scorer(scorers: Collection[Scorer], kind: str, payload_type: str) -> Scorer:
    found = next((scorer for scorer in scorers if scorer.kind == kind), None)
    if found is None:
        raise MalformedError("receipt.kind", f"receipts of kind {kind!r} are not known here")
    if found.payload_type != payload_type:
        raise TrustError("trust.payload_type", f"{kind!r} signed as {payload_type!r}")
    return found


def _record(line: bytes) -> Record:
    record = strictjson.loads(line, limit=MAX_RECORD_BYTES, what="a record")
    if strictjson.dumps(record) != line:
        raise MalformedError("receipt.canonical", "a record is written in another form than its one form")
    return record
