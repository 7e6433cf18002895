"""`kvsync want`: the longest prefix from whoever has it, past registries that lie and peers that are gone."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvsync.cli import main
from kvsync.daemon.wanting import NOT_AS_SAID, STRANGERS, prompt_keys
from kvsync.engines import load_engine
from kvsync.engines.engine import Engine
from kvsync.graft.client import Client
from kvsync.store import Store
from kvsync_protocol.announcement import Announcement, Moment
from kvsync_protocol.digest import ArtifactId, sha256
from kvsync_protocol.layout import DType
from tests.daemon.hosts import Host, until

MakeHost = Callable[..., Host]
BLOCK = 256
DOCUMENT = [random.Random(1).randrange(100) for _ in range(4 * BLOCK + 30)]
PROMPT = [*DOCUMENT[: 3 * BLOCK + 10], *(random.Random(2).randrange(100) for _ in range(2 * BLOCK))]
"""Shares three full blocks with the document."""


@pytest.fixture(scope="module")
def engine(tiny_model_dir: Path) -> Engine:
    return load_engine(tiny_model_dir, dtype=DType.F32, threads=1)


@pytest.fixture
def want(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny_model_dir: Path
) -> Callable[..., tuple[int, dict[str, Any]]]:
    """(host, prompt, options) -> the exit status and the JSON of `kvsync want`."""

    def run(host: Host, prompt: list[int], *options: str) -> tuple[int, dict[str, Any]]:
        path = tmp_path / "prompt"
        path.write_text(json.dumps(prompt))
        capsys.readouterr()
        words = ["--tokens", str(path), "--model", str(tiny_model_dir), "--dtype", "fp32", *options]
        status = main(["--home", str(host.home.root), "--json", "want", *words])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return status, found

    return run


def deposit(host: Host, engine: Engine, tokens: list[int]) -> ArtifactId:
    with Client(host.home.root) as client:
        return client.deposit(engine, tokens).artifact


def serve(provider: Host, getter: Host) -> None:
    """The provider runs and lets the getter fetch, who trusts what it signs."""
    provider.knows(getter, "get")
    provider.start()
    getter.knows(provider, address=provider.address)
    getter.trusts(provider)


def declare(liar: Host, middle: Host, address: str, engine: Engine, artifact: ArtifactId, epoch: int = 1) -> None:
    """The liar tells the registry that it has all of the prompt's blocks in this artifact."""
    prints, keys = engine.fingerprints, prompt_keys(PROMPT, engine.fingerprints, engine.schedule)
    said = Announcement(
        Moment(epoch, 1),
        artifact,
        prints.compatibility.digest,
        prints.numerics.digest,
        tuple(keys),
        1000,
        ("members",),
        3600,
    )

    async def say() -> None:
        async with liar.registry(middle, address) as registry:
            await registry.hello()
            assert (await registry.declare([said.seal(liar.keys.peer)])).outcomes == ("ok",)

    asyncio.run(say())


def refused(found: dict[str, Any]) -> dict[str, str]:
    """Artifacts that could not be had, and why."""
    return dict(entry.split() for entry in found["error"]["fields"]["refused"])


@pytest.mark.parametrize("with_daemon", [True, False])
def test_only_the_shared_blocks_are_fetched_once(
    host: MakeHost, engine: Engine, want: Callable[..., tuple[int, dict[str, Any]]], with_daemon: bool
) -> None:
    provider, getter = host("provider"), host("getter")
    artifact = deposit(provider, engine, DOCUMENT)
    serve(provider, getter)
    until(lambda: provider.state("this node").state == "ok")
    if with_daemon:
        getter.start()
    status, found = want(getter, PROMPT)
    assert (status, found["artifact"], found["covered"]) == (0, str(artifact), 3 * BLOCK), found
    with Store.open(provider.home.store_dir) as store:
        total = store.artifact(artifact).bytes
    assert 0 < found["bytes_moved"] <= total * 3 / 4
    assert found["fetched"] is True
    status, found = want(getter, PROMPT)
    assert (status, found["covered"], found["fetched"], found["bytes_moved"]) == (0, 3 * BLOCK, False, 0)
    with Client(getter.home.root) as client:
        graft = client.graft(engine, PROMPT)
        assert graft.report.tokens_grafted == 3 * BLOCK


def test_registries_that_lie_and_providers_that_are_gone_cost_a_try_and_end_with_their_names(
    host: MakeHost, engine: Engine, want: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    middle, provider, liar, getter = host("middle"), host("provider"), host("liar"), host("getter")
    other = deposit(provider, engine, [1] * (2 * BLOCK))
    for each in (provider, liar):
        middle.knows(each, "get", "push")
    middle.knows(getter, "get")
    middle.start()
    getter.knows(middle)
    getter.uses("middle", middle.keys, middle.address)
    serve(provider, getter)
    absent = ArtifactId(sha256(b"nothing"))

    declare(liar, middle, middle.address, engine, absent)
    status, found = want(getter, PROMPT, "--local")
    assert (status, found["error"]["code"]) == (7, "want.nothing")
    assert refused(found) == {str(absent): STRANGERS}

    getter.knows(liar, address="127.0.0.1:9")
    status, found = want(getter, PROMPT, "--local")
    assert (status, refused(found)) == (7, {str(absent): "peer.unreachable"})

    declare(provider, middle, middle.address, engine, absent, 10**15)  # who is there, but has no such thing
    declare(liar, middle, middle.address, engine, other, 10**15)
    status, found = want(getter, PROMPT, "--local")
    assert refused(found) == {str(absent): "store.unknown_artifact", str(other): "peer.unreachable"}

    declare(provider, middle, middle.address, engine, other, 10**15 + 1)  # and who has something else
    status, found = want(getter, PROMPT, "--local")
    assert (status, refused(found)) == (7, {str(other): NOT_AS_SAID})

    real = deposit(provider, engine, DOCUMENT)  # announced by the provider's own registry, and shorter
    until(lambda: want(getter, PROMPT, "--local")[0] == 0)
    with Store.open(getter.home.store_dir) as store:
        assert real in [stored.artifact for stored in store.artifacts()]


def test_prompts_that_make_no_sense_are_refused(
    host: MakeHost, tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny_model_dir: Path
) -> None:
    root = host("node").home.root
    junk = tmp_path / "junk"

    def run(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        status = main(["--home", str(root), "--json", "want", "--model", str(tiny_model_dir), *words])
        return status, str(json.loads(capsys.readouterr().out)["error"]["code"])

    assert run() == (2, "want.prompt")
    assert run("") == (2, "want.prompt")
    assert run("text", "--tokens", str(junk)) == (2, "want.prompt")
    assert run("--tokens", str(junk)) == (7, "file.missing")
    for content in (b"", b"[]", b"[1, -2]", b"[1.5]", b'{"a": 1}', b"99999999999", bytes(range(256))):
        junk.write_bytes(content)
        assert run("--tokens", str(junk)) == (2, "want.tokens")
    assert run("w1 w2") == (7, "want.nothing")
