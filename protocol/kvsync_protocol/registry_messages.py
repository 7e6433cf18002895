"""JSON bodies of a registry. Each reads strictly what it writes (REGISTRY.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from kvsync_protocol import strictjson
from kvsync_protocol.announcement import MAX_ADDRESS_BYTES, MAX_ADDRESSES, MAX_ANNOUNCED_KEYS
from kvsync_protocol.digest import ArtifactId, Digest, PrefixKey
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.limits import MAX_CODE_CHARS, MAX_JSON_BYTES, MAX_LIST_ENTRIES, MAX_PROVIDERS, MAX_SIGNATURES
from kvsync_protocol.reader import MAX_READER_BYTES, MAX_READERS, check_readers
from kvsync_protocol.signing import PublicKey

MAX_QUERY_KEYS: Final = 4096
MAX_MATCHES: Final = 16
OK: Final = "ok"
_OUTCOME = re.compile(rf"{OK}|[a-z0-9_]+\.[a-z0-9_]+", re.ASCII)


def _read(data: bytes, what: str) -> strictjson.Fields:
    return strictjson.Fields(strictjson.loads(data, limit=MAX_JSON_BYTES, what=what), "message")


@dataclass(frozen=True, slots=True)
class Envelopes:
    """Signed statements in order. `Envelopes.parse(e.encode()) == e`."""

    envelopes: tuple[Envelope, ...]

    def encode(self) -> bytes:
        return strictjson.dumps({"envelopes": [envelope.encode().decode() for envelope in self.envelopes]})

    @classmethod
    def parse(cls, data: bytes) -> Envelopes:
        """Raises MalformedError `json.*`, `message.*`, `envelope.*`."""
        fields = _read(data, "the envelopes")
        texts = fields.strings("envelopes", limit=MAX_LIST_ENTRIES, each=MAX_JSON_BYTES)
        fields.done()
        return cls(tuple(Envelope.parse(text.encode()) for text in texts))


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What became of each statement, `ok` or an error code, and the epoch that the registry knows now.

    `Outcomes.parse(o.encode()) == o`.
    """

    epoch: int
    outcomes: tuple[str, ...]

    def encode(self) -> bytes:
        return strictjson.dumps({"epoch": self.epoch, "outcomes": list(self.outcomes)})

    @classmethod
    def parse(cls, data: bytes) -> Outcomes:
        """Raises MalformedError `json.*`, `message.*`."""
        fields = _read(data, "the outcomes")
        epoch = fields.integer("epoch", 0, strictjson.MAX_SAFE_INTEGER)
        outcomes = fields.strings("outcomes", limit=MAX_LIST_ENTRIES, each=MAX_CODE_CHARS)
        fields.done()
        if not all(_OUTCOME.fullmatch(outcome) for outcome in outcomes):
            raise MalformedError("message.range", "an outcome is ok or an error code")
        return cls(epoch, outcomes)


@dataclass(frozen=True, slots=True)
class PrefixQuery:
    """The keys of a prompt's full blocks from the first on. `PrefixQuery.parse(q.encode()) == q`."""

    keys: tuple[PrefixKey, ...]

    def encode(self) -> bytes:
        return strictjson.dumps({"keys": [key.hex for key in self.keys]})

    @classmethod
    def parse(cls, data: bytes) -> PrefixQuery:
        """Raises MalformedError `json.*`, `message.*`, `digest.syntax`."""
        fields = _read(data, "the query")
        keys = tuple(PrefixKey(Digest.parse(key)) for key in fields.array("keys", limit=MAX_QUERY_KEYS))
        fields.done()
        if not keys:
            raise MalformedError("message.range", "a query has at least one key")
        return cls(keys)


@dataclass(frozen=True, slots=True)
class Provider:
    """A key that says it serves an artifact, and where it says it can be reached."""

    key: PublicKey
    addresses: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        return {"key": str(self.key), "addresses": list(self.addresses)}

    @classmethod
    def parse(cls, value: object) -> Provider:
        fields = strictjson.Fields(value, "message")
        key = PublicKey.parse(fields.take("key"))
        addresses = fields.strings("addresses", limit=MAX_ADDRESSES, each=MAX_ADDRESS_BYTES)
        fields.done()
        return cls(key, addresses)


@dataclass(frozen=True, slots=True)
class Match:
    """An artifact as its providers describe it. `blocks` counts the prefix keys they announced for it,
    `size` its bytes."""

    artifact: ArtifactId
    compatibility: Digest
    numerics: Digest
    blocks: int
    size: int
    providers: tuple[Provider, ...]

    def as_json(self) -> dict[str, object]:
        return {
            "artifact": str(self.artifact),
            "compatibility": str(self.compatibility),
            "numerics": str(self.numerics),
            "blocks": self.blocks,
            "bytes": self.size,
            "providers": [provider.as_json() for provider in self.providers],
        }

    @classmethod
    def parse(cls, value: object) -> Match:
        fields = strictjson.Fields(value, "message")
        match = cls(
            ArtifactId(fields.digest("artifact")),
            fields.digest("compatibility"),
            fields.digest("numerics"),
            fields.integer("blocks", 0, MAX_ANNOUNCED_KEYS),
            fields.integer("bytes", 1, strictjson.MAX_SAFE_INTEGER),
            tuple(map(Provider.parse, fields.array("providers", limit=MAX_PROVIDERS))),
        )
        fields.done()
        return match


@dataclass(frozen=True, slots=True)
class Matches:
    """Artifacts that share the first `shared` asked blocks, the most that any shares; or none, and 0.

    Hints, none of them proven. `Matches.parse(m.encode()) == m`.
    """

    shared: int
    matches: tuple[Match, ...]

    def encode(self) -> bytes:
        return strictjson.dumps({"shared": self.shared, "matches": [match.as_json() for match in self.matches]})

    @classmethod
    def parse(cls, data: bytes) -> Matches:
        """Raises MalformedError `json.*`, `message.*`, `digest.syntax`, `key.*`."""
        fields = _read(data, "the matches")
        shared = fields.integer("shared", 0, MAX_QUERY_KEYS)
        matches = tuple(map(Match.parse, fields.array("matches", limit=MAX_MATCHES)))
        fields.done()
        return cls(shared, matches)


@dataclass(frozen=True, slots=True)
class Vouched:
    """A ref or an attestation, the keys to check it with, and who may learn of it (attestations: nobody named).

    All of `signers` have signed; a ref is filed under the first of them. `Vouched.parse(v.encode()) == v`.
    """

    signers: tuple[PublicKey, ...]
    envelope: Envelope
    readers: tuple[str, ...] = ()

    def encode(self) -> bytes:
        text = self.envelope.encode().decode()
        signers = [str(key) for key in self.signers]
        return strictjson.dumps({"signers": signers, "envelope": text, "readers": list(self.readers)})

    @classmethod
    def parse(cls, data: bytes) -> Vouched:
        """Raises MalformedError `json.*`, `message.*`, `key.*`, `envelope.*`, `ref.name`."""
        fields = _read(data, "the statement")
        signers = tuple(PublicKey.parse(key) for key in fields.array("signers", limit=MAX_SIGNATURES))
        envelope = Envelope.parse(fields.string("envelope", limit=MAX_JSON_BYTES).encode())
        readers = fields.strings("readers", limit=MAX_READERS, each=MAX_READER_BYTES)
        fields.done()
        if not signers or len(set(signers)) < len(signers):
            raise MalformedError("message.range", "at least one signer, each once, is expected")
        return cls(signers, envelope, check_readers(readers) if readers else ())


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a member says it can be reached; none when it has said nothing. `Addresses.parse(a.encode()) == a`."""

    addresses: tuple[str, ...]

    def encode(self) -> bytes:
        return strictjson.dumps({"addresses": list(self.addresses)})

    @classmethod
    def parse(cls, data: bytes) -> Addresses:
        """Raises MalformedError `json.*`, `message.*`."""
        fields = _read(data, "the addresses")
        addresses = fields.strings("addresses", limit=MAX_ADDRESSES, each=MAX_ADDRESS_BYTES)
        fields.done()
        return cls(addresses)
