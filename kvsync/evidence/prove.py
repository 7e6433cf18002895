"""The exactness experiment on this host: every path of every sample, in one signed receipt.

    process 1   artifact ─► home A    (a) fresh    (b) graft    other references
    this one                home A ──TLS──► home B
    process 2   (c) graft from home A              (d) graft from home B

Homes are made for the run and removed behind it. The processes run one after the other: a model is in memory once.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from kvsync.config import Settings as NodeSettings
from kvsync.evidence.configuration import Configuration, check_environment
from kvsync.evidence.node import Node
from kvsync.evidence.processes import run_step
from kvsync.progress import Progress, silent
from kvsync.store import Store
from kvsync_protocol.exactness import PATHS, SCORER, PathResult, Reference, Run, Sample
from kvsync_protocol.fingerprint import Fingerprint, FingerprintKind, Fingerprints
from kvsync_protocol.receipt import Receipt
from kvsync_protocol.sample import FAMILY, Inputs, Outputs, Settings
from kvsync_protocol.signing import SigningKey
from kvsync_protocol.strictjson import Fields

CHILD: Final = "kvsync.evidence.child"
SHIFTS: Final = (1, 7, 256, 4096)
REFERENCE_SAMPLES: Final = 10


def prove(
    configuration: Configuration,
    signer: SigningKey,
    *,
    reference_samples: int = REFERENCE_SAMPLES,
    shifts: Sequence[int] = SHIFTS,
    progress: Progress = silent,
) -> Receipt:
    """Run the experiment. The receipt is signed whatever it shows; `header.summary["exact"]` says what.

    Raises:
        UsageError: `prove.nondeterministic`, `samples.*`.
        EngineError: `engine.*`, `prove.refused`, `prove.not_repeatable`.
        CodedError: whatever else a step that must succeed ran into.
    """
    check_environment()
    with tempfile.TemporaryDirectory(prefix="kvsync-prove-") as folder:
        provider, getter = (Node(name, Path(folder) / name, NodeSettings()) for name in ("provider", "getter"))
        getter.trust(provider)
        given = {
            **configuration.params(),
            "home": str(provider.home.root),
            "reference_samples": reference_samples,
            "shifts": list(shifts),
        }
        head, *computed = run_step(CHILD, "compute", given, progress)
        settings, prints = parse_head(head)
        artifacts = [found["inputs"]["artifact"] for found in computed]
        asyncio.run(_pull_all(provider, getter, list(dict.fromkeys(artifacts)), prints, progress))
        given = {
            **configuration.params(),
            "homes": {"fresh_process": str(provider.home.root), "pulled": str(getter.home.root)},
            "artifacts": artifacts,
            "canonical": [found["canonical"] for found in computed],
        }
        grafted: dict[str, list[dict[str, Any]]] = {name: [] for name in PATHS}
        for found in run_step(CHILD, "graft", given, progress):
            grafted[found["path"]].append(found["result"])
    grafted["same_process"] = [found["same_process"] for found in computed]
    run = Run(settings, min(reference_samples, settings.count), tuple(shifts))
    records = [
        _sample(found, {name: grafted[name][index] for name in PATHS}).as_json()
        for index, found in enumerate(computed)
    ]
    return Receipt.seal(
        SCORER,
        signer,
        records,
        run=run.as_json(),
        fingerprints=prints,
        software=software(),
        time=int(time.time()),
    )


def software() -> str:
    """What made a receipt."""
    return f"kvsync {version('kvsync')}"


def parse_head(head: dict[str, Any]) -> tuple[Settings, Fingerprints]:
    """Settings and fingerprints as a child process found them."""
    return Settings.parse(Fields(head["settings"], FAMILY)), Fingerprints(
        Fingerprint.parse(FingerprintKind.COMPATIBILITY, head["compatibility"]),
        Fingerprint.parse(FingerprintKind.NUMERICS, head["numerics"]),
    )


def _sample(found: dict[str, Any], paths: dict[str, dict[str, Any]]) -> Sample:
    references = found["references"]
    return Sample(
        Inputs.parse(Fields(found["inputs"], FAMILY)),
        Outputs.parse(Fields(found["canonical"], FAMILY)),
        {name: PathResult.parse(path) for name, path in paths.items()},
        None if references is None else {name: Reference.parse(each) for name, each in references.items()},
    )


async def _pull_all(
    provider: Node, getter: Node, artifacts: Sequence[str], prints: Fingerprints, progress: Progress
) -> None:
    """Bring every artifact from the provider's store into the getter's, as any two nodes would."""
    from kvsync.sync import pull

    provider.meet(getter, roles=("get",))
    with Store.open(provider.home.store_dir) as offered, Store.open(getter.home.store_dir) as store:
        async with provider.serving(offered):
            getter.meet(provider)
            peer = getter.peers.get(provider.name)
            for done, artifact in enumerate(artifacts, start=1):
                await pull(
                    store,
                    getter.trust_list,
                    peer,
                    artifact,
                    keys=getter.keys,
                    settings=getter.settings,
                    fingerprints=prints,
                )
                progress("pull over TLS", done, len(artifacts), "artifacts")
