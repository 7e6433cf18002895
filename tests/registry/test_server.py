"""A registry behind TLS: who gets in, what a request may be, and what happens when the registry is gone."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kvsync.config import Settings
from kvsync.errors import NotFoundError, PolicyError, UnavailableError
from kvsync.keys import Peer, PeerBook
from kvsync.peer.deadline import Deadline
from kvsync.peer.identity import NodeIdentity, peer_key
from kvsync.peer.registry_client import RegistryClient
from kvsync.peer.registry_link import Holding, RegistryLink
from kvsync.peer.registry_members import RosterMembers
from kvsync.peer.roster import Roster
from kvsync_protocol import registry_routes, routes
from kvsync_protocol.announcement import Announcement, Moment
from kvsync_protocol.digest import sha256
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import TrustError
from kvsync_protocol.ref import Ref
from kvsync_protocol.registry_messages import Matches, PrefixQuery, Vouched
from kvsync_registry.app import RegistryServer
from kvsync_registry.config import RegistryLimits
from kvsync_registry.memory import MemoryRegistryStore
from kvsync_registry.service import Registry
from tests.registry.world import artifact, chain, key
from tests.sync.nodes import Node

SETTINGS = Settings(stall_timeout_s=20, transfer_deadline_s=60)
DIGEST = sha256(b"fingerprint")


class Place:
    """A registry's home, and clients of it."""

    def __init__(self, root: Path) -> None:
        self.node = Node(root, "registry")
        self.roster = Roster(self.node.keys)
        self.members = RosterMembers(self.roster)
        self.registry = Registry(MemoryRegistryStore(), self.members)
        self.address = ""

    def admit(self, name: str, *roles: str) -> None:
        self.node.book.add(Peer(name, key(name).public, (), roles or ("get", "push")))

    def client(self, name: str) -> RegistryClient:
        peer = Peer("registry", self.node.keys.peer.public, (self.address,))
        return RegistryClient(peer, NodeIdentity(key(name)), SETTINGS, Deadline.after(60))

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[RegistryServer]:
        server = RegistryServer(
            self.registry,
            self.members,
            context=lambda: self.roster.context(routes.CONTROL_ALPN),
            identify=peer_key,
            port=port,
        )
        host, bound = await server.start()
        self.address = f"{host}:{bound}"
        try:
            yield server
        finally:
            await server.stop()


@pytest.fixture
def place(tmp_path: Path) -> Any:
    made = Place(tmp_path)
    yield made
    made.node.close()


def announcement(name: object, blocks: Any, at: Moment) -> Announcement:
    return Announcement(at, artifact(name), DIGEST, DIGEST, chain(blocks), 1000, ("members",), 3600)


async def test_members_announce_look_up_name_and_attest_over_the_wire(place: Place) -> None:
    place.admit("alpha")
    place.admit("beta", "get")
    async with place.serving(), place.client("alpha") as alpha, place.client("beta") as beta:
        assert (await alpha.hello()).roles == ("get", "push")
        assert (await beta.hello()).roles == ("get",)
        said = [announcement(n, f"ab{n}", Moment(1, n)).seal(key("alpha")) for n in (1, 2)]
        assert (await alpha.declare(said)).outcomes == ("ok", "ok")
        found = await beta.lookup(chain("ab1xyz"))
        assert (found.shared, [match.artifact for match in found.matches]) == (3, [artifact(1)])
        assert (await beta.providers(artifact(2))).matches[0].providers[0].key == key("alpha").public
        ref = Ref("team/a", artifact(1), 1).seal(key("signer"))
        await alpha.set_name(Vouched((key("signer").public,), ref, ("members",)))
        assert (await beta.names(name="team/a")).refs == (ref,) == (await beta.names(after="team")).refs
        word = Envelope.seal("application/vnd.kvsync.attestation+json", b"checked", key("signer"))
        await alpha.vouch(artifact(1), Vouched((key("signer").public,), word))
        assert (await beta.attested(artifact(1))).envelopes == (word,)
        assert (await beta.contact(key("alpha").public)).addresses == ()
        with pytest.raises(PolicyError) as refused:
            await beta.declare([])
        assert refused.value.code == "registry.role"
        with pytest.raises(NotFoundError) as unknown:
            await beta.attested(artifact(3))
        assert unknown.value.code == "registry.unknown"


async def test_strangers_get_no_session_and_removed_members_are_cut_off(place: Place) -> None:
    place.admit("alpha")
    async with place.serving(), place.client("alpha") as alpha, place.client("stranger") as stranger:
        await alpha.hello()
        with pytest.raises((UnavailableError, TrustError)):
            await stranger.hello()
        place.admit("stranger")
        async with place.client("stranger") as late:
            await late.hello()
        place.node.book.remove("alpha")
        with pytest.raises((UnavailableError, TrustError)):
            await alpha.lookup(chain("ab"))


async def test_a_registry_under_another_key_is_not_spoken_to(place: Place) -> None:
    place.admit("alpha")
    async with place.serving():
        impostor = Peer("registry", key("impostor").public, (place.address,))
        async with RegistryClient(impostor, NodeIdentity(key("alpha")), SETTINGS, Deadline.after(60)) as client:
            with pytest.raises(TrustError):
                await client.hello()


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", registry_routes.LOOKUP, b"{", 400, "json.syntax"),
        ("POST", registry_routes.LOOKUP, b'{"keys":[]}', 400, "message.range"),
        ("POST", registry_routes.LOOKUP, b'{"keys":["../../etc/passwd"]}', 400, "digest.syntax"),
        ("POST", registry_routes.LOOKUP, b" " * (513 * 1024), 400, "message.size"),
        ("POST", registry_routes.STATEMENTS, b'{"envelopes":[{}]}', 400, "message.type"),
        ("POST", registry_routes.NAMES, b"{}", 400, "message.missing"),
        ("GET", registry_routes.NAMES + "?name=../x", b"", 400, "ref.name"),
        ("GET", registry_routes.PROVIDERS.format(artifact="zz"), b"", 400, "digest.syntax"),
        ("GET", registry_routes.CONTACT.format(key="ed25519:x"), b"", 400, "key.syntax"),
    ],
)
async def test_a_malformed_request_is_refused_in_one_form(
    place: Place, method: str, path: str, body: bytes, status: int, code: str
) -> None:
    place.admit("alpha")
    context = NodeIdentity(key("alpha")).client_context(place.node.keys.peer.public, routes.CONTROL_ALPN)
    async with place.serving(), aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        async with session.request(method, f"https://{place.address}{path}", data=body or None) as answer:
            assert (answer.status, json.loads(await answer.read())["code"]) == (status, code)
        async with session.get(f"https://{place.address}/v1/health") as answer:
            assert answer.status == 200


class Sweeping(MemoryRegistryStore):
    """Fails at its first sweep, then says when one removed something."""

    def __init__(self) -> None:
        super().__init__()
        self.sweeps = 0
        self.removed = threading.Event()

    def sweep(self, now: int) -> int:
        self.sweeps += 1
        if self.sweeps == 1:
            raise RuntimeError("the first sweep fails")
        found = super().sweep(now)
        if found:
            self.removed.set()
        return found


async def test_what_expired_is_swept_away_while_serving_even_after_a_failure(place: Place) -> None:
    place.admit("alpha")
    store, now = Sweeping(), 1000.0
    limits = RegistryLimits(sweep_every_s=0.02)
    place.registry = Registry(store, place.members, limits=limits, clock=lambda: now)
    async with place.serving(), place.client("alpha") as alpha:
        await alpha.hello()
        said = [announcement(1, "abc", Moment(1, 1)).seal(key("alpha"))]
        assert (await alpha.declare(said)).outcomes == ("ok",)
        now += 3600.0
        assert await asyncio.to_thread(store.removed.wait, 30)


async def test_absent_and_hidden_give_the_same_bytes(place: Place) -> None:
    place.admit("alpha")
    place.admit("beta")
    hidden = dataclasses.replace(announcement(1, "abc", Moment(1, 1)), readers=(str(key("alpha").public),))
    context = NodeIdentity(key("beta")).client_context(place.node.keys.peer.public, routes.CONTROL_ALPN)
    async with place.serving(), place.client("alpha") as alpha:
        await alpha.hello()
        assert (await alpha.declare([hidden.seal(key("alpha"))])).outcomes == ("ok",)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:

            async def ask(method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
                async with session.request(method, f"https://{place.address}{path}", data=body) as answer:
                    return answer.status, await answer.read()

            for path in (registry_routes.PROVIDERS, registry_routes.ATTESTATIONS):
                one, other = [await ask("GET", path.format(artifact=artifact(n).hex)) for n in (1, 2)]
                assert one == other
            one, other = [
                await ask("POST", registry_routes.LOOKUP, PrefixQuery(chain(blocks)).encode())
                for blocks in ("abc", "xyz")
            ]
            assert one == other == (200, Matches(0, ()).encode())


def holding(name: object, blocks: Any) -> Holding:
    return Holding(artifact(name), DIGEST, DIGEST, chain(blocks), 1000, ("members",))


async def test_a_registry_that_is_away_is_no_error_and_hears_everything_later(place: Place) -> None:
    place.admit("alpha")
    place.admit("beta")
    now = 0.0
    link = RegistryLink(key("alpha"), 1, lambda: place.client("alpha"), clock=lambda: now)
    async with place.serving():
        port = int(place.address.rpartition(":")[2])
        link.offer(holding(1, "abc"))
        link.reach_at(["192.0.2.1:7000"])
        assert await link.tell()
        assert (await link.find(chain("abcd"))).shared == 3
    assert await link.find(chain("abc")) == Matches(0, ())
    link.offer(holding(2, "abcd"))
    link.end(artifact(1))
    assert not await link.tell()
    now = 3600.0  # an hour later, and the registry has forgotten everything
    place.registry = Registry(MemoryRegistryStore(), place.members)
    async with place.serving(port):
        assert await link.tell()
        async with place.client("beta") as beta:
            await beta.hello()
            found = await beta.lookup(chain("abcd"))
            assert [(match.artifact, match.providers[0].addresses) for match in found.matches] == [
                (artifact(2), ("192.0.2.1:7000",))
            ]
            assert (await beta.providers(artifact(1))).matches == ()


async def test_a_host_whose_clock_was_set_back_is_heard_again(place: Place) -> None:
    place.admit("alpha")
    before = RegistryLink(key("alpha"), 1000, lambda: place.client("alpha"))
    after = RegistryLink(key("alpha"), 5, lambda: place.client("alpha"))
    async with place.serving():
        before.offer(holding("old", "abc"))
        assert await before.tell()
        after.offer(holding("new", "xyz"))
        assert await after.tell()
        assert (await after.find(chain("xyz"))).shared == 3
        assert (await after.find(chain("abc"))).shared == 0


async def test_many_artifacts_are_told_in_requests_that_a_registry_takes_and_only_when_due(place: Place) -> None:
    place.admit("alpha")
    now = 0.0
    link = RegistryLink(key("alpha"), 1, lambda: place.client("alpha"), clock=lambda: now)
    async with place.serving():
        for number in range(700):
            link.offer(holding(number, ["common", *range(20), number]))
        assert await link.tell()
        assert (await link.find(chain(["common", *range(20), 699]))).shared == 22
        assert link.due == 0
        now = 1801.0
        assert link.due == 700


def start_program(node: Node, *options: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
    """`kvsync-registry` for a home, and what it says when it is up."""
    command = [sys.executable, "-c", "import sys; from kvsync.cli._registry import main; sys.exit(main())"]
    command += ["--home", str(node.home.root), "--listen", "127.0.0.1:0", "--json", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def test_the_program_serves_a_home_until_it_is_told_to_stop(tmp_path: Path) -> None:
    node = Node(tmp_path, "registry")
    PeerBook(node.home).add(Peer("team/alpha", key("alpha").public, (), ("get", "push")))
    process, told = start_program(node)

    async def talk() -> None:
        peer = Peer("registry", node.keys.peer.public, (told["address"],))
        async with RegistryClient(peer, NodeIdentity(key("alpha")), SETTINGS, Deadline.after(60)) as client:
            await client.hello()
            said = dataclasses.replace(announcement(1, "abc", Moment(1, 1)), readers=("tenant:team",))
            assert (await client.declare([said.seal(key("alpha"))])).outcomes == ("ok",)
            assert (await client.lookup(chain("abc"))).shared == 3

    asyncio.run(talk())
    assert told["key"] == str(node.keys.peer.public)
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=20)
    assert process.returncode == 0, log
    assert (node.home.root / "registry.sqlite").stat().st_mode & 0o777 == 0o600
    node.close()


async def test_when_one_of_two_replicas_is_killed_the_other_knows_all_it_was_told(
    tmp_path: Path, database: str
) -> None:
    node = Node(tmp_path, "registry")
    node.book.add(Peer("alpha", key("alpha").public, (), ("get", "push")))
    replicas = [start_program(node, "--database", database) for _ in range(2)]
    link = RegistryLink(
        key("alpha"),
        1,
        lambda: RegistryClient(
            Peer("registry", node.keys.peer.public, tuple(told["address"] for _, told in replicas)),
            NodeIdentity(key("alpha")),
            SETTINGS,
            Deadline.after(60),
        ),
    )
    for number in range(20):
        link.offer(holding(number, ["all", number]))
    assert await link.tell()
    replicas[0][0].kill()
    replicas[0][0].communicate()
    assert [(await link.find(chain(["all", number]))).shared for number in range(20)] == [2] * 20
    link.end(artifact(0))
    assert await link.tell()
    assert (await link.find(chain(["all", 0]))).shared == 1
    replicas[1][0].terminate()
    _, log = replicas[1][0].communicate(timeout=20)
    assert replicas[1][0].returncode == 0, log
    assert await link.find(chain(["all"])) == Matches(0, ())
    node.close()


def test_the_program_names_what_is_wrong_with_its_home_or_database(tmp_path: Path) -> None:
    from kvsync.cli._registry import main

    assert main(["--home", str(tmp_path / "nowhere")]) == 9
    node = Node(tmp_path, "registry")
    node.close()
    home = str(node.home.root)
    assert main(["--home", home, "--listen", "nonsense"]) == 2
    assert main(["--home", home, "--listen", "127.0.0.1:0", "--database", str(tmp_path / "no" / "file")]) == 8
    assert main(["--home", home, "--listen", "127.0.0.1:0", "--database", "host=/nowhere dbname=x"]) == 8
