"""The manifest: the signed description that names an artifact (SPEC 5.1).

An in-toto Statement whose payload is a pure function of what it describes: no time, no name, no
signer. Two hosts that compute the same bytes therefore produce the same payload, the same
ArtifactId, and signatures that fit into one envelope.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsync_protocol import strictjson
from kvsync_protocol.digest import ArtifactId, Digest, sha256
from kvsync_protocol.envelope import Envelope, VerifiedPayload
from kvsync_protocol.errors import IntegrityError, MalformedError, MismatchError, TrustError, VersionError
from kvsync_protocol.fingerprint import Fingerprint, FingerprintKind, Fingerprints
from kvsync_protocol.layout import DType, Group, LayerKind, Layout
from kvsync_protocol.leaves import LeafTable
from kvsync_protocol.limits import (
    MAX_BLOCK_TOKENS,
    MAX_BOUNDARIES,
    MAX_GROUPS,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_LEAVES,
    MAX_MANIFEST_BYTES,
    MAX_TOKENS,
    MAX_VOCAB,
)
from kvsync_protocol.prefix import decode_tokens
from kvsync_protocol.schedule import Schedule
from kvsync_protocol.signing import SigningKey

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


@dataclass(frozen=True)
class Manifest:
    """`Manifest.parse(verified) == m` for a verified payload of `m.encode()`."""

    tokens: TokenRecord
    schedule: Schedule
    layout: Layout
    leaf_table: Digest
    tree: Tree
    fingerprints: Fingerprints
    payload: bytes = field(default=b"", compare=False, repr=False)

    def encode(self) -> bytes:
        """The payload bytes; those that were verified, for a manifest that was parsed."""
        if self.payload:
            return self.payload
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
                    "groups": [_group_json(group) for group in self.layout.groups],
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
            MalformedError: `json.*`, `manifest.*`, `layout.*`, `schedule.*`, `fingerprint.*`.
            VersionError: `version.statement`, `version.predicate`, `version.format`, `version.tree`.
            TrustError: `trust.payload_type`.
        """
        if verified.payload_type != PAYLOAD_TYPE:
            raise TrustError("trust.payload_type", "not a manifest")
        top = strictjson.Fields(
            strictjson.loads(verified.payload, limit=MAX_MANIFEST_BYTES, what="the manifest"), "manifest"
        )
        if top.take("_type") != STATEMENT_TYPE:
            raise VersionError("version.statement", "not an in-toto Statement v1")
        if top.take("predicateType") != PREDICATE_TYPE:
            raise VersionError("version.predicate", "not a kvsync artifact")
        subjects = _subjects(top.array("subject", limit=2))
        body = strictjson.Fields(top.mapping("predicate"), "manifest")
        top.done()
        if body.take("format") != FORMAT:
            raise VersionError(
                "version.format", "written by another version of kvsync", hint="upgrade the older of the two hosts"
            )
        manifest = cls._body(body, subjects, verified.payload)
        body.done()
        return manifest

    @classmethod
    def _body(cls, body: strictjson.Fields, subjects: dict[str, Digest], payload: bytes) -> Manifest:
        token = strictjson.Fields(body.mapping("tokens"), "manifest")
        tokens = TokenRecord(
            digest=subjects["tokens"],
            count=token.integer("count", 1, MAX_TOKENS),
            text=token.optional("text", token.digest),
            template=token.optional("template", token.digest),
        )
        token.done()
        plan = strictjson.Fields(body.mapping("schedule"), "manifest")
        block_tokens = plan.integer("block_tokens", 1, MAX_BLOCK_TOKENS)
        boundaries = plan.array("boundaries", limit=MAX_BOUNDARIES)
        plan.done()
        if not all(type(place) is int for place in boundaries):
            raise MalformedError("manifest.type", "boundaries are whole numbers")
        schedule = Schedule(block_tokens, tuple(place for place in boundaries if isinstance(place, int)))
        if schedule.with_boundary(tokens.count) != schedule or any(b > tokens.count for b in schedule.boundaries):
            raise MalformedError("manifest.schedule", "the artifact's end is its last boundary")
        groups = tuple(_group(entry) for entry in body.array("groups", limit=MAX_GROUPS))
        final = strictjson.Fields(body.mapping("logits"), "manifest")
        layout = Layout(tokens.count, block_tokens, groups, final.integer("vocab", 1, MAX_VOCAB), _dtype(final))
        final.done()
        shape = strictjson.Fields(body.mapping("tree"), "manifest")
        if shape.take("algorithm") != TREE_ALGORITHM:
            raise VersionError("version.tree", "unknown tree algorithm")
        tree = Tree(
            shape.digest("root"),
            shape.integer("size", 1, MAX_LEAVES),
            shape.integer("bytes", 1, strictjson.MAX_SAFE_INTEGER),
        )
        shape.done()
        if tree.size != layout.leaf_count or tree.total_bytes != layout.total_bytes:
            raise MalformedError("manifest.tree", "tree size and bytes do not follow from the geometry")
        fingerprints = Fingerprints(
            Fingerprint.parse(FingerprintKind.COMPATIBILITY, body.mapping("compatibility")),
            Fingerprint.parse(FingerprintKind.NUMERICS, body.mapping("numerics")),
        )
        return cls(tokens, schedule, layout, subjects["leaves"], tree, fingerprints, payload)

    def check_leaves(self, data: bytes) -> LeafTable:
        """Parse a leaf table that is exactly the one signed here.

        Raises:
            IntegrityError: `integrity.leaf_table`, `integrity.root`, `leaves.layout`.
        """
        if sha256(data) != self.leaf_table:
            raise IntegrityError("integrity.leaf_table", "the leaf table is not the signed one")
        table = LeafTable.parse(data)
        if len(table.leaves) != self.tree.size or table.total_bytes != self.tree.total_bytes:
            raise IntegrityError("integrity.root", "the leaf table has another size than the signed tree")
        if table.root != self.tree.root:
            raise IntegrityError("integrity.root", "the leaf table does not have the signed root")
        table.check_sizes(self.layout)
        return table

    def check_tokens(self, data: bytes) -> tuple[int, ...]:
        """Decode token ids that are exactly those signed here. Raises IntegrityError `integrity.tokens`."""
        if sha256(data) != self.tokens.digest or len(data) != 4 * self.tokens.count:
            raise IntegrityError("integrity.tokens", "the token ids are not the signed ones")
        return decode_tokens(data)

    def check_template(self, template: Digest | None) -> None:
        """Refuse a caller whose chat template is another. Raises MismatchError `mismatch.template`."""
        if self.tokens.template is not None and template is not None and template != self.tokens.template:
            raise MismatchError("mismatch.template", "made with another chat template")


def _text(digest: Digest | None) -> str | None:
    return None if digest is None else str(digest)


def _subjects(entries: list[object]) -> dict[str, Digest]:
    """Both subjects and no other: matching some of them would miss a swapped or dropped one."""
    found: dict[str, Digest] = {}
    for entry in entries:
        member = strictjson.Fields(entry, "manifest")
        name = member.string("name", limit=64)
        hashes = strictjson.Fields(member.mapping("digest"), "manifest")
        found[name] = hashes.digest("sha256")
        hashes.done()
        member.done()
    if sorted(found) != ["leaves", "tokens"] or len(entries) != 2:
        raise MalformedError("manifest.subjects", "the subjects are exactly leaves and tokens")
    return found


def _group_json(group: Group) -> dict[str, object]:
    return {
        "name": group.name,
        "kind": group.kind.value,
        "layers": list(group.layers),
        "kv_heads": group.kv_heads,
        "key_dim": group.key_dim,
        "value_dim": group.value_dim,
        "dtype": group.dtype.value,
        "window": group.window,
    }


def _group(entry: object) -> Group:
    fields = strictjson.Fields(entry, "manifest")
    kind = fields.string("kind", limit=64)
    if kind not in {k.value for k in LayerKind}:
        raise VersionError("version.layer_kind", f"layers of kind {kind!r} are not understood here", kind=kind)
    layers = fields.array("layers", limit=MAX_LAYERS)
    if not all(type(layer) is int for layer in layers):
        raise MalformedError("manifest.type", "layers are whole numbers")
    group = Group(
        name=fields.string("name", limit=64),
        kind=LayerKind(kind),
        layers=tuple(layer for layer in layers if isinstance(layer, int)),
        kv_heads=fields.integer("kv_heads", 1, MAX_HEADS),
        key_dim=fields.integer("key_dim", 1, MAX_HEAD_DIM),
        value_dim=fields.integer("value_dim", 1, MAX_HEAD_DIM),
        dtype=_dtype(fields),
        window=fields.optional("window", lambda name: fields.integer(name, 2, MAX_TOKENS)),
    )
    fields.done()
    return group


def _dtype(fields: strictjson.Fields) -> DType:
    name = fields.string("dtype", limit=16)
    if name not in {d.value for d in DType}:
        raise VersionError("version.dtype", f"dtype {name!r} is not understood here", dtype=name)
    return DType(name)
