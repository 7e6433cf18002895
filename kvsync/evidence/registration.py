"""Preregistrations: commit to inputs and outputs first, let other hosts compute them afterwards.

Both sides compute in a process of their own, in a home made for the run. What travels is the statement alone: the
inputs follow from its settings and the model's tokenizer, and are compared with the digests that were signed.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from contextlib import closing
from pathlib import Path

from kvsync.config import Home
from kvsync.config import Settings as NodeSettings
from kvsync.evidence.configuration import Configuration, check_environment
from kvsync.evidence.node import Node
from kvsync.evidence.processes import run_step
from kvsync.evidence.prove import CHILD, parse_head, software
from kvsync.evidence.sequence import next_sequence, note
from kvsync.progress import Progress, silent
from kvsync_protocol.errors import MismatchError
from kvsync_protocol.fingerprint import Difference, Fingerprint, Fingerprints
from kvsync_protocol.prereg import PREREG_SCORER, REPLAY_SCORER, Commitment, Expectation, Replayed, ReplayRun
from kvsync_protocol.receipt import Receipt
from kvsync_protocol.sample import FAMILY, Inputs, Outputs, Settings
from kvsync_protocol.signing import SigningKey
from kvsync_protocol.strictjson import Fields


def create(configuration: Configuration, home: Home, signer: SigningKey, progress: Progress = silent) -> Receipt:
    """Compute, number and sign. Raises as `prove`, and StoreError `prereg.damaged`."""
    (settings, prints), computed = _compute(configuration, None, progress, None)
    return Receipt.seal(
        PREREG_SCORER,
        signer,
        [Expectation(inputs, outputs).as_json() for inputs, outputs in computed],
        run=Commitment(settings, next_sequence(home)).as_json(),
        fingerprints=prints,
        software=software(),
        time=int(time.time()),
    )


def replay(
    prereg: Receipt, configuration: Configuration, home: Home, signer: SigningKey, progress: Progress = silent
) -> tuple[Receipt, list[Difference]]:
    """Compute what was registered on this host and compare.

    Only `model_dir`, `device`, `engine` and `threads` of the configuration count; everything else is as registered.

    Returns:
        The replay's receipt, and the fields in which this host's numerics differ from those registered.

    Raises:
        MismatchError: `mismatch.compatibility` for another model, `mismatch.inputs` when the same settings give
            other tokens here.
        TrustError: `prereg.sequence`.
        CodedError: as `prove`.
    """
    commitment = Commitment.parse(prereg.header.run)
    expected = [Expectation.parse(record) for record in prereg.records]
    note(home, prereg.header.signer, commitment.sequence, prereg.digest)
    samples, numerics = commitment.samples, prereg.header.fingerprints.numerics.fields
    given = dataclasses.replace(
        configuration,
        dtype=numerics.get("dtype"),
        attention=numerics.get("attention", configuration.attention),
        samples=samples.count,
        seed=samples.seed,
        generator=samples.generator,
        limit=samples.limit,
    )
    artifacts = [str(each.inputs.artifact) for each in expected]
    (settings, prints), computed = _compute(given, artifacts, progress, prereg.header.fingerprints.compatibility)
    if [each.inputs for each in expected] != [inputs for inputs, _ in computed]:
        raise MismatchError("mismatch.inputs", "the same settings give other tokens here than were registered")
    run = ReplayRun(
        dataclasses.replace(settings, model=samples.model),
        prereg.digest,
        prereg.header.signer,
        commitment.sequence,
    )
    records = [
        Replayed(each.inputs, each.canonical, found).as_json()
        for each, (_, found) in zip(expected, computed, strict=True)
    ]
    receipt = Receipt.seal(
        REPLAY_SCORER,
        signer,
        records,
        run=run.as_json(),
        fingerprints=prints,
        software=software(),
        time=int(time.time()),
    )
    return receipt, prints.numerics.differences(prereg.header.fingerprints.numerics)


def _compute(
    configuration: Configuration, artifacts: list[str] | None, progress: Progress, model: Fingerprint | None
) -> tuple[tuple[Settings, Fingerprints], list[tuple[Inputs, Outputs]]]:
    """Settings and fingerprints, then inputs and canonical outputs of every sample; of `model` alone, if given."""
    check_environment()
    with tempfile.TemporaryDirectory(prefix="kvsync-prereg-") as folder:
        node = Node("prereg", Path(folder) / "home", NodeSettings())
        given = {**configuration.params(), "home": str(node.home.root), "artifacts": artifacts}
        with closing(run_step(CHILD, "fresh", given, progress)) as step:
            head = parse_head(next(step))
            if model is not None:
                _check_model(head[1].compatibility, model)
            return head, [
                (Inputs.parse(Fields(each["inputs"], FAMILY)), Outputs.parse(Fields(each["canonical"], FAMILY)))
                for each in step
            ]


def _check_model(ours: Fingerprint, registered: Fingerprint) -> None:
    differing = [difference.field for difference in ours.differences(registered)]
    if differing:
        raise MismatchError(
            "mismatch.compatibility",
            f"registered for another model: {', '.join(differing)} differ",
            differing=differing,
        )
