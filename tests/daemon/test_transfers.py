"""Pull and push jobs between daemons, and what becomes of them when a daemon stops, dies or is told to cancel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvsync.config import Home, Settings
from kvsync.daemon import lifecycle
from kvsync.daemon.client import DaemonClient
from kvsync.daemon.messages import Job, JobId, JobKind, JobState
from kvsync.daemon.transfer_params import PullParams, PushParams
from kvsync.keys import NodeKeys, Peer, PeerBook, TrustList, split_address
from kvsync.store import Store
from kvsync_protocol.errors import CodedError
from kvsync_protocol.fingerprint import Fingerprints
from kvsync_protocol.limits import MiB
from kvsync_protocol.ref import Ref
from tests.conftest import SIGNER, Artifact
from tests.daemon.valve import Valve

NAME = "team/handbook"
Start = Callable[[Home], int]


@dataclass
class Node:
    """A home, its daemon and a client of it."""

    name: str
    home: Home
    keys: NodeKeys
    client: DaemonClient

    def meet(self, other: Node, address: str | None = None, *roles: str) -> None:
        """Know the other node, at an address of one's own choice."""
        addresses = () if address is None else (address,)
        PeerBook(self.home).add(Peer(other.name, other.keys.peer.public, addresses, roles))

    def has(self, artifact: Artifact) -> bool:
        with Store.open(self.home.store_dir) as store:
            found = artifact.id in [stored.artifact for stored in store.artifacts()]
            assert store.fsck().clean
        return found


@pytest.fixture(scope="module")
def artifact(request: pytest.FixtureRequest) -> Artifact:
    """About 20 MiB in chunks of 1 MiB."""
    from tests.conftest import build_artifact

    return build_artifact(3, 150, heads=64, dim=128)


@pytest.fixture
def make_node(new_home: Callable[..., Home], start: Start) -> Callable[[str], Node]:
    def make(name: str) -> Node:
        home = new_home(name, Settings(free_floor_bytes=0, stall_timeout_s=600))
        keys = NodeKeys.load(home)
        TrustList(home, keys.signer.public).add("signer", SIGNER.public)
        start(home)
        return Node(name, home, keys, DaemonClient(home))

    return make


@pytest.fixture
def provider(make_node: Callable[[str], Node], artifact: Artifact) -> Node:
    """Has the artifact, under a name."""
    node = make_node("provider")
    with Store.open(node.home.store_dir) as store:
        with store.pull_draft(*artifact.parts) as draft:
            for index in draft.missing():
                draft.put(index, artifact.chunks[index])
            draft.publish()
        ref = Ref(NAME, artifact.id, 1)
        store.set_ref(ref, ref.seal(SIGNER), SIGNER.public)
    return node


@pytest.fixture
def valve(provider: Node) -> Iterator[Valve]:
    with Valve(split_address(str(provider.client.status()["address"])), 6 * MiB) as valve:
        yield valve


@pytest.fixture
def getter(make_node: Callable[[str], Node], provider: Node, valve: Valve) -> Node:
    """May get from the provider, through the valve."""
    node = make_node("getter")
    provider.meet(node, None, "get")
    node.meet(provider, valve.address)
    return node


def until_stuck(node: Node, job: JobId) -> Job:
    """Follow a pull until some chunks have arrived; the valve keeps it from its end."""
    for state in node.client.events(job):
        assert not state.state.final, state
        if state.step is not None and state.step.unit == "bytes" and state.step.done > 2 * MiB:
            return state
    raise AssertionError("the daemon went away")


def test_a_pull_by_name_and_a_push_end_with_a_full_report(
    make_node: Callable[[str], Node], provider: Node, getter: Node, valve: Valve, artifact: Artifact
) -> None:
    valve.open()
    pulled = getter.client.wait(getter.client.submit(JobKind.PULL, PullParams("provider", NAME)))
    size = artifact.manifest.tree.total_bytes
    assert (pulled["artifact"], pulled["name"], pulled["dry_run"]) == (str(artifact.id), NAME, False)
    assert (pulled["bytes_moved"], pulled["bytes_here"]) == (size, 0)
    assert isinstance(pulled["seconds"], float)
    assert isinstance(pulled["mb_per_s"], float)
    assert pulled["mb_per_s"] > 0
    assert getter.has(artifact)

    third = make_node("third")
    provider.meet(third, str(third.client.status()["address"]))
    third.meet(provider, None, "push")
    pushed = provider.client.wait(provider.client.submit(JobKind.PUSH, PushParams("third", NAME)))
    assert (pushed["artifact"], pushed["bytes_moved"]) == (str(artifact.id), size)
    assert third.has(artifact)


def test_a_refused_transfer_fails_with_the_reason_and_leaves_nothing(
    provider: Node,
    getter: Node,
    valve: Valve,
    artifact: Artifact,
    make_fingerprints: Callable[..., Fingerprints],
) -> None:
    valve.open()
    other_model = PullParams("provider", NAME, make_fingerprints("another model"))
    for params, code in (
        (PullParams("stranger", NAME), "peer.unknown"),
        (PullParams("provider", "no/such"), "peer.unknown_name"),
        (other_model, "mismatch.compatibility"),
    ):
        with pytest.raises(CodedError) as caught:
            getter.client.wait(getter.client.submit(JobKind.PULL, params))
        assert caught.value.code == code
    with pytest.raises(CodedError) as unknown:
        provider.client.wait(provider.client.submit(JobKind.PUSH, PushParams("getter", "no/such")))
    assert unknown.value.code.startswith("store.unknown")
    assert not getter.has(artifact)
    assert len(getter.client.jobs()) == 3


def test_a_pull_whose_daemon_is_killed_goes_on_with_what_is_missing(
    getter: Node, valve: Valve, artifact: Artifact, start: Start, kill: Callable[[Home], None]
) -> None:
    job = getter.client.submit(JobKind.PULL, PullParams("provider", NAME))
    until_stuck(getter, job)
    kill(getter.home)
    valve.open()
    start(getter.home)
    report = getter.client.wait(job)
    assert getter.client.job(job).attempts == 2
    here = report["bytes_here"]
    assert isinstance(here, int)
    assert here >= 2 * MiB  # no verified byte is fetched twice
    assert getter.has(artifact)


def test_a_pull_under_way_does_not_hold_up_a_stop_and_goes_on_at_the_next_start(
    getter: Node, valve: Valve, artifact: Artifact, start: Start
) -> None:
    job = getter.client.submit(JobKind.PULL, PullParams("provider", NAME))
    until_stuck(getter, job)
    lifecycle.stop(getter.home)  # fails when it has to wait for the valve
    valve.open()
    start(getter.home)
    report = getter.client.wait(job)
    assert getter.client.job(job).attempts == 1
    here = report["bytes_here"]
    assert isinstance(here, int)
    assert here >= 2 * MiB
    assert getter.has(artifact)


def test_a_cancelled_pull_ends_and_the_next_one_finds_its_chunks(
    getter: Node, valve: Valve, artifact: Artifact
) -> None:
    job = getter.client.submit(JobKind.PULL, PullParams("provider", NAME))
    until_stuck(getter, job)
    assert getter.client.cancel(job).state is JobState.RUNNING
    with pytest.raises(CodedError) as caught:
        getter.client.wait(job)
    assert caught.value.code == "job.cancelled"
    assert not getter.has(artifact)
    valve.open()
    report = getter.client.wait(getter.client.submit(JobKind.PULL, PullParams("provider", NAME)))
    here = report["bytes_here"]
    assert isinstance(here, int)
    assert here >= 2 * MiB
    assert getter.has(artifact)


def test_more_transfers_than_lanes_are_all_done(provider: Node, getter: Node, valve: Valve, tmp_path: Path) -> None:
    valve.open()
    jobs = [getter.client.submit(JobKind.PULL, PullParams("provider", NAME)) for _ in range(9)]
    assert len({str(getter.client.wait(job)["artifact"]) for job in jobs}) == 1
    counts = getter.client.status()["jobs"]
    assert isinstance(counts, dict)
    assert counts["done"] == 9
