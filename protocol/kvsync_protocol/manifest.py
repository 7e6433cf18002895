"""The manifest: the signed description that names an artifact (SPEC 5.1).

An in-toto Statement whose payload is a pure function of what it describes: no time, no name, no
signer, and one spelling only. Two hosts that compute the same bytes therefore produce the same
payload, the same ArtifactId, and signatures that fit into one envelope.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kvsync_protocol import strictjson
from kvsync_protocol.digest import ArtifactId, Digest, sha256
from kvsync_protocol.envelope import Envelope, VerifiedPayload
from kvsync_protocol.errors import IntegrityError, MalformedError, MismatchError, TrustError, VersionError
from kvsync_protocol.fingerprint import Fingerprint, FingerprintKind, Fingerprints
from kvsync_protocol.groups import parse_group
from kvsync_protocol.layout import DType, Layout
from kvsync_protocol.leaves import LeafTable
from kvsync_protocol.limits import (
    LEAF_ENTRY_BYTES,
    MAX_BLOCK_TOKENS,
    MAX_BOUNDARIES,
    MAX_GROUPS,
    MAX_LEAVES,
    MAX_MANIFEST_BYTES,
    MAX_TOKENS,
    MAX_VOCAB,
)
from kvsync_protocol.prefix import decode_tokens
from kvsync_protocol.schedule import Schedule
from kvsync_protocol.signing import SigningKey
from kvsync_protocol.strictjson import Fields

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://kvsync.dev/artifact/v1"
FORMAT = 1
TREE_ALGORITHM = "rfc9162-sha256"


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """What was computed. Digests of the text and of the chat template are None where there was none."""

    digest: Digest
    count: int
    text: Digest | None = None
    template: Digest | None = None


@dataclass(frozen=True, slots=True)
class Tree:
    """Root, size and total bytes are signed together: a root alone binds neither (SPEC 4.1)."""

    root: Digest
    size: int
    total_bytes: int

    @classmethod
    def of(cls, table: LeafTable) -> Tree:
        return cls(table.root, len(table.leaves), table.total_bytes)


@dataclass(frozen=True)
class Manifest:
    """`Manifest.parse(verified) == m` for a verified payload of `m.encode()`, and the reverse.

    Raises:
        MalformedError: `manifest.schedule` or `manifest.tree` when the parts contradict each other.
    """

    tokens: TokenRecord
    schedule: Schedule
    layout: Layout
    leaf_table: Digest
    tree: Tree
    fingerprints: Fingerprints

    def __post_init__(self) -> None:
        count, blocks = self.layout.tokens, self.layout.block_tokens
        if (count, blocks) != (self.tokens.count, self.schedule.block_tokens):
            raise MalformedError("manifest.schedule", "tokens, schedule and layout are of different sizes")
        ends = self.schedule.boundaries[-1:]
        if self.schedule.with_boundary(count) != self.schedule or any(place > count for place in ends):
            raise MalformedError("manifest.schedule", "the artifact's end is its last boundary")
        if (self.tree.size, self.tree.total_bytes) != (self.layout.leaf_count, self.layout.total_bytes):
            raise MalformedError("manifest.tree", "tree size and bytes do not follow from the geometry")

    def encode(self) -> bytes:
        """The payload bytes. Raises MalformedError `manifest.size` when no reader would accept them."""
        if len(self._payload) > MAX_MANIFEST_BYTES:
            raise MalformedError("manifest.size", f"the manifest would exceed {MAX_MANIFEST_BYTES} bytes")
        return self._payload

    @cached_property
    def _payload(self) -> bytes:
        return strictjson.dumps(
            {
                "_type": STATEMENT_TYPE,
                "subject": [
                    {"name": "leaves", "digest": {"sha256": self.leaf_table.hex}},
                    {"name": "tokens", "digest": {"sha256": self.tokens.digest.hex}},
                ],
                "predicateType": PREDICATE_TYPE,
                "predicate": {
                    "format": FORMAT,
                    "tokens": {
                        "count": self.tokens.count,
                        "text": _text(self.tokens.text),
                        "template": _text(self.tokens.template),
                    },
                    "schedule": {
                        "block_tokens": self.schedule.block_tokens,
                        "boundaries": list(self.schedule.boundaries),
                    },
                    "groups": [group.as_json() for group in self.layout.groups],
                    "logits": {"vocab": self.layout.vocab, "dtype": self.layout.logits_dtype.value},
                    "tree": {
                        "algorithm": TREE_ALGORITHM,
                        "root": self.tree.root.hex,
                        "size": self.tree.size,
                        "bytes": self.tree.total_bytes,
                    },
                    "compatibility": self.fingerprints.compatibility.as_json(),
                    "numerics": self.fingerprints.numerics.as_json(),
                },
            }
        )

    @property
    def artifact(self) -> ArtifactId:
        return ArtifactId(sha256(self.encode()))

    def seal(self, key: SigningKey) -> Envelope:
        return Envelope.seal(PAYLOAD_TYPE, self.encode(), key)

    @classmethod
    def parse(cls, verified: VerifiedPayload) -> Manifest:
        """Read a verified payload.

        Raises:
            MalformedError: `json.*`, `digest.syntax`, `manifest.*`, `layout.*`, `schedule.*`, `fingerprint.*`.
            VersionError: `version.*`.
            TrustError: `trust.payload_type`.
        """
        if verified.payload_type != PAYLOAD_TYPE:
            raise TrustError("trust.payload_type", "not a manifest")
        top = Fields(strictjson.loads(verified.payload, limit=MAX_MANIFEST_BYTES, what="the manifest"), "manifest")
        if top.take("_type") != STATEMENT_TYPE:
            raise VersionError("version.statement", "not an in-toto Statement v1")
        if top.take("predicateType") != PREDICATE_TYPE:
            raise VersionError("version.predicate", "not a kvsync artifact")
        body = Fields(top.mapping("predicate"), "manifest")
        if body.integer("format", 1, strictjson.MAX_SAFE_INTEGER) != FORMAT:
            raise VersionError(
                "version.format", "written by another version of kvsync", hint="upgrade the older of the two hosts"
            )
        subjects = _subjects(top.array("subject", limit=MAX_LEAVES))
        top.done()
        manifest = _body(body, subjects)
        body.done()
        if manifest.encode() != verified.payload:
            raise MalformedError("manifest.canonical", "the payload is not in its one canonical spelling")
        return manifest

    def check_leaves(self, data: bytes) -> LeafTable:
        """Parse a leaf table that is exactly the one signed here.

        Raises:
            IntegrityError: `integrity.leaf_table` for other bytes than the signed ones;
                `integrity.root` or `leaves.layout` when the signer's own table contradicts the manifest.
        """
        if len(data) != LEAF_ENTRY_BYTES * self.tree.size or sha256(data) != self.leaf_table:
            raise IntegrityError("integrity.leaf_table", "the leaf table is not the signed one")
        table = LeafTable.parse(data)
        table.check_sizes(self.layout)
        self.check_root(table)
        return table

    def check_root(self, table: LeafTable) -> None:
        """Refuse a signer who says one thing by the table and another by the root, from which proofs start.

        Raises:
            IntegrityError: `integrity.root`.
        """
        if table.root != self.tree.root:
            raise IntegrityError("integrity.root", "the leaf table does not have the signed root")

    def check_tokens(self, data: bytes) -> tuple[int, ...]:
        """Decode token ids that are exactly those signed here. Raises IntegrityError `integrity.tokens`."""
        if len(data) != 4 * self.tokens.count or sha256(data) != self.tokens.digest:
            raise IntegrityError("integrity.tokens", "the token ids are not the signed ones")
        return decode_tokens(data)

    def check_template(self, template: Digest | None) -> None:
        """Refuse a caller whose chat template is another. Raises MismatchError `mismatch.template`."""
        if self.tokens.template is not None and template is not None and template != self.tokens.template:
            raise MismatchError("mismatch.template", "made with another chat template")


def _body(body: Fields, subjects: dict[str, Digest]) -> Manifest:
    token = Fields(body.mapping("tokens"), "manifest")
    tokens = TokenRecord(
        digest=subjects["tokens"],
        count=token.integer("count", 1, MAX_TOKENS),
        text=token.optional("text", token.digest),
        template=token.optional("template", token.digest),
    )
    token.done()
    plan = Fields(body.mapping("schedule"), "manifest")
    schedule = Schedule(
        plan.integer("block_tokens", 1, MAX_BLOCK_TOKENS),
        plan.integers("boundaries", 1, MAX_TOKENS, limit=MAX_BOUNDARIES),
    )
    plan.done()
    groups = tuple(parse_group(entry) for entry in body.array("groups", limit=MAX_GROUPS))
    final = Fields(body.mapping("logits"), "manifest")
    layout = Layout(
        tokens.count, schedule.block_tokens, groups, final.integer("vocab", 1, MAX_VOCAB), DType.parse(final)
    )
    final.done()
    shape = Fields(body.mapping("tree"), "manifest")
    if shape.take("algorithm") != TREE_ALGORITHM:
        raise VersionError("version.tree", "unknown tree algorithm")
    tree = Tree(
        shape.digest("root"),
        shape.integer("size", 1, MAX_LEAVES),
        shape.integer("bytes", 1, strictjson.MAX_SAFE_INTEGER),
    )
    shape.done()
    fingerprints = Fingerprints(
        Fingerprint.parse(FingerprintKind.COMPATIBILITY, body.take("compatibility")),
        Fingerprint.parse(FingerprintKind.NUMERICS, body.take("numerics")),
    )
    return Manifest(tokens, schedule, layout, subjects["leaves"], tree, fingerprints)


def _text(digest: Digest | None) -> str | None:
    return None if digest is None else str(digest)


def _subjects(entries: list[object]) -> dict[str, Digest]:
    """Both subjects and no other: matching some of them would miss a swapped or dropped one."""
    found: dict[str, Digest] = {}
    if len(entries) == 2:
        for entry in entries:
            member = Fields(entry, "manifest")
            name = member.string("name", limit=64)
            hashes = Fields(member.mapping("digest"), "manifest")
            found[name] = hashes.digest("sha256")
            hashes.done()
            member.done()
    if sorted(found) != ["leaves", "tokens"]:
        raise MalformedError("manifest.subjects", "the subjects are exactly leaves and tokens")
    return found
