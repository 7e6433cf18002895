"""A daemon's registries: the one it embeds, those it uses, and what becomes of it all when one of them is gone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvsync.daemon import lifecycle
from kvsync.daemon.client import DaemonClient
from kvsync.daemon.epoch import next_epoch
from kvsync.errors import NotFoundError
from kvsync_protocol.registry_messages import Matches
from kvsync_protocol.signing import PublicKey
from tests.conftest import Artifact, build_artifact
from tests.daemon.hosts import SETTINGS, Host, keys_of, until

MakeHost = Callable[..., Host]
HERE = build_artifact(1, 70)
THERE = build_artifact(2, 70)


def ask(asker: Host, other: Host, address: str, artifact: Artifact) -> Matches:
    """The longest prefix of the artifact that the registry at `address` knows for `asker`."""

    async def lookup() -> Matches:
        async with asker.registry(other, address) as registry:
            await registry.hello()
            return await registry.lookup(keys_of(artifact))

    return asyncio.run(lookup())


def providers(found: Matches, artifact: Artifact) -> dict[PublicKey, tuple[str, ...]]:
    return {p.key: p.addresses for match in found.matches if match.artifact == artifact.id for p in match.providers}


@contextmanager
def registry_of_its_own(home: Host) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`kvsync-registry` as a process, with its address; killed at the end."""
    command = [sys.executable, "-c", "import sys; from kvsync.cli._registry import main; sys.exit(main())"]
    words = ["--home", str(home.home.root), "--listen", "127.0.0.1:0"]
    with subprocess.Popen([*command, *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1], process
        finally:
            process.kill()


def test_peers_learn_of_what_is_here_and_of_what_others_have_told_each_as_far_as_it_may_see(host: MakeHost) -> None:
    middle, provider, all_seeing, limited = host("middle"), host("provider"), host("getter"), host("limited")
    middle.keep(HERE, "team/a")
    middle.knows(provider, "get", "push")
    middle.knows(all_seeing, "get")
    middle.knows(limited, "get", names=["other/*"])
    middle.start()
    address = middle.address
    for each in (provider, all_seeing, limited):
        each.knows(middle, "get", address=address)
    provider.knows(all_seeing, "get")
    provider.uses("middle", middle.keys, address)
    provider.keep(THERE, "team/b")
    provider.start()

    found = until(lambda: providers(ask(all_seeing, middle, address, HERE), HERE))
    assert found == {middle.keys.peer.public: (address,)}
    told = until(lambda: providers(ask(all_seeing, middle, address, THERE), THERE))
    assert told == {provider.keys.peer.public: (provider.address,)}
    assert until(lambda: middle.state("this node").state == "ok" and provider.state("middle").due == 0)
    for hidden in (HERE, THERE):
        assert ask(limited, middle, address, hidden) == Matches(0, ())

    async def names(asker: Host) -> list[bytes]:
        async with asker.registry(middle, address) as registry:
            await registry.hello()
            return [ref.payload for ref in (await registry.names()).refs]

    assert len(until(lambda: len(asyncio.run(names(all_seeing))) == 2 and asyncio.run(names(all_seeing)))) == 2
    assert asyncio.run(names(limited)) == []
    middle.knows(limited, "get", names=["team/*"])
    assert until(lambda: providers(ask(limited, middle, address, HERE), HERE))

    middle.drop(HERE)
    assert until(lambda: not ask(all_seeing, middle, address, HERE).matches)


def test_a_restart_ends_what_was_announced_before_even_when_the_clock_was_set_back(host: MakeHost) -> None:
    provider, getter = host("provider"), host("getter")
    provider.knows(getter, "get")
    provider.keep(HERE)
    provider.start()
    address = provider.address
    until(lambda: providers(ask(getter, provider, address, HERE), HERE))
    lifecycle.stop(provider.home)
    epoch = int((provider.home.daemon_dir / "epoch").read_text())
    (provider.home.daemon_dir / "epoch").write_text(str(epoch + 10**12))  # as if the clock had been far ahead
    provider.drop(HERE)
    provider.keep(THERE)
    provider.start()
    address = provider.address
    assert int((provider.home.daemon_dir / "epoch").read_text()) == epoch + 10**12 + 1
    until(lambda: providers(ask(getter, provider, address, THERE), THERE))
    assert not ask(getter, provider, address, HERE).matches


def test_a_registry_of_its_own_may_be_killed_and_come_back_without_anybody_waiting_for_it(
    host: MakeHost, tmp_path: Path
) -> None:
    place, provider, getter = host("registry"), host("provider"), host("getter")
    place.knows(provider, "get", "push")
    place.knows(getter, "get")
    provider.knows(getter, "get")
    with registry_of_its_own(place) as (address, process):
        provider.uses("team", place.keys, address)
        provider.keep(HERE, "team/a")
        provider.start()
        until(lambda: providers(ask(getter, place, address, HERE), HERE))
        process.send_signal(signal.SIGKILL)
        process.wait()
        provider.keep(THERE, "team/b")
        assert until(lambda: provider.state("team").state == "away")
        assert until(lambda: providers(ask(getter, provider, provider.address, THERE), THERE))  # its own goes on
    for name in ("registry.sqlite", "registry.sqlite-wal", "registry.sqlite-shm"):
        (place.home.root / name).unlink(missing_ok=True)  # and nothing of what it knew is left
    with registry_of_its_own(place) as (address, _):
        provider.uses("team", place.keys, address)
        for artifact in (HERE, THERE):
            assert until(lambda artifact=artifact: providers(ask(getter, place, address, artifact), artifact))
        assert until(lambda: provider.state("team").state == "ok")


def test_a_registry_that_does_not_want_this_node_or_is_somebody_else_is_shown_as_such(host: MakeHost) -> None:
    asker, other, third = host("asker"), host("other"), host("third")
    other.knows(asker, "get")
    other.start()
    asker.uses("other", other.keys, other.address)
    asker.uses("third", third.keys, other.address)
    asker.keep(HERE)
    asker.start()
    assert until(lambda: asker.state("other").state == "refused" and asker.state("other"))
    assert asker.state("other").code == "registry.role"
    assert until(lambda: asker.state("third").state == "refused" and asker.state("third"))
    assert asker.state("third").code == "peer.identity"


def test_without_the_setting_there_is_no_registry(host: MakeHost) -> None:
    from dataclasses import replace

    plain, getter = host("plain", replace(SETTINGS, registry=False)), host("getter")
    plain.knows(getter, "get")
    plain.keep(HERE)
    plain.start()
    with pytest.raises(NotFoundError) as caught:
        ask(getter, plain, plain.address, HERE)
    assert caught.value.code == "peer.route"
    assert plain.status.registries == ()


def test_a_damaged_registry_is_begun_anew_and_a_daemon_starts_without_one_that_cannot_be_used(host: MakeHost) -> None:
    damaged, getter = host("damaged"), host("getter")
    damaged.home.registry_file.write_bytes(os.urandom(8192))
    damaged.home.registry_file.chmod(0o600)
    damaged.knows(getter, "get")
    damaged.keep(HERE)
    damaged.start()
    assert until(lambda: providers(ask(getter, damaged, damaged.address, HERE), HERE))
    lifecycle.stop(damaged.home)
    damaged.home.registry_file.chmod(0o644)
    damaged.start()
    assert damaged.status.registries == ()
    assert DaemonClient(damaged.home).running()


def test_epochs_grow_whatever_lies_in_their_file(tmp_path: Path) -> None:
    path = tmp_path / "epoch"
    first = next_epoch(path)
    path.write_text("99999999999999")
    assert next_epoch(path) == 100_000_000_000_000
    for junk in (b"", b"-1", b"1e9", os.urandom(16)):
        path.write_bytes(junk)
        assert next_epoch(path) >= first
