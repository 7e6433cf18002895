"""What pulls and pushes need to know, read strictly before they are accepted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvsync.daemon.pull_policy import NO_FURTHER_RULES, PullPolicy
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.fingerprint import Fingerprint, FingerprintKind, Fingerprints
from kvsync_protocol.limits import MAX_ENVELOPE_BYTES, MAX_NAME_CHARS, MAX_PROVIDERS, MAX_TOKENS
from kvsync_protocol.strictjson import Fields

MAX_PEER_CHARS: Final = 400
_FAMILY: Final = "job"


@dataclass(frozen=True, slots=True)
class PullParams:
    """Fetch `wanted` (a name or an id) from a known peer; `fingerprints` None judges them at the graft.

    `also` are further peers that may have it, `hints` addresses at which a registry says a peer is, beside the known
    ones. `ref` is a signed name that the artifact is given afterwards, `policy` what is demanded beyond the settings.
    With `tokens` or `blocks` only what a graft behind so many needs is fetched.
    """

    peer: str
    wanted: str
    fingerprints: Fingerprints | None = None
    also: tuple[str, ...] = ()
    hints: tuple[tuple[str, str], ...] = ()
    ref: Envelope | None = None
    policy: PullPolicy = NO_FURTHER_RULES
    tokens: int | None = None
    blocks: int | None = None

    def as_json(self) -> dict[str, object]:
        found = self.shown()
        if self.fingerprints is not None:
            found["fingerprints"] = fingerprints_json(self.fingerprints)
        if self.ref is not None:
            found["ref"] = self.ref.encode().decode()
        return found

    def shown(self) -> dict[str, object]:
        found: dict[str, object] = {"peer": self.peer, "wanted": self.wanted}
        if self.also:
            found["also"] = list(self.also)
        if self.hints:
            found["hints"] = [list(hint) for hint in self.hints]
        if self.policy != NO_FURTHER_RULES:
            found["policy"] = self.policy.as_json()
        for name, number in (("tokens", self.tokens), ("blocks", self.blocks)):
            if number is not None:
                found[name] = number
        return found

    @classmethod
    def parse(cls, value: object) -> PullParams:
        """Raises MalformedError `job.*`, `fingerprint.*`, `envelope.*`, `policy.*`; UsageError `policy.*`."""
        fields = Fields(value, _FAMILY)
        params = cls(
            fields.string("peer", limit=MAX_PEER_CHARS),
            fields.string("wanted", limit=4 * MAX_NAME_CHARS),
            fields.optional("fingerprints", lambda name: read_fingerprints(fields.take(name))),
            fields.optional("also", lambda name: fields.strings(name, limit=MAX_PROVIDERS, each=MAX_PEER_CHARS))
            or (),
            fields.optional("hints", lambda name: _hints(fields, name)) or (),
            fields.optional(
                "ref", lambda name: Envelope.parse(fields.string(name, limit=MAX_ENVELOPE_BYTES).encode())
            ),
            fields.optional("policy", lambda name: PullPolicy.parse(fields.take(name))) or NO_FURTHER_RULES,
            fields.optional("tokens", lambda name: fields.integer(name, 1, MAX_TOKENS)),
            fields.optional("blocks", lambda name: fields.integer(name, 1, MAX_TOKENS)),
        )
        fields.done()
        return params


@dataclass(frozen=True, slots=True)
class PushParams:
    """Offer a stored artifact, by name or id, to a known peer."""

    peer: str
    artifact: str

    def as_json(self) -> dict[str, object]:
        return {"peer": self.peer, "artifact": self.artifact}

    def shown(self) -> dict[str, object]:
        return self.as_json()

    @classmethod
    def parse(cls, value: object) -> PushParams:
        """Raises MalformedError `job.*`."""
        fields = Fields(value, _FAMILY)
        params = cls(fields.string("peer", limit=MAX_PEER_CHARS), fields.string("artifact", limit=4 * MAX_NAME_CHARS))
        fields.done()
        return params


def fingerprints_json(found: Fingerprints) -> dict[str, object]:
    """The fields of both; `read_fingerprints` reads them."""
    return {"compatibility": found.compatibility.as_json(), "numerics": found.numerics.as_json()}


def read_fingerprints(value: object) -> Fingerprints:
    """Raises MalformedError `job.*`, `fingerprint.*`."""
    fields = Fields(value, _FAMILY)
    found = Fingerprints(
        Fingerprint.parse(FingerprintKind.COMPATIBILITY, fields.take("compatibility")),
        Fingerprint.parse(FingerprintKind.NUMERICS, fields.take("numerics")),
    )
    fields.done()
    return found


def _hints(fields: Fields, name: str) -> tuple[tuple[str, str], ...]:
    found = []
    for value in fields.array(name, limit=16 * MAX_PROVIDERS):
        pair = Fields({name: value}, _FAMILY).strings(name, limit=2, each=MAX_PEER_CHARS)
        if len(pair) != 2:
            raise MalformedError("job.range", "a hint is a peer and an address")
        found.append((pair[0], pair[1]))
    return tuple(found)
