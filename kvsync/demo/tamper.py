"""Attacks on what a node holds: each must be refused by its own check, with the live cache untouched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvsync.config import Home
from kvsync.demo.continuation import prompt
from kvsync.engines import as_engine
from kvsync.engines.engine import Engine
from kvsync.graft import graft
from kvsync.keys import NodeKeys, TrustList
from kvsync.store import Store
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.manifest import PAYLOAD_TYPE
from kvsync_protocol.signing import SigningKey

LIVE_TOKENS = 64


def refuse_all(engine: Engine, params: dict[str, Any]) -> dict[str, object]:
    """Try each attack on the stored artifact; report the refusals' codes and whether a live cache changed."""
    document, question = prompt(engine, params)
    home: Home = params["home"]
    trusted = TrustList(home, NodeKeys.load(home).signer.public).keys()
    artifact = ArtifactId(Digest.parse(params["artifact"]))
    other = _other_weights(engine)
    live = engine.new_context()
    engine.prefill(live, document[:LIVE_TOKENS], engine.schedule)
    before = engine.state_digest(live)
    refusals = {}
    with Store.open(home.store_dir) as store:

        def attempt(model: Engine) -> str:
            refused = graft(store, trusted, model, [*document, *question], artifact=artifact).report.refused
            return "accepted" if refused is None else refused.code

        with flipped_byte(chunk_file(home, store, artifact)):
            refusals["flipped byte in a stored chunk"] = attempt(engine)
        with _replaced(envelope_file(home, artifact), _signed_by_a_stranger):
            refusals["manifest signed by a stranger"] = attempt(engine)
        refusals["same document, other weights"] = attempt(other)
        control = attempt(engine)
    return {
        "refusals": refusals,
        "control": control,
        "untouched": engine.state_digest(live) == before,
        "other_fingerprints": {
            "compatibility": other.fingerprints.compatibility.as_json(),
            "numerics": other.fingerprints.numerics.as_json(),
        },
    }


def _other_weights(engine: Any) -> Engine:
    """The same architecture, every shape equal, with freshly initialised weights."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = type(engine.model)(engine.model.config)
    return as_engine(model.to(engine.model.dtype).to(engine.model.device).eval())


def chunk_file(home: Home, store: Store, artifact: ArtifactId) -> Path:
    """The file of a chunk in the middle of the artifact."""
    leaves = store.artifact(artifact).leaves().leaves
    name = leaves[len(leaves) // 2].digest.hex
    return home.store_dir / "chunks" / name[:2] / name


def envelope_file(home: Home, artifact: ArtifactId) -> Path:
    return home.store_dir / "artifacts" / artifact.hex / "envelope.json"


@contextmanager
def flipped_byte(path: Path) -> Iterator[None]:
    """One bit of the file's middle byte is wrong inside the block, and right again after it."""

    def flip(data: bytes) -> bytes:
        middle = len(data) // 2
        return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]

    with _replaced(path, flip):
        yield


@contextmanager
def _replaced(path: Path, change: Callable[[bytes], bytes]) -> Iterator[None]:
    original = path.read_bytes()
    mode = path.stat().st_mode
    path.chmod(0o600)
    path.write_bytes(change(original))
    try:
        yield
    finally:
        path.write_bytes(original)
        path.chmod(mode)


def _signed_by_a_stranger(envelope: bytes) -> bytes:
    payload = Envelope.parse(envelope).payload
    return Envelope.seal(PAYLOAD_TYPE, payload, SigningKey.generate()).encode()
