"""Bundles: artifacts in one file, for hosts without a network between them (BUNDLE.md).

    index.json                         an envelope: what follows, signed by whoever packed it
    artifacts/0/envelope.json, leaves, tokens, attestations/0.json …, refs/0.json …
    artifacts/1/…
    chunks/<64 hex>[.zst|.planes]      each chunk once, where it is needed first

The file is an uncompressed tar. All of it but the index and the sizes of a few members follows from the index and
from signed manifests, so a reader knows the name that comes next and compares, and takes no path from the file.
Knows no files; what was signed decides nothing about whether the artifacts may be taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kvsync_protocol import strictjson
from kvsync_protocol.bulk import Encoding
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.envelope import Envelope, VerifiedPayload
from kvsync_protocol.errors import MalformedError, TrustError, VersionError
from kvsync_protocol.limits import MAX_ATTESTATIONS, MAX_MANIFEST_BYTES, MAX_TOKENS
from kvsync_protocol.signing import SigningKey

FORMAT: Final = 1
PAYLOAD_TYPE: Final = "application/vnd.kvsync.bundle+json"
INDEX_NAME: Final = "index.json"
MAX_BUNDLE_ARTIFACTS: Final = 128
MAX_BUNDLE_REFS: Final = 64
"""Names of one artifact."""
MAX_BUNDLE_POSITIONS: Final = 65_536

RECORD: Final = 512
"""Bytes of a header; contents are padded with zeros to a multiple of it."""
END: Final = bytes(2 * RECORD)
_NAME_BYTES: Final = 100
_SIZE: Final = slice(124, 136)
_SUM: Final = slice(148, 156)
_OCTAL: Final = re.compile(rb"[0-7]{11}\0")
_ENDINGS: Final = {Encoding.IDENTITY: "", Encoding.ZSTD: ".zst", Encoding.PLANES: ".planes"}


@dataclass(frozen=True, slots=True)
class BundledArtifact:
    """One artifact of a bundle: digests of its small members; `positions` where it is there in part, else None."""

    artifact: ArtifactId
    envelope: Digest
    positions: tuple[int, ...] | None = None
    attestations: tuple[Digest, ...] = ()
    refs: tuple[Digest, ...] = ()

    def as_json(self) -> dict[str, object]:
        return {
            "artifact": str(self.artifact),
            "envelope": str(self.envelope),
            "positions": None if self.positions is None else list(self.positions),
            "attestations": [str(digest) for digest in self.attestations],
            "refs": [str(digest) for digest in self.refs],
        }

    @classmethod
    def parse(cls, value: object) -> BundledArtifact:
        fields = strictjson.Fields(value, "bundle")
        found = cls(
            ArtifactId(fields.digest("artifact")),
            fields.digest("envelope"),
            fields.optional(
                "positions", lambda name: fields.integers(name, 1, MAX_TOKENS, limit=MAX_BUNDLE_POSITIONS)
            ),
            tuple(map(Digest.parse, fields.array("attestations", limit=MAX_ATTESTATIONS))),
            tuple(map(Digest.parse, fields.array("refs", limit=MAX_BUNDLE_REFS))),
        )
        fields.done()
        return found


@dataclass(frozen=True, slots=True)
class BundleIndex:
    """What a bundle holds, in order. `BundleIndex.parse(verified) == i` for a verified payload of `i.encode()`."""

    artifacts: tuple[BundledArtifact, ...]

    def encode(self) -> bytes:
        return strictjson.dumps({"format": FORMAT, "artifacts": [each.as_json() for each in self.artifacts]})

    def seal(self, *keys: SigningKey) -> Envelope:
        """Sign. Raises as `parse`, so that nothing is signed that would not be read."""
        payload = self.encode()
        self._read(payload)
        return Envelope.seal(PAYLOAD_TYPE, payload, *keys)

    @classmethod
    def parse(cls, verified: VerifiedPayload) -> BundleIndex:
        """Raises MalformedError `json.*`, `bundle.*`, `digest.*`; TrustError `trust.payload_type`;
        VersionError `version.format`."""
        if verified.payload_type != PAYLOAD_TYPE:
            raise TrustError("trust.payload_type", "not the index of a bundle")
        return cls._read(verified.payload)

    @classmethod
    def _read(cls, payload: bytes) -> BundleIndex:
        fields = strictjson.Fields(strictjson.loads(payload, limit=MAX_MANIFEST_BYTES, what="the index"), "bundle")
        if fields.integer("format", 0, strictjson.MAX_SAFE_INTEGER) != FORMAT:
            raise VersionError("version.format", "a bundle of another format", hint="use the kvsync that wrote it")
        found = cls(tuple(map(BundledArtifact.parse, fields.array("artifacts", limit=MAX_BUNDLE_ARTIFACTS))))
        fields.done()
        ids = [each.artifact for each in found.artifacts]
        if not ids or ids != sorted(set(ids)):
            raise MalformedError("bundle.artifacts", "artifacts are missing or do not ascend")
        if found.encode() != payload:
            raise MalformedError("bundle.canonical", "the index is written in another form than its one form")
        return found


@dataclass(frozen=True, slots=True)
class Member:
    """A file inside a bundle: its name and how many bytes it has."""

    name: str
    size: int

    @property
    def padding(self) -> int:
        """Zeros behind it."""
        return -self.size % RECORD

    def encode(self) -> bytes:
        """The 512 bytes before it: a POSIX ustar header of a regular file that says nothing else.

        Raises:
            MalformedError: `bundle.member` when name or size do not fit in.
        """
        name = self.name.encode()
        if not 0 < len(name) <= _NAME_BYTES or b"\0" in name or not 0 <= self.size < 1 << 33:
            raise MalformedError("bundle.member", "no member has such a name or size")
        fields = (
            name.ljust(_NAME_BYTES, b"\0"),
            b"0000600\0",
            b"0000000\0" * 2,
            b"%011o\0" % self.size,
            b"00000000000\0",
            b" " * 8,  # the sum, counted as if these stood there
            b"0".ljust(101, b"\0"),
            b"ustar\00000",
            bytes(247),
        )
        header = b"".join(fields)
        return header[: _SUM.start] + b"%06o\0 " % sum(header) + header[_SUM.stop :]

    @classmethod
    def decode(cls, header: bytes) -> Member:
        """Read the header that `encode` makes, and no other: a link, a device or a second spelling is none.

        Raises:
            MalformedError: `bundle.member`.
        """
        if len(header) == RECORD and _OCTAL.fullmatch(header[_SIZE]):
            try:
                name = header[:_NAME_BYTES].rstrip(b"\0").decode()
            except UnicodeDecodeError:
                name = ""
            found = cls(name, int(header[_SIZE][:11], 8))
            if name and found.encode() == header:
                return found
        raise MalformedError("bundle.member", "something else than a file of a bundle begins here")


def artifact_member(number: int, name: str) -> str:
    """The name of a member of artifact `number`."""
    return f"artifacts/{number}/{name}"


def chunk_name(digest: Digest, encoding: Encoding) -> str:
    return f"chunks/{digest.hex}{_ENDINGS[encoding]}"


def chunk_encoding(name: str, digest: Digest) -> Encoding:
    """How the chunk that comes next is written, told by its name.

    Raises:
        MalformedError: `bundle.order` when another member comes next.
    """
    for encoding in Encoding:
        if name == chunk_name(digest, encoding):
            return encoding
    raise MalformedError("bundle.order", f"chunk {digest.short} is not where it belongs")


def small_members(number: int, artifact: BundledArtifact) -> Iterable[tuple[str, Digest]]:
    """Names and digests of an artifact's members behind the token ids: attestations, then refs."""
    for kind, digests in (("attestations", artifact.attestations), ("refs", artifact.refs)):
        for place, digest in enumerate(digests):
            yield artifact_member(number, f"{kind}/{place}.json"), digest
