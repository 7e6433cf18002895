"""Statements about keys between live nodes: they spread at every contact and take effect at once."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import threading
import time
from collections.abc import Callable

import pytest

from kvsync.cli._verify import verify_artifact
from kvsync.errors import UnavailableError
from kvsync.keys import KeyRing, KeySpread, NodeKeys, Peer, Statements, TrustList
from kvsync.keys import node_keys as node_keys_module
from kvsync.peer.bulk_server import BulkSession
from kvsync.peer.chunk_file import ChunkFile
from kvsync.peer.client import PeerClient
from kvsync.peer.deadline import Deadline
from kvsync.peer.dial import NobodyAnsweredError, first_to_answer
from kvsync.peer.identity import NodeIdentity
from kvsync.store import resign
from kvsync_protocol import routes
from kvsync_protocol.bulk import BulkRequest
from kvsync_protocol.errors import CodedError, TrustError
from kvsync_protocol.manifest import PAYLOAD_TYPE
from kvsync_protocol.ref import Ref
from kvsync_protocol.revocation import RevocationList
from kvsync_protocol.signing import PublicKey, SigningKey
from kvsync_protocol.statements import KeyStatements
from tests.conftest import build_artifact
from tests.peer.test_server import ask, secured
from tests.sync.nodes import Node

DAY = 86_400
OFFICE = SigningKey(bytes([50]) * 32)
VICTIM = SigningKey(bytes([51]) * 32)


def office_list(sequence: int, *keys: PublicKey) -> KeyStatements:
    found = RevocationList(OFFICE.public, sequence, tuple(sorted(keys, key=str)))
    return KeyStatements((), (found.seal(OFFICE),))


def tell(node: Node, said: KeyStatements) -> None:
    KeySpread(node.home, node.trust).take(said)


def revoked(node: Node) -> frozenset[PublicKey]:
    return node.trust.standing().revoked


async def contact(node: Node, other: Node) -> None:
    """The shortest contact there is: a hello."""
    spread = KeySpread(node.home, node.trust)
    identity = NodeIdentity(node.keys.peer)
    deadline = Deadline.after(20)
    async with PeerClient(other.as_peer(), identity, node.settings, deadline, spread) as client:
        await client.hello()


async def test_a_list_spreads_both_ways_and_on_to_a_third_node(
    provider: Node, getter: Node, make_node: Callable[..., Node]
) -> None:
    third = make_node("third")
    provider.meet(third)
    for node in (provider, getter, third):
        node.trust.add("office", OFFICE.public, authority=True)
    tell(getter, office_list(1, VICTIM.public))
    async with provider.serving():
        await contact(getter, provider)  # from the caller to the server
        assert revoked(provider) == {VICTIM.public}
        await contact(third, provider)  # from the server to the caller
        assert revoked(third) == {VICTIM.public}
        tell(third, office_list(2, VICTIM.public, SigningKey(bytes([52]) * 32).public))
        await contact(third, provider)
        await contact(getter, provider)
        assert len(revoked(getter)) == 2


async def test_an_older_list_comes_to_nothing(provider: Node, getter: Node) -> None:
    for node in (provider, getter):
        node.trust.add("office", OFFICE.public, authority=True)
    tell(getter, office_list(3, VICTIM.public))
    tell(provider, office_list(2, SigningKey(bytes([52]) * 32).public))
    async with provider.serving():
        await contact(getter, provider)
    assert revoked(getter) == revoked(provider) == {VICTIM.public}


async def test_nodes_that_hold_the_same_send_nothing(provider: Node, getter: Node) -> None:
    for node in (provider, getter):
        node.trust.add("office", OFFICE.public, authority=True)
        tell(node, office_list(1, VICTIM.public))
    before = provider.home.statements_file.stat().st_mtime_ns
    async with provider.serving():
        await contact(getter, provider)
    assert provider.home.statements_file.stat().st_mtime_ns == before


@pytest.mark.parametrize("body", [b"", b"{}", b'{"successors":[],"revocations":["x"]}', b'{"successors":1}'])
async def test_garbage_for_statements_is_refused_and_changes_nothing(
    provider: Node, getter: Node, body: bytes
) -> None:
    head = f"POST {routes.STATEMENTS} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    async with provider.serving(), secured(getter, provider, "http/1.1") as connection:
        status, answer = await asyncio.to_thread(ask, connection, head + body)
        assert status == 400
        assert answer["code"]
    assert not provider.home.statements_file.exists()


async def test_a_peer_whose_key_an_authority_revoked_is_dropped_by_whoever_hears_of_it(
    provider: Node, getter: Node, make_node: Callable[..., Node]
) -> None:
    """The victim is connected to the provider while a third node brings the list."""
    third = make_node("third")
    provider.meet(third)
    for node in (provider, third):
        node.trust.add("office", OFFICE.public, authority=True)
    tell(third, office_list(1, getter.keys.peer.public))
    async with provider.serving(), secured(getter, provider, "http/1.1") as connection:
        hello = f"GET {routes.HELLO} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        assert (await asyncio.to_thread(ask, connection, hello))[0] == 200
        await contact(third, provider)
        connection.settimeout(5)
        assert not await asyncio.to_thread(connection.recv, 1)


async def test_a_getter_that_hears_its_provider_is_revoked_leaves_it(provider: Node, getter: Node) -> None:
    for node in (provider, getter):
        node.trust.add("office", OFFICE.public, authority=True)
    getter.book.add(Peer("provider", provider.keys.peer.public))
    tell(provider, office_list(1, provider.keys.peer.public))
    async with provider.serving():
        with pytest.raises(TrustError) as caught:
            await contact(getter, provider)
        assert caught.value.code == "peer.revoked"
    listed = dataclasses.replace(getter.book.get("provider"), addresses=(provider.address,))
    with pytest.raises(TrustError) as later:
        await getter.pull(provider, "team/a", peer=listed)
    assert later.value.code == "peer.revoked"


async def test_a_revoked_signer_counts_neither_for_pull_nor_for_what_is_here(provider: Node, getter: Node) -> None:
    one, two = build_artifact(1, key=VICTIM), build_artifact(2, key=VICTIM)
    for artifact in (one, two):
        provider.keep(artifact)
    getter.trust.add("victim", VICTIM.public)
    async with provider.serving():
        await getter.pull(provider, one.id)
        stored = getter.store.artifact(one.id)
        assert verify_artifact(getter.store, stored, getter.trust.keys())
        Statements(getter.home).revoke(VICTIM.public, getter.keys.signer)
        with pytest.raises(TrustError) as caught:
            await getter.pull(provider, two.id)
        assert caught.value.code == "trust.untrusted_signer"
    with pytest.raises(TrustError) as here:
        verify_artifact(getter.store, stored, getter.trust.keys())
    assert here.value.code == "trust.untrusted_signer"


async def test_a_transfer_from_a_peer_that_is_revoked_meanwhile_ends(
    provider: Node, getter: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider holds a chunk back; the word comes from elsewhere."""
    held, let_go = threading.Event(), threading.Event()
    give = BulkSession.send_chunk

    def hold_back(session: BulkSession, asked: BulkRequest, chunk: ChunkFile) -> None:
        held.set()
        let_go.wait(30)
        give(session, asked, chunk)

    monkeypatch.setattr(BulkSession, "send_chunk", hold_back)
    artifact = build_artifact()
    provider.keep(artifact)
    getter.book.add(Peer("provider", provider.keys.peer.public))
    patient = dataclasses.replace(getter.settings, stall_timeout_s=30)
    getter.settings = patient
    async with provider.serving():
        assert (await getter.pull_until_revoked(provider, artifact.id, held)).code == "peer.revoked"
        let_go.set()
    assert getter.store.whole(artifact.id) is None


# rotation


async def test_what_a_new_signer_signs_counts_where_the_old_one_is_listed(provider: Node, getter: Node) -> None:
    artifact = build_artifact(1, key=provider.keys.signer)
    provider.keep(artifact)
    getter.trust.add("provider", provider.keys.signer.public)
    made = KeyRing(provider.home).rotate("signer", DAY)
    fresh = NodeKeys.load(provider.home).signer
    later = build_artifact(2, key=fresh)
    provider.keep(later)
    ref = Ref("team/a", later.id, 1)
    provider.store.set_ref(ref, ref.seal(fresh), fresh.public)
    async with provider.serving():
        assert (await getter.pull(provider, "team/a")).artifact == later.id
        assert (await getter.pull(provider, artifact.id)).artifact == artifact.id
    assert {made.old, made.new} <= set(getter.trust.keys())


async def test_names_go_over_to_the_new_signer(provider: Node, getter: Node) -> None:
    old = provider.keys.signer
    one, two = build_artifact(1, key=old), build_artifact(2, key=old)
    for artifact in (one, two):
        provider.keep(artifact)
    first = Ref("team/a", one.id, 7)
    provider.store.set_ref(first, first.seal(old), old.public)
    getter.trust.add("provider", old.public)
    async with provider.serving():
        await getter.pull(provider, "team/a")
        KeyRing(provider.home).rotate("signer", DAY)
        fresh = NodeKeys.load(provider.home).signer
        trusted = TrustList(provider.home, fresh.public).keys()
        chain = KeyRing(provider.home).chain("signer")
        assert resign(provider.store, chain, trusted) == (2, 1)
        assert resign(provider.store, chain, trusted) == (0, 0)
        assert provider.store.ref_sequence("team/a", fresh.public) == 7
        stored = provider.store.artifact(one.id).envelope
        assert set(stored.verify(PAYLOAD_TYPE, trusted, threshold=2).signers) == {old.public, fresh.public}
        second = Ref("team/a", two.id, 8)
        provider.store.set_ref(second, second.seal(fresh), fresh.public)
        assert (await getter.pull(provider, "team/a")).artifact == two.id


async def test_a_peer_key_changes_hands_while_both_sides_keep_talking(
    provider: Node, getter: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rotation, one contact in the overlap, then only the new key is presented; the server needs no restart."""
    artifact = build_artifact()
    provider.keep(artifact)
    getter.book.add(Peer("provider", provider.keys.peer.public))
    async with provider.serving():
        made = KeyRing(provider.home).rotate("peer", DAY)
        listed = dataclasses.replace(getter.book.get("provider"), addresses=(provider.address,))
        assert listed.keys == (made.old,)
        await getter.pull(provider, artifact.id, peer=listed)
        assert getter.book.get("provider").keys == (made.old, made.new)
        monkeypatch.setattr(node_keys_module, "EARLY_S", 2 * DAY)  # a quarter of the overlap is left to wait for
        begun = time.time
        monkeypatch.setattr(time, "time", lambda: begun() + DAY - 60)
        provider.home.statements_file.touch()
        getter.store.remove(artifact.id)
        old_only = dataclasses.replace(listed, pins=(made.old,))
        with pytest.raises(TrustError) as caught:
            await getter.pull(provider, artifact.id, peer=old_only)
        assert caught.value.code == "peer.identity"
        listed = dataclasses.replace(getter.book.get("provider"), addresses=(provider.address,))
        await getter.pull(provider, artifact.id, peer=listed)
        monkeypatch.setattr(time, "time", lambda: begun() + DAY + 60)
        assert getter.book.get("provider").keys == (made.new,)


async def test_a_client_with_a_new_peer_key_is_known_by_it(provider: Node, getter: Node) -> None:
    made = KeyRing(getter.home).rotate("peer", DAY)
    async with provider.serving():
        await contact(getter, provider)
        getter.keys = NodeKeys.load(getter.home, now=made.until - 1)
        assert getter.keys.peer.public == made.new
        await contact(getter, provider)
        entry = provider.book.by_key(made.new)
        assert entry is not None
        assert entry.name == getter.name


# several addresses


async def test_a_dead_address_costs_less_than_its_timeout(provider: Node, getter: Node) -> None:
    """A listener that never answers stands first; the right one answers while the first is still silent."""
    artifact = build_artifact()
    provider.keep(artifact)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        dead = f"127.0.0.1:{silent.getsockname()[1]}"
        async with provider.serving():
            await getter.pull(
                provider,
                artifact.id,
                peer=provider.as_peer(dead, provider.address),
                settings={"stall_timeout_s": 30, "transfer_deadline_s": 20},  # one after the other would be too late
            )


async def test_ipv6_and_ipv4_addresses_both_reach_a_node(make_node: Callable[..., Node], getter: Node) -> None:
    both = make_node("both", dataclasses.replace(getter.settings, listen_host="::"))
    both.meet(getter, "get")
    artifact = build_artifact()
    both.keep(artifact)
    async with both.serving() as server:
        assert server.connections == 0
        port = both.address.rpartition(":")[2]
        for address in (f"[::1]:{port}", f"127.0.0.1:{port}", f"localhost:{port}"):
            await getter.pull(both, artifact.id, peer=both.as_peer(address))
            getter.store.remove(artifact.id)


async def test_somebody_else_at_the_first_address_is_passed_over(
    provider: Node, getter: Node, make_node: Callable[..., Node]
) -> None:
    other = make_node("other")
    other.meet(getter, "get")
    artifact = build_artifact()
    provider.keep(artifact)
    async with provider.serving(), other.serving():
        await getter.pull(provider, artifact.id, peer=provider.as_peer(other.address, provider.address))


async def test_attempts_overlap_the_first_to_succeed_wins_and_the_others_are_cancelled() -> None:
    ended: list[str] = []

    async def attempt(address: str) -> str:
        try:
            if address == "slow":
                await asyncio.sleep(60)
            if address == "bad":
                raise UnavailableError("peer.unreachable", "no")
            return address.upper()
        finally:
            ended.append(address)

    found = await first_to_answer(
        ["slow", "bad", "good", "late"], attempt, failing=(UnavailableError,), stagger_s=0.01
    )
    assert found == ("good", "GOOD")
    assert sorted(ended) == ["bad", "good", "slow"]


async def test_when_nobody_answers_every_failure_is_told_in_order() -> None:
    async def attempt(address: str) -> str:
        raise UnavailableError("peer.unreachable", address)

    with pytest.raises(NobodyAnsweredError) as caught:
        await first_to_answer(["a", "b", "a"], attempt, failing=(UnavailableError,))
    assert list(caught.value.failures) == ["a", "b"]


async def test_an_error_of_another_kind_ends_all_attempts() -> None:
    async def attempt(address: str) -> str:
        if address == "slow":
            await asyncio.sleep(60)
        raise CodedError("x.y", "a bug")

    with pytest.raises(CodedError) as caught:
        await first_to_answer(["slow", "b"], attempt, failing=(UnavailableError,), stagger_s=0.01)
    assert caught.value.code == "x.y"


def test_a_node_without_an_address_of_its_own_is_not_announced() -> None:
    from kvsync.peer.lan import announced

    with pytest.raises(UnavailableError) as caught, announced(VICTIM.public, ["lab.example:7410"]):
        pass
    assert caught.value.code == "lan.unavailable"


def test_what_is_announced_on_the_loopback_is_found_and_lies_are_only_claims() -> None:
    from kvsync.peer.lan import announced, discover

    with (
        announced(VICTIM.public, ["127.0.0.1:7410"], ["127.0.0.1"]),
        announced(OFFICE.public, ["127.0.0.1:7411"], ["127.0.0.1"]),
    ):
        for seconds in (2.5, 5, 10):
            found = {each.key: each.addresses for each in discover(seconds, ["127.0.0.1"])}
            if {VICTIM.public, OFFICE.public} <= found.keys():
                break
    assert found[VICTIM.public] == ("127.0.0.1:7410",)
    assert found[OFFICE.public] == ("127.0.0.1:7411",)
