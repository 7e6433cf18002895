"""Names and attestations, as every store keeps them: who may set them, who sees them, what is never taken back."""

from __future__ import annotations

import dataclasses

import pytest

from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import MalformedError, TrustError
from kvsync_protocol.reader import tenant
from kvsync_protocol.ref import Ref
from kvsync_protocol.registry_messages import Vouched
from kvsync_registry.config import RegistryLimits
from kvsync_registry.errors import FullError, NotFoundError, RefusedError
from kvsync_registry.store import RegistryStore
from tests.registry.world import World, artifact, key


def ref(signer: str, name: str, target: object, sequence: int, *, expires: int | None = None) -> Vouched:
    sealed = Ref(name, artifact(target), sequence, expires).seal(key(signer))
    return Vouched((key(signer).public,), sealed, ("members",))


def test_names_are_kept_by_signer_and_never_go_back(world: World) -> None:
    world.join("alpha", "beta")
    caller = key("alpha").public
    world.registry.set_ref(caller, ref("signer", "team/a", 1, 5))
    world.registry.set_ref(caller, ref("signer", "team/a", 1, 5))
    world.registry.set_ref(caller, ref("other", "team/a", 2, 1))
    for target, sequence in [(1, 4), (2, 5)]:
        with pytest.raises(TrustError) as caught:
            world.registry.set_ref(caller, ref("signer", "team/a", target, sequence))
        assert caught.value.code == "trust.rollback"
    world.registry.set_ref(caller, ref("signer", "team/a", 3, 6))
    found = world.registry.refs(key("beta").public, "team/a")
    assert len(found.refs) == 2
    assert not found.more
    targets = {envelope.payload for envelope in found.refs}
    assert targets == {Ref("team/a", artifact(3), 6).encode(), Ref("team/a", artifact(2), 1).encode()}


def test_an_expired_name_is_not_answered_and_not_forgotten(world: World) -> None:
    world.join("alpha", "beta")
    caller = key("alpha").public
    world.registry.set_ref(caller, ref("signer", "team/a", 1, 5, expires=world.now + 10))
    world.now += 10
    assert len(world.registry.refs(caller, "team/a").refs) == 1
    world.now += 1
    assert world.registry.refs(caller, "team/a").refs == ()
    assert world.registry.refs(caller).refs == ()
    with pytest.raises(TrustError):
        world.registry.set_ref(caller, ref("signer", "team/a", 2, 4))


def test_names_are_seen_by_their_readers_only_and_may_be_limited_to_a_pattern(world: World) -> None:
    world.join("alpha", names=("team/*", "one"))
    world.join("beta", tenant="red")
    world.join("gamma")
    caller = key("alpha").public
    world.registry.set_ref(caller, dataclasses.replace(ref("s", "team/a", 1, 1), readers=(tenant("red"),)))
    world.registry.set_ref(caller, ref("s", "one", 1, 1))
    assert len(world.registry.refs(key("beta").public).refs) == 2
    assert len(world.registry.refs(key("gamma").public).refs) == 1
    assert world.registry.refs(key("gamma").public, "team/a") == world.registry.refs(key("gamma").public, "team/b")
    with pytest.raises(RefusedError) as refused:
        world.registry.set_ref(caller, ref("s", "other", 1, 1))
    assert refused.value.code == "registry.name"
    with pytest.raises(MalformedError):
        world.registry.set_ref(caller, dataclasses.replace(ref("s", "one", 1, 2), readers=()))
    world.registry.set_ref(caller, ref("s", "team/a", 1, 2))
    assert len(world.registry.refs(key("gamma").public).refs) == 2


def test_names_come_page_by_page_and_their_number_is_capped(store: RegistryStore) -> None:
    world = World(store, RegistryLimits(refs=30))
    world.join("alpha", "beta")
    caller = key("alpha").public
    for number in range(30):
        sealed = Ref(f"team/n{number:02}", artifact(1), 1).seal(key("s"))
        world.registry.set_ref(caller, Vouched((key("s").public,), sealed, ("members",)))
    with pytest.raises(FullError) as caught:
        world.registry.set_ref(caller, ref("s", "team/more", 1, 1))
    assert caught.value.code == "registry.full"
    world.registry.set_ref(caller, ref("s", "team/n00", 2, 2))
    world.registry.set_ref(key("beta").public, ref("s", "team/more", 1, 1))
    assert len(world.registry.refs(caller, after="team/n19").refs) == 10
    assert len(world.registry.refs(caller).refs) == 31


def test_attestations_belong_to_artifacts_that_the_caller_sees(store: RegistryStore) -> None:
    world = World(store, RegistryLimits(attestations=4, attestations_each=2))
    world.join("alpha", "gamma")
    world.join("beta", "delta", "epsilon", tenant="red")
    world.announce("alpha", "a", "abc", readers=[tenant("red")])
    kind = "application/vnd.kvsync.attestation+json"

    def attest(host: str, signer: str, text: str) -> None:
        sealed = Envelope.seal(kind, text.encode(), key(signer))
        world.registry.attest(key(host).public, artifact("a"), Vouched((key(signer).public,), sealed))

    with pytest.raises(NotFoundError):
        attest("gamma", "s1", "seen by me")
    for host, signer, text in [
        ("beta", "s1", "one"),
        ("beta", "s1", "one"),
        ("beta", "s1", "two"),
        ("delta", "s2", "one"),
        ("delta", "s3", "one"),
    ]:
        attest(host, signer, text)
    for host in ("beta", "epsilon"):
        with pytest.raises(FullError):
            attest(host, "s4", "one")
    forged = Vouched((key("s9").public,), Envelope.seal(kind, b"x", key("s8")))
    with pytest.raises(TrustError):
        world.registry.attest(key("beta").public, artifact("a"), forged)
    found = world.registry.attestations(key("beta").public, artifact("a")).envelopes
    assert sorted(envelope.payload for envelope in found) == [b"one", b"one", b"one", b"two"]
    world.now += world.registry.limits.attestation_ttl_s
    world.announce("alpha", "a", "abc", readers=[tenant("red")])
    assert world.registry.attestations(key("beta").public, artifact("a")).envelopes == ()
    world.registry.sweep()
    attest("beta", "s4", "one")


def test_signatures_that_nobody_asked_for_are_not_kept(world: World) -> None:
    world.join("alpha")
    caller = key("alpha").public
    sealed = Envelope.seal("application/vnd.kvsync.ref+json", Ref("a", artifact(1), 1).encode(), *map(key, "abcdef"))
    world.registry.set_ref(caller, Vouched((key("b").public, key("a").public), sealed, ("members",)))
    [kept] = world.registry.refs(caller, "a").refs
    assert set(kept.signers([key(name).public for name in "abcdef"])) == {key("a").public, key("b").public}
