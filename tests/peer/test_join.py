"""Joining over a real socket: both sides know each other afterwards, or nothing has changed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import time
import warnings
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvsync.keys import NodeKeys, Peer
from kvsync.keys.invitations import Invitations
from kvsync.peer import join_server
from kvsync.peer.identity import NodeIdentity
from kvsync.peer.joining import JoinReport, join
from kvsync_protocol import bulk, routes
from kvsync_protocol import join as join_format
from kvsync_protocol.errors import CodedError
from kvsync_protocol.join import ANCHOR_SEED, Introduction, JoinAnswer, JoinRequest
from kvsync_protocol.messages import ErrorReply
from kvsync_protocol.signing import SigningKey
from kvsync_protocol.ticket import Ticket
from tests.conftest import build_artifact, fingerprints
from tests.sync.nodes import Node

HOUR = 3600
STRANGER = SigningKey(bytes([77]) * 32)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_server, "FAILURE_PAUSE_S", 0.01)


@pytest.fixture
async def host(provider: Node, getter: Node) -> AsyncIterator[Node]:
    """A node that serves and does not know the joiner."""
    provider.book.remove(getter.name)
    async with provider.serving():
        yield provider


def invite(host: Node, life_s: int = HOUR, **options: object) -> Ticket:
    addresses = options.pop("addresses", (host.address,))
    return Invitations(host.home).invite(host.keys.peer.public, addresses, life_s, **options)  # type: ignore[arg-type]


async def joined(node: Node, ticket: Ticket, **options: object) -> JoinReport:
    return await join(ticket, node.keys, node.store, node.settings, **options)  # type: ignore[arg-type]


def lists(*nodes: Node) -> list[bytes]:
    """What the lists of nodes hold, to show that nothing changed."""
    files = [path for node in nodes for path in (node.home.peers_file, node.home.trust_file)]
    return [path.read_bytes() if path.exists() else b"" for path in files]


async def refused(node: Node, ticket: Ticket, **options: object) -> str:
    with pytest.raises(CodedError) as caught:
        await joined(node, ticket, **options)
    return caught.value.code


async def test_one_ticket_makes_both_sides_known_to_each_other(host: Node, getter: Node) -> None:
    artifact = build_artifact()
    host.keep(artifact)
    ticket = invite(host, roles=("get", "push"), name="laptop", names=("team/*",))
    report = await joined(getter, Ticket.parse(str(ticket)), name="lab", roles=("push",))
    assert getter.book.peers() == [Peer("lab", host.keys.peer.public, (host.address,), ("push",))]
    here = host.book.get("laptop")
    assert (here.key, here.roles, here.names) == (getter.keys.peer.public, ("get", "push"), ("team/*",))
    assert report.granted == ("get", "push")
    assert report.signer == host.keys.signer.public
    assert not report.signer_trusted
    assert host.keys.signer.public not in set(getter.trust.keys())  # who carries is not who counts
    assert getter.keys.signer.public not in set(host.trust.keys())


async def test_after_joining_a_pull_works_without_another_word(host: Node, getter: Node) -> None:
    artifact = build_artifact(key=host.keys.signer)
    host.keep(artifact)
    await joined(getter, invite(host, trust_signer=True), name="lab", trust_signer=True)
    report = await getter.pull(host, artifact.id, peer=getter.book.get("lab"))
    assert report.chunks_moved == report.chunks
    assert getter.keys.signer.public in set(host.trust.keys())
    assert host.keys.signer.public in set(getter.trust.keys())


async def test_a_ticket_works_once(host: Node, getter: Node, make_node) -> None:  # type: ignore[no-untyped-def]
    ticket = invite(host)
    await joined(getter, ticket)
    other = make_node("other")
    before = lists(host, other)
    assert await refused(other, ticket) == "ticket.spent"
    assert lists(host, other) == before


async def test_of_many_that_show_one_ticket_at_once_one_joins(host: Node, make_node) -> None:  # type: ignore[no-untyped-def]
    ticket = invite(host)
    nodes = [make_node(f"n{number}") for number in range(4)]
    ends = await asyncio.gather(*(joined(node, ticket) for node in nodes), return_exceptions=True)
    winners = [end for end in ends if isinstance(end, JoinReport)]
    assert len(winners) == 1
    assert {end.code for end in ends if isinstance(end, CodedError)} <= {"ticket.spent", "peer.closed", "join.closed"}
    assert len(host.book.peers()) == 1


async def test_who_lost_the_answer_may_show_the_ticket_again_but_not_after_it_was_forgotten(
    host: Node, getter: Node
) -> None:
    ticket = invite(host)
    await joined(getter, ticket)
    known = host.book.peers()
    getter.home.peers_file.unlink()
    await joined(getter, ticket)
    assert host.book.peers() == known
    assert len(getter.book.peers()) == 1
    host.book.remove(known[0].name)
    assert await refused(getter, ticket) == "ticket.spent"
    assert host.book.peers() == []


async def test_an_invitation_that_was_claimed_before_a_kill_is_finished_by_the_same_node_only(
    host: Node,
    getter: Node,
    make_node,  # type: ignore[no-untyped-def]
) -> None:
    ticket = invite(host)
    invitations = Invitations(host.home)
    (open_one,) = invitations.list()
    invitations._save([replace(open_one, claimed=getter.keys.peer.public)])
    assert await refused(make_node("other"), ticket) == "ticket.spent"
    await joined(getter, ticket)
    assert [peer.key for peer in host.book.peers()] == [getter.keys.peer.public]
    assert invitations.list()[0].done


@pytest.mark.parametrize(("spoil", "code"), [("expire", "ticket.expired"), ("withdraw", "join.closed")])
async def test_an_expired_or_withdrawn_ticket_is_refused_by_name(
    host: Node, getter: Node, spoil: str, code: str
) -> None:
    if spoil == "expire":
        ticket = invite(host, 10, now=time.time() - 60)
    else:
        ticket = invite(host)
        assert Invitations(host.home).withdraw() == 1
    before = lists(host, getter)
    assert await refused(getter, ticket) == code
    assert lists(host, getter) == before


async def test_a_forged_ticket_is_unknown_beside_a_good_one(host: Node, getter: Node) -> None:
    good = invite(host)
    forged = replace(good, secret=bytes(16))
    assert await refused(getter, forged) == "ticket.unknown"
    assert host.book.peers() == []
    await joined(getter, good)


async def test_only_the_inviter_s_clock_counts(host: Node, getter: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ticket says that it expired an hour ago; the joiner's clock, an hour ahead, would agree."""
    ticket = invite(host)
    await joined(getter, replace(ticket, expires=ticket.expires - 2 * HOUR))


async def test_an_address_that_is_somebody_else_s_now_learns_no_secret(
    host: Node,
    getter: Node,
    make_node,  # type: ignore[no-untyped-def]
) -> None:
    other = make_node("other")
    async with other.serving():
        Invitations(other.home).invite(other.keys.peer.public, (other.address,), HOUR)
        ticket = invite(host, addresses=(other.address,))
        before = lists(getter, other)
        assert await refused(getter, ticket) == "peer.identity"
        assert lists(getter, other) == before


async def test_a_dead_address_before_the_right_one_does_no_harm(host: Node, getter: Node) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        ticket = invite(host, addresses=(f"127.0.0.1:{unused.getsockname()[1]}", host.address))
        assert (await joined(getter, ticket)).peer.addresses == ticket.addresses


async def test_nobody_at_any_address_is_named(host: Node, getter: Node) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        ticket = invite(host, addresses=(f"127.0.0.1:{unused.getsockname()[1]}",))
        assert await refused(getter, ticket) == "peer.unreachable"


async def test_a_node_does_not_join_itself_nor_its_copy(host: Node, getter: Node) -> None:
    ticket = invite(host)
    assert await refused(host, ticket) == "join.self"
    for name in ("signer.key", "peer.key"):  # a copied home: two peers that claim one identity
        (getter.home.keys_dir / name).write_bytes((host.home.keys_dir / name).read_bytes())
    getter.keys = NodeKeys.load(getter.home)
    assert await refused(getter, ticket) == "join.self"
    assert host.book.peers() == []


async def test_a_name_that_is_taken_is_refused_before_the_ticket_is_spent(host: Node, getter: Node) -> None:
    getter.book.add(Peer("lab", STRANGER.public))
    ticket = invite(host)
    before = lists(host, getter)
    assert await refused(getter, ticket, name="lab") == "peer.exists"
    assert lists(host, getter) == before
    with pytest.raises(CodedError) as caught:
        Invitations(getter.home).invite(getter.keys.peer.public, ("192.0.2.1:1",), HOUR, name="lab")
    assert caught.value.code == "peer.exists"
    assert (await joined(getter, ticket, name="lab-2")).peer.name == "lab-2"


async def test_a_name_that_is_taken_at_the_inviter_leaves_the_ticket_unspent(host: Node, getter: Node) -> None:
    ticket = invite(host, name="laptop")
    host.book.add(Peer("laptop", STRANGER.public))
    before = lists(host, getter)
    assert await refused(getter, ticket) == "peer.exists"
    assert lists(host, getter) == before
    host.book.remove("laptop")
    await joined(getter, ticket)


async def test_equal_host_names_are_told_apart(host: Node, getter: Node, make_node) -> None:  # type: ignore[no-untyped-def]
    await joined(getter, invite(host), own_name="laptop")
    await joined(make_node("other"), invite(host), own_name="laptop")
    names = [peer.name for peer in host.book.peers()]
    assert names[0] == "laptop"
    assert names[1].startswith("laptop-")


async def test_a_known_peer_gains_roles_and_loses_none(host: Node, getter: Node) -> None:
    host.book.add(Peer("old-name", getter.keys.peer.public, (), ("get", "audit")))
    await joined(getter, invite(host, roles=("push",)))
    (peer,) = host.book.peers()
    assert (peer.name, set(peer.roles)) == ("old-name", {"get", "audit", "push"})


async def test_a_revoked_node_cannot_join(host: Node, getter: Node) -> None:
    from kvsync.keys import Statements

    ticket = invite(host)
    Statements(host.home).revoke(getter.keys.peer.public, host.keys.signer)
    assert await refused(getter, ticket) == "peer.revoked"
    assert host.book.peers() == []


async def test_both_sides_learn_whether_they_compute_the_same(host: Node, getter: Node) -> None:
    for node, numerics in ((host, "2.1"), (getter, "2.2")):
        prints = fingerprints("model-a", numerics, "c0")
        node.keep(build_artifact(3, key=node.keys.signer, prints=prints))
    host.keep(build_artifact(4, key=host.keys.signer, prints=fingerprints("model-b", "2.1")))
    (found,) = (await joined(getter, invite(host))).comparisons
    assert (found.weights, found.differing, found.canary_equal, found.equal) == ("model-a", ("torch",), True, False)


# the lane itself


def speak(node: Node, host: Node, data: bytes, context: ssl.SSLContext | None = None) -> bytes:
    """Bytes on the join lane by hand; all that comes back."""
    name, port = host.address.split(":")
    context = context or NodeIdentity(node.keys.peer).join_client_context(host.keys.peer.public)
    with socket.create_connection((name, int(port)), timeout=10) as plain, context.wrap_socket(plain) as secured:
        secured.sendall(data)
        found = b""
        while piece := secured.recv(65536):
            found += piece
        return found


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def request(host: Node, node: Node, ticket: Ticket, joiner: SigningKey | None = None) -> bytes:
    public = joiner.public if joiner else node.keys.peer.public
    about = Introduction("x", node.keys.signer.public)
    return framed(JoinRequest(host.keys.peer.public, public, about).seal(ticket.key).encode())


@pytest.mark.parametrize("data", [b"\0\0\0\2{}", b"\xff\xff\xff\xff", framed(b"x" * 1000), framed(b'{"payload":1}')])
async def test_garbage_on_the_lane_is_refused_in_few_bytes(host: Node, getter: Node, data: bytes) -> None:
    invite(host)
    answer = await asyncio.to_thread(speak, getter, host, data)
    assert isinstance(JoinAnswer.parse(answer[4:]), ErrorReply)
    assert len(answer) < 1000
    assert host.book.peers() == []


async def test_a_request_that_was_made_for_another_connection_is_useless(
    host: Node,
    getter: Node,
    make_node,  # type: ignore[no-untyped-def]
) -> None:
    """Somebody saw the request, or holds the ticket and names another's key."""
    ticket, thief = invite(host), make_node("thief")
    answer = JoinAnswer.parse((await asyncio.to_thread(speak, thief, host, request(host, getter, ticket)))[4:])
    assert isinstance(answer, ErrorReply)
    assert answer.code == "ticket.identity"
    assert host.book.peers() == []
    await joined(getter, ticket)


async def test_whoever_shows_no_key_has_no_session(host: Node, getter: Node) -> None:
    ticket = invite(host)
    context = NodeIdentity(getter.keys.peer).join_client_context(host.keys.peer.public)
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname, bare.verify_mode = False, ssl.CERT_NONE
    bare.set_alpn_protocols([join_format.ALPN])
    with pytest.raises(OSError):
        await asyncio.to_thread(speak, getter, host, request(host, getter, ticket), bare)
    assert await asyncio.to_thread(speak, getter, host, request(host, getter, ticket), context)


async def test_the_lane_is_shut_while_no_ticket_is_out(host: Node, getter: Node) -> None:
    with pytest.raises(OSError):
        await asyncio.to_thread(speak, getter, host, b"x")


@pytest.mark.parametrize("protocol", [routes.CONTROL_ALPN, bulk.ALPN])
async def test_the_certificate_for_joining_opens_no_other_lane(host: Node, getter: Node, protocol: str) -> None:
    invite(host)
    context = NodeIdentity(getter.keys.peer).join_client_context(host.keys.peer.public)
    context.set_alpn_protocols([protocol])
    try:
        found = await asyncio.to_thread(speak, getter, host, b"GET /v1/hello HTTP/1.1\r\nHost: x\r\n\r\n", context)
    except OSError:
        found = b""
    assert found == b""


async def test_the_key_that_everybody_holds_is_nobody_s_identity(host: Node, getter: Node) -> None:
    with pytest.raises(CodedError) as caught:
        host.book.add(Peer("x", SigningKey(ANCHOR_SEED).public))
    assert caught.value.code == "peer.key"


async def test_slow_and_many_strangers_leave_the_node_in_service(
    provider: Node, getter: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.keep(build_artifact())
    getter.trust.add("signer", build_artifact().key.public)
    provider.settings = replace(provider.settings, stall_timeout_s=3)
    async with provider.serving():
        invite(provider)
        name, port = provider.address.split(":")
        identity = NodeIdentity(STRANGER)

        def silent() -> ssl.SSLSocket:
            plain = socket.create_connection((name, int(port)), timeout=10)
            return identity.join_client_context(provider.keys.peer.public).wrap_socket(plain)

        waiting = [await asyncio.to_thread(silent) for _ in range(join_server.MAX_AT_ONCE)]
        with pytest.raises(OSError):
            await asyncio.to_thread(silent)
        await getter.pull(provider, build_artifact().id)
        for connection in waiting:  # given up after stall_timeout_s
            assert not await asyncio.to_thread(connection.recv, 1)
            connection.close()
        await getter.pull(provider, build_artifact().id)


async def test_no_secret_is_kept(host: Node, getter: Node, tmp_path: Path) -> None:
    ticket = invite(host)
    await joined(getter, ticket)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert ticket.secret not in data
            assert ticket.key.seed not in data
            assert str(ticket).encode() not in data


@pytest.mark.parametrize("ends", ["joined", "refused", "somebody else's address"])
async def test_a_loop_that_ends_with_the_join_leaves_no_socket_to_the_collector(
    host: Node,
    getter: Node,
    make_node,  # type: ignore[no-untyped-def]
    ends: str,
) -> None:
    """As a command does it: the loop is there for the join alone."""
    other = make_node("other")
    async with other.serving():
        Invitations(other.home).invite(other.keys.peer.public, (other.address,), HOUR)
        ticket = invite(host, addresses=(other.address if ends.startswith("somebody") else host.address,))
        if ends == "refused":
            ticket = replace(ticket, secret=bytes(16))

        def command() -> list[str]:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                with contextlib.suppress(CodedError):
                    asyncio.run(joined(getter, ticket))
                gc.collect()
            return [str(warning.message) for warning in said if warning.category is ResourceWarning]

        assert await asyncio.to_thread(command) == []
