"""Fixtures that several areas share: small real artifacts, made from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from kvsync_protocol.digest import ArtifactId, sha256
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.fingerprint import Fingerprint, FingerprintKind, Fingerprints
from kvsync_protocol.layout import DType, Group, LayerKind, Layout
from kvsync_protocol.leaves import Leaf, LeafTable
from kvsync_protocol.manifest import Manifest, TokenRecord, Tree
from kvsync_protocol.prefix import encode_tokens, tokens_digest
from kvsync_protocol.schedule import Schedule
from kvsync_protocol.signing import SigningKey

settings.register_profile("kvsync", deadline=None)  # how long an example takes says nothing on a busy machine
settings.load_profile("kvsync")

THREADS = torch.get_num_threads()


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """Engines leave their thread count in place; the next test, of any area, finds the process as it began."""
    yield
    torch.set_num_threads(THREADS)


SIGNER = SigningKey(bytes(range(32)))


@dataclass(frozen=True)
class Artifact:
    """Everything a store, a peer or a reader wants to see of one artifact."""

    envelope: Envelope
    manifest: Manifest
    leaves: bytes
    tokens: bytes
    chunks: list[bytes]
    key: SigningKey

    @property
    def id(self) -> ArtifactId:
        return self.manifest.artifact

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(int.from_bytes(self.tokens[i : i + 4], "little") for i in range(0, len(self.tokens), 4))

    @property
    def parts(self) -> tuple[Envelope, Manifest, bytes, bytes]:
        """The arguments of `Store.pull_draft`."""
        return self.envelope, self.manifest, self.leaves, self.tokens


def fingerprints(model: str = "tiny", host: str = "here", canary: str = "c0") -> Fingerprints:
    return Fingerprints(
        Fingerprint(FingerprintKind.COMPATIBILITY, {"weights": model}),
        Fingerprint(FingerprintKind.NUMERICS, {"torch": host, "canary": canary}),
    )


def build_artifact(
    seed: int = 0,
    tokens: int = 40,
    *,
    block_tokens: int = 16,
    key: SigningKey = SIGNER,
    prints: Fingerprints | None = None,
    boundaries: tuple[int, ...] = (),
    heads: int = 1,
    dim: int = 4,
    head: tuple[int, ...] = (),
) -> Artifact:
    """A two-layer artifact with valid block files and random data.

    `head` gives the first token ids; the others follow from `seed`. Equal leading blocks of tokens,
    with equal cuts, give equal chunks, as real prefill does. `heads` and `dim` make chunks larger.
    """
    rng = random.Random(seed)
    ids = (*head, *(rng.randrange(50_000) for _ in range(tokens)))[:tokens]
    prints = prints or fingerprints()
    schedule = Schedule(block_tokens, boundaries).with_boundary(tokens)
    groups = (
        Group("full", LayerKind.FULL, (0,), heads, dim, dim, DType.F32),
        Group("sliding", LayerKind.SLIDING, (1,), heads, dim, dim, DType.F32, window=24),
    )
    layout = Layout(tokens, block_tokens, groups, vocab=32, logits_dtype=DType.F32)
    files: dict[tuple[int, str], bytes] = {}
    chunks = []
    for span in layout.chunks():
        where = (span.block, span.group)
        if where not in files:
            file = layout.file(*where)
            _start, stop = layout.block_range(min(span.block, layout.blocks - 1))
            basis = (ids[:stop], where, schedule.cuts_inside(span.block), heads, dim, prints.numerics.digest.hex)
            data = random.Random(repr(basis)).randbytes(file.size - len(file.header))
            files[where] = file.header + data
        chunks.append(files[where][span.offset : span.offset + span.size])
    table = LeafTable.of([Leaf(sha256(chunk), len(chunk)) for chunk in chunks])
    leaves = table.encode()
    manifest = Manifest(
        TokenRecord(tokens_digest(ids), tokens),
        schedule,
        layout,
        sha256(leaves),
        Tree(table.root, len(table.leaves), table.total_bytes),
        prints,
    )
    return Artifact(manifest.seal(key), manifest, leaves, encode_tokens(ids), chunks, key)


@pytest.fixture
def make_artifact() -> Callable[..., Artifact]:
    """`build_artifact`: (seed, tokens, *, block_tokens, key, prints, boundaries, heads, dim, head) -> Artifact."""
    return build_artifact


@pytest.fixture
def make_fingerprints() -> Callable[..., Fingerprints]:
    """`fingerprints`: (model, host, canary) -> Fingerprints."""
    return fingerprints


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers and 32,768 positions, saved with a tokenizer of the words w0 to w99."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny-model")
    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(100)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=100,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32_768,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
