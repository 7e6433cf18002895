"""Computations that one daemon has another do: what is granted, what is not, and both of them killed on the way."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvsync.daemon.messages import Job, JobId, JobKind, JobState
from kvsync.daemon.offered import OfferedModel, OfferedModels
from kvsync.daemon.params import AskParams
from kvsync.engines import load_engine
from kvsync.engines.engine import Engine
from kvsync.keys import Peer
from kvsync.peer.compute_client import ComputeClient
from kvsync.peer.deadline import Deadline
from kvsync.peer.identity import NodeIdentity
from kvsync.store import Store
from kvsync.sync.asking import Question
from kvsync_protocol.computation import ComputeRequest, ComputeState, Models
from kvsync_protocol.digest import ArtifactId, Digest, sha256
from kvsync_protocol.errors import CodedError, IntegrityError
from kvsync_protocol.layout import DType
from kvsync_protocol.prefix import tokens_digest
from tests.conftest import build_artifact
from tests.daemon.hosts import SETTINGS, Host, until

MakeHost = Callable[..., Host]
BLOCK = 256


def words(count: int, seed: int = 0) -> str:
    rng = random.Random(seed)
    return " ".join(f"w{rng.randrange(100)}" for _ in range(count))


@pytest.fixture(scope="module")
def engine(tiny_model_dir: Path) -> Engine:
    return load_engine(tiny_model_dir, dtype=DType.F32, threads=1)


@pytest.fixture
def pair(host: MakeHost, engine: Engine, tiny_model_dir: Path) -> tuple[Host, Host]:
    """A laptop that may compute at a gpu, where it otherwise sees other names only; both daemons run."""
    return befriend(host("gpu"), host("laptop"), engine, tiny_model_dir)


def befriend(gpu: Host, laptop: Host, engine: Engine, model: Path) -> tuple[Host, Host]:
    OfferedModels(gpu.home).add(OfferedModel("tiny", model, DType.F32, "cpu", engine.fingerprints))
    gpu.knows(laptop, "get", "compute", names=["other/*"])
    gpu.start()
    gpu.stay_at(gpu.address)
    laptop.knows(gpu, address=gpu.address)
    laptop.trusts(gpu)
    laptop.start()
    return gpu, laptop


def params(engine: Engine, text: str, name: str | None = None) -> AskParams:
    prints = engine.fingerprints
    return AskParams(
        "gpu",
        prints.compatibility.digest,
        text,
        fingerprints=prints,
        expect=tokens_digest(engine.encode(text)),
        name=name,
    )


def until_under_way(host: Host, job: JobId) -> None:
    """Until the job has seen tokens computed, and more are to be."""
    for state in host.client.events(job):
        assert not state.state.final, state
        step = state.step
        if step is not None and step.unit == "tokens" and BLOCK <= step.done < step.total - BLOCK:
            return
    raise AssertionError("the daemon went away")


def code_of(host: Host, job: JobId) -> str:
    with pytest.raises(CodedError) as caught:
        host.client.wait(job)
    return caught.value.code


def jobs_of(host: Host) -> list[Job]:
    return host.client.jobs()


def test_a_document_is_computed_there_and_kept_here_as_if_it_had_been_pulled(
    pair: tuple[Host, Host], engine: Engine
) -> None:
    gpu, laptop = pair
    text, seen = words(6 * BLOCK + 50), list[tuple[str, int, int, str]]()
    job = laptop.client.submit(JobKind.ASK, params(engine, text, "team/handbook"))
    result = laptop.client.wait(job, lambda *step: seen.append(step))
    assert (result["peer"], result["name"]) == ("gpu", "team/handbook")
    assert any(unit == "bytes" for *_, unit in seen)
    with Store.open(laptop.home.store_dir) as store:
        stored = store.artifact(store.resolve("team/handbook"))
        assert str(stored.artifact) == result["artifact"]
        assert stored.tokens() == tuple(engine.encode(text))
        assert stored.envelope.signers([gpu.keys.signer.public])
        assert store.refs()[0].signer == laptop.keys.signer.public
        assert store.fsck().clean
    shown = jobs_of(gpu)[0].params
    assert "text" not in shown
    assert shown["text_bytes"] == len(text)
    again = laptop.client.wait(laptop.client.submit(JobKind.ASK, params(engine, text)))
    assert (again["artifact"], again["bytes_moved"]) == (result["artifact"], 0)
    # by tokens, for a host that has no such model
    tokens = tuple(engine.encode(words(300, 1)))
    bare = AskParams("gpu", engine.fingerprints.compatibility.digest, tokens=tokens)
    found = laptop.client.wait(laptop.client.submit(JobKind.ASK, bare))
    with Store.open(laptop.home.store_dir) as store:
        assert store.artifact(ArtifactId(Digest.parse(found["artifact"]))).tokens() == tokens


def test_both_sides_may_be_killed_in_the_middle_and_nothing_is_asked_or_computed_twice(
    pair: tuple[Host, Host], engine: Engine, kill: Callable[..., None]
) -> None:
    gpu, laptop = pair
    text = words(40 * BLOCK)
    job = laptop.client.submit(JobKind.ASK, params(engine, text, "team/long"))
    until_under_way(laptop, job)
    kill(gpu.home)
    gpu.start()
    kill(laptop.home)
    laptop.start()
    result = laptop.client.wait(job)
    with Store.open(laptop.home.store_dir) as store:
        assert str(store.resolve("team/long")) == result["artifact"]
    [there] = jobs_of(gpu)
    assert (there.state, there.attempts) == (JobState.DONE, 2)
    assert there.result is not None
    computed = there.result["tokens_computed"]
    assert isinstance(computed, int)
    assert computed < 40 * BLOCK


def test_who_gives_up_ends_it_there_as_well_and_so_does_the_loss_of_the_role(
    pair: tuple[Host, Host], engine: Engine
) -> None:
    gpu, laptop = pair
    first = laptop.client.submit(JobKind.ASK, params(engine, words(120 * BLOCK)))
    until_under_way(laptop, first)
    laptop.client.cancel(first)
    assert code_of(laptop, first) == "job.cancelled"
    assert until(lambda: [job.state for job in jobs_of(gpu)] == [JobState.CANCELLED])
    second = laptop.client.submit(JobKind.ASK, params(engine, words(120 * BLOCK, 5)))
    until_under_way(laptop, second)
    gpu.knows(laptop, "get")
    assert code_of(laptop, second) == "peer.role"
    assert until(lambda: jobs_of(gpu)[0].state is JobState.CANCELLED)


def test_what_is_refused_is_refused_before_anything_is_computed(
    host: MakeHost, engine: Engine, tiny_model_dir: Path
) -> None:
    strict = dataclasses.replace(SETTINGS, compute_max_tokens=400, compute_max_jobs=1)
    gpu, laptop = befriend(host("gpu", strict), host("laptop"), engine, tiny_model_dir)

    def refused(asked: AskParams) -> str:
        return code_of(laptop, laptop.client.submit(JobKind.ASK, asked))

    asked = params(engine, words(10))
    assert refused(dataclasses.replace(asked, compatibility=sha256(b"other"))) == "compute.unknown_model"
    assert refused(dataclasses.replace(asked, fingerprints=_other_numerics(engine))) == "mismatch.numerics"
    laptop.trust.remove("gpu")
    assert refused(asked) == "trust.untrusted_signer"
    laptop.trusts(gpu)
    assert jobs_of(gpu) == []
    assert refused(dataclasses.replace(asked, text=None, expect=None, tokens=(1,) * 401)) == "compute.too_long"
    assert refused(params(engine, words(401))) == "compute.too_long"  # known once it is tokens
    assert refused(dataclasses.replace(asked, expect=sha256(b"others"))) == "compute.other_input"
    OfferedModels(gpu.home).remove("tiny")
    model = OfferedModel("tiny", tiny_model_dir, DType.BF16, "cpu", engine.fingerprints)
    OfferedModels(gpu.home).add(model)
    assert refused(params(engine, words(20))) == "compute.other_model"
    with Store.open(laptop.home.store_dir) as store:
        assert store.artifacts() == []


def _other_numerics(engine: Engine) -> Any:
    prints = engine.fingerprints
    fields = {**prints.numerics.fields, "torch": "another"}
    return dataclasses.replace(prints, numerics=dataclasses.replace(prints.numerics, fields=fields))


def client(host: Host, other: Host, address: str) -> ComputeClient:
    peer = Peer(other.name, other.keys.peer.public, (address,))
    return ComputeClient(peer, NodeIdentity(host.keys.peer), SETTINGS, Deadline.after(60))


async def test_without_the_role_everything_is_the_same_refusal_and_nobody_finds_anothers_computation(
    host: MakeHost, engine: Engine, tiny_model_dir: Path
) -> None:
    strict = dataclasses.replace(SETTINGS, compute_max_jobs=1)
    gpu, laptop, other, stranger = host("gpu", strict), host("laptop"), host("other"), host("stranger")
    befriend(gpu, laptop, engine, tiny_model_dir)
    gpu.knows(other, "compute")
    gpu.knows(stranger, "get", "push", "audit")
    prints = engine.fingerprints
    request = ComputeRequest("00" * 8, prints.compatibility.digest, prints.numerics.digest, words(100 * BLOCK))
    address = await asyncio.to_thread(lambda: gpu.address)
    async with (
        client(laptop, gpu, address) as asking,
        client(other, gpu, address) as listening,
        client(stranger, gpu, address) as denied,
    ):
        for each in (asking, listening, denied):
            await each.hello()
        assert (await asking.compute(request)).state in ("queued", "running")
        assert (await asking.compute(request)).state in ("queued", "running")  # the same, not another
        assert await listening.models() == Models((prints,))
        for call, code in (
            (lambda: asking.compute(dataclasses.replace(request, id="11" * 8)), "compute.too_many"),
            (lambda: asking.computation("22" * 8), "compute.unknown_id"),
            (lambda: listening.computation(request.id), "compute.unknown_id"),
            (lambda: listening.cancel(request.id), "compute.unknown_id"),
            (lambda: asking.computation("../../etc"), "peer.route"),
            (lambda: asking.computation("XX" * 8), "compute.id"),
            (lambda: denied.models(), "peer.role"),
            (lambda: denied.compute(request), "peer.role"),
            (lambda: denied.computation(request.id), "peer.role"),
            (lambda: denied.computation("junk"), "peer.role"),
            (lambda: denied.cancel(request.id), "peer.role"),
        ):
            with pytest.raises(CodedError) as caught:
                await call()  # type: ignore[no-untyped-call]
            assert caught.value.code == code
        assert (await asking.cancel(request.id)).id == request.id
        state = await asking.computation(request.id)
        while not state.final:
            await asyncio.sleep(0.1)
            state = await asking.computation(request.id)
        assert state == ComputeState(request.id, "cancelled", 0, state.stage, state.done, state.total, state.unit)


def test_a_result_of_something_else_is_not_taken_for_the_answer() -> None:
    artifact = build_artifact(4)
    asked = Question("00" * 8, artifact.manifest.fingerprints.compatibility.digest, tokens=artifact.token_ids)
    asked.check(artifact.manifest)
    for wrong in (
        dataclasses.replace(asked, tokens=(*artifact.token_ids, 1)),
        dataclasses.replace(asked, tokens=None, text="some text"),
        dataclasses.replace(asked, tokens=None, text="some text", expect=artifact.manifest.tokens.digest),
    ):
        with pytest.raises(IntegrityError) as caught:
            wrong.check(artifact.manifest)
        assert caught.value.code == "compute.other_input"


def test_a_list_of_offers_is_read_as_it_was_written(host: MakeHost, engine: Engine, tiny_model_dir: Path) -> None:
    listed = OfferedModels(host("gpu").home)
    models = [OfferedModel("tiny", tiny_model_dir, dtype, "cpu", engine.fingerprints) for dtype in (None, DType.BF16)]
    for model in (*models, models[0]):
        listed.add(model)
    assert listed.models() == models[::-1]
    prints = engine.fingerprints
    assert listed.find(prints.compatibility.digest, prints.numerics.digest) in models
    listed.remove("tiny")
    assert listed.models() == []
