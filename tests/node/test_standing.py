"""Which keys count: names that a signer may give, successors with their overlap, revocation lists."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvsync.config import Home
from kvsync.errors import StoreError, UsageError
from kvsync.keys import KeyRing, KeySpread, NodeKeys, Peer, PeerBook, Signer, Statements, TrustList, covers
from kvsync.keys.node_keys import presented_from
from kvsync_protocol.digest import ArtifactId, sha256
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import CodedError, TrustError
from kvsync_protocol.ref import PAYLOAD_TYPE as REF
from kvsync_protocol.ref import Ref
from kvsync_protocol.revocation import RevocationList
from kvsync_protocol.signing import PublicKey, SigningKey
from kvsync_protocol.statements import KeyStatements
from kvsync_protocol.successor import Successor

DAY = 86_400
NOW = int(time.time())


def secret(number: int) -> SigningKey:
    return SigningKey(bytes([number]) * 32)


def key(number: int) -> PublicKey:
    return secret(number).public


def step(old: int, new: int, *, kind: str = "signer", sequence: int = 1, until: int = NOW + DAY) -> Envelope:
    return Successor(kind, key(old), key(new), sequence, min(NOW, until - 1), until).seal(secret(old), secret(new))


def revoking(authority: int, sequence: int, *numbers: int) -> Envelope:
    keys = tuple(sorted((key(number) for number in numbers), key=str))
    return RevocationList(key(authority), sequence, keys).seal(secret(authority))


class Place:
    """A home with its lists."""

    def __init__(self, root: Path) -> None:
        self.home = Home(root)
        self.home.create()
        self.keys = NodeKeys.create(self.home)
        self.trust = TrustList(self.home, self.keys.signer.public)
        self.book = PeerBook(self.home)
        self.spread = KeySpread(self.home, self.trust)

    def take(self, *envelopes: Envelope, now: float | None = None) -> list[str]:
        """Codes of what was refused."""
        said = KeyStatements(
            tuple(e for e in envelopes if "successor" in e.payload_type),
            tuple(e for e in envelopes if "revocations" in e.payload_type),
        )
        return self.spread.take(KeyStatements.parse(said.encode()), now).refused

    @property
    def listed(self) -> frozenset[PublicKey]:
        return self.trust.keys() - {self.keys.signer.public}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "home")


# names


@pytest.mark.parametrize(
    ("patterns", "name", "expected"),
    [
        ((), "team/a", False),
        (("*",), "team/a", True),
        (("team/*",), "team/a", True),
        (("team/*",), "team/a/b", True),
        (("team/*",), "team", False),
        (("team/*",), "teams/a", False),
        (("team",), "team/a", False),
        (("team/a",), "team/a", True),
        (("x", "team/*"), "team/a", True),
    ],
)
def test_a_pattern_matches_whole_parts_of_names(patterns: tuple[str, ...], name: str, expected: bool) -> None:
    assert covers(patterns, name) is expected


@pytest.mark.parametrize("pattern", ["", "team/", "*/a", "te*", "team/**", "Team/*", "../*", "/*"])
def test_what_is_no_pattern_is_refused(place: Place, pattern: str) -> None:
    with pytest.raises(UsageError) as caught:
        place.trust.add("lab", key(1), names=[pattern])
    assert caught.value.code == "names.pattern"


def test_a_signer_counts_for_the_names_it_may_give_and_for_no_others(place: Place) -> None:
    place.trust.add("lab", key(1), names=["team/*"])
    place.trust.add("all", key(2))
    artifact = ArtifactId(sha256(b"x"))
    assert place.trust.keys() >= {key(1), key(2)}  # bytes are not limited, names are
    assert place.trust.judge_ref(Ref("team/a", artifact, 1).seal(secret(1)))[1] == (key(1),)
    other = Ref("other/a", artifact, 1)
    with pytest.raises(TrustError) as caught:
        place.trust.judge_ref(other.seal(secret(1)))
    assert caught.value.code == "trust.name"
    both = Envelope.seal(REF, other.encode(), secret(1), secret(2))
    assert place.trust.judge_ref(both)[1] == (key(2),)
    with pytest.raises(TrustError) as stranger:
        place.trust.judge_ref(other.seal(secret(3)))
    assert stranger.value.code == "trust.untrusted_signer"


def test_lists_of_version_1_are_read_and_written_anew(place: Place) -> None:
    entry = {"name": "lab", "key": str(key(1))}
    place.home.trust_file.write_text(json.dumps({"version": 1, "entries": [entry]}))
    peer = {**entry, "addresses": ["192.0.2.1:1"], "roles": ["push"]}
    place.home.peers_file.write_text(json.dumps({"version": 1, "entries": [peer]}))
    assert place.trust.signers() == [Signer("lab", key(1))]
    assert place.book.peers() == [Peer("lab", key(1), ("192.0.2.1:1",), ("push",))]
    place.trust.add("two", key(2), names=["a/*"], authority=True)
    place.book.add(Peer("two", key(2), roles=("compute", "audit"), names=("a/*",)))
    assert place.trust.signers() == [Signer("lab", key(1)), Signer("two", key(2), ("a/*",), True)]
    assert place.book.get("two") == Peer("two", key(2), (), ("compute", "audit"), ("a/*",))
    assert place.book.get("lab").roles == ("push",)


# successors


def test_a_successor_counts_beside_the_listed_key_until_the_overlap_ends(place: Place) -> None:
    place.trust.add("lab", key(1))
    assert place.take(step(1, 2)) == []
    assert place.listed == {key(1), key(2)}
    assert place.spread.take(KeyStatements()).successors == []
    now = place.trust.standing()
    later = type(now)(now.successors, now.revoked, NOW + DAY + 1)
    assert later.current("signer", key(1)) == (key(2),)
    assert later.current("peer", key(1)) == (key(1),)


def test_a_successor_of_nobody_who_is_listed_changes_nothing(place: Place) -> None:
    place.trust.add("lab", key(1))
    place.book.add(Peer("site", key(5)))
    assert place.take(step(3, 4), step(1, 2, kind="peer"), step(5, 6, kind="signer")) == []
    assert place.listed == {key(1)}
    assert Statements(place.home).held().successors == ()


def test_a_peer_s_next_key_is_a_pin_beside_the_first_and_finds_it(place: Place) -> None:
    place.book.add(Peer("site", key(1)))
    place.take(step(1, 2, kind="peer"))
    assert place.book.get("site").keys == (key(1), key(2))
    assert place.book.by_key(key(2)) == place.book.get(str(key(2))) == place.book.get("site")
    with pytest.raises(UsageError) as caught:
        place.book.add(Peer("other", key(2)))
    assert caught.value.code == "peer.exists"
    place.book.add(Peer("site", key(2)))  # listed under its new key from now on
    assert place.book.peers() == [Peer("site", key(2))]


def test_the_first_successor_stays_and_only_its_own_end_may_move(place: Place) -> None:
    place.trust.add("lab", key(1))
    place.take(step(1, 2))
    assert place.take(step(1, 3, sequence=9)) == ["trust.successor"]
    assert place.take(step(1, 2, sequence=2, until=NOW + 2 * DAY)) == []
    assert place.take(step(1, 2)) == ["trust.rollback"]
    assert place.listed == {key(1), key(2)}
    assert place.trust.standing().successors["signer", key(1)].until == NOW + 2 * DAY


def test_an_overlap_that_is_over_is_not_begun(place: Place) -> None:
    place.trust.add("lab", key(1))
    assert place.take(step(1, 2, until=NOW - 5)) == ["trust.expired"]
    assert place.listed == {key(1)}


def test_chains_and_rings_of_successors_end(place: Place) -> None:
    place.trust.add("lab", key(1))
    place.take(step(1, 2), step(2, 3))
    assert place.listed == {key(1), key(2), key(3)}
    place.take(step(3, 1))
    assert place.listed == {key(1), key(2), key(3)}
    place.trust.remove(str(key(3)))
    assert place.listed == frozenset()


def test_a_name_may_be_moved_by_the_key_that_follows_its_owner(place: Place) -> None:
    place.trust.add("lab", key(1))
    place.trust.add("other", key(4))
    assert key(1) in place.trust.owners("team/a", [key(4)])
    place.take(step(1, 2))
    assert key(1) not in place.trust.owners("team/a", [key(2)])
    assert key(1) in place.trust.owners("team/a", [key(4)])


# revocation


def test_a_list_of_an_authority_takes_keys_out_of_both_lists(place: Place) -> None:
    place.trust.add("lab", key(1))
    place.book.add(Peer("site", key(2)))
    place.trust.add("office", key(3), authority=True)
    assert place.take(revoking(3, 1, 1, 2)) == []
    assert place.listed == {key(3)}
    assert place.book.get("site").keys == ()
    assert place.book.by_key(key(2)) == place.book.get("site")


def test_a_list_of_nobody_with_authority_revokes_at_most_himself(place: Place) -> None:
    place.trust.add("lab", key(1))
    place.trust.add("other", key(2))
    assert place.take(revoking(2, 1, 1)) == []
    assert place.listed == {key(1), key(2)}
    assert Statements(place.home).held().revocations == ()
    place.take(revoking(2, 2, 1, 2), revoking(9, 1, 9), revoking(9, 1, 1))
    assert place.listed == {key(1)}
    assert [r.authority for r, _ in Statements(place.home).held().revocations] == [key(2)]


def test_a_lower_sequence_is_refused_and_an_equal_one_ignored(place: Place) -> None:
    place.trust.add("lab", key(1))
    place.trust.add("office", key(3), authority=True)
    place.take(revoking(3, 5, 1))
    before = place.home.statements_file.read_bytes()
    assert place.take(revoking(3, 4, 2)) == ["trust.rollback"]
    assert place.take(revoking(3, 5, 2)) == []
    assert place.home.statements_file.read_bytes() == before
    assert place.take(revoking(3, 6, 2)) == []
    assert place.listed == {key(1), key(3)}


def test_a_key_that_revoked_itself_says_no_more(place: Place) -> None:
    place.trust.add("lab", key(1))
    place.take(revoking(1, 1, 1))
    assert place.listed == frozenset()
    place.take(revoking(1, 2, 7))
    assert place.take(step(1, 2)) == ["trust.revoked"]
    assert place.listed == frozenset()


def test_whoever_stole_a_key_that_revoked_itself_revokes_nothing_with_it(place: Place) -> None:
    """Neither an authority's key, nor an old one of this very node."""
    place.trust.add("lab", key(1))
    place.trust.add("office", key(3), authority=True)
    place.take(revoking(3, 1, 3))
    assert place.take(revoking(3, 2, 1, 3)) == ["trust.revoked"]
    KeyRing(place.home).rotate("peer", DAY)
    old = place.keys.peer
    Statements(place.home).revoke(old.public, old)
    stolen = RevocationList(old.public, 9, tuple(sorted([old.public, key(1)], key=str))).seal(old)
    assert place.take(stolen) == ["trust.revoked"]
    assert place.listed == {key(1)}


def test_an_authority_s_old_key_revokes_nothing_after_its_time_but_itself(place: Place) -> None:
    place.trust.add("lab", key(1))
    place.trust.add("office", key(3), authority=True)
    place.take(step(3, 4))
    later = NOW + 2 * DAY
    assert place.take(revoking(3, 1, 1), now=later) == []
    assert place.take(revoking(3, 1, 1, 3), now=later) == ["trust.authority"]
    assert place.take(revoking(3, 1, 3), now=later) == []
    assert place.take(revoking(4, 1, 9), now=later) == []
    assert place.trust.standing().revoked == {key(3), key(9)}
    assert place.listed == {key(1), key(4)}


def test_an_authority_that_another_revoked_revokes_nobody_any_more(place: Place) -> None:
    place.trust.add("lab", key(1))
    for number in (3, 4):
        place.trust.add(f"office-{number}", key(number), authority=True)
    place.take(revoking(3, 1, 4))
    assert place.take(revoking(4, 1, 1, 4)) == ["trust.revoked"]
    assert place.take(revoking(4, 1, 1)) == ["trust.revoked"]
    assert place.listed == {key(1), key(3)}


def test_an_authority_s_successor_is_an_authority(place: Place) -> None:
    place.trust.add("lab", key(1))
    place.trust.add("office", key(3), authority=True)
    place.take(step(3, 4))
    place.take(revoking(4, 1, 1))
    assert key(1) not in place.listed


def test_what_this_node_revokes_counts_at_once_and_its_sequence_rises(place: Place) -> None:
    place.trust.add("lab", key(1))
    statements = Statements(place.home)
    assert statements.revoke(key(1), place.keys.signer).sequence == 1
    assert statements.revoke(key(1), place.keys.signer).sequence == 1
    assert statements.revoke(key(2), place.keys.signer).sequence == 2
    assert place.trust.standing().revoked == {key(1), key(2)}
    assert place.listed == frozenset()


def test_one_bad_statement_does_not_spoil_the_others(place: Place) -> None:
    place.trust.add("lab", key(1))
    forged = Envelope.seal(step(1, 9).payload_type, step(1, 9).payload, secret(1), secret(8))
    assert place.take(forged, step(1, 2)) == ["trust.untrusted_signer"]
    assert place.listed == {key(1), key(2)}


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"version":9,"successors":[],"revocations":[],"own":[]}'])
def test_damaged_statements_are_an_error_and_never_none(place: Place, content: bytes) -> None:
    place.home.statements_file.write_bytes(content)
    for call in (place.trust.keys, place.book.peers, place.spread.message):
        with pytest.raises(StoreError) as caught:
            call()
        assert caught.value.code == "statements.damaged"


def test_one_key_s_owner_cannot_fill_the_file(place: Place) -> None:
    """Rows of keys and long lists of somebody who is no authority are cut off, an authority's are not."""
    place.trust.add("lab", key(1))
    place.trust.add("office", key(200), authority=True)
    for number in range(1, 40):
        place.take(step(number, number + 1))
    assert len(Statements(place.home).held().successors) < 20
    assert place.take(revoking(1, 1, *range(1, 100))) == ["trust.authority"]
    assert key(1) in place.listed
    assert place.take(revoking(200, 1, *range(1, 100))) == []
    assert place.listed == {key(200)}


def test_statements_that_find_no_room_change_nothing_and_stop_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvsync.keys import statements

    place.trust.add("lab", key(1))
    place.take(step(1, 2))
    before = place.home.statements_file.read_bytes()
    monkeypatch.setattr(statements, "MAX_LIST_ENTRIES", 1)
    assert place.take(step(2, 3)) == ["statements.full"]
    assert place.home.statements_file.read_bytes() == before


# this node's own keys


def test_a_new_signer_signs_at_once_and_the_old_one_counts_until_the_end(place: Place) -> None:
    old = place.keys.signer.public
    made = KeyRing(place.home).rotate("signer", DAY)
    now = NodeKeys.load(place.home)
    assert now.signer.public == made.new != old
    assert place.keys.current().signer.public == made.new
    assert now.peer.public == place.keys.peer.public
    assert TrustList(place.home, made.new).keys() == {old, made.new}
    standing = TrustList(place.home, made.new).standing()
    later = type(standing)(standing.successors, standing.revoked, made.until + 1)
    assert later.before("signer", made.new) == ()


def test_a_new_peer_key_is_presented_before_the_old_one_stops_to_count(place: Place) -> None:
    made = KeyRing(place.home).rotate("peer", 10 * DAY)
    at = presented_from(made)
    assert made.until - 3 * 3600 < at < made.until - 3600  # clocks may be an hour apart
    assert NodeKeys.load(place.home, now=at - 1).peer.public == made.old
    assert NodeKeys.load(place.home, now=at + 1).peer.public == made.new
    assert place.keys.current(at + 1).peer.public == made.new
    assert KeyRing(place.home).find(made.old) is not None


def test_rotations_do_not_pile_up(place: Place) -> None:
    made = KeyRing(place.home).rotate("signer", DAY)
    with pytest.raises(UsageError) as caught:
        KeyRing(place.home).rotate("signer", DAY)
    assert caught.value.code == "keys.rotating"
    again = KeyRing(place.home).rotate("signer", DAY, now=made.until + 1)
    assert [k.public for k in KeyRing(place.home).chain("signer")] == [made.old, made.new, again.new]


def test_a_lost_key_file_is_named(place: Place) -> None:
    made = KeyRing(place.home).rotate("signer", DAY)
    (place.home.keys_dir / f"signer-{made.new.key_id}.key").unlink()
    with pytest.raises(CodedError) as caught:
        NodeKeys.load(place.home)
    assert caught.value.code == "keys.missing"


ROTATE = """
import os, pathlib, signal, sys
from kvsync import files
from kvsync.config import Home
from kvsync.keys import KeyRing
count, at = 0, int(sys.argv[2])
real = {name: getattr(os, name) for name in ("fsync", "open")}
def dying(name):
    def call(*args, **options):
        global count
        count += 1
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return real[name](*args, **options)
    return call
ring = KeyRing(Home(pathlib.Path(sys.argv[1])))
ring.chain("signer")
os.fsync, os.open = dying("fsync"), dying("open")
ring.rotate("signer", 86400)
"""


def test_a_rotation_killed_anywhere_has_happened_or_not(tmp_path: Path) -> None:
    outcomes = set()
    for at in (1, 3, 6, 8, 10, 12, 99):
        place = Place(tmp_path / str(at))
        old = place.keys.signer.public
        ended = subprocess.run([sys.executable, "-c", ROTATE, str(place.home.root), str(at)], check=False)
        now = NodeKeys.load(place.home)
        counting = TrustList(place.home, now.signer.public).keys()
        assert old in counting
        assert now.signer.public in counting
        rotated = now.signer.public != old
        assert ended.returncode == (0 if rotated and ended.returncode == 0 else -signal.SIGKILL)
        if not rotated:
            KeyRing(place.home).rotate("signer", DAY)
            assert NodeKeys.load(place.home).signer.public != old
        outcomes.add((ended.returncode, rotated))
    assert {(-signal.SIGKILL, False), (0, True)} <= outcomes
