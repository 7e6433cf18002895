"""What a peer may do: a test for every role and verb, and that what it may not see looks like what is not there."""

from __future__ import annotations

import asyncio
import time

import pytest

from kvsync.errors import NotFoundError
from kvsync.keys import ROLES, Peer
from kvsync.store import Store, StoredArtifact
from kvsync_protocol import bulk, routes
from kvsync_protocol.bulk import BulkReply, BulkRequest, Encoding, Status, Verb
from kvsync_protocol.digest import ArtifactId, sha256
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import CodedError
from kvsync_protocol.ref import Ref
from tests.conftest import build_artifact
from tests.peer.test_server import ask, secured
from tests.sync.nodes import Node

SEEN = build_artifact(1)
HIDDEN = build_artifact(2)
UNKNOWN = ArtifactId(sha256(b"nobody has it"))
BODY = b"Content-Length: 2\r\n\r\n{}"

VERBS = [
    ("get", "GET", f"{routes.REFS}?name=team/a"),
    ("get", "GET", routes.path(routes.ENVELOPE, SEEN.id)),
    ("get", "GET", routes.path(routes.LEAVES, SEEN.id)),
    ("get", "GET", routes.path(routes.TOKENS, SEEN.id)),
    ("get", "GET", routes.path(routes.HAVE, SEEN.id)),
    ("get", "GET", routes.path(routes.DESCRIPTION, SEEN.id)),
    ("get", "GET", routes.path(routes.ATTESTATIONS, SEEN.id)),
    ("get", "GET", routes.path(routes.RELATED, SEEN.id)),
    ("push", "POST", routes.OFFERS),
    ("push", "PUT", routes.path(routes.OFFER_LEAVES, SEEN.id)),
    ("push", "PUT", routes.path(routes.OFFER_TOKENS, SEEN.id)),
    ("push", "GET", routes.path(routes.OFFER_MISSING, SEEN.id)),
    ("push", "POST", routes.path(routes.OFFER_COMMIT, SEEN.id)),
]


def request(method: str, path: str) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n".encode()
    return head + (b"\r\n" if method == "GET" else BODY)


def named(node: Node, artifact: ArtifactId, name: str) -> None:
    ref = Ref(name, artifact, node.store.ref_sequence(name, node.keys.signer.public) + 1)
    node.store.set_ref(ref, ref.seal(node.keys.signer), node.keys.signer.public)


@pytest.mark.parametrize(("role", "method", "path"), VERBS, ids=[f"{role} {path}" for role, _, path in VERBS])
async def test_a_verb_needs_its_role_and_no_other_gives_it(
    provider: Node, getter: Node, role: str, method: str, path: str
) -> None:
    provider.keep(SEEN)
    provider.book.remove(getter.name)
    provider.meet(getter, *(other for other in ROLES if other != role))
    async with provider.serving(), secured(getter, provider, "http/1.1") as connection:
        status, body = await asyncio.to_thread(ask, connection, request(method, path))
        assert (status, body["code"]) == (403, "peer.role")
    provider.book.remove(getter.name)
    provider.meet(getter, role)
    async with provider.serving(), secured(getter, provider, "http/1.1") as connection:
        status, body = await asyncio.to_thread(ask_any, connection, request(method, path))
        assert status != 403 or body["code"] != "peer.role"


@pytest.mark.parametrize(
    ("roles", "allowed"),
    [((), False), (("get", "compute"), False), (("audit",), True), (("push",), True)],
)
async def test_an_attestation_needs_audit_or_push(
    provider: Node, getter: Node, roles: tuple[str, ...], allowed: bool
) -> None:
    provider.keep(SEEN)
    provider.book.remove(getter.name)
    provider.meet(getter, *roles)
    async with provider.serving(), secured(getter, provider, "http/1.1") as connection:
        data = request("POST", routes.path(routes.ATTESTATIONS, SEEN.id))
        status, body = await asyncio.to_thread(ask_any, connection, data)
        assert (body.get("code") != "peer.role") is allowed
        assert status == (400 if allowed else 403)


def ask_any(connection, data: bytes) -> tuple[int, dict[str, object]]:  # type: ignore[no-untyped-def]
    """Like `ask`, for answers that are no JSON."""
    try:
        return ask(connection, data)
    except ValueError:
        return 200, {}


@pytest.mark.parametrize("protocol", ["http/1.1", bulk.ALPN])
@pytest.mark.parametrize("roles", [(), ROLES])
async def test_without_a_pinned_identity_there_is_no_session(
    provider: Node, getter: Node, protocol: str, roles: tuple[str, ...]
) -> None:
    provider.book.remove(getter.name)
    provider.book.add(Peer("somebody-else", provider.keys.signer.public, (), roles))
    async with provider.serving():
        with pytest.raises((OSError, AssertionError)):
            async with secured(getter, provider, protocol) as connection:
                await asyncio.to_thread(ask, connection, request("GET", routes.HELLO))


async def test_a_chunk_needs_get_and_a_pushed_one_needs_push(provider: Node, getter: Node) -> None:
    provider.keep(SEEN)
    get = BulkRequest(Verb.GET, SEEN.id, 0, Encoding.IDENTITY).encode()
    put = BulkRequest(Verb.PUT, SEEN.id, 0, Encoding.IDENTITY, 1).encode() + b"x"
    for roles, frame, expected in (
        (("push", "compute", "audit"), get, Status.NOT_FOUND),
        (("get",), get, Status.OK),
        (("get", "compute", "audit"), put, Status.REFUSED),
    ):
        provider.book.remove(getter.name)
        provider.meet(getter, *roles)
        async with provider.serving(), secured(getter, provider, bulk.ALPN) as connection:
            connection.sendall(frame)
            assert BulkReply.decode(await asyncio.to_thread(connection.recv, bulk.REPLY_BYTES)).status is expected


# names


@pytest.fixture
def limited(provider: Node, getter: Node) -> Node:
    """A provider with two artifacts, of which the getter may see the one under team/*."""
    for artifact, name in ((SEEN, "team/a"), (HIDDEN, "other/b")):
        provider.keep(artifact)
        named(provider, artifact.id, name)
    provider.book.remove(getter.name)
    provider.book.add(Peer(getter.name, getter.keys.peer.public, (), ("get", "push"), ("team/*",)))
    return provider


@pytest.mark.parametrize(
    "route", [routes.ENVELOPE, routes.LEAVES, routes.TOKENS, routes.DESCRIPTION, routes.ATTESTATIONS, routes.RELATED]
)
async def test_an_artifact_out_of_sight_and_one_that_is_absent_get_the_same_answer(
    limited: Node, getter: Node, route: str
) -> None:
    async with limited.serving(), secured(getter, limited, "http/1.1") as connection:
        answers = []
        for artifact in (HIDDEN.id, UNKNOWN):
            status, body = await asyncio.to_thread(ask, connection, request("GET", routes.path(route, artifact)))
            answers.append((status, str(body).replace(artifact.short, "ID")))
        assert answers[0] == answers[1]
        assert answers[0][0] == 404


async def test_a_limited_peer_pulls_what_it_sees_and_finds_no_other_name(limited: Node, getter: Node) -> None:
    getter.trust.add("signer", SEEN.key.public)
    getter.trust.add("provider", limited.keys.signer.public)
    async with limited.serving():
        report = await getter.pull(limited, "team/a")
        assert report.artifact == SEEN.id
        for wanted, code in (("other/b", "peer.unknown_name"), (HIDDEN.id, "store.unknown_artifact")):
            with pytest.raises(NotFoundError) as caught:
                await getter.pull(limited, wanted)
            assert caught.value.code == code
        async with secured(getter, limited, "http/1.1") as connection:
            _, page = await asyncio.to_thread(ask, connection, request("GET", routes.REFS))
            found = [Envelope.parse(text.encode()).payload for text in page["refs"]]  # type: ignore[attr-defined]
            assert len(found) == 1
            assert b"team/a" in found[0]


async def test_chunks_follow_the_name_also_on_an_open_connection(limited: Node, getter: Node) -> None:
    def status(connection, artifact: ArtifactId) -> Status:  # type: ignore[no-untyped-def]
        connection.sendall(BulkRequest(Verb.GET, artifact, 0, Encoding.IDENTITY).encode())
        reply = BulkReply.decode(connection.recv(bulk.REPLY_BYTES))
        left = reply.length
        while left:
            left -= len(connection.recv(left))
        return reply.status

    async with limited.serving(), secured(getter, limited, bulk.ALPN) as connection:
        assert await asyncio.to_thread(status, connection, SEEN.id) is Status.OK
        assert await asyncio.to_thread(status, connection, HIDDEN.id) is Status.NOT_FOUND
        named(limited, HIDDEN.id, "team/b")
        assert await asyncio.to_thread(status, connection, HIDDEN.id) is Status.OK
        limited.store.remove_ref("team/a")
        assert await asyncio.to_thread(status, connection, SEEN.id) is Status.NOT_FOUND


async def test_an_expired_name_shows_nothing(limited: Node, getter: Node) -> None:
    key = limited.keys.signer
    ref = Ref("team/a", SEEN.id, 5, int(time.time()) - 10)
    limited.store.set_ref(ref, ref.seal(key), key.public)
    async with limited.serving(), secured(getter, limited, "http/1.1") as connection:
        status, _ = await asyncio.to_thread(ask, connection, request("GET", routes.path(routes.ENVELOPE, SEEN.id)))
        assert status == 404


async def test_neither_refusal_has_touched_what_is_stored(
    limited: Node, getter: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are decided by the same look at the names, so how long they take tells nothing."""
    looked: list[ArtifactId] = []
    find = Store.artifact

    def watched(store: Store, artifact: ArtifactId) -> StoredArtifact:
        looked.append(artifact)
        return find(store, artifact)

    async with limited.serving(), secured(getter, limited, "http/1.1") as connection:
        monkeypatch.setattr(Store, "artifact", watched)
        for artifact in (HIDDEN.id, UNKNOWN, SEEN.id):
            await asyncio.to_thread(ask, connection, request("GET", routes.path(routes.ENVELOPE, artifact)))
    assert set(looked) == {SEEN.id}


async def test_a_revoked_peer_is_dropped_from_open_connections(provider: Node, getter: Node) -> None:
    from kvsync.keys import Statements

    provider.keep(SEEN)
    async with (
        provider.serving() as server,
        secured(getter, provider, "http/1.1") as control,
        secured(getter, provider, bulk.ALPN) as chunks,
    ):
        assert (await asyncio.to_thread(ask, control, request("GET", routes.HELLO)))[0] == 200
        Statements(provider.home).revoke(getter.keys.peer.public, provider.keys.signer)
        for connection in (control, chunks):
            assert await asyncio.to_thread(ended, connection)
        async with asyncio.timeout(30):  # the other side has seen the end before this one has counted it
            while server.connections:  # noqa: ASYNC110  the server has no event for that
                await asyncio.sleep(0.01)
        with pytest.raises(CodedError) as caught:
            await getter.pull(provider, SEEN.id)
        assert caught.value.code == "peer.refused"


def ended(connection) -> bool:  # type: ignore[no-untyped-def]
    """True once the other side has ended it, within a second and what a busy machine adds."""
    connection.settimeout(5)
    try:
        return not connection.recv(1)
    except ConnectionError:
        return True
