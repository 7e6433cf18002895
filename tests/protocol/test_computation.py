"""Asking for a computation: what is written is read, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsync_protocol.computation import MAX_TEXT_BYTES, STATES, ComputeRequest, ComputeState, Models
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.errors import MalformedError, ProtocolError
from kvsync_protocol.fingerprint import Fingerprint, FingerprintKind, Fingerprints

digests = st.binary(min_size=32, max_size=32).map(Digest)
names = st.text("0123456789abcdef", min_size=16, max_size=16)
plain = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
tokens = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20).map(tuple)
requests = st.builds(ComputeRequest, names, digests, digests, texts) | st.builds(
    ComputeRequest, names, digests, digests, tokens=tokens
)
numbers = st.integers(0, 2**53 - 1)
states = st.builds(
    ComputeState, names, st.sampled_from([s for s in STATES if s != "done"]), numbers, plain, numbers, numbers, plain
) | st.builds(ComputeState, names, st.just("done"), artifact=digests.map(ArtifactId))
fields = st.dictionaries(st.text("abcd", min_size=1, max_size=4), plain, min_size=1, max_size=3)
models = st.lists(
    st.builds(
        Fingerprints,
        fields.map(lambda found: Fingerprint(FingerprintKind.COMPATIBILITY, found)),
        fields.map(lambda found: Fingerprint(FingerprintKind.NUMERICS, found)),
    ),
    max_size=3,
).map(lambda pairs: Models(tuple(pairs)))


@given(requests)
def test_a_request_survives(request: ComputeRequest) -> None:
    assert ComputeRequest.parse(request.encode()) == request


@given(st.builds(lambda s: s, states))
def test_a_state_survives(state: ComputeState) -> None:
    if len(state.unit.encode()) <= 20:
        assert ComputeState.parse(state.encode()) == state


@given(models)
def test_the_models_survive(found: Models) -> None:
    assert Models.parse(found.encode()) == found


@pytest.mark.parametrize("kind", [ComputeRequest, ComputeState, Models])
@given(data=st.binary(max_size=200) | st.builds(bytes.__add__, st.just(b'{"id":"'), st.binary(max_size=50)))
def test_arbitrary_bytes_are_refused(kind: type[ComputeRequest | ComputeState | Models], data: bytes) -> None:
    with pytest.raises(ProtocolError):
        kind.parse(data)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"id": "../../etc/passwd"}, "compute.id"),
        ({"text": None}, "compute.document"),
        ({"text": ""}, "compute.document"),
        ({"text": "x" * (MAX_TEXT_BYTES + 1)}, "compute.document"),
        ({"text": "\ud800"}, "compute.document"),
        ({"tokens": (1,)}, "compute.document"),
    ],
)
def test_a_request_that_makes_no_sense_is_none(change: dict[str, object], code: str) -> None:
    good: dict[str, object] = {"id": "00" * 8, "compatibility": Digest(bytes(32)), "numerics": Digest(bytes(32))}
    with pytest.raises(MalformedError) as caught:
        ComputeRequest(**{**good, "text": "text", **change})  # type: ignore[arg-type]
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b'{"path":"/etc/passwd"}', "compute.missing"),
        (
            b'{"id":"0000000000000000","compatibility":"sha256:%s","numerics":"sha256:%s","text":"a","path":"/"}'
            % (b"00" * 32, b"00" * 32),
            "compute.unknown",
        ),
    ],
)
def test_a_request_names_no_path(text: bytes, code: str) -> None:
    with pytest.raises(MalformedError) as caught:
        ComputeRequest.parse(text)
    assert caught.value.code == code


def test_a_state_that_is_done_has_a_result_and_no_other_has() -> None:
    state = ComputeState("00" * 8, "done", artifact=ArtifactId(Digest(bytes(32)))).encode()
    for bad in (state.replace(b'"done"', b'"running"', 1), state.replace(b'"state":"done"', b'"state":"odd"')):
        with pytest.raises(MalformedError):
            ComputeState.parse(bad)
