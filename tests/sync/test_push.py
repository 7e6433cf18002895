"""Pushes: the receiver judges, takes only what it lacks, and publishes at the end."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import ssl
import time
from collections.abc import Callable

import pytest

from kvsync.errors import NotFoundError, PolicyError, UnavailableError
from kvsync.peer.client import PeerClient
from kvsync.peer.deadline import Deadline
from kvsync.peer.identity import NodeIdentity
from kvsync.peer.offers import MAX_OFFERS
from kvsync.store import StoreLimits
from kvsync.sync.push import MAX_OFFERS as MAX_TRIES
from kvsync_protocol.digest import ArtifactId, sha256
from kvsync_protocol.errors import CodedError, IntegrityError, MismatchError, TrustError
from kvsync_protocol.messages import Accepted, Commit
from kvsync_protocol.ref import Ref
from kvsync_protocol.signing import SigningKey
from tests.conftest import SIGNER, Artifact, build_artifact
from tests.sync.nodes import Node

Make = Callable[..., Artifact]
ARTIFACT = build_artifact(tokens=100)


def client(node: Node, other: Node) -> PeerClient:
    return PeerClient(other.as_peer(), NodeIdentity(node.keys.peer), node.settings, Deadline.after(20))


@pytest.mark.parametrize("encoding", ["identity", "zstd", "planes", "auto"])
async def test_a_pushed_artifact_arrives_with_its_name(provider: Node, getter: Node, encoding: str) -> None:
    getter.keep(ARTIFACT)
    ref = Ref("team/doc", ARTIFACT.id, 3)
    getter.store.set_ref(ref, ref.seal(SIGNER), SIGNER.public)
    seen: list[tuple[str, int, int, str]] = []
    async with provider.serving():
        report = await getter.push(
            provider, ARTIFACT.id, settings={"encoding": encoding}, progress=lambda *step: seen.append(step)
        )
    total = sum(map(len, ARTIFACT.chunks))
    assert provider.store.artifact(ARTIFACT.id).leaves().encode() == ARTIFACT.leaves
    assert provider.store.resolve("team/doc") == ARTIFACT.id
    assert provider.store.fsck().clean
    assert (report.chunks_moved, report.bytes_moved, report.name) == (len(ARTIFACT.chunks), total, "team/doc")
    assert sorted(seen)[-1] == ("push", total, total, "bytes")


async def test_only_what_the_receiver_lacks_is_sent(provider: Node, getter: Node, make_artifact: Make) -> None:
    head = tuple(range(32))
    short, long = make_artifact(1, 32, head=head), make_artifact(2, 60, head=head)
    getter.keep(long)
    provider.keep(short)
    async with provider.serving():
        report = await getter.push(provider, long.id)
        again = await getter.push(provider, long.id)
    assert report.chunks_moved == len(long.chunks) - 4
    assert (again.chunks_moved, again.bytes_here) == (0, again.bytes_total)
    assert provider.store.fsck().clean


async def test_pushing_what_is_there_adds_signatures_and_names(provider: Node, getter: Node) -> None:
    second = SigningKey(b"2" * 32)
    provider.keep(ARTIFACT)
    getter.keep(ARTIFACT)
    getter.store.add_signatures(ARTIFACT.manifest.seal(second), {second.public})
    provider.trust.add("second", second.public)
    ref = Ref("doc", ARTIFACT.id, 1)
    getter.store.set_ref(ref, ref.seal(SIGNER), SIGNER.public)
    async with provider.serving():
        await getter.push(provider, ARTIFACT.id)
    assert len(provider.store.artifact(ARTIFACT.id).envelope.signatures) == 2
    assert provider.store.resolve("doc") == ARTIFACT.id


async def test_a_receiver_takes_nothing_from_signers_it_does_not_trust(
    provider: Node, getter: Node, make_artifact: Make
) -> None:
    artifact = make_artifact(key=SigningKey(b"x" * 32))
    getter.keep(artifact)
    async with provider.serving():
        with pytest.raises(TrustError) as caught:
            await getter.push(provider, artifact.id)
    assert caught.value.code == "trust.untrusted_signer"
    assert caught.value.message.startswith("provider says: ")
    assert provider.store.usage().bytes == 0


async def test_a_peer_without_the_role_pushes_nothing(provider: Node, make_node: Callable[..., Node]) -> None:
    reader = make_node("reader")
    provider.meet(reader, "get")
    reader.keep(ARTIFACT)
    async with provider.serving():
        with pytest.raises(PolicyError) as caught:
            await reader.push(provider, ARTIFACT.id)
        report = await reader.push(provider, ARTIFACT.id, dry_run=True)
        async with client(reader, provider) as asking:  # and the server does not rely on being asked nicely
            await asking.hello()
            with pytest.raises(PolicyError) as refused:
                await asking.offer(ARTIFACT.envelope)
    assert (caught.value.code, refused.value.code) == ("peer.role", "peer.role")
    assert [(v.policy, v.allowed, v.code) for v in report.verdicts] == [("role", False, "peer.role")]
    assert provider.store.usage().bytes == 0


async def test_a_dry_run_offers_nothing(provider: Node, getter: Node) -> None:
    getter.keep(ARTIFACT)
    async with provider.serving():
        report = await getter.push(provider, ARTIFACT.id, dry_run=True)
    assert (report.allowed, report.chunks_moved) == (True, len(ARTIFACT.chunks))
    assert provider.store.usage().bytes == 0


async def test_an_unknown_artifact_is_named(provider: Node, getter: Node) -> None:
    async with provider.serving():
        with pytest.raises(NotFoundError) as caught:
            await getter.push(provider, ARTIFACT.id)
    assert caught.value.code == "store.unknown_artifact"


async def test_a_receiver_over_its_limits_refuses_and_keeps_nothing(make_node: Callable[..., Node]) -> None:
    small = make_node("small", limits=StoreLimits(quota_bytes=3000, free_floor_bytes=0))
    sender = make_node("sender")
    small.meet(sender, "push")
    small.trust.add("signer", SIGNER.public)
    sender.keep(ARTIFACT)
    async with small.serving():
        with pytest.raises(CodedError) as caught:
            await sender.push(small, ARTIFACT.id)
    assert caught.value.code in ("store.quota", "store.full")
    assert small.store.artifacts() == []
    assert small.store.fsck().clean


async def test_an_artifact_over_the_receivers_size_limit_is_refused(
    provider: Node, getter: Node, make_artifact: Make
) -> None:
    provider.settings = dataclasses.replace(provider.settings, max_artifact_bytes=1000)
    getter.keep(ARTIFACT)
    async with provider.serving():
        with pytest.raises(PolicyError) as caught:
            await getter.push(provider, ARTIFACT.id)
    assert caught.value.code == "policy.size"


@pytest.mark.parametrize("encoding", ["identity", "zstd", "planes"])
async def test_a_damaged_chunk_here_never_arrives_there(provider: Node, getter: Node, encoding: str) -> None:
    getter.keep(ARTIFACT)
    leaf = ARTIFACT.manifest.check_leaves(ARTIFACT.leaves).leaves[2]
    file = getter.home.store_dir / "chunks" / leaf.digest.hex[:2] / leaf.digest.hex
    file.write_bytes(bytes(leaf.size))
    async with provider.serving():
        with pytest.raises(IntegrityError) as caught:
            await getter.push(provider, ARTIFACT.id, settings={"encoding": encoding})
    assert caught.value.code == "integrity.chunk"
    assert caught.value.fields["index"] == 2
    assert provider.store.artifacts() == []
    assert provider.store.fsck().clean


async def test_the_steps_of_an_offer_cannot_be_skipped_or_faked(provider: Node, getter: Node) -> None:
    async with provider.serving():
        async with client(getter, provider) as asking:
            await asking.hello()
            accepted = await asking.offer(ARTIFACT.envelope)
            assert not accepted.complete
            codes = []
            for step in (
                asking.missing(ARTIFACT.manifest),
                asking.commit(ARTIFACT.id, Commit()),
                asking.offer_leaves(ARTIFACT.id, ARTIFACT.leaves[:-40] + bytes(40)),
                asking.offer_leaves(ARTIFACT.id, ARTIFACT.leaves + bytes(40)),
                asking.offer_tokens(ARTIFACT.id, ARTIFACT.tokens[:-4] + bytes(4)),
            ):
                with pytest.raises(CodedError) as caught:
                    await step
                codes.append(caught.value.code)
            assert codes == [
                "offer.incomplete",
                "offer.incomplete",
                "integrity.leaf_table",
                "message.size",
                "integrity.tokens",
            ]
            await asking.offer_leaves(ARTIFACT.id, ARTIFACT.leaves)
            await asking.offer_tokens(ARTIFACT.id, ARTIFACT.tokens)
            assert list((await asking.missing(ARTIFACT.manifest)).indices()) == list(range(len(ARTIFACT.chunks)))
            with pytest.raises(CodedError) as early:
                await asking.commit(ARTIFACT.id, Commit())
            assert early.value.code == "store.incomplete"
        assert provider.store.artifacts() == []
    assert provider.store.fsck().clean


async def test_a_commit_without_an_offer_tells_nothing(provider: Node, getter: Node) -> None:
    provider.keep(ARTIFACT)
    codes = set()
    async with provider.serving(), client(getter, provider) as asking:
        await asking.hello()
        for artifact in (ARTIFACT.id, ArtifactId(sha256(b"unknown"))):
            with pytest.raises(NotFoundError) as caught:
                await asking.commit(artifact, Commit())
            codes.add((caught.value.code, caught.value.message))
    assert codes == {("offer.unknown", "provider says: no such push is under way")}


async def test_a_ref_for_another_artifact_is_not_committed(provider: Node, getter: Node, make_artifact: Make) -> None:
    provider.keep(ARTIFACT)
    async with provider.serving(), client(getter, provider) as asking:
        await asking.hello()
        wrong = Ref("doc", make_artifact(9).id, 1).seal(SIGNER)
        with pytest.raises(MismatchError) as caught:
            await asking.commit(ARTIFACT.id, Commit(wrong))
        stranger = Ref("doc", ARTIFACT.id, 1).seal(SigningKey(b"x" * 32))
        with pytest.raises(TrustError) as untrusted:
            await asking.commit(ARTIFACT.id, Commit(stranger))
    assert (caught.value.code, untrusted.value.code) == ("mismatch.ref", "trust.untrusted_signer")
    assert provider.store.refs() == []


async def test_an_offer_belongs_to_the_peer_that_made_it(
    provider: Node, getter: Node, make_node: Callable[..., Node]
) -> None:
    other = make_node("other")
    provider.meet(other, "push")
    async with provider.serving(), client(getter, provider) as maker, client(other, provider) as thief:
        await maker.hello()
        await thief.hello()
        await maker.offer(ARTIFACT.envelope)
        with pytest.raises(NotFoundError) as caught:
            await thief.offer_leaves(ARTIFACT.id, ARTIFACT.leaves)
        await maker.offer_leaves(ARTIFACT.id, ARTIFACT.leaves)
    assert caught.value.code == "offer.unknown"


async def test_an_offer_left_alone_expires_and_what_came_is_kept(provider: Node, getter: Node) -> None:
    provider.settings = dataclasses.replace(provider.settings, stall_timeout_s=1)
    getter.keep(ARTIFACT)
    async with provider.serving() as server:
        async with client(getter, provider) as asking:
            await asking.hello()
            await getter.offer(asking, ARTIFACT, range(3))
            while server.offers:  # noqa: ASYNC110  an expiry tells nobody
                await asyncio.sleep(0.1)
            with pytest.raises(NotFoundError) as caught:
                await asking.commit(ARTIFACT.id, Commit())
        report = await getter.push(provider, ARTIFACT.id)
    assert caught.value.code == "offer.unknown"
    assert report.chunks_moved == len(ARTIFACT.chunks) - 3


async def test_a_push_goes_on_however_often_its_offer_ends_as_long_as_chunks_move(
    provider: Node, getter: Node
) -> None:
    """As by long pauses."""
    provider.keep(ARTIFACT)
    getter.meet(provider, "push")
    ended_at = [0]
    async with getter.serving() as server:

        def progress(stage: str, done: int, total: int, unit: str) -> None:
            if len(ended_at) < MAX_TRIES + 3 and ended_at[-1] < done < total:
                ended_at.append(done)
                server._offers.end_all()

        await provider.push(getter, ARTIFACT.id, progress=progress, settings={"streams": 1})
    assert len(ended_at) == MAX_TRIES + 3
    assert getter.store.whole(ARTIFACT.id) is not None


@pytest.mark.parametrize("how_far", ["offer.incomplete", "store.incomplete"])
async def test_a_push_whose_offer_is_another_one_when_it_commits_begins_anew(
    provider: Node, getter: Node, monkeypatch: pytest.MonkeyPatch, how_far: str
) -> None:
    """As when another push of it has ended the offer, it was removed there, and one more has begun."""
    provider.keep(ARTIFACT)
    getter.meet(provider, "push")
    really, codes = PeerClient.commit, list[str]()
    async with getter.serving() as server:

        async def commit(asking: PeerClient, artifact: ArtifactId, commit: Commit) -> Accepted:
            if codes:
                return await really(asking, artifact, commit)
            server._offers.end_all()
            key = provider.keys.peer.public
            other = server._offers.open(key, ARTIFACT.envelope, ARTIFACT.manifest, secretive=True)
            if how_far == "store.incomplete":
                other.add_leaves(ARTIFACT.leaves)
                other.add_tokens(ARTIFACT.tokens)
                other.draft(getter.store, time.monotonic() + 20, lambda described: None)
            try:
                return await really(asking, artifact, commit)
            except CodedError as error:
                codes.append(error.code)
                raise

        monkeypatch.setattr(PeerClient, "commit", commit)
        report = await provider.push(getter, ARTIFACT.id)
    assert codes == [how_far]
    assert report.chunks == len(ARTIFACT.chunks)
    assert getter.store.whole(ARTIFACT.id) is not None
    assert getter.store.fsck().clean


async def test_offers_are_limited_in_number(provider: Node, getter: Node, make_artifact: Make) -> None:
    async with provider.serving(), client(getter, provider) as asking:
        await asking.hello()
        for seed in range(MAX_OFFERS):
            await asking.offer(make_artifact(seed, tokens=20).envelope)
        await asking.offer(make_artifact(0, tokens=20).envelope)  # again: in the first one's place
        with pytest.raises(UnavailableError) as caught:
            await asking.offer(make_artifact(99, tokens=20).envelope)
    assert caught.value.code == "offer.too_many"


async def test_a_receiver_that_answers_with_another_artifact_is_found_out(
    provider: Node, getter: Node, make_artifact: Make
) -> None:
    other = make_artifact(5)
    getter.keep(ARTIFACT)

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            head = b""
            while (line := await reader.readline()) not in (b"\r\n", b""):
                head += line.lower()
            length = next((int(part[15:]) for part in head.split(b"\r\n") if part.startswith(b"content-length:")), 0)
            await reader.readexactly(length)
            body = {"artifact": str(other.id), "complete": False} if length else {
                "protocol": 1, "software": "x", "signers": [], "roles": ["push"]
            }  # fmt: skip
            data = json.dumps(body).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data))
        writer.close()

    context: ssl.SSLContext = NodeIdentity(provider.keys.peer).server_context([getter.keys.peer.public], "http/1.1")
    server = await asyncio.start_server(reply, "127.0.0.1", 0, ssl=context)
    provider.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        with pytest.raises(IntegrityError) as caught:
            await getter.push(provider, ARTIFACT.id)
    assert caught.value.code == "integrity.artifact"


COLOURED = b'{"code":"peer.role","message":"\\u001b[31mx","hint":""}'
"""An error reply that would change a terminal's colour."""


async def test_redirects_and_endless_answers_are_not_followed(provider: Node, getter: Node) -> None:
    answers = {
        b"HTTP/1.1 302 Found\r\nLocation: https://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n": "message.status",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n" + b"a" * 3 * 2**20: "message.size",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc": "json.syntax",
        b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops": "message.status",
        b"HTTP/1.1 403 No\r\nContent-Length: %d\r\n\r\n%b" % (len(COLOURED), COLOURED): "message.status",
        b"not HTTP at all\r\n\r\n": "peer.unreachable",
    }
    context = NodeIdentity(provider.keys.peer).server_context([getter.keys.peer.public], "http/1.1")
    found = {}
    for answer in answers:

        async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bytes = answer) -> None:
            while await reader.readline() not in (b"\r\n", b""):
                pass
            writer.write(answer)
            writer.close()

        server = await asyncio.start_server(reply, "127.0.0.1", 0, ssl=context)
        provider.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            with pytest.raises(CodedError) as caught:
                await getter.pull(provider, "f" * 64)
        found[answer] = caught.value.code
    assert found == answers
