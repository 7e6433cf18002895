"""Pulls of a part: exactly the chunks a graft there needs, more of it later, and what a provider of a part serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from kvsync.errors import NotFoundError, PolicyError, UnavailableError, UsageError
from kvsync.keys import KeySpread, Peer
from kvsync.peer.client import PeerClient
from kvsync.peer.deadline import Deadline
from kvsync.peer.identity import NodeIdentity
from kvsync_protocol.bulk import Encoding
from kvsync_protocol.digest import sha256
from kvsync_protocol.errors import CodedError
from kvsync_protocol.have import Have
from kvsync_protocol.ref import Ref
from tests.conftest import SIGNER, Artifact
from tests.sync.nodes import Node

Make = Callable[..., Artifact]
TOKENS = 165  # ten full blocks of 16 and a partial one; one layer with a window of 24


def needed(artifact: Artifact, *positions: int) -> set[int]:
    layout = artifact.manifest.layout
    spans = [layout.chunks_for_graft(p, logits=p == layout.tokens) for p in positions]
    return {span.index for part in spans for span in part}


def here(node: Node, artifact: Artifact) -> set[int]:
    return {i for i, chunk in enumerate(artifact.chunks) if node.store.has_chunk(sha256(chunk))}


@asynccontextmanager
async def client(node: Node, other: Node) -> AsyncIterator[PeerClient]:
    spread = KeySpread(node.home, node.trust)
    deadline = Deadline.after(20)
    async with PeerClient(other.as_peer(), NodeIdentity(node.keys.peer), node.settings, deadline, spread) as found:
        await found.hello()
        yield found


async def test_a_prefix_pull_moves_what_a_graft_there_needs_and_nothing_else(
    provider: Node, getter: Node, make_artifact: Make
) -> None:
    artifact = make_artifact(tokens=TOKENS)
    provider.keep(artifact)
    ref = Ref("doc", artifact.id, 1)
    provider.store.set_ref(ref, ref.seal(SIGNER), SIGNER.public)
    wanted = needed(artifact, 80)
    size = sum(len(artifact.chunks[i]) for i in wanted)
    async with provider.serving():
        dry = await getter.pull(provider, "doc", dry_run=True, position=95)
        report = await getter.pull(provider, "doc", position=95)
        again = await getter.pull(provider, "doc", blocks=5)
    assert here(getter, artifact) == wanted
    assert (dry.position, dry.chunks, dry.chunks_moved, dry.bytes_moved) == (80, len(wanted), len(wanted), size)
    assert (report.position, report.chunks, report.chunks_moved) == (80, len(wanted), len(wanted))
    assert (report.bytes_total, report.bytes_moved, report.bytes_here) == (size, size, 0)
    assert (again.chunks_moved, again.bytes_here, again.position) == (0, size, 80)
    stored = getter.store.artifact(getter.store.resolve("doc"))
    assert stored.extent is not None
    assert stored.extent.positions == (80,)
    assert getter.store.fsck().clean
    sliding = {span.block for span in artifact.manifest.layout.chunks() if span.group == "sliding"}
    kept = {
        artifact.manifest.layout.chunk(i).block
        for i in wanted
        if artifact.manifest.layout.chunk(i).group == "sliding"
    }
    assert (len(sliding), kept) == (11, {3, 4})  # tokens 57 to 79


async def test_a_later_pull_of_more_fetches_the_difference(provider: Node, getter: Node, make_artifact: Make) -> None:
    artifact = make_artifact(tokens=TOKENS)
    provider.keep(artifact)
    async with provider.serving():
        await getter.pull(provider, artifact.id, position=80)
        dry = await getter.pull(provider, artifact.id, position=128, dry_run=True)
        more = await getter.pull(provider, artifact.id, position=128)
        less = await getter.pull(provider, artifact.id, blocks=2)
        rest = await getter.pull(provider, artifact.id)
        part = await getter.pull(provider, artifact.id, blocks=3)
    difference = needed(artifact, 128) - needed(artifact, 80)
    assert (dry.chunks_moved, more.chunks_moved) == (len(difference), len(difference))
    assert more.bytes_here == sum(len(artifact.chunks[i]) for i in needed(artifact, 128) & needed(artifact, 80))
    assert less.chunks_moved == len(needed(artifact, 32) - needed(artifact, 80, 128))
    assert rest.chunks_moved == len(artifact.chunks) - len(needed(artifact, 32, 80, 128))
    assert (part.chunks_moved, rest.position, part.position) == (0, None, 48)
    assert getter.store.artifact(artifact.id).extent is None
    assert getter.store.fsck().clean


async def test_a_part_up_to_the_end_brings_the_logits_and_still_no_chunk_outside_the_window(
    provider: Node, getter: Node, make_artifact: Make
) -> None:
    artifact = make_artifact(tokens=TOKENS)
    provider.keep(artifact)
    async with provider.serving():
        report = await getter.pull(provider, artifact.id, position=10**6)
    assert report.position == TOKENS
    assert here(getter, artifact) == needed(artifact, TOKENS)
    assert len(artifact.chunks) - 1 in here(getter, artifact)
    assert len(here(getter, artifact)) < len(artifact.chunks)


@pytest.mark.parametrize("part", [{"position": 15}, {"position": 0}, {"blocks": 0}, {"position": 16, "blocks": 1}])
async def test_a_part_in_which_no_graft_can_begin_is_refused(
    part: dict[str, int], provider: Node, getter: Node, make_artifact: Make
) -> None:
    artifact = make_artifact(tokens=TOKENS)
    provider.keep(artifact)
    async with provider.serving():
        with pytest.raises(UsageError) as refused:
            await getter.pull(provider, artifact.id, **part)
    assert refused.value.code == "pull.part"
    assert here(getter, artifact) == set()


async def test_the_limit_on_sizes_is_about_the_part(provider: Node, getter: Node, make_artifact: Make) -> None:
    artifact = make_artifact(tokens=TOKENS)
    provider.keep(artifact)
    limit = {"max_artifact_bytes": sum(len(artifact.chunks[i]) for i in needed(artifact, 32))}
    async with provider.serving():
        await getter.pull(provider, artifact.id, position=32, settings=limit)
        with pytest.raises(PolicyError) as refused:
            await getter.pull(provider, artifact.id, position=48, settings=limit)
    assert refused.value.code == "policy.size"


async def test_a_part_that_was_cut_off_goes_on_and_a_damaged_chunk_of_it_is_fetched_again(
    provider: Node, getter: Node, make_artifact: Make
) -> None:
    artifact = make_artifact(tokens=TOKENS)
    provider.keep(artifact)
    wanted = sorted(needed(artifact, 80))
    with getter.store.pull_draft(*artifact.parts, positions=[80]) as draft:
        for index in wanted[:4]:
            draft.put(index, artifact.chunks[index])
    async with provider.serving():
        report = await getter.pull(provider, artifact.id, position=80)
        assert report.chunks_moved == len(wanted) - 4
        digest = sha256(artifact.chunks[wanted[2]])
        path = getter.home.store_dir / "chunks" / digest.hex[:2] / digest.hex
        path.chmod(0o600)
        path.write_bytes(b"x" * len(artifact.chunks[wanted[2]]))
        assert getter.store.doubt_chunk(digest)
        assert (await getter.pull(provider, artifact.id, position=80)).chunks_moved == 1
    assert getter.store.fsck().clean


async def test_a_provider_says_what_it_has_whole_in_part_and_while_it_arrives(
    provider: Node, getter: Node, make_artifact: Make
) -> None:
    whole, part, arriving = (make_artifact(seed, TOKENS) for seed in (1, 2, 3))
    provider.keep(whole)
    with provider.store.pull_draft(*part.parts, positions=[80]) as draft:
        for index in draft.missing():
            draft.put(index, part.chunks[index])
        draft.publish()
    async with provider.serving(), client(getter, provider) as peer:
        assert await peer.have(whole.manifest) == Have(len(whole.chunks))
        assert set((await peer.have(part.manifest)).indices()) == needed(part, 80)
        with pytest.raises(NotFoundError) as absent:
            await peer.have(arriving.manifest)
        with provider.store.pull_draft(*arriving.parts) as draft:
            assert list((await peer.have(arriving.manifest)).indices()) == []
            draft.put(5, arriving.chunks[5])
            assert list((await peer.have(arriving.manifest)).indices()) == [5]
            with pytest.raises(NotFoundError) as undescribed:
                await peer.envelope(arriving.id)
        chunk = sha256(whole.chunks[3])
        (provider.home.store_dir / "chunks" / chunk.hex[:2] / chunk.hex).unlink()
        assert 3 not in await peer.have(whole.manifest)
    assert {error.value.code for error in (absent, undescribed)} == {"store.unknown_artifact"}


async def test_what_a_peer_may_not_see_is_not_to_be_had_either_while_it_arrives(
    provider: Node, getter: Node, make_artifact: Make
) -> None:
    artifact = make_artifact(tokens=TOKENS)
    provider.book.remove(getter.name)
    provider.book.add(Peer("getter", getter.keys.peer.public, (), ("get",), ("team/*",)))
    async with provider.serving():
        with provider.store.pull_draft(*artifact.parts) as draft:
            draft.put(5, artifact.chunks[5])
            async with client(getter, provider) as peer:
                with pytest.raises(NotFoundError) as hidden:
                    await peer.have(artifact.manifest)
                bulk = peer.bulk()
                await asyncio.to_thread(bulk.open)
                bulk.ask(artifact.id, 5, Encoding.IDENTITY)
                with pytest.raises(NotFoundError):
                    await asyncio.to_thread(bulk.receive, len(artifact.chunks[5]))
                bulk.close()
                ref = Ref("team/doc", artifact.id, 1)
                provider.store.set_ref(ref, ref.seal(SIGNER), SIGNER.public)
                assert list((await peer.have(artifact.manifest)).indices()) == [5]
    assert hidden.value.code == "store.unknown_artifact"


async def test_a_part_is_pulled_from_whoever_has_it_and_not_more_than_that(
    make_node: Callable[..., Node], provider: Node, getter: Node, make_artifact: Make
) -> None:
    artifact = make_artifact(tokens=TOKENS)
    origin = make_node("origin")
    provider.meet(origin, "push")
    with provider.store.pull_draft(*artifact.parts, positions=[80, 128]) as draft:
        for index in draft.missing():
            draft.put(index, artifact.chunks[index])
        draft.publish()
    async with provider.serving():
        report = await getter.pull(provider, artifact.id, position=80)
        assert report.chunks_moved == len(needed(artifact, 80))
        with pytest.raises(CodedError) as refused:
            await getter.pull(provider, artifact.id, settings={"stall_timeout_s": 3})
        assert isinstance(refused.value, NotFoundError | UnavailableError)
        provider.keep(artifact)  # more of it came meanwhile
        await getter.pull(provider, artifact.id)
    assert getter.store.artifact(artifact.id).extent is None


async def test_what_is_here_in_part_is_not_pushed_and_a_push_of_all_of_it_is_taken(
    make_node: Callable[..., Node], provider: Node, getter: Node, make_artifact: Make
) -> None:
    artifact = make_artifact(tokens=TOKENS)
    with getter.store.pull_draft(*artifact.parts, positions=[80]) as draft:
        for index in draft.missing():
            draft.put(index, artifact.chunks[index])
        draft.publish()
    with provider.store.pull_draft(*artifact.parts, positions=[48]) as draft:
        for index in draft.missing():
            draft.put(index, artifact.chunks[index])
        draft.publish()
    async with provider.serving():
        with pytest.raises(NotFoundError) as refused:
            await getter.push(provider, artifact.id)
        assert refused.value.code == "store.partial"
        getter.keep(artifact)
        report = await getter.push(provider, artifact.id)
    assert report.chunks_moved == len(artifact.chunks) - len(needed(artifact, 48))
    assert provider.store.artifact(artifact.id).extent is None
