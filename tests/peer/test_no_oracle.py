"""What a peer may not see costs this node exactly the work of what is not there: nothing about time is measured, the
steps are written down and compared.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from kvsync.errors import NotFoundError, StoreError
from kvsync.peer.access import Access
from kvsync.peer.roster import Roster
from kvsync_protocol import bulk, routes
from kvsync_protocol.bulk import BulkReply, BulkRequest, Encoding, Status, Verb
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.messages import Commit
from kvsync_registry.errors import NotFoundError as Unknown
from kvsync_registry.sqlite import SqliteRegistryStore
from tests.conftest import build_artifact
from tests.peer.test_roles import HIDDEN, SEEN, UNKNOWN, limited, named, request
from tests.peer.test_server import ask, secured
from tests.registry.world import World, artifact, key
from tests.sync.nodes import Node
from tests.sync.test_push import client

__all__ = ["limited"]
_WATCHED = ("open", "os.", "fcntl.", "sqlite3.", "shutil.", "mmap.")
_EVENTS: list[str] | None = None


def _note(event: str, _arguments: tuple[object, ...]) -> None:
    if _EVENTS is not None and event.startswith(_WATCHED):
        _EVENTS.append(event)


sys.addaudithook(_note)


@contextmanager
def touching() -> Iterator[list[str]]:
    """What this process does to files meanwhile, in any thread."""
    global _EVENTS
    found: list[str] = []
    _EVENTS = found
    try:
        yield found
    finally:
        _EVENTS = None


def steps(call: Callable[[], object]) -> list[str]:
    """Every function that `call` enters and leaves, in Python and in C, in order."""
    found: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        name = (
            getattr(argument, "__qualname__", "") if event.startswith("c_") else f"{code.co_filename}:{code.co_name}"
        )
        found.append(f"{event} {name}")

    sys.setprofile(note)
    try:
        call()
    except (NotFoundError, Unknown):
        found.append("refused")
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("names", [1, 40])
def test_the_look_at_what_a_peer_sees_takes_the_same_steps_for_both(limited: Node, getter: Node, names: int) -> None:
    """However many names the hidden one has."""
    hidden, caller = HIDDEN.id, getter.keys.peer.public
    for number in range(names):
        named(limited, hidden, f"other/{number}")
    refs = limited.home.store_dir / "refs"
    os.utime(refs, (1, 1))  # long unchanged, as it is as a rule
    access = Access(limited.store, Roster(limited.keys), refs)

    def taken(artifact: ArtifactId) -> list[str]:
        return steps(lambda: access.require(caller, artifact))

    for each in (SEEN.id, hidden, UNKNOWN):
        taken(each)  # what is remembered of lists and names is remembered now
    assert taken(hidden) == taken(UNKNOWN)
    assert "refused" in taken(hidden)
    assert "refused" not in taken(SEEN.id)
    assert len(taken(hidden)) > 10


@pytest.mark.parametrize(
    "route",
    [
        routes.ENVELOPE,
        routes.LEAVES,
        routes.TOKENS,
        routes.HAVE,
        routes.DESCRIPTION,
        routes.ATTESTATIONS,
        routes.RELATED,
    ],
)
async def test_a_request_touches_the_same_files_for_both(limited: Node, getter: Node, route: str) -> None:
    async with limited.serving(), secured(getter, limited, "http/1.1") as connection:

        async def touched(artifact: ArtifactId) -> list[str]:
            with touching() as events:
                status, _ = await asyncio.to_thread(ask, connection, request("GET", routes.path(route, artifact)))
            assert status == 404
            return events

        for artifact in (HIDDEN.id, UNKNOWN):
            await touched(artifact)
        assert await touched(HIDDEN.id) == await touched(UNKNOWN)


async def test_a_name_out_of_sight_touches_the_same_files_as_one_that_nobody_gave(
    limited: Node, getter: Node
) -> None:
    async with limited.serving(), secured(getter, limited, "http/1.1") as connection:

        async def touched(name: str) -> list[str]:
            with touching() as events:
                status, body = await asyncio.to_thread(ask, connection, request("GET", f"{routes.REFS}?name={name}"))
            assert (status, body["refs"]) == (200, [])
            return events

        for name in ("other/b", "other/zzz"):
            await touched(name)
        assert await touched("other/b") == await touched("other/zzz")


async def test_a_chunk_s_request_touches_the_same_files_for_both(limited: Node, getter: Node) -> None:
    async with limited.serving(), secured(getter, limited, bulk.ALPN) as connection:

        def touched(artifact: ArtifactId) -> list[str]:
            with touching() as events:
                connection.sendall(BulkRequest(Verb.GET, artifact, 0, Encoding.IDENTITY).encode())
                reply = BulkReply.decode(connection.recv(bulk.REPLY_BYTES))
            assert reply.status is Status.NOT_FOUND
            return events

        for artifact in (HIDDEN.id, UNKNOWN):
            await asyncio.to_thread(touched, artifact)
        found = [await asyncio.to_thread(touched, artifact) for artifact in (HIDDEN.id, UNKNOWN)]
        assert found[0] == found[1]


async def test_who_pushes_what_it_may_not_see_is_asked_for_all_of_it(limited: Node, getter: Node) -> None:
    """Here or not: what is missing would otherwise tell what others have stored."""
    answers: list[tuple[object, ...]] = []
    async with limited.serving(), client(getter, limited) as asking:
        await asking.hello()
        for each in (HIDDEN, build_artifact(77)):
            accepted = await asking.offer(each.envelope)
            await asking.offer_leaves(each.id, each.leaves)
            await asking.offer_tokens(each.id, each.tokens)
            missing = await asking.missing(each.manifest)
            with pytest.raises(StoreError) as caught:
                await asking.commit(each.id, Commit(None))
            answers.append((accepted.complete, list(missing.indices()), caught.value.code))
    assert answers[0] == answers[1]
    assert answers[0] == (False, list(range(len(HIDDEN.chunks))), "store.incomplete")


async def test_who_pushes_all_of_what_it_may_not_see_has_pushed_it(limited: Node, getter: Node) -> None:
    getter.keep(HIDDEN)
    async with limited.serving():
        report = await getter.push(limited, HIDDEN.id)
    assert report.chunks_moved == len(HIDDEN.chunks)
    assert limited.store.fsck().clean


@pytest.mark.parametrize("asked", ["providers", "lookup", "attestations"])
def test_a_registry_takes_the_same_steps_for_both(tmp_path, asked: str) -> None:  # type: ignore[no-untyped-def]
    store = SqliteRegistryStore(tmp_path / "registry.sqlite", readers=1)
    try:
        world = World(store)
        world.join("alpha")
        world.join("beta", tenant="two")
        world.announce("alpha", "hidden", range(10), readers=("tenant:one",))
        world.announce("alpha", "seen", range(100, 110))
        ask_for = {
            "providers": lambda name, _blocks: world.registry.providers(key("beta").public, artifact(name)),
            "attestations": lambda name, _blocks: world.registry.attestations(key("beta").public, artifact(name)),
            "lookup": lambda _name, blocks: world.lookup("beta", blocks),
        }[asked]
        cases = (("hidden", range(10)), ("unknown", range(200, 210)))
        for case in cases * 2:
            steps(lambda: ask_for(*case))  # noqa: B023
        taken = [steps(lambda: ask_for(*case)) for case in cases]  # noqa: B023
        assert taken[0] == taken[1]
        assert len(taken[0]) > 10
    finally:
        store.close()
