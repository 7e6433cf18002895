"""Steps of `prove` and of preregistrations that need a model: `python -m kvsync.evidence.child STEP`.

compute   stores every sample's artifact, computes it afresh, grafts it in the same process, measures references
graft     has computed none of them: grafts each from every store it is given
fresh     the canonical computation alone
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvsync.config import Home
from kvsync.engines import Engine, load_engine
from kvsync.evidence import measure, samples
from kvsync.evidence.processes import serve_step
from kvsync.evidence.references import references
from kvsync.graft import deposit
from kvsync.keys import NodeKeys, TrustList
from kvsync.progress import Progress
from kvsync.store import Store
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.layout import DType
from kvsync_protocol.sample import FAMILY, Outputs, Settings
from kvsync_protocol.strictjson import Fields


def _load(params: dict[str, Any]) -> Engine:
    return load_engine(
        Path(params["model_dir"]),
        dtype=None if params["dtype"] is None else DType(params["dtype"]),
        device=params["device"],
        attention=params["attention"],
        threads=params["threads"],
        name=params["engine"],
    )


def _settings(params: dict[str, Any], engine: Engine) -> Settings:
    return Settings(
        model=params["model"],
        generator=params["generator"] or samples.generator(engine.layout(engine.schedule.block_tokens)),
        count=params["count"],
        seed=params["seed"],
        limit=params["limit"] or engine.max_tokens,
        decode_steps=samples.DECODE_STEPS,
        block_tokens=engine.schedule.block_tokens,
    )


def _head(engine: Engine, settings: Settings) -> dict[str, Any]:
    """What the parent has to know of the engine."""
    pair = engine.fingerprints
    return {
        "settings": settings.as_json(),
        "compatibility": pair.compatibility.as_json(),
        "numerics": pair.numerics.as_json(),
    }


def compute(params: dict[str, Any], progress: Progress) -> Iterator[dict[str, Any]]:
    engine = _load(params)
    settings = _settings(params, engine)
    drawn, pool = samples.draw(settings), samples.token_pool(engine)
    yield _head(engine, settings)
    home = Home(Path(params["home"]))
    signer = NodeKeys.load(home).signer
    with Store.open(home.store_dir) as store:
        for sample in drawn:
            artifact = deposit(store, engine, signer, sample.document_tokens(pool)).artifact
            canonical = measure.fresh(engine, sample, pool)
            if sample.index == 0:
                measure.repeatable(engine, sample, pool, canonical.outputs)
            grafted = measure.grafted(engine, store, [signer.public], artifact, sample, pool)
            others = None
            if sample.index < params["reference_samples"]:
                found = references(engine, store, artifact, sample, pool, canonical, params["shifts"])
                others = {name: reference.as_json() for name, reference in found.items()}
            yield {
                "inputs": sample.inputs(pool, artifact, settings.block_tokens).as_json(),
                "canonical": canonical.outputs.as_json(),
                "same_process": measure.compared(canonical, grafted).as_json(),
                "references": others,
            }
            progress("compute and graft", sample.index + 1, settings.count, "samples")


def graft(params: dict[str, Any], progress: Progress) -> Iterator[dict[str, Any]]:
    """`canonical` and `artifacts` are those that `compute` found, in order; `homes` by the path they stand for."""
    engine = _load(params)
    settings = _settings(params, engine)
    drawn, pool = samples.draw(settings), samples.token_pool(engine)
    for name, root in params["homes"].items():
        home = Home(Path(root))
        trusted = sorted(TrustList(home, NodeKeys.load(home).signer.public).keys())
        with Store.open(home.store_dir) as store:
            for sample in drawn:
                artifact = ArtifactId(Digest.parse(params["artifacts"][sample.index]))
                canonical = Outputs.parse(Fields(params["canonical"][sample.index], FAMILY))
                grafted = measure.grafted(engine, store, trusted, artifact, sample, pool)
                yield {"path": name, "result": _against(engine, sample, pool, canonical, grafted)}
                progress(f"graft, {name.replace('_', ' ')}", sample.index + 1, settings.count, "samples")


def _against(
    engine: Engine, sample: samples.Sample, pool: list[int], canonical: Outputs, grafted: measure.Measured
) -> dict[str, Any]:
    """A graft against outputs of another process. Their logits are computed again only if the digests differ."""
    if grafted.outputs == canonical:
        return measure.compared(grafted, grafted).as_json()
    return measure.compared(measure.repeatable(engine, sample, pool, canonical), grafted).as_json()


def fresh(params: dict[str, Any], progress: Progress) -> Iterator[dict[str, Any]]:
    """The canonical outputs. Artifacts are those given, or else computed and signed in `home`."""
    engine = _load(params)
    settings = _settings(params, engine)
    drawn, pool = samples.draw(settings), samples.token_pool(engine)
    yield _head(engine, settings)
    home = Home(Path(params["home"]))
    signer = NodeKeys.load(home).signer
    with Store.open(home.store_dir) as store:
        for sample in drawn:
            if params["artifacts"] is None:
                artifact: Digest = deposit(store, engine, signer, sample.document_tokens(pool)).artifact
            else:
                artifact = Digest.parse(params["artifacts"][sample.index])
            yield {
                "inputs": sample.inputs(pool, artifact, settings.block_tokens).as_json(),
                "canonical": measure.fresh(engine, sample, pool).outputs.as_json(),
            }
            progress("compute", sample.index + 1, settings.count, "samples")


if __name__ == "__main__":
    sys.exit(serve_step({"compute": compute, "graft": graft, "fresh": fresh}))
