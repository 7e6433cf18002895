"""`kvsync fingerprint`: what must be equal for bytes to be usable here, and what differs when they are not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvsync.cli._command import Run, add_group
from kvsync.cli._fields import meaning
from kvsync.cli._models import DEFAULT_MODEL, DeviceOption, DTypeOption, ModelOption, Precision, open_engine
from kvsync.cli._render import Facts, Outcome, Table

if TYPE_CHECKING:
    from kvsync_protocol.fingerprint import Difference, Fingerprints

SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="WHAT",
        help="A stored artifact (name or id), a file (see below), or a model (name or directory).",
    ),
]


@dataclass(frozen=True, slots=True)
class Source:
    """A side of a comparison: where its fingerprints come from."""

    kind: str  # "artifact", "file" or "model"
    name: str
    fingerprints: Fingerprints

    def as_json(self) -> dict[str, object]:
        pair = self.fingerprints
        return {
            "kind": self.kind,
            "name": self.name,
            "compatibility": str(pair.compatibility.digest),
            "numerics": str(pair.numerics.digest),
        }


def add_commands(app: typer.Typer) -> None:
    add_group(app, "fingerprint", "What makes KV state usable here.", {"show": show, "explain": explain})


def show(
    run: Run, model: ModelOption = DEFAULT_MODEL, dtype: DTypeOption = None, device: DeviceOption = "cpu"
) -> Outcome:
    """Show both fingerprints of this host.

    The model is loaded; its canary is computed once and remembered for these weights and this host.
    """
    pair = open_engine(run, model, dtype, device).fingerprints
    data = {
        "model": model,
        **{
            f.kind.value: {"digest": str(f.digest), "fields": f.as_json()}
            for f in (pair.compatibility, pair.numerics)
        },
    }
    view: list[str | Table | Facts] = []
    for each in (pair.compatibility, pair.numerics):
        view += [f"{each.kind.value} {each.digest}", Facts([(f"  {n}", v) for n, v in sorted(each.fields.items())])]
    return Outcome(data, view)


def explain(
    run: Run, first: SourceArgument, second: SourceArgument, dtype: DTypeOption = None, device: DeviceOption = "cpu"
) -> Outcome:
    """Name every difference between two fingerprints.

    Each side is a stored artifact, a model on this host, or a file: an artifact's envelope, or what `kvsync
    fingerprint show --json` or `kvsync show --json` printed on another host. For example: kvsync fingerprint
    explain team/handbook smollm2-135m. --dtype and --device are those of the models.
    """
    ours, theirs = (_source(run, name, dtype, device) for name in (first, second))
    found = [
        *ours.fingerprints.compatibility.differences(theirs.fingerprints.compatibility),
        *ours.fingerprints.numerics.differences(theirs.fingerprints.numerics),
    ]
    data: dict[str, Any] = {
        "equal": not found,
        "first": ours.as_json(),
        "second": theirs.as_json(),
        "differences": [_as_json(difference) for difference in found],
        "accept": {
            accept: _verdict(ours.fingerprints, theirs.fingerprints, accept) for accept in ("equal", "canary")
        },
    }
    if not found:
        return Outcome(data, [f"{first} and {second} have equal fingerprints"])
    view: list[str | Table | Facts] = []
    for difference in found:
        view += [
            f"{difference.field}: {meaning(difference.field)}",
            Facts(
                [
                    ("  affects", difference.kind.affects),
                    (f"  {first}", difference.ours if difference.ours is not None else "(not recorded)"),
                    (f"  {second}", difference.theirs if difference.theirs is not None else "(not recorded)"),
                ]
            ),
        ]
    view += [
        "",
        Facts(
            [
                (f'accept = "{accept}"', verdict if verdict != "ok" else "the bytes of one may be used by the other")
                for accept, verdict in data["accept"].items()
            ]
        ),
    ]
    return Outcome(data, view)


def _verdict(ours: Fingerprints, theirs: Fingerprints, accept: str) -> str:
    """`ok`, or the code of the refusal under a policy."""
    from kvsync_protocol.errors import MismatchError

    try:
        ours.check(theirs, accept=accept)
    except MismatchError as error:
        return error.code
    return "ok"


def _as_json(difference: Difference) -> dict[str, object]:
    return {
        "field": difference.field,
        "kind": difference.kind.value,
        "affects": difference.kind.affects,
        "meaning": meaning(difference.field),
        "first": difference.ours,
        "second": difference.theirs,
    }


def _source(run: Run, name: str, precision: Precision | None, device: str) -> Source:
    """A stored artifact of this name or id, else a file, else a model. Raises NotFoundError `fingerprint.unknown`."""
    from kvsync.errors import NotFoundError, UsageError
    from kvsync_protocol.errors import MalformedError

    with run.store() as store:
        try:
            stored = store.artifact(store.resolve(name))
            return Source("artifact", name, stored.manifest.fingerprints)
        except (NotFoundError, UsageError, MalformedError) as error:
            no_artifact = error
    found = _from_file(name)
    if found is not None:
        return Source("file", name, found)
    try:
        return Source("model", name, open_engine(run, name, precision, device).fingerprints)
    except NotFoundError as error:
        if error.code != "model.unknown":
            raise
        raise NotFoundError(
            "fingerprint.unknown",
            f"{name!r} is neither an artifact nor a file nor a model here",
            hint="kvsync ls, kvsync model ls",
        ) from no_artifact


def _from_file(name: str) -> Fingerprints | None:
    """Both fingerprints in a file; None when there is no such file. An envelope's signatures are not judged.

    Raises:
        MalformedError: `fingerprint.file`, `fingerprint.fields`, `json.*`, and as `Manifest.parse`.
        StoreError: `file.unreadable`, `file.too_large`.
    """
    from kvsync.files import read_limited
    from kvsync.store.artifacts import unjudged
    from kvsync_protocol import strictjson
    from kvsync_protocol.envelope import Envelope
    from kvsync_protocol.errors import MalformedError
    from kvsync_protocol.fingerprint import Fingerprint, FingerprintKind, Fingerprints
    from kvsync_protocol.limits import MAX_ENVELOPE_BYTES

    path = Path(name)
    if not path.is_file():
        return None
    data = read_limited(path, MAX_ENVELOPE_BYTES, what="the file of fingerprints")
    found = strictjson.loads(data, limit=MAX_ENVELOPE_BYTES, what=path.name)
    if "payloadType" in found:
        return unjudged(Envelope.parse(data)).fingerprints
    sides = []
    for kind in FingerprintKind:
        side = found.get(kind.value)
        if not isinstance(side, dict) or "fields" not in side:
            raise MalformedError(
                "fingerprint.file",
                f"{name} holds no fingerprints",
                hint="write one with kvsync fingerprint show --json",
            )
        sides.append(Fingerprint.parse(kind, side["fields"]))
    return Fingerprints(*sides)
