"""Hosts that follow names: what is fetched, what is not, and how a failure is shown and tried again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kvsync.cli import main
from kvsync.config import Home
from kvsync.daemon import lifecycle
from kvsync.daemon.followed import FAILING, IN_STEP, Followed, load_followed, save_followed
from kvsync.daemon.follows import Follow, Follows
from kvsync.daemon.pull_policy import PullPolicy
from kvsync.errors import NotFoundError, UsageError
from kvsync.keys import PeerBook
from kvsync.store import Store
from kvsync_protocol.errors import CodedError
from kvsync_protocol.signing import SigningKey
from tests.conftest import Artifact, build_artifact, fingerprints
from tests.daemon.hosts import SETTINGS, Host, until

MakeHost = Callable[..., Host]


def of(host: Host, seed: int, **options: object) -> Artifact:
    """An artifact that the host has signed."""
    return build_artifact(seed, 40, key=host.keys.signer, **options)  # type: ignore[arg-type]


def named(host: Host, name: str, artifact: Artifact) -> bool:
    with Store.open(host.home.store_dir) as store:
        return any((ref.name, ref.artifact) == (name, artifact.id) for ref in store.refs())


def in_step(host: Host, name: str, artifact: Artifact) -> bool:
    return host.has(artifact) and named(host, name, artifact)


def followed(host: Host, name: str) -> Followed | None:
    return load_followed(host.home).get(name)


def failing(host: Host, name: str, code: str) -> bool:
    found = followed(host, name)
    return found is not None and (found.state, found.code) == (FAILING, code)


def follows(host: Host, *follows: Follow) -> None:
    Follows(host.home).add(follows)


@pytest.fixture
def pair(host: MakeHost) -> tuple[Host, Host]:
    """A provider and a getter that trusts its names below team/."""
    provider, getter = host("provider"), host("getter")
    provider.knows(getter, "get")
    provider.start()
    provider.stay_at(provider.address)
    getter.knows(provider, address=provider.address)
    getter.trusts(provider, "team/*")
    return provider, getter


def test_what_is_named_is_fetched_kept_up_with_and_left_alone_when_it_is_not_followed(
    pair: tuple[Host, Host],
) -> None:
    provider, getter = pair
    first, second, third, other = (of(provider, seed) for seed in range(4))
    provider.keep(first, "team/a")
    provider.keep(other, "else/b")
    follows(getter, Follow("team/*"), Follow("else/*"))
    getter.start()
    until(lambda: in_step(getter, "team/a", first))
    assert until(lambda: getter.status.follows.in_step == 1 and getter.status.follows.patterns == 2)
    provider.keep(second, "team/a", 2)
    until(lambda: in_step(getter, "team/a", second))
    assert not getter.has(other)  # its signer may not give that name here

    lifecycle.stop(getter.home)
    provider.keep(third, "team/a", 3)
    getter.start()  # and what happened meanwhile is made up for
    until(lambda: in_step(getter, "team/a", third))
    Follows(getter.home).remove(["team/*"])
    until(lambda: getter.status.follows.patterns == 1)
    fourth = of(provider, 9)
    provider.keep(fourth, "team/a", 4)
    follows(getter, Follow("team/c"))
    provider.keep(of(provider, 10), "team/c")
    until(lambda: in_step(getter, "team/c", of(provider, 10)))
    assert not getter.has(fourth)
    jobs = getter.client.jobs()
    assert len(jobs) == 4, jobs  # nothing was fetched twice


def test_what_the_rules_refuse_is_shown_backs_off_and_is_tried_again_when_they_change(
    pair: tuple[Host, Host],
) -> None:
    provider, getter = pair
    artifact = of(provider, 1)
    provider.keep(artifact, "team/a")
    provider.keep(of(provider, 2, prints=fingerprints("other")), "team/b")
    strict = PullPolicy(require_signers=2)
    follows(getter, Follow("team/a", strict), Follow("team/b", model="tiny", fingerprints=fingerprints()))
    getter.start()
    until(lambda: failing(getter, "team/a", "policy.signers"))
    until(lambda: failing(getter, "team/b", "mismatch.compatibility"))
    found = followed(getter, "team/a")
    assert found is not None
    assert found.failures == 1
    assert found.again > 0
    jobs = len(getter.client.jobs())
    lifecycle.stop(getter.home)
    getter.start()
    until(lambda: getter.status.follows.failing == 2)  # remembered, and not tried again at once
    assert len(getter.client.jobs()) == jobs
    follows(getter, Follow("team/a"))
    until(lambda: in_step(getter, "team/a", artifact))
    assert until(lambda: getter.status.follows.failing == 1)


def test_a_newer_ref_of_nobody_who_may_or_of_before_changes_nothing(pair: tuple[Host, Host]) -> None:
    provider, getter = pair
    stranger = SigningKey(bytes(range(1, 33)))
    trusted, lie = of(provider, 1), build_artifact(2, 40, key=stranger)
    provider.keep(trusted, "team/a", 5)
    follows(getter, Follow("*"))
    getter.start()
    until(lambda: in_step(getter, "team/a", trusted))
    with Store.open(provider.home.store_dir) as store:
        from kvsync_protocol.ref import Ref

        ref = Ref("team/a", lie.id, 6)
        store.set_ref(ref, ref.seal(stranger), stranger.public)
        again = Ref("team/z", trusted.id, 1)
        store.set_ref(again, again.seal(provider.keys.signer), provider.keys.signer.public)
    until(lambda: named(getter, "team/z", trusted))
    assert in_step(getter, "team/a", trusted)
    assert not getter.has(lie)


def test_names_are_heard_of_from_a_registry_and_fetched_from_whoever_has_them(host: MakeHost) -> None:
    middle, provider, getter = host("middle"), host("provider"), host("getter")
    middle.knows(provider, "push")
    middle.knows(getter, "get")
    middle.start()
    provider.knows(getter, "get")
    provider.uses("middle", middle.keys, middle.address)
    artifact = of(provider, 3)
    provider.keep(artifact, "team/a")
    provider.start()
    getter.uses("middle", middle.keys, middle.address)
    getter.knows(provider)  # without any address: the registry tells where it is
    getter.trusts(provider)
    follows(getter, Follow("team/a"))
    getter.start()
    until(lambda: in_step(getter, "team/a", artifact))


def test_a_name_whose_artifact_nobody_reachable_has_fails_by_name(host: MakeHost) -> None:
    middle, provider, getter = host("middle"), host("provider"), host("getter")
    middle.knows(provider, "push")
    middle.knows(getter, "get")
    middle.start()
    provider.knows(getter, "get")
    provider.uses("middle", middle.keys, middle.address)
    artifact = of(provider, 3)
    provider.keep(artifact, "team/a")
    provider.start()
    until(lambda: provider.state("middle").state == "ok" and provider.state("middle").due == 0)
    lifecycle.stop(provider.home)  # what it has announced stays for a while, and is not true any more
    getter.uses("middle", middle.keys, middle.address)
    getter.trusts(provider)
    follows(getter, Follow("team/a"))
    getter.start()
    until(lambda: failing(getter, "team/a", "follow.no_provider"))
    getter.knows(provider, address="127.0.0.1:9")
    follows(getter, Follow("team/a", PullPolicy(accept="equal")))
    until(lambda: failing(getter, "team/a", "peer.unreachable") or failing(getter, "team/a", "pull.no_provider"))


def test_rules_are_read_strictly_and_only_ever_stricter() -> None:
    found = PullPolicy.of(["require_signers=2", "max_artifact_bytes=1000", "accept=equal"])
    assert PullPolicy.parse(found.as_json()) == found
    loose = replace(SETTINGS, accept="canary", require_signers=3, max_artifact_bytes=10**6)
    tight = found.tightened(loose)
    assert (tight.accept, tight.require_signers, tight.max_artifact_bytes) == ("equal", 3, 1000)
    for word in ("require_signers", "threads=2", "accept=canary", "require_signers=-1", "require_signers=99"):
        with pytest.raises(UsageError):
            PullPolicy.of([word])


def test_the_command_line_adds_shows_and_removes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], host: MakeHost
) -> None:
    home: Home = host("node").home

    def run(*words: str) -> tuple[int, dict[str, object]]:
        capsys.readouterr()
        status = main(["--home", str(home.root), "--json", *words])
        found: dict[str, object] = json.loads(capsys.readouterr().out)
        return status, found

    assert run("follow", "team/*", "--policy", "require_signers=2")[0] == 0
    assert run("follow", "--policy", "accept=equal", "else")[0] == 0
    assert run("follow", "../x")[0] == 2
    assert run("follow", "team/*", "--policy", "nonsense")[0] == 2
    save_followed(home, [Followed("team/a", build_artifact(1).id, 3, IN_STEP)])
    status, found = run("follow", "ls")
    assert status == 0
    assert json.loads(json.dumps(found["follows"]))[0]["policy"] == {"require_signers": 2}
    assert json.loads(json.dumps(found["names"]))[0]["state"] == IN_STEP
    assert run("follow", "rm", "nobody")[0] == 7
    assert run("follow", "rm", "team/*", "else")[0] == 0
    assert Follows(home).follows() == []
    with pytest.raises(NotFoundError):
        Follows(home).remove(["else"])


@pytest.mark.parametrize("junk", [b"{", b'{"version":2,"entries":[{}]}', b'{"version":9,"entries":[]}'])
def test_damaged_lists_are_errors_and_do_not_stop_a_daemon(host: MakeHost, junk: bytes) -> None:
    node = host("node")
    node.home.follows_file.write_bytes(junk)
    with pytest.raises(CodedError):
        Follows(node.home).follows()
    node.home.followed_file.write_bytes(junk)
    node.start()
    assert node.status.follows.patterns == 0
    assert PeerBook(node.home).peers() == []
