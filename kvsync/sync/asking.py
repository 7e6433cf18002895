"""Have a peer compute, and fetch the result, which is judged like any artifact: the peer's word counts for nothing.

    hello ─► models ─► compute ─► state … state ─► envelope ─► pull
    roles,   ours?     asked      polled;          of these    as always
    signer             once       lost peers are   tokens?
                                  waited for

The request has an id, so that it is asked again after every disconnect or restart, on either side, and is not done
twice. Whoever gives up says so with `withdraw`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Final, NoReturn

from kvsync.config import Settings
from kvsync.errors import EngineError, NotFoundError, PolicyError, StoreError, UnavailableError
from kvsync.keys import KeySpread, NodeKeys, Peer, TrustList
from kvsync.peer.compute_client import ComputeClient
from kvsync.peer.deadline import Deadline
from kvsync.peer.identity import NodeIdentity
from kvsync.progress import Progress, silent
from kvsync.store import Store
from kvsync.sync.policy import check_wanted
from kvsync.sync.pull import pull
from kvsync.sync.report import PullReport
from kvsync_protocol import manifest as manifest_format
from kvsync_protocol.computation import ComputeRequest, ComputeState
from kvsync_protocol.digest import ArtifactId, Digest, sha256
from kvsync_protocol.errors import CodedError, IntegrityError, TrustError
from kvsync_protocol.fingerprint import Fingerprints
from kvsync_protocol.manifest import Manifest
from kvsync_protocol.messages import Hello
from kvsync_protocol.prefix import tokens_digest

POLL_S: Final = 0.5
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 20.0
FIRST_CONTACT_S: Final = 60.0
"""A peer that was never reached is given up after so long, one that was after `transfer_deadline_s`."""
WITHDRAW_S: Final = 10.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Question:
    """`compatibility` names the model. `expect` is the digest of the token ids that a text must become, if known."""

    id: str
    compatibility: Digest
    text: str | None = None
    tokens: tuple[int, ...] | None = None
    expect: Digest | None = None

    def check(self, manifest: Manifest) -> None:
        """Raises IntegrityError `compute.other_input` unless the artifact is of what was asked."""
        found = manifest.tokens
        expect = self.expect if self.tokens is None else tokens_digest(self.tokens)
        if self.text is not None and found.text != sha256(self.text.encode()):
            raise _other("text")
        if expect is not None and found.digest != expect:
            raise _other("token ids")


async def ask(
    store: Store,
    trust: TrustList,
    peer: Peer,
    question: Question,
    *,
    keys: NodeKeys,
    settings: Settings,
    fingerprints: Fingerprints | None,
    progress: Progress = silent,
) -> PullReport:
    """The pulled result. `fingerprints` are those of the model here, None for a host that has none.

    Raises:
        PolicyError: `peer.role`, `compute.too_long`, `compute.too_many`, `compute.cancelled`.
        NotFoundError: `compute.unknown_model`.
        MismatchError: as `Fingerprints.check`, before anything is computed.
        TrustError: `trust.untrusted_signer`, before anything is computed; and as `pull`.
        IntegrityError: `compute.other_input`; and as `pull`.
        UnavailableError: `compute.lost`, `peer.deadline`; the failed computation's own code.
    """
    asking = _Asking(trust, peer, question, keys, settings, fingerprints, progress)
    artifact = await asking.run()
    return await pull(
        store,
        trust,
        peer,
        str(artifact),
        keys=keys,
        settings=settings,
        fingerprints=fingerprints,
        progress=progress,
    )


async def withdraw(peer: Peer, question: str, *, keys: NodeKeys, settings: Settings) -> None:
    """Tell the peer that nobody waits for this question's answer; one that cannot be told computes in vain."""
    try:
        async with asyncio.timeout(WITHDRAW_S), _client(peer, keys, settings, Deadline.after(WITHDRAW_S)) as client:
            await client.hello()
            await client.cancel(question)
    except (CodedError, TimeoutError) as error:
        log.info("%s was not told that nobody waits any more: %s", peer.name, error)


class _Asking:
    """One question under way."""

    def __init__(
        self,
        trust: TrustList,
        peer: Peer,
        question: Question,
        keys: NodeKeys,
        settings: Settings,
        fingerprints: Fingerprints | None,
        progress: Progress,
    ) -> None:
        self._trust = trust
        self._peer = peer
        self._question = question
        self._keys = keys
        self._settings = settings
        self._fingerprints = fingerprints
        self._progress = progress
        self._deadline = Deadline.after(settings.compute_deadline_s)
        self._heard = time.monotonic()
        self._patience = FIRST_CONTACT_S

    async def run(self) -> ArtifactId:
        """Until the peer has computed it, however often it is lost on the way."""
        pause = FIRST_PAUSE_S
        while True:
            try:
                state = await self._once()
            except UnavailableError as error:
                self._deadline.remaining()
                if time.monotonic() - self._heard > self._patience:
                    raise UnavailableError(
                        "compute.lost",
                        f"{self._peer.name} was not heard of for {self._patience:.0f} s: {error.message}",
                        hint="ask again when it is back; what it has computed is not computed again",
                    ) from error
                log.info("%s is lost, asking again: %s", self._peer.name, error)
            else:
                if state.artifact is None:
                    raise_failed(self._peer, state)
                return state.artifact
            if time.monotonic() - self._heard < pause:
                pause = FIRST_PAUSE_S
            await asyncio.sleep(self._deadline.remaining(pause))
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _once(self) -> ComputeState:
        """The last state, that of a result of what was asked checked."""
        async with _client(self._peer, self._keys, self._settings, self._deadline) as client:
            self._judge(await client.hello())
            request = await self._request(client)
            state = self._told(await client.compute(request))
            while not state.final:
                await asyncio.sleep(POLL_S)
                try:
                    state = self._told(await client.computation(request.id))
                except NotFoundError:  # forgotten there
                    state = self._told(await client.compute(request))
            if state.artifact is not None:
                await self._check(client, state.artifact)
            return state

    def _judge(self, hello: Hello) -> None:
        """What can be refused before anybody computes."""
        lacking = [role for role in ("compute", "get") if role not in hello.roles]
        if lacking:
            raise PolicyError(
                "peer.role",
                f"this node may not {lacking[0]} at {self._peer.name}",
                hint="kvsync peer add --role, there",
            )
        if not self._trust.keys().intersection(hello.signers):
            raise TrustError(
                "trust.untrusted_signer",
                f"nothing that {self._peer.name} signs is trusted here",
                hint=f"kvsync trust add {self._peer.name}",
            )

    async def _request(self, client: ComputeClient) -> ComputeRequest:
        wanted = self._question.compatibility
        found = [pair for pair in (await client.models()).offered if pair.compatibility.digest == wanted]
        if not found:
            raise NotFoundError(
                "compute.unknown_model",
                f"{self._peer.name} does not offer this model",
                hint="kvsync model offer, there",
            )
        question = self._question
        return ComputeRequest(question.id, wanted, self._best(found), question.text, question.tokens)

    def _best(self, offered: list[Fingerprints]) -> Digest:
        """The numerics that this host accepts. Raises MismatchError when it accepts none of them."""
        if self._fingerprints is None:
            return offered[0].numerics.digest
        for theirs in offered[:-1]:
            try:
                self._fingerprints.check(theirs, accept=self._settings.accept)
            except CodedError:
                continue
            return theirs.numerics.digest
        self._fingerprints.check(offered[-1], accept=self._settings.accept)
        return offered[-1].numerics.digest

    def _told(self, state: ComputeState) -> ComputeState:
        self._heard, self._patience = time.monotonic(), self._settings.transfer_deadline_s
        if state.state == "queued":
            self._progress("waiting", 0, state.ahead + 1, "computations")
        elif state.state == "running" and state.total:
            self._progress(state.stage or "computing", state.done, state.total, state.unit)
        return state

    async def _check(self, client: ComputeClient, artifact: ArtifactId) -> None:
        """That it is of what was asked, before its bytes move."""
        envelope = await client.envelope(artifact)
        manifest = Manifest.parse(envelope.verify(manifest_format.PAYLOAD_TYPE, self._trust.keys()))
        check_wanted(manifest, artifact)
        self._question.check(manifest)


def raise_failed(peer: Peer, state: ComputeState) -> NoReturn:
    """The end of a computation that is none, under the code that the peer gave it."""
    if state.state == "cancelled":
        raise PolicyError("compute.cancelled", f"{peer.name} has cancelled the computation")
    families = {"engine": EngineError, "compute": PolicyError, "store": StoreError}
    kind = families.get(state.code.partition(".")[0], UnavailableError)
    text = "".join(c for c in state.message if c.isprintable()) or "the computation failed there"
    raise kind(state.code or "compute.failed", f"{peer.name} says: {text}", peer=peer.name)


def _client(peer: Peer, keys: NodeKeys, settings: Settings, deadline: Deadline) -> ComputeClient:
    current = keys.current()
    spread = KeySpread(current.home, TrustList(current.home, current.signer.public))
    return ComputeClient(peer, NodeIdentity(current.peer), settings, deadline, spread)


def _other(what: str) -> IntegrityError:
    return IntegrityError("compute.other_input", f"the result is of another {what} than what was asked")
