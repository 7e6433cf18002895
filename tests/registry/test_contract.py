"""What every store does alike: announcements, lookups, restarts, expiry, access, names, attestations."""

from __future__ import annotations

import pytest

from kvsync_protocol.announcement import Moment, Withdrawal
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.reader import tenant
from kvsync_protocol.registry_messages import Matches, PrefixQuery
from kvsync_registry.config import RegistryLimits
from kvsync_registry.errors import NotFoundError, RefusedError
from kvsync_registry.store import SCAN_ROWS, RegistryStore
from tests.registry.world import World, artifact, chain, key

NOTHING = Matches(0, ())


def test_the_longest_prefix_that_anybody_has_is_found_with_all_who_have_it(world: World) -> None:
    world.join("alpha", "beta", "gamma")
    world.announce("alpha", "short", "ab")
    world.announce("alpha", "long", "abcd")
    world.announce("beta", "long", "abcd")
    world.announce("beta", "other", "abcx")
    assert world.find_names("gamma", "abcdef", ["short", "long", "other"]) == (4, {"long": {"alpha", "beta"}})
    assert world.find_names("gamma", "abc", ["short", "long", "other"])[0] == 3
    assert set(world.find_names("gamma", "abcz", ["long", "other"])[1]) == {"long", "other"}
    assert set(world.find_names("gamma", "az", ["short", "long", "other"])[1]) == {"short", "long", "other"}
    assert world.lookup("gamma", "zabcd") == NOTHING


def test_a_match_says_what_was_announced_and_where_its_provider_can_be_reached(world: World) -> None:
    world.join("alpha", "beta")
    said = world.announcement("alpha", "a", range(5), size=12345)
    world.say("alpha", said)
    world.reach("alpha", "192.0.2.1:7000", "[2001:db8::1]:7000")
    [match] = world.lookup("beta", range(3)).matches
    assert (match.artifact, match.blocks, match.size) == (artifact("a"), 5, 12345)
    assert (match.compatibility, match.numerics) == (said.compatibility, said.numerics)
    assert match.providers[0].addresses == ("192.0.2.1:7000", "[2001:db8::1]:7000")
    assert world.registry.contact(key("beta").public, key("alpha").public).addresses == match.providers[0].addresses
    assert world.registry.contact(key("beta").public, key("nobody").public).addresses == ()


def test_an_artifact_without_a_full_block_is_found_by_its_id_alone(world: World) -> None:
    world.join("alpha", "beta")
    assert world.announce("alpha", "tiny", []) == "ok"
    assert world.registry.providers(key("beta").public, artifact("tiny")).shared == 1
    assert world.registry.providers(key("beta").public, artifact("none")) == NOTHING


def test_providers_who_describe_an_artifact_differently_are_not_mixed(world: World) -> None:
    world.join("alpha", "beta", "gamma")
    world.announce("alpha", "a", "abc")
    world.announce("beta", "a", "abcdef", size=1)
    assert {match.blocks for match in world.lookup("gamma", "abc").matches} == {3, 6}
    assert [match.blocks for match in world.lookup("gamma", "abcdef").matches] == [6]


def test_withdrawn_artifacts_are_gone_one_or_all(world: World) -> None:
    world.join("alpha", "beta")
    for name in ("abc", "abd", "abe"):
        world.announce("alpha", name, name)
    assert world.withdraw("alpha", "abc") == "ok"
    assert world.withdraw("alpha", "never announced") == "ok"
    assert set(world.find_names("beta", "ab", ["abc", "abd", "abe"])[1]) == {"abd", "abe"}
    world.withdraw("alpha", None)
    assert world.lookup("beta", "ab") == NOTHING
    world.announce("alpha", "abc", "abc")
    assert world.lookup("beta", "abc").shared == 3


def test_a_new_announcement_of_an_artifact_replaces_the_old_one(world: World) -> None:
    world.join("alpha", "beta")
    world.announce("alpha", "a", "abc")
    world.announce("alpha", "a", "xyz")
    assert world.lookup("beta", "abc") == NOTHING
    assert world.lookup("beta", "xyz").shared == 3


def test_a_restart_withdraws_everything_that_was_said_before_it(world: World) -> None:
    world.join("alpha", "beta")
    old = world.announcement("alpha", "late", "late")
    world.announce("alpha", "a", "abc")
    world.announce("beta", "a", "abc")
    world.restart("alpha")
    assert world.announce("alpha", "b", "xyz") == "ok"
    assert world.find_names("beta", "abc", ["a"]) == (3, {"a": {"beta"}})
    answer = world.say("alpha", old)
    assert answer.outcomes == ("registry.stale",)
    assert answer.epoch == 2
    assert world.lookup("beta", "late") == NOTHING


def test_what_is_heard_twice_or_out_of_order_has_no_effect(world: World) -> None:
    world.join("alpha", "beta")
    first, second = (world.announcement("alpha", "a", "abc", at=Moment(5, number)) for number in (1, 2))
    gone = Withdrawal(Moment(5, 3), artifact("a"))
    assert world.say("alpha", second, first, second, gone).outcomes == (
        "ok",
        "registry.stale",
        "registry.stale",
        "ok",
    )
    assert world.say("alpha", first, second, gone).outcomes == ("registry.stale",) * 3
    assert world.lookup("beta", "abc") == NOTHING


def test_a_replayed_announcement_does_not_keep_a_dead_host_listed(world: World) -> None:
    world.join("alpha", "beta")
    said = world.announcement("alpha", "a", "abc", ttl_s=600)
    world.say("alpha", said)
    world.now += 599
    assert world.say("alpha", said).outcomes == ("registry.stale",)
    assert world.lookup("beta", "abc").shared == 3
    world.now += 1
    assert world.lookup("beta", "abc") == NOTHING


def test_times_to_live_are_kept_within_their_range(world: World) -> None:
    world.join("alpha", "beta")
    world.announce("alpha", "short", "short", ttl_s=1)
    world.announce("alpha", "long", "long", ttl_s=10**9)
    world.reach("alpha", "192.0.2.1:1", ttl_s=1)
    world.now += world.registry.limits.least_ttl_s - 1
    assert world.lookup("beta", "short").matches[0].providers[0].addresses == ("192.0.2.1:1",)
    world.now += 1
    assert world.lookup("beta", "short") == NOTHING
    assert world.lookup("beta", "long").matches[0].providers[0].addresses == ()
    world.now += world.registry.limits.most_ttl_s
    assert world.lookup("beta", "long") == NOTHING


def test_who_may_not_see_an_artifact_gets_the_answer_of_one_that_does_not_exist(world: World) -> None:
    world.join("alpha")
    world.join("beta", "gamma", tenant="red")
    world.join("delta", tenant="blue")
    world.announce("alpha", "team", "abcd", readers=[tenant("red")])
    world.announce("alpha", "own", "abcdef", readers=[str(key("beta").public)])
    assert world.find_names("beta", "abcdefgh", ["team", "own"]) == (6, {"own": {"alpha"}})
    assert world.find_names("gamma", "abcdefgh", ["team", "own"]) == (4, {"team": {"alpha"}})
    for stranger in ("delta", "alpha"):
        public = key(stranger).public
        assert world.lookup(stranger, "abcdef") == world.lookup(stranger, "never") == NOTHING
        assert world.registry.providers(public, artifact("own")) == NOTHING
        for asked in ("own", "absent"):
            with pytest.raises(NotFoundError) as caught:
                world.registry.attestations(public, artifact(asked))
            assert (caught.value.code, caught.value.message) == ("registry.unknown", "no such artifact here")


def test_a_hidden_longer_artifact_does_not_hide_a_visible_shorter_one(world: World) -> None:
    world.join("alpha", "beta", "gamma")
    world.announce("alpha", "private", "abcdefgh", readers=[str(key("beta").public)])
    world.announce("alpha", "public", "abc")
    assert world.find_names("gamma", "abcdefgh", ["public"]) == (3, {"public": {"alpha"}})
    assert world.find_names("beta", "abcdefgh", ["private"]) == (8, {"private": {"alpha"}})


def test_readers_can_be_changed_by_announcing_again(world: World) -> None:
    world.join("alpha", "beta")
    world.announce("alpha", "a", "abc")
    world.announce("alpha", "a", "abc", readers=[str(key("alpha").public)])
    assert world.lookup("beta", "abc") == NOTHING
    assert world.lookup("alpha", "abc").shared == 3


def test_strangers_and_members_without_the_right_are_refused(world: World) -> None:
    world.join("alpha", publish=False)
    world.join("beta", ask=False)
    for host, call, code in [
        ("nobody", lambda: world.lookup("nobody", "a"), "registry.member"),
        ("nobody", lambda: world.announce("nobody", "a", "a"), "registry.member"),
        ("alpha", lambda: world.announce("alpha", "a", "a"), "registry.role"),
        ("beta", lambda: world.lookup("beta", "a"), "registry.role"),
        ("beta", lambda: world.registry.refs(key("beta").public), "registry.role"),
        ("beta", lambda: world.registry.contact(key("beta").public, key("beta").public), "registry.role"),
    ]:
        with pytest.raises(RefusedError) as caught:
            call()
        assert caught.value.code == code, host


def test_only_the_caller_s_own_statements_count(world: World) -> None:
    world.join("alpha", "beta")
    said = world.announcement("alpha", "a", "abc")
    bad = Envelope.seal("application/vnd.kvsync.announcement+json", b"{}", key("alpha"))
    other = Envelope.seal("application/vnd.kvsync.ref+json", said.encode(), key("alpha"))
    answer = world.registry.declare(
        key("alpha").public, [said.seal(key("beta")), bad, other, said.seal(key("alpha"))]
    )
    assert answer.outcomes == ("trust.untrusted_signer", "message.missing", "trust.payload_type", "ok")


def test_caps_hold_and_count_only_what_lives(store: RegistryStore) -> None:
    world = World(store, RegistryLimits(offers=2, entries=12))
    world.join("alpha", "beta")
    assert [world.announce("alpha", name, name * 3, ttl_s=600) for name in "abc"] == ["ok", "ok", "registry.full"]
    assert world.announce("beta", "c", "ccc") == "ok"
    assert world.announce("alpha", "a", "a" * 7) == "ok"
    assert world.announce("alpha", "a", "a" * 8) == "registry.full"
    world.withdraw("alpha", "a")
    assert world.announce("alpha", "c", "c" * 7) == "ok"
    world.now += 600
    assert world.announce("alpha", "d", "d") == "ok"
    world.restart("alpha")
    assert [world.announce("alpha", name, name * 5) for name in "efg"] == ["ok", "ok", "registry.full"]


def test_a_batch_is_judged_statement_by_statement_in_order(store: RegistryStore) -> None:
    world = World(store, RegistryLimits(offers=1))
    world.join("alpha", "beta")
    say = [
        world.announcement("alpha", "a", "aa"),
        world.announcement("alpha", "b", "bb"),
        Withdrawal(world.next("alpha"), artifact("a")),
        world.announcement("alpha", "c", "cc"),
        Withdrawal(world.next("alpha")),
        world.announcement("alpha", "d", "dd"),
    ]
    assert world.say("alpha", *say).outcomes == ("ok", "registry.full", "ok", "ok", "ok", "ok")
    assert [world.lookup("beta", name * 2).shared for name in "abcd"] == [0, 0, 0, 2]


def test_sweeping_changes_no_answer(world: World) -> None:
    world.join("alpha", "beta")
    for name in range(40):
        world.announce("alpha", name, [0, name], ttl_s=600 if name % 2 else 3600)
        world.announce("beta", name, [0, name], ttl_s=600)
    world.now += 600
    before = [world.lookup("beta", [0, name]) for name in range(40)]
    assert world.registry.sweep() == 60
    assert world.registry.sweep() == 0
    assert [world.lookup("beta", [0, name]) for name in range(40)] == before
    world.restart("alpha")
    world.announce("alpha", "new", "new")
    assert world.registry.sweep() == 20
    assert world.lookup("beta", "new").shared == 3


def test_a_heap_of_dead_claims_hides_a_live_one_until_the_next_sweep_at_most(world: World) -> None:
    world.join("alpha", "beta")
    heap = [world.announcement("alpha", number, ["system prompt", number]) for number in range(SCAN_ROWS)]
    assert set(world.say("alpha", *heap).outcomes) == {"ok"}
    world.restart("alpha")
    world.announce("alpha", "again", ["other"])
    world.announce("beta", "live", ["system prompt", "x"])
    assert world.lookup("alpha", ["system prompt", "x"]).shared == 2
    assert world.lookup("alpha", ["system prompt"]) == NOTHING
    assert world.registry.sweep() == SCAN_ROWS
    assert world.find_names("alpha", ["system prompt"], ["live"]) == (1, {"live": {"beta"}})


def test_the_first_artifacts_and_providers_are_shown_when_there_are_many(world: World) -> None:
    hosts = [f"host{number}" for number in range(70)]
    world.join("alpha", *hosts)
    for host in hosts:
        world.announce(host, "common", "xy")
    for number in range(20):
        world.announce("alpha", number, ["a", number])
    [match] = world.lookup("alpha", "xy").matches
    assert [provider.key for provider in match.providers] == [key(host).public for host in hosts[:64]]
    assert [m.artifact for m in world.lookup("alpha", "a").matches] == [artifact(number) for number in range(16)]


def test_prompts_of_any_length_are_looked_up(world: World) -> None:
    world.join("alpha", "beta")
    world.announce("alpha", "long", range(3000))
    for asked in (1, 2, 3, 1000, 2999, 3000, 3001, 4096):
        assert world.lookup("beta", range(asked)).shared == min(asked, 3000)
    blocks = list(range(3000))
    blocks[1234] = -1
    assert world.lookup("beta", blocks).shared == 1234


def test_a_query_is_answered_alike_whatever_was_asked_before(world: World) -> None:
    """Nothing is remembered about what was not found."""
    world.join("alpha", "beta")
    for _ in range(3):
        assert world.lookup("beta", "abc") == NOTHING
    world.announce("alpha", "a", "abc")
    assert world.registry.lookup(key("beta").public, PrefixQuery(chain("abc"))).shared == 3
