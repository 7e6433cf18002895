"""The Python clients, with a user's own transformers model and a home of their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import kvsync
from kvsync.config import Home, Settings
from kvsync.errors import NotFoundError, StoreError, UsageError
from kvsync.keys import NodeKeys, TrustList
from kvsync_protocol.digest import ArtifactId, sha256
from kvsync_protocol.signing import SigningKey
from tests.graft.bench import words


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "node")
    home.create()
    NodeKeys.create(home)
    Settings(graft_when="always").save(home)  # however slow this machine is now; test_costs.py has the rest
    return home


@pytest.fixture(scope="module")
def model(tiny_model_dir: Path) -> torch.nn.Module:
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    return model.eval()


def test_deposit_lookup_graft_generate_on_a_users_own_model(home: Home, model: torch.nn.Module) -> None:
    document, question = words(600), words(9, seed=4)
    with kvsync.Client(home.root) as client:
        stored = client.deposit(model, document, name="team/handbook")
        tokens = [*document, *question]
        match = client.lookup(tokens, model=model)
        assert match is not None
        assert (match.artifact, match.mode, match.position) == (stored.artifact, "whole", 600)
        graft = client.graft(model, tokens)
        assert (graft.report.tokens_grafted, graft.report.tokens_recomputed) == (600, 9)
        assert graft.next_input_ids.tolist() == [question]
        by_name = client.graft(model, tokens, artifact="team/handbook")
        assert by_name.report.artifact == stored.artifact
    with torch.no_grad():
        out = model(input_ids=graft.next_input_ids, cache=graft.cache)
    assert out.logits.shape == (1, 9, 100)


def test_a_second_client_sees_what_the_first_stored(home: Home, model: torch.nn.Module) -> None:
    with kvsync.Client(home.root) as first, kvsync.Client(home.root) as second:
        stored = first.deposit(model, words(300))
        assert second.graft(model, words(310)).report.artifact == stored.artifact


def test_what_is_signed_by_nobody_trusted_is_refused_until_trusted(
    home: Home, model: torch.nn.Module, tmp_path: Path
) -> None:
    other = Home(tmp_path / "other")
    other.create()
    keys = NodeKeys.create(other)
    with kvsync.Client(other.root) as client:
        stored = client.deposit(model, words(300))
        source = client.store
        with kvsync.Client(home.root) as ours:
            leaves, tokens = stored.leaves().encode(), b"".join(t.to_bytes(4, "little") for t in stored.tokens())
            with ours.store.pull_draft(stored.envelope, stored.manifest, leaves, tokens) as draft:
                for index in draft.missing():
                    descriptor = source.open_chunk(draft.leaves.leaves[index].digest)
                    with os.fdopen(descriptor, "rb") as file:
                        draft.put(index, file.read())
                draft.publish()
            refused = ours.graft(model, words(310)).report.refused
            assert refused is not None
            assert refused.code == "trust.untrusted_signer"
            assert ours.lookup(words(310), model=model) is None
            TrustList(home, SigningKey.generate().public).add("other", keys.signer.public)
            assert ours.graft(model, words(310)).report.tokens_grafted == 300
            found = ours.lookup(words(310), model=model)
            assert found is not None
            assert (found.artifact, found.position) == (stored.artifact, 300)


def test_unknown_names_and_homes_are_named(home: Home, model: torch.nn.Module, tmp_path: Path) -> None:
    with kvsync.Client(home.root) as client:
        with pytest.raises(NotFoundError) as unknown:
            client.graft(model, words(10), artifact="no/such-name")
        assert unknown.value.code == "store.unknown_name"
        with pytest.raises(NotFoundError) as peer:
            client.pull("nobody", "team/handbook")
        assert peer.value.code == "peer.unknown"
        assert client.lookup(words(10), model=model) is None
    with pytest.raises(StoreError) as missing:
        kvsync.Client(tmp_path / "nowhere")
    assert missing.value.code == "home.missing"
    assert not (tmp_path / "nowhere").exists()


async def test_the_async_client_does_the_same(home: Home, model: torch.nn.Module) -> None:
    async with kvsync.AsyncClient(home.root) as client:
        stored = await client.deposit(model, words(300))
        match = await client.lookup(words(310), model=model)
        graft = await client.graft(model, words(310))
    assert match is not None
    assert match.artifact == stored.artifact
    assert graft.report.tokens_grafted == 300


def test_the_public_names_are_all_there() -> None:
    assert set(kvsync.__all__) <= set(dir(kvsync))
    assert all(getattr(kvsync, name) is not None for name in kvsync.__all__)
    with pytest.raises(AttributeError):
        _ = kvsync.no_such_name


def test_tokens_come_as_lists_tensors_or_arrays_of_one_sequence(home: Home, model: torch.nn.Module) -> None:
    tokens = words(40)
    with kvsync.Client(home.root) as client:
        stored = client.deposit(model, torch.tensor([tokens]))
        for given in (tokens, tuple(tokens), [tokens], torch.tensor(tokens), torch.tensor([tokens]).numpy()):
            assert client.graft(model, given).report.artifact == stored.artifact
            assert client.lookup(given, model=model) is not None
            assert client.deposit(model, given).artifact == stored.artifact


@pytest.mark.parametrize(
    "tokens",
    [None, "text", [1.0, 2.0], [1, True], [[1], [2]], torch.tensor([[1], [2]]), torch.tensor(3), {1, 2}],
    ids=str,
)
def test_what_is_not_one_sequence_of_whole_numbers_is_refused(
    home: Home, model: torch.nn.Module, tokens: object
) -> None:
    with kvsync.Client(home.root) as client:
        for call in (client.graft, lambda engine, given: client.lookup(given, model=engine)):
            with pytest.raises(UsageError) as caught:
                call(model, tokens)  # type: ignore[arg-type]
            assert caught.value.code == "tokens.kind"


def test_an_artifact_that_is_not_here_is_an_error_by_name_and_by_id(home: Home, model: torch.nn.Module) -> None:
    unknown = ArtifactId(sha256(b"nothing"))
    with kvsync.Client(home.root) as client:
        for wanted in ("no/such", str(unknown), unknown):
            with pytest.raises(NotFoundError):
                client.graft(model, words(20), artifact=wanted)
