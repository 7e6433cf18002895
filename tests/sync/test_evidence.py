"""What auditors and other signers say travels with artifacts, and decides what is taken."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from aiohttp import web

from kvsync.errors import NotFoundError, PolicyError
from kvsync.peer.client import PeerClient
from kvsync.peer.control import ControlLane
from kvsync.peer.deadline import Deadline
from kvsync.peer.identity import NodeIdentity
from kvsync_protocol.attestation import PAYLOAD_TYPE as ATTESTATION_TYPE
from kvsync_protocol.attestation import Coverage
from kvsync_protocol.digest import sha256
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.messages import Attestations
from kvsync_protocol.ref import Ref
from kvsync_protocol.signing import SigningKey
from tests.conftest import SIGNER, Artifact
from tests.sync.forging import attested, diverging, renamed
from tests.sync.nodes import Node

ALICE, BOB, EVE = (SigningKey(bytes([number]) * 32) for number in (11, 12, 13))


@pytest.fixture
def both(getter: Node, provider: Node) -> tuple[Node, Node]:
    """Both nodes trust Alice and Bob besides the fixture's signer; nobody trusts Eve."""
    for node in (getter, provider):
        node.trust.add("alice", ALICE.public)
        node.trust.add("bob", BOB.public)
    return getter, provider


def put(node: Node, *envelopes: Envelope) -> None:
    """As if the artifacts' auditors were trusted there."""
    for envelope in envelopes:
        node.store.add_attestation(envelope, [ALICE.public, BOB.public, EVE.public, SIGNER.public])


def coverage(node: Node, artifact: Artifact) -> Coverage:
    return Coverage.of(artifact.manifest.layout, node.store.evidence.signed(artifact.manifest, node.trust.keys()))


async def refusal(node: Node, other: Node, artifact: Artifact, **settings: int) -> str:
    """The code of the refusal, which a dry run gives too; nothing has moved."""
    before = node.store.usage().chunks
    async with other.serving():
        dry = await node.pull(other, artifact.id, settings=settings, dry_run=True)
        with pytest.raises(PolicyError) as caught:
            await node.pull(other, artifact.id, settings=settings)
    assert [v.code for v in dry.verdicts if not v.allowed][:1] == [caught.value.code]
    assert node.store.usage().chunks == before
    return caught.value.code


async def test_attestations_of_trusted_auditors_come_with_a_pull(
    both: tuple[Node, Node], make_artifact: Callable[..., Artifact]
) -> None:
    getter, provider = both
    artifact = make_artifact()
    provider.keep(artifact)
    put(provider, attested(artifact, ALICE, 0, 1), attested(artifact, BOB, 2), attested(artifact, EVE))
    async with provider.serving():
        report = await getter.pull(provider, artifact.id)
    assert report.allowed
    assert len(getter.store.attestations(artifact.id)) == 2  # Eve's is worth nothing here
    assert coverage(getter, artifact).percent == 100
    assert coverage(getter, artifact).signers == tuple(sorted([ALICE.public, BOB.public]))


async def test_a_pull_of_what_is_here_brings_new_attestations_and_signatures(
    both: tuple[Node, Node], make_artifact: Callable[..., Artifact]
) -> None:
    getter, provider = both
    artifact = make_artifact()
    for node in both:
        node.keep(artifact)
    provider.store.add_signatures(artifact.manifest.seal(BOB), [BOB.public])
    put(provider, attested(artifact, ALICE))
    async with provider.serving():
        dry = await getter.pull(provider, artifact.id, dry_run=True)
        assert getter.store.attestations(artifact.id) == []
        report = await getter.pull(provider, artifact.id)
    assert (dry.bytes_moved, report.bytes_moved) == (0, 0)
    assert coverage(getter, artifact).percent == 100
    assert getter.store.artifact(artifact.id).envelope.signers([BOB.public]) == (BOB.public,)


async def test_a_push_offers_attestations_whether_or_not_chunks_move(
    both: tuple[Node, Node], make_artifact: Callable[..., Artifact]
) -> None:
    getter, provider = both
    provider.meet(getter, "get", "push")
    artifact = make_artifact()
    getter.keep(artifact)
    put(getter, attested(artifact, ALICE, 0), attested(artifact, EVE, 1))
    async with provider.serving():
        await getter.push(provider, artifact.id)
        assert coverage(provider, artifact).covered == {0}
        put(getter, attested(artifact, BOB, 2))
        report = await getter.push(provider, artifact.id)
    assert report.bytes_moved == 0
    assert coverage(provider, artifact).covered == {0, 2}


async def test_a_peer_without_a_role_for_it_leaves_no_attestation(
    both: tuple[Node, Node], make_artifact: Callable[..., Artifact]
) -> None:
    getter, provider = both
    artifact = make_artifact()
    provider.keep(artifact)
    said = Attestations((attested(artifact, ALICE),))

    async def attest() -> bool:
        async with asking(getter, provider) as client:
            await client.hello()
            return await client.attest(artifact.id, said)

    provider.meet(getter, "get")
    async with provider.serving():
        with pytest.raises(PolicyError) as caught:
            await attest()
    assert caught.value.code == "peer.role"
    provider.meet(getter, "audit")
    async with provider.serving():
        assert await attest()
    assert coverage(provider, artifact).percent == 100


@pytest.mark.parametrize(
    ("percent", "auditors", "allowed"),
    [
        (0, (), True),
        (1, (), False),
        (66, ((ALICE, 0), (ALICE, 1)), True),
        (67, ((ALICE, 0), (BOB, 1)), False),
        (100, ((ALICE, 0), (BOB, 1), (ALICE, 2)), True),
        (1, ((EVE, 0),), False),
        (1, ((SIGNER, 0),), False),  # its own signer's audit of what nobody else vouches for
    ],
)
async def test_a_part_of_the_blocks_must_have_been_audited_by_others(
    both: tuple[Node, Node],
    make_artifact: Callable[..., Artifact],
    percent: int,
    auditors: tuple[tuple[SigningKey, int], ...],
    allowed: bool,
) -> None:
    getter, provider = both
    artifact = make_artifact()
    assert artifact.manifest.layout.blocks == 3
    provider.keep(artifact)
    put(provider, *(attested(artifact, key, block) for key, block in auditors))
    settings = {"require_audited_percent": percent}
    if allowed:
        async with provider.serving():
            assert (await getter.pull(provider, artifact.id, settings=settings)).bytes_moved
    else:
        assert await refusal(getter, provider, artifact, **settings) == "policy.audited"


async def test_an_own_audit_counts_once_another_signer_vouches_for_the_bytes(
    both: tuple[Node, Node], make_artifact: Callable[..., Artifact]
) -> None:
    getter, provider = both
    artifact = make_artifact()
    provider.keep(artifact)
    provider.store.add_signatures(artifact.manifest.seal(BOB), [BOB.public])
    put(provider, attested(artifact, SIGNER))
    async with provider.serving():
        assert (await getter.pull(provider, artifact.id, settings={"require_audited_percent": 100})).allowed


async def test_distinct_signers_of_the_artifact_itself_are_counted(
    both: tuple[Node, Node], make_artifact: Callable[..., Artifact]
) -> None:
    getter, provider = both
    artifact = make_artifact()
    provider.keep(artifact)
    twice = artifact.manifest.seal(SIGNER)
    provider.store.add_signatures(twice.merged(artifact.manifest.seal(EVE)), [SIGNER.public, EVE.public])
    assert await refusal(getter, provider, artifact, require_signers=2) == "policy.signers"
    provider.store.add_signatures(artifact.manifest.seal(ALICE), [ALICE.public])
    async with provider.serving():
        assert (await getter.pull(provider, artifact.id, settings={"require_signers": 2})).allowed
    other = make_artifact(1)
    provider.keep(other)
    assert await refusal(getter, provider, other, require_signers=2) == "policy.signers"


@pytest.mark.parametrize("place", ["here", "at the provider"])
async def test_signers_of_other_artifacts_with_equal_bytes_vouch_too(
    both: tuple[Node, Node], make_artifact: Callable[..., Artifact], place: str
) -> None:
    getter, provider = both
    artifact = make_artifact()
    provider.keep(artifact)
    (getter if place == "here" else provider).keep(renamed(artifact, ALICE))
    assert await refusal(getter, provider, artifact, require_signers=3) == "policy.signers"
    async with provider.serving():
        report = await getter.pull(provider, artifact.id, settings={"require_signers": 2})
    assert "other artifacts" in next(v.detail for v in report.verdicts if v.policy == "signers")


async def test_a_longer_document_vouches_for_the_blocks_it_shares_and_no_others(
    both: tuple[Node, Node], make_artifact: Callable[..., Artifact]
) -> None:
    getter, provider = both
    short = make_artifact(tokens=40)
    ids = short.token_ids
    longer = make_artifact(tokens=70, head=ids, key=ALICE)
    provider.keep(short)
    getter.keep(longer)
    assert await refusal(getter, provider, short, require_signers=2) == "policy.signers"
    getter.keep(renamed(short, ALICE))
    async with provider.serving():
        assert (await getter.pull(provider, short.id, settings={"require_signers": 2})).allowed


async def test_keys_that_follow_each_other_are_one_signer(
    both: tuple[Node, Node], make_artifact: Callable[..., Artifact]
) -> None:
    import time

    from kvsync.keys import KeySpread
    from kvsync_protocol.statements import KeyStatements
    from kvsync_protocol.successor import SIGNER as SIGNER_KIND
    from kvsync_protocol.successor import Successor

    getter, provider = both
    artifact = make_artifact(key=ALICE)
    provider.keep(artifact)
    new = SigningKey(bytes([14]) * 32)
    now = int(time.time())
    statement = Successor(SIGNER_KIND, ALICE.public, new.public, 1, now - 10, now + 1000)
    KeySpread(getter.home, getter.trust).take(KeyStatements((statement.seal(ALICE, new),)))
    provider.store.add_signatures(artifact.manifest.seal(new), [new.public])
    assert getter.trust.keys() >= {ALICE.public, new.public}
    assert await refusal(getter, provider, artifact, require_signers=2) == "policy.signers"


async def test_what_a_trusted_auditor_has_refuted_is_not_taken(
    both: tuple[Node, Node], make_artifact: Callable[..., Artifact]
) -> None:
    getter, provider = both
    artifact = make_artifact()
    provider.keep(artifact)
    put(provider, attested(artifact, EVE, 1, leaf=2), attested(artifact, ALICE, 1, leaf=2, numerics=sha256(b"other")))
    async with provider.serving():
        assert (await getter.pull(provider, artifact.id, dry_run=True)).allowed
    put(provider, attested(artifact, ALICE, 1, leaf=2))
    assert await refusal(getter, provider, artifact) == "evidence.refuted"


@pytest.mark.parametrize("block", [0, 1, 2, -1])
async def test_a_divergence_is_refused_before_chunks_move_and_its_evidence_kept(
    both: tuple[Node, Node], make_artifact: Callable[..., Artifact], block: int
) -> None:
    getter, provider = both
    ours = make_artifact()
    theirs = diverging(ours, block, BOB)
    getter.keep(ours)
    provider.keep(theirs)
    assert await refusal(getter, provider, theirs) == "divergence.unsettled"
    [record] = getter.store.evidence.divergences()
    assert record.divergence.block == block % 4
    assert set(record.artifacts) == {ours.id, theirs.id}
    assert not record.settled
    signers = {key for side in record.divergence.sides for key in side.envelope.signers([SIGNER.public, BOB.public])}
    assert signers == {SIGNER.public, BOB.public}
    getter.store.remove(ours.id)
    getter.store.gc()
    assert len(getter.store.evidence.divergences()) == 1
    assert getter.store.fsck().clean


async def test_a_dry_run_tells_of_a_divergence_and_keeps_nothing(
    both: tuple[Node, Node], make_artifact: Callable[..., Artifact]
) -> None:
    getter, provider = both
    ours = make_artifact()
    getter.keep(ours)
    theirs = diverging(ours, 1, BOB)
    provider.keep(theirs)
    async with provider.serving():
        report = await getter.pull(provider, theirs.id, dry_run=True)
    assert [v.code for v in report.verdicts if not v.allowed] == ["divergence.unsettled"]
    assert getter.store.evidence.divergences() == []


async def test_a_pushed_divergence_is_refused_there_and_its_evidence_kept_there(
    both: tuple[Node, Node], make_artifact: Callable[..., Artifact]
) -> None:
    getter, provider = both
    provider.meet(getter, "get", "push")
    ours = make_artifact()
    provider.keep(ours)
    theirs = diverging(ours, 1, BOB)
    getter.keep(theirs)
    async with provider.serving():
        with pytest.raises(PolicyError) as caught:
            await getter.push(provider, theirs.id)
    assert caught.value.code == "divergence.unsettled"
    assert len(provider.store.evidence.divergences()) == 1
    assert provider.store.whole(theirs.id) is None


@pytest.mark.parametrize(
    ("settings", "code"),
    [({"require_signers": 2}, "policy.signers"), ({"require_audited_percent": 1}, "policy.audited")],
)
async def test_a_push_does_not_get_round_the_rules_for_pulls(
    make_node: Callable[..., Node], make_artifact: Callable[..., Artifact], settings: dict[str, int], code: str
) -> None:
    from kvsync.config import Settings

    taker = make_node("taker", Settings(stall_timeout_s=15, transfer_deadline_s=120, **settings))
    giver = make_node("giver")
    taker.meet(giver, "push")
    taker.trust.add("signer", SIGNER.public)
    artifact = make_artifact()
    giver.keep(artifact)
    async with taker.serving():
        with pytest.raises(PolicyError) as caught:
            await giver.push(taker, artifact.id)
    assert caught.value.code == code


async def test_a_settled_divergence_lets_the_right_side_in_and_keeps_the_wrong_one_out(
    both: tuple[Node, Node], make_artifact: Callable[..., Artifact]
) -> None:
    getter, provider = both
    right = make_artifact()
    wrong = diverging(right, 1, BOB)
    getter.keep(wrong)
    provider.keep(right)
    assert await refusal(getter, provider, right) == "divergence.unsettled"
    leaf = next(i for i in range(len(right.chunks)) if right.chunks[i] != wrong.chunks[i])
    verdict = attested(wrong, getter.keys.signer, 1, leaf=leaf, found=sha256(right.chunks[leaf]))
    getter.store.evidence.refute(verdict)
    async with provider.serving():
        assert (await getter.pull(provider, right.id)).bytes_moved
    [record] = getter.store.evidence.divergences()
    assert record.settled
    assert "right" in record.verdict
    getter.store.remove(wrong.id)
    provider.keep(wrong)
    assert await refusal(getter, provider, wrong) == "evidence.refuted"


async def test_what_refuted_one_side_speaks_against_a_third_with_other_bytes_still(
    both: tuple[Node, Node], make_artifact: Callable[..., Artifact]
) -> None:
    getter, provider = both
    right = make_artifact()
    wrong = diverging(right, 1, BOB)
    third = diverging(right, 1, ALICE, change=2)
    getter.keep(wrong)
    provider.keep(third)
    leaf = next(i for i in range(len(right.chunks)) if right.chunks[i] != wrong.chunks[i])
    getter.store.evidence.refute(attested(wrong, getter.keys.signer, 1, leaf=leaf, found=sha256(right.chunks[leaf])))
    assert await refusal(getter, provider, third) == "evidence.refuted"


async def test_an_artifact_that_nobody_trusted_vouches_for_any_more_stops_no_pull(
    both: tuple[Node, Node], make_artifact: Callable[..., Artifact]
) -> None:
    getter, provider = both
    right = make_artifact()
    wrong = diverging(right, 1, BOB)
    getter.keep(wrong)
    provider.keep(right)
    getter.trust.remove("bob")
    async with provider.serving():
        assert (await getter.pull(provider, right.id)).bytes_moved
    assert len(getter.store.evidence.divergences()) == 1


async def test_an_artifact_under_another_canary_is_pulled_by_policy_and_the_report_says_so(
    both: tuple[Node, Node],
    make_artifact: Callable[..., Artifact],
    make_fingerprints: Callable[..., object],
) -> None:
    from kvsync_protocol.errors import MismatchError

    getter, provider = both
    artifact = make_artifact(prints=make_fingerprints(host="there"))
    provider.keep(artifact)
    ours = make_fingerprints(host="here")
    async with provider.serving():
        with pytest.raises(MismatchError) as caught:
            await getter.pull(provider, artifact.id, fingerprints=ours)
        assert caught.value.code == "mismatch.numerics"
        for canary in ("another", ""):
            with pytest.raises(MismatchError):
                await getter.pull(
                    provider,
                    artifact.id,
                    fingerprints=make_fingerprints(host="here", canary=canary),
                    settings={"accept": "canary"},
                )
        report = await getter.pull(provider, artifact.id, fingerprints=ours, settings={"accept": "canary"})
    verdict = next(v for v in report.verdicts if v.policy == "fingerprints")
    assert (verdict.allowed, verdict.detail) == (True, "equal canary; torch differ")
    assert report.as_dict()["bytes_moved"]


def asking(node: Node, other: Node) -> PeerClient:
    return PeerClient(other.as_peer(), NodeIdentity(node.keys.peer), node.settings, Deadline.after(20))


async def test_whoever_is_limited_to_names_learns_of_no_other_artifact(
    both: tuple[Node, Node], make_artifact: Callable[..., Artifact]
) -> None:
    from kvsync.keys import Peer

    getter, provider = both
    artifact, hidden = make_artifact(), renamed(make_artifact(), ALICE)
    provider.keep(artifact)
    provider.keep(hidden)
    put(provider, attested(hidden, ALICE))
    ref = Ref("open/doc", artifact.id, 1)
    provider.store.set_ref(ref, ref.seal(SIGNER), SIGNER.public)
    async with provider.serving(), asking(getter, provider) as client:
        await client.hello()
        assert await client.related(artifact.id) == (hidden.id,)
    provider.book.remove(getter.name)
    provider.book.add(Peer(getter.name, getter.keys.peer.public, (), ("get", "audit"), ("open/*",)))
    async with provider.serving(), asking(getter, provider) as client:
        await client.hello()
        assert await client.related(artifact.id) == ()
        for question in (client.attestations, client.related):
            with pytest.raises(NotFoundError) as caught:
                await question(hidden.id)
            assert caught.value.code == "store.unknown_artifact"
        with pytest.raises(NotFoundError):
            await client.attest(hidden.id, Attestations((attested(hidden, BOB),)))


async def test_a_peer_of_before_attestations_is_pulled_from_and_pushed_to_all_the_same(
    both: tuple[Node, Node], make_artifact: Callable[..., Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server has no such routes, and says so as every server does."""
    getter, provider = both
    provider.meet(getter, "get", "push")
    artifact, other, third = make_artifact(), make_artifact(1), make_artifact(2)
    provider.keep(artifact)
    provider.keep(third)
    getter.keep(other)
    put(provider, attested(artifact, ALICE))
    put(getter, attested(other, ALICE))
    build = ControlLane.application

    def without(lane: ControlLane) -> web.Application:
        whole, app = build(lane), web.Application(middlewares=[lane._guard])
        for route in whole.router.routes():
            info = route.resource.get_info() if route.resource else {}
            path = str(info.get("path") or info.get("formatter"))
            if not path.endswith(("/attestations", "/related", "/description")):
                app.router.add_route(route.method, path, route.handler)
        return app

    monkeypatch.setattr(ControlLane, "application", without)
    async with provider.serving():
        assert (await getter.pull(provider, artifact.id)).bytes_moved
        assert (await getter.push(provider, other.id)).bytes_moved
        with pytest.raises(PolicyError) as caught:
            await getter.pull(provider, third.id, settings={"require_signers": 2})
    assert caught.value.code == "policy.signers"
    assert getter.store.attestations(artifact.id) == []


async def test_a_heap_of_junk_attestations_costs_the_pull_nothing(
    both: tuple[Node, Node], make_artifact: Callable[..., Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    getter, provider = both
    artifact = make_artifact()
    provider.keep(artifact)
    other = make_artifact(5)
    junk = [
        Envelope.seal("text/plain", b"x", ALICE),
        Envelope.seal(ATTESTATION_TYPE, b"not json", ALICE),
        attested(other, ALICE),
        attested(artifact, EVE),
        attested(artifact, ALICE, 0, 7),
        attested(artifact, ALICE, 1),
    ]
    monkeypatch.setattr(provider.store.evidence, "attestations", lambda _artifact: junk)
    async with provider.serving():
        await getter.pull(provider, artifact.id)
    assert coverage(getter, artifact).covered == {1}
    assert len(getter.store.attestations(artifact.id)) == 1
