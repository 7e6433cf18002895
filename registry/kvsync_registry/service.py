"""`Registry`: the rules of a registry, over any store, with a clock that is handed in. Knows no HTTP and no TLS.

Whoever calls says who is asking; that this is true was proven before (TLS, or the same process). What is kept
are hints. Nothing is remembered about what was not found.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from kvsync_protocol.announcement import (
    ANNOUNCEMENT_TYPE,
    CONTACT_TYPE,
    WITHDRAWAL_TYPE,
    Announcement,
    Statement,
    Withdrawal,
    parse_statement,
)
from kvsync_protocol.digest import ArtifactId, sha256
from kvsync_protocol.envelope import Envelope, VerifiedPayload
from kvsync_protocol.errors import MalformedError, ProtocolError, TrustError
from kvsync_protocol.limits import MAX_JSON_BYTES, MAX_LIST_ENTRIES
from kvsync_protocol.messages import RefList
from kvsync_protocol.reader import artifact_place, block_places, name_place
from kvsync_protocol.ref import PAYLOAD_TYPE as REF_TYPE
from kvsync_protocol.ref import Ref, check_name
from kvsync_protocol.registry_messages import Addresses, Envelopes, Matches, Outcomes, PrefixQuery, Vouched
from kvsync_protocol.signing import PublicKey
from kvsync_registry.config import RegistryLimits
from kvsync_registry.errors import FullError, NotFoundError, RefusedError
from kvsync_registry.member import Member, Members
from kvsync_registry.rules import plan
from kvsync_registry.store import (
    AttestationRecord,
    Change,
    RefOutcome,
    RefRecord,
    RegistryStore,
    Standing,
)

TYPES = (ANNOUNCEMENT_TYPE, WITHDRAWAL_TYPE, CONTACT_TYPE)
MAX_ATTESTATION_BYTES = 64 * 1024
PAGE_BYTES = MAX_JSON_BYTES // 4
"""Of envelopes in one answer; inside its JSON their quotes are escaped."""


class Registry:
    """Safe for several threads. Every method raises RefusedError `registry.member`, `registry.role`."""

    def __init__(
        self,
        store: RegistryStore,
        members: Members,
        *,
        limits: RegistryLimits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.limits = limits or RegistryLimits()
        self._members = members
        self._clock = clock

    def now(self) -> int:
        """Unix time in whole seconds."""
        return int(self._clock())

    # what providers say

    def declare(self, caller: PublicKey, statements: Sequence[Envelope]) -> Outcomes:
        """Hear statements of the caller, in order. One that is refused does not hold up the others."""
        self._publisher(caller)
        heard = [_judge(caller, envelope) for envelope in statements]
        artifacts = {one.artifact for one in heard if isinstance(one, Announcement | Withdrawal) and one.artifact}
        now = self.now()
        result = Outcomes(0, ())

        def rule(standing: Standing) -> Change | None:
            nonlocal result
            change, epoch, outcomes = plan(standing, heard, self.limits, now)
            result = Outcomes(epoch, outcomes)
            return change

        self.store.change(caller, artifacts, now, rule)
        return result

    # who has what

    def lookup(self, caller: PublicKey, query: PrefixQuery) -> Matches:
        """The artifacts that hold the most of the asked blocks, of those that the caller may know of."""
        return self._find(caller, lambda reader: block_places(reader, query.keys))

    def providers(self, caller: PublicKey, artifact: ArtifactId) -> Matches:
        """Who serves this very artifact; `shared` is 1 when anybody does."""
        return self._find(caller, lambda reader: artifact_place(reader, artifact))

    def _find(self, caller: PublicKey, places: Callable[[str], bytes]) -> Matches:
        return self.store.lookup([places(reader) for reader in self._asker(caller).readers], self.now())

    def contact(self, caller: PublicKey, key: PublicKey) -> Addresses:
        self._asker(caller)
        return Addresses(self.store.contact(key, self.now()))

    # names

    def set_ref(self, caller: PublicKey, vouched: Vouched) -> None:
        """Keep a ref that `vouched.signers` signed, whoever brings it.

        Raises:
            RefusedError: `registry.name`, a name that the caller may not set.
            FullError: `registry.full`.
            TrustError: `trust.*`, `trust.rollback`.
            MalformedError: `message.range` without readers, and what a ref's parser raises.
        """
        member = self._publisher(caller)
        ref = Ref.parse(_verified(vouched, REF_TYPE))
        if not member.may_name(ref.name):
            raise RefusedError("registry.name", "this member may not set that name here")
        if not vouched.readers:
            raise MalformedError("message.range", "a ref has at least one reader")
        record = RefRecord(
            ref.name,
            vouched.signers[0],
            ref.sequence,
            ref.artifact,
            ref.expires,
            vouched.envelope.endorsed(vouched.signers).encode(),
            tuple(map(name_place, vouched.readers)),
            caller,
        )
        match self.store.put_ref(record, self.limits.refs):
            case RefOutcome.ROLLBACK:
                raise TrustError("trust.rollback", "this signer has given the name a later or another ref")
            case RefOutcome.FULL:
                raise FullError("registry.full", "this member has set as many names as it may")

    def refs(self, caller: PublicKey, name: str = "", after: str = "") -> RefList:
        """The refs of `name`, or a page of those after `after`, by name. All refs of one name stand on one page."""
        places = [name_place(reader) for reader in self._asker(caller).readers]
        rows = self.store.refs(places, name and check_name(name), after, self.now(), MAX_LIST_ENTRIES)
        page: list[tuple[str, bytes]] = []
        size = 0
        for row in rows:
            size += len(row[1])
            if size > PAGE_BYTES:
                break
            page.append(row)
        more = not name and (len(page) < len(rows) or len(rows) == MAX_LIST_ENTRIES)
        if more and page[0][0] != page[-1][0]:
            page = [row for row in page if row[0] != page[-1][0]]  # perhaps not all of its refs are here
        return RefList(tuple(Envelope.parse(envelope) for _, envelope in page), more)

    # attestations

    def attest(self, caller: PublicKey, artifact: ArtifactId, vouched: Vouched) -> None:
        """Keep a signed statement about an artifact that the caller may know of; what it says is not read.

        Raises:
            NotFoundError: `registry.unknown`.
            FullError: `registry.full`.
            TrustError: `trust.untrusted_signer`.
            MalformedError: `message.size`.
        """
        self._publisher(caller)
        verified = _verified(vouched, vouched.envelope.payload_type)
        data = vouched.envelope.endorsed(vouched.signers).encode()
        if len(data) > MAX_ATTESTATION_BYTES:
            raise MalformedError("message.size", f"an attestation has at most {MAX_ATTESTATION_BYTES} bytes")
        self._known(caller, artifact)
        now = self.now()
        record = AttestationRecord(
            artifact, vouched.signers[0], sha256(verified.payload), data, now + self.limits.attestation_ttl_s, caller
        )
        if not self.store.put_attestation(record, now, self.limits.attestations, self.limits.attestations_each):
            raise FullError("registry.full", "this artifact has as many attestations as it may")

    def attestations(self, caller: PublicKey, artifact: ArtifactId) -> Envelopes:
        """Raises NotFoundError `registry.unknown`."""
        self._known(caller, artifact)
        found: list[Envelope] = []
        size = 0
        for data in self.store.attestations(artifact, self.now(), self.limits.attestations):
            size += len(data)
            if size > PAGE_BYTES:
                break
            found.append(Envelope.parse(data))
        return Envelopes(tuple(found))

    def sweep(self) -> int:
        """Remove what no longer counts. Answers never depend on it."""
        return self.store.sweep(self.now())

    # who asks

    def _known(self, caller: PublicKey, artifact: ArtifactId) -> None:
        if not self.providers(caller, artifact).matches:
            raise NotFoundError("registry.unknown", "no such artifact here")

    def _member(self, caller: PublicKey) -> Member:
        member = self._members.find(caller)
        if member is None:
            raise RefusedError("registry.member", "this registry does not know you")
        return member

    def _asker(self, caller: PublicKey) -> Member:
        member = self._member(caller)
        if not member.ask:
            raise RefusedError("registry.role", "this member may not ask here")
        return member

    def _publisher(self, caller: PublicKey) -> Member:
        member = self._member(caller)
        if not member.publish:
            raise RefusedError("registry.role", "this member may not publish here")
        return member


def _judge(caller: PublicKey, envelope: Envelope) -> Statement | str:
    """The statement, or the code of why it is none of the caller's."""
    if envelope.payload_type not in TYPES:
        return "trust.payload_type"
    try:
        return parse_statement(envelope.verify(envelope.payload_type, [caller]))
    except ProtocolError as error:
        return error.code


def _verified(vouched: Vouched, payload_type: str) -> VerifiedPayload:
    return vouched.envelope.verify(payload_type, vouched.signers, threshold=len(vouched.signers))
