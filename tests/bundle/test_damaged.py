"""A bundle that was cut, edited, reordered or made by an attacker is refused, and nothing of it is seen."""

from __future__ import annotations

import tarfile

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kvsync_protocol.bundle import END, RECORD, Member
from kvsync_protocol.errors import IntegrityError, MalformedError, ProtocolError
from tests.conftest import build_artifact

SHORT = build_artifact(1, 40, head=tuple(range(32)))
LONG = build_artifact(2, 56, head=tuple(range(32)))
same_fixture = [HealthCheck.function_scoped_fixture]
many = settings(max_examples=100, suppress_health_check=same_fixture)
few = settings(max_examples=60, suppress_health_check=same_fixture)


@pytest.fixture
def data(sender):
    """A bundle of two artifacts that share chunks."""
    for artifact in (SHORT, LONG):
        sender.keep(artifact)
    sender.give("team/handbook", SHORT.id)
    return sender.pack(SHORT.id, LONG.id, encoding="zstd")


@pytest.fixture
def members(data):
    """The members, each with its header and padding."""
    return cut(data)


def cut(data):
    found, at = [], 0
    while data[at : at + RECORD] != END[:RECORD]:
        member = Member.decode(data[at : at + RECORD])
        stop = at + RECORD + member.size + member.padding
        found.append(data[at:stop])
        at = stop
    return found


def refused(taker, data, *codes):
    with pytest.raises(ProtocolError) as error:
        taker.take(data)
    assert not codes or error.value.code in codes, error.value.code
    assert taker.empty


@many
@given(st.binary(max_size=2000))
def test_any_bytes_are_a_coded_refusal(taker, noise):
    refused(taker, noise)


@many
@given(at=st.floats(0, 1, exclude_max=True))
@example(at=0.0)
def test_a_bundle_cut_anywhere_is_refused(taker, data, at):
    refused(taker, data[: int(at * len(data))], "bundle.truncated")


@few
@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_anywhere_is_refused_or_changes_nothing(fresh, data, at, bit):
    edited = bytearray(data)
    edited[int(at * len(data))] ^= 1 << bit
    with fresh() as site:  # what was verified before must not hide what is damaged now
        try:
            site.take(bytes(edited))
        except ProtocolError:
            assert site.empty
        else:
            assert site.holds(SHORT)
            assert site.holds(LONG)
        assert site.store.fsck().clean


@many
@given(st.data())
def test_members_out_of_order_missing_or_twice_are_refused(taker, members, draw):
    wrong = draw.draw(
        st.one_of(
            st.permutations(members),
            st.lists(st.sampled_from(members), max_size=len(members) + 1),
        )
    )
    if wrong != members:
        refused(taker, b"".join(wrong) + END)


SPECIAL = {
    "a link": {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"},
    "a hard link": {"type": tarfile.LNKTYPE, "linkname": "index.json"},
    "a device": {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 5},
    "a pipe": {"type": tarfile.FIFOTYPE},
    "a directory": {"type": tarfile.DIRTYPE},
    "a sparse file": {"type": tarfile.GNUTYPE_SPARSE},
    "a long name": {"type": tarfile.GNUTYPE_LONGNAME},
    "a way out": {"name": "../../.ssh/authorized_keys"},
    "an absolute path": {"name": "/etc/cron.d/evil"},
    "another owner": {"uid": 1000},
    "another mode": {"mode": 0o4755},
    "a time": {"mtime": 1},
    "a negative size": {"size": -1},
    "a size beyond all": {"size": 2**40},
}


@pytest.mark.parametrize("kind", SPECIAL, ids=str)
@pytest.mark.parametrize("place", [0, 1, 4, -1])
def test_what_is_no_plain_file_of_a_bundle_is_refused_wherever_it_stands(taker, members, kind, place):
    member = Member.decode(members[place][:RECORD])
    info = tarfile.TarInfo(member.name)
    info.size, info.mode = member.size, 0o600
    for name, value in SPECIAL[kind].items():
        setattr(info, name, value)
    header = info.tobuf(tarfile.GNU_FORMAT)[:RECORD]
    wrong = [*members]
    wrong[place] = header + members[place][RECORD:]
    refused(taker, b"".join(wrong) + END, "bundle.member")
    assert not any((taker.home.root.parent).rglob("authorized_keys"))


def test_bytes_behind_the_end_and_in_the_padding_are_refused(taker, data, members):
    refused(taker, data + b"\0", "bundle.trailing")
    refused(taker, b"".join(members) + b"\0" * RECORD, "bundle.truncated")
    refused(taker, b"".join(members) + b"\0" * RECORD + b"x" * RECORD, "bundle.trailing")
    padded = members[0][:-1] + b"x"
    refused(taker, padded + b"".join(members[1:]) + END, "bundle.member")


def test_a_member_larger_than_its_limit_is_refused_before_it_is_read(taker, members):
    huge = Member("index.json", 3 << 20).encode()
    refused(taker, huge, "bundle.size")
    place = next(n for n, each in enumerate(members) if each.startswith(b"chunks/"))
    name = Member.decode(members[place][:RECORD]).name
    refused(taker, b"".join(members[:place]) + Member(name, 2**32).encode(), "bundle.size")


def test_the_chunk_of_another_is_named_as_damaged(taker, members):
    first, second = [n for n, each in enumerate(members) if each.startswith(b"chunks/")][:2]
    wrong = [*members]
    other = Member.decode(members[second][:RECORD])
    wrong[first] = Member(Member.decode(members[first][:RECORD]).name, other.size).encode() + members[second][RECORD:]
    with pytest.raises(IntegrityError) as error:
        taker.take(b"".join(wrong) + END)
    assert error.value.code == "bundle.chunk"
    assert taker.empty


@pytest.mark.parametrize(
    "body", [b"", b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 8, b"\0" * 100], ids=["empty", "bomb", "zeros"]
)
@pytest.mark.parametrize("ending", ["", ".zst", ".planes"])
def test_a_chunk_that_does_not_decode_is_named_as_damaged(taker, members, body, ending):
    place = next(n for n, each in enumerate(members) if each.startswith(b"chunks/"))
    name = Member.decode(members[place][:RECORD]).name.partition(".")[0] + ending
    member = Member(name, len(body))
    wrong = [*members]
    wrong[place] = member.encode() + body + bytes(member.padding)
    refused(taker, b"".join(wrong) + END, "bundle.chunk")


def test_tables_of_another_artifact_are_refused(taker, members):
    names = [Member.decode(each[:RECORD]).name for each in members]
    for name in ("leaves", "tokens"):
        one, other = names.index(f"artifacts/0/{name}"), names.index(f"artifacts/1/{name}")
        body = members[other][RECORD:]
        wrong = [*members]
        size = Member.decode(members[one][:RECORD]).size
        found = Member(names[one], size)
        wrong[one] = found.encode() + body[:size] + bytes(found.padding)
        refused(taker, b"".join(wrong) + END, "integrity.leaf_table", "integrity.tokens")


def test_a_table_of_another_length_is_refused_by_its_digest_or_order(taker, members):
    names = [Member.decode(each[:RECORD]).name for each in members]
    place = names.index("artifacts/0/leaves")
    wrong = [*members]
    wrong[place] = Member("artifacts/0/leaves", 0).encode()
    refused(taker, b"".join(wrong) + END, "integrity.leaf_table")


@many
@given(st.binary(min_size=RECORD, max_size=RECORD))
def test_a_header_is_read_only_as_it_would_be_written(header):
    try:
        member = Member.decode(header)
    except MalformedError:
        return
    assert member.encode() == header


@many
@given(
    st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=1, max_size=100),
    st.integers(0, 2**33 - 1),
)
def test_headers_are_those_of_a_tar_library(name, size):
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    header = Member(name, size).encode()
    assert header == info.tobuf(tarfile.USTAR_FORMAT)
    assert Member.decode(header) == Member(name, size)
