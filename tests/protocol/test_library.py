"""Entries, passages and lists: what is sealed is read as it was, and a changed member is another one or none."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.entry import PAYLOAD_TYPE, Entry, EntryCost, VerifierRecord
from kvsync_protocol.envelope import Envelope, VerifiedPayload
from kvsync_protocol.errors import MalformedError, ProtocolError
from kvsync_protocol.library import PAYLOAD_TYPE as LIST_TYPE
from kvsync_protocol.library import Finding, LibraryList, Quarantined
from kvsync_protocol.passage import PAYLOAD_TYPE as PASSAGE_TYPE
from kvsync_protocol.passage import Passage
from kvsync_protocol.signing import SigningKey

KEY = SigningKey(bytes(range(32)))
DIGESTS = st.binary(min_size=32, max_size=32).map(Digest)
TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")) | st.sampled_from("\t\n"), max_size=40)
WORD = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=20)
VALUES = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | WORD
ENTRIES = st.builds(
    Entry,
    problem=TEXT,
    address=DIGESTS,
    solution=TEXT,
    verifier=st.builds(
        VerifierRecord, WORD, WORD, st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), VALUES)
    ),
    score=st.floats(0, 1),
    detail=TEXT,
    artifact=DIGESTS.map(ArtifactId),
    tokens=st.integers(1, 2**20),
    tokens_digest=DIGESTS,
    template=st.none() | DIGESTS,
    compatibility=DIGESTS,
    cost=st.builds(EntryCost, st.integers(0, 2**40), st.integers(0, 2**40), st.floats(0, 1e9)),
)
PART = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/\\"), min_size=1, max_size=9)
SOURCES = st.lists(PART.filter(lambda part: part not in (".", "..")), min_size=1, max_size=3).map("/".join)


@st.composite
def passages(draw: st.DrawFn) -> Passage:
    text, start, behind = draw(TEXT.filter(len)), draw(st.integers(0, 99)), draw(st.integers(0, 99))
    stop = start + len(text)
    heading, section = draw(WORD), draw(WORD)
    return Passage(
        draw(SOURCES),
        draw(DIGESTS),
        stop + behind,
        section,
        start,
        stop,
        heading,
        text,
        ArtifactId(draw(DIGESTS)),
        draw(st.integers(1, 2**20)),
        draw(DIGESTS),
        draw(DIGESTS),
    )


FINDINGS = st.lists(st.builds(Finding, st.integers(0, 2**40), WORD), min_size=1, max_size=8).map(tuple)


@st.composite
def lists(draw: st.DrawFn) -> LibraryList:
    every = sorted(draw(st.sets(DIGESTS, max_size=6)))
    cut = draw(st.integers(0, len(every)))
    quarantined = tuple(Quarantined(entry, draw(FINDINGS)) for entry in every[cut:])
    return LibraryList("maths/easy", draw(st.integers(1, 2**50)), tuple(every[:cut]), quarantined)


def verified(envelope: Envelope, kind: str) -> VerifiedPayload:
    return Envelope.parse(envelope.encode()).verify(kind, [KEY.public])


@given(passages())
def test_a_sealed_passage_is_read_as_it_was(passage):
    found = Passage.parse(verified(passage.seal(KEY), PASSAGE_TYPE))
    assert found == passage
    assert found.digest == passage.digest
    assert found.text.strip() in found.prompt


@given(ENTRIES)
def test_a_sealed_entry_is_read_as_it_was(entry):
    found = Entry.parse(verified(entry.seal(KEY), PAYLOAD_TYPE))
    assert found == entry
    assert found.digest == entry.digest


@given(lists())
def test_a_sealed_list_is_read_as_it_was(found):
    assert LibraryList.parse(verified(found.seal(KEY), LIST_TYPE)) == found


@given(ENTRIES, st.data())
def test_one_changed_member_makes_an_entry_another_or_none(entry, data):
    members = json.loads(entry.encode())
    name = data.draw(st.sampled_from(sorted(members)))
    members[name] = data.draw(VALUES)
    payload = json.dumps(members, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    try:
        found = Entry.parse(VerifiedPayload(PAYLOAD_TYPE, payload, ()))
    except ProtocolError:
        return
    assert (found == entry) == (payload == entry.encode())


def test_nothing_is_signed_that_would_not_be_read():
    two = tuple(Digest(bytes([number]) * 32) for number in (2, 1))
    with pytest.raises(MalformedError) as unordered:
        LibraryList("maths/easy", 1, two).seal(KEY)
    assert unordered.value.code == "list.order"
    full = LibraryList("maths/easy", 1, tuple(Digest(number.to_bytes(32, "big")) for number in range(8193)))
    with pytest.raises(MalformedError) as many:
        full.seal(KEY)
    assert many.value.code == "list.range"
