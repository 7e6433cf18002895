"""Parameters of jobs: strict, complete, and shown without the document."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvsync.daemon.messages import JobKind
from kvsync.daemon.params import (
    MAX_DOCUMENT_BYTES,
    ComputeParams,
    PullParams,
    PushParams,
    parse_params,
)
from kvsync_protocol.digest import sha256
from kvsync_protocol.errors import CodedError
from kvsync_protocol.fingerprint import Fingerprints
from kvsync_protocol.layout import DType

MODEL = {"model": "/models/tiny"}


def test_every_kind_survives_in_full(make_fingerprints: Callable[..., Fingerprints]) -> None:
    for kind, params in (
        (JobKind.COMPUTE, ComputeParams(Path("/m"), text="one\ntwo\t")),
        (
            JobKind.COMPUTE,
            ComputeParams(
                Path("/m"),
                tokens=(1, 2, 2**32 - 1),
                dtype=DType.BF16,
                device="cuda:0",
                name="a/b",
                template=sha256(b"t"),
                boundaries=(5, 9),
            ),
        ),
        (JobKind.PULL, PullParams("lab", "team/handbook", make_fingerprints())),
        (JobKind.PULL, PullParams("lab", str(sha256(b"x")))),
        (JobKind.PUSH, PushParams("lab", "team/handbook")),
    ):
        assert parse_params(kind, params.as_json()) == params


def test_the_document_is_not_shown() -> None:
    shown = ComputeParams(Path("/m"), text="tøp secret").shown()
    assert shown == {"model": "/m", "device": "cpu", "text_bytes": 11}
    shown = ComputeParams(Path("/m"), tokens=(7, 8), boundaries=(1,)).shown()
    assert shown == {"model": "/m", "device": "cpu", "token_count": 2, "boundary_count": 1}


@pytest.mark.parametrize(
    ("kind", "value", "code"),
    [
        (JobKind.COMPUTE, {}, "job.missing"),
        (JobKind.COMPUTE, MODEL, "job.document"),
        (JobKind.COMPUTE, {**MODEL, "text": "a", "tokens": [1]}, "job.document"),
        (JobKind.COMPUTE, {**MODEL, "text": ""}, "job.empty_document"),
        (JobKind.COMPUTE, {**MODEL, "tokens": []}, "job.empty_document"),
        (JobKind.COMPUTE, {**MODEL, "text": 5}, "job.type"),
        (JobKind.COMPUTE, {**MODEL, "text": "a" * (MAX_DOCUMENT_BYTES + 1)}, "job.document_size"),
        (JobKind.COMPUTE, {**MODEL, "tokens": [-1]}, "job.range"),
        (JobKind.COMPUTE, {**MODEL, "tokens": [2**32]}, "job.range"),
        (JobKind.COMPUTE, {**MODEL, "tokens": ["1"]}, "job.type"),
        (JobKind.COMPUTE, {"model": "models/tiny", "text": "a"}, "job.model"),
        (JobKind.COMPUTE, {"model": "/m\nx", "text": "a"}, "job.range"),
        (JobKind.COMPUTE, {**MODEL, "text": "a", "dtype": "f8"}, "job.dtype"),
        (JobKind.COMPUTE, {**MODEL, "text": "a", "dtype": "F8_E4M3"}, "job.dtype"),
        (JobKind.COMPUTE, {**MODEL, "text": "a", "name": "../a"}, "ref.name"),
        (JobKind.COMPUTE, {**MODEL, "text": "a", "template": "x"}, "digest.syntax"),
        (JobKind.COMPUTE, {**MODEL, "text": "a", "boundaries": [0]}, "job.range"),
        (JobKind.COMPUTE, {**MODEL, "text": "a", "question": "?"}, "job.unknown"),
        (JobKind.PULL, {"peer": "lab"}, "job.missing"),
        (JobKind.PULL, {"peer": "lab", "wanted": "w" * 900}, "job.range"),
        (JobKind.PULL, {"peer": "lab", "wanted": "w", "fingerprints": {}}, "job.missing"),
        (
            JobKind.PULL,
            {"peer": "l", "wanted": "w", "fingerprints": {"compatibility": {"a": 1}, "numerics": {}}},
            "fingerprint.fields",
        ),
        (JobKind.PUSH, {"peer": "lab", "artifact": 5}, "job.type"),
        (JobKind.PUSH, {"peer": "lab", "artifact": "a", "url": "http://x"}, "job.unknown"),
        (JobKind.PUSH, [], "job.type"),
    ],
)
def test_parameters_that_make_no_sense_have_their_own_code(kind: JobKind, value: object, code: str) -> None:
    with pytest.raises(CodedError) as caught:
        parse_params(kind, value)
    assert caught.value.code == code


def test_a_lone_surrogate_is_not_text() -> None:
    with pytest.raises(CodedError) as caught:
        ComputeParams(Path("/m"), text="\ud800")
    assert caught.value.code == "job.encoding"
