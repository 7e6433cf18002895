"""`kvsync ls`, `show` and `verify`: what is stored here, who vouches for it, and whether the bytes are whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from kvsync.cli._command import Run, command
from kvsync.cli._render import Facts, Outcome, Table, moment, plural, seconds, size
from kvsync_protocol.layout import AnyGroup, StateGroup

if TYPE_CHECKING:
    from kvsync.store import Store, StoredArtifact, Usage
    from kvsync_protocol.fingerprint import Fingerprint

ArtifactArgument = Annotated[
    str, typer.Argument(metavar="ARTIFACT", help="A name, an id, or the first 8 or more digits of an id.")
]


def add_commands(app: typer.Typer) -> None:
    command(app, "ls")(ls)
    command(app, "show")(show)
    command(app, "verify")(verify)


def ls(run: Run) -> Outcome:
    """List the artifacts stored here, newest first."""
    trusted = run.trust().keys()
    with run.store() as store:
        names = _names(store)
        listed = store.listing(trusted)
        partial = {each.artifact: _positions(store.artifact(each.artifact)) for each in listed if each.partial}
    entries: list[dict[str, object]] = []
    rows = []
    for each in listed:
        identity, stored = str(each.artifact), moment(each.created)
        own_names = names.get(identity, [])
        if run.terminal.as_json:
            entries.append(
                {
                    "artifact": identity,
                    "names": own_names,
                    "tokens": each.tokens,
                    "bytes": each.bytes,
                    "positions": partial.get(each.artifact),
                    "created": stored,
                    "pinned": each.pinned,
                    "trusted_signers": each.signers,
                }
            )
            continue
        rows.append(
            (
                each.artifact.short,
                ", ".join(own_names) or "-",
                each.tokens,
                f"{size(each.bytes)}, in part" if each.partial else size(each.bytes),
                stored,
                "yes" if each.signers else "no",
                "yes" if each.pinned else "-",
            )
        )
    headers = ("ARTIFACT", "NAME", "TOKENS", "SIZE", "STORED", "TRUSTED", "PINNED")
    notes = [] if listed else ["no artifacts here yet; kvsync compute makes one, kvsync pull fetches one"]
    return Outcome(
        {"artifacts": entries}, [Table(headers, rows, frozenset({"TOKENS", "SIZE"}))] if rows else [], notes
    )


def show(run: Run, artifact: ArtifactArgument) -> Outcome:
    """Show one artifact: contents, fingerprints, signers.

    Signatures are checked against the keys known here. Its chunks are not read; `kvsync verify` does that.
    """
    with run.store() as store:
        stored = store.artifact(store.resolve(artifact))
        names = _names(store).get(str(stored.artifact), [])
        audits = _audits(run, store, stored)
    cost = _cost(run, stored)
    signers = _signers(run, stored)
    manifest, layout = stored.manifest, stored.manifest.layout
    boundaries = [cut for cut in manifest.schedule.boundaries if cut < layout.tokens]
    facts: list[tuple[str, object]] = [
        ("artifact", stored.artifact),
        ("names", ", ".join(names) or "-"),
        ("stored", moment(stored.created)),
        ("pinned", stored.pinned),
        ("tokens", f"{layout.tokens}, digest {manifest.tokens.digest}"),
        ("text", manifest.tokens.text or "not recorded"),
        ("chat template", manifest.tokens.template or "none"),
        ("blocks", f"{layout.full_blocks} of {layout.block_tokens} tokens, {layout.tail_tokens} in the last one"),
        ("earlier cuts", ", ".join(map(str, boundaries)) or "none"),
        ("logits", f"{layout.vocab} × {layout.logits_dtype.value}"),
        ("bytes", f"{layout.total_bytes} ({size(layout.total_bytes)}) in {manifest.tree.size} chunks"),
        *_kept(stored),
        ("merkle root", manifest.tree.root),
        ("audited", audits.pop("shown")),
        ("a graft of it here", cost.pop("shown")),
    ]
    groups = [_group_row(group) for group in layout.groups]
    data: dict[str, object] = {
        "artifact": str(stored.artifact),
        "names": names,
        "created": moment(stored.created),
        "pinned": stored.pinned,
        "tokens": {
            "count": layout.tokens,
            "digest": str(manifest.tokens.digest),
            "text": None if manifest.tokens.text is None else str(manifest.tokens.text),
            "template": None if manifest.tokens.template is None else str(manifest.tokens.template),
        },
        "schedule": {
            "block_tokens": manifest.schedule.block_tokens,
            "boundaries": list(manifest.schedule.boundaries),
        },
        "groups": [g.as_json() for g in layout.groups],
        "logits": {"vocab": layout.vocab, "dtype": layout.logits_dtype.value},
        "bytes": layout.total_bytes,
        "bytes_here": stored.bytes,
        "positions": _positions(stored),
        "tree": {"root": str(manifest.tree.root), "size": manifest.tree.size},
        "compatibility": _fingerprint(manifest.fingerprints.compatibility),
        "numerics": _fingerprint(manifest.fingerprints.numerics),
        "signers": signers,
        "audits": audits,
        **cost,
    }
    view = [
        Facts(facts),
        "",
        Table(("GROUP", "KIND", "LAYERS", "KV HEADS", "KEY DIM", "VALUE DIM", "DTYPE", "WINDOW"), groups),
        "",
        *_fingerprint_view(manifest.fingerprints.compatibility),
        "",
        *_fingerprint_view(manifest.fingerprints.numerics),
        "",
        Table(
            ("SIGNER", "KEY", "TRUSTED"), [(s["name"], s["key"], "yes" if s["trusted"] else "no") for s in signers]
        ),
    ]
    return Outcome(data, view)


def verify(run: Run, artifact: ArtifactArgument) -> Outcome:
    """Check one artifact fully: signature, leaves, every chunk here."""
    from kvsync.cli._verify import verify_artifact

    trusted = run.trust().keys()
    with run.store() as store, run.progress() as progress:
        stored = store.artifact(store.resolve(artifact))
        checks = verify_artifact(store, stored, trusted, progress)
    data = {
        "artifact": str(stored.artifact),
        "verified": True,
        "checks": list(checks),
        "chunks": stored.manifest.tree.size if stored.extent is None else len(list(stored.extent.spans())),
        "bytes": stored.bytes,
        "positions": _positions(stored),
    }
    said = f"{stored.artifact} is whole"
    if stored.extent is not None:
        said = f"what is here of {stored.artifact} is sound; the rest was not pulled"
    return Outcome(data, [Facts([(check, "ok") for check in checks]), said])


def counted(usage: Usage) -> str:
    """`3 artifacts, 1 of them in part`."""
    return plural(usage.artifacts, "artifact") + (f", {usage.partial} of them in part" if usage.partial else "")


def _positions(stored: StoredArtifact) -> list[int] | None:
    """The positions for which an artifact is kept in part; None when all of it is here."""
    return None if stored.extent is None else list(stored.extent.positions)


def _kept(stored: StoredArtifact) -> list[tuple[str, object]]:
    if stored.extent is None:
        return []
    places = ", ".join(map(str, stored.extent.positions))
    return [("kept here", f"{size(stored.bytes)}, for grafts at token {places}")]


def _cost(run: Run, stored: StoredArtifact) -> dict[str, object]:
    """What restoring what is kept, and computing it again, will take on this host; `shown` is for people."""
    from kvsync.graft.costs import Costs
    from kvsync.graft.decision import predicted

    cost, tokens = Costs(run.home).lately(stored.manifest.fingerprints), stored.manifest.layout.tokens
    if cost is None:
        return {"shown": "not measured lately", **predicted(None, None)}
    restore_s, prefill_s = cost.restore_s(stored.bytes), cost.prefill_s(0, tokens)
    shown = f"restoring {seconds(restore_s)}, computing {seconds(prefill_s)} as predicted"
    return {"shown": shown, **predicted(restore_s, prefill_s)}


def _audits(run: Run, store: Store, stored: StoredArtifact) -> dict[str, object]:
    """How much of the artifact trusted keys have recomputed, and who has found other bytes; `shown` is for people."""
    from kvsync_protocol.attestation import Coverage

    manifest = stored.manifest
    found = store.evidence.signed(manifest, run.trust().keys())
    coverage = Coverage.of(manifest.layout, found)
    against = sorted({str(key) for signed in found if signed.attestation.refutes(manifest) for key in signed.signers})
    own = store.evidence.refutation(stored.artifact)
    shown = f"{coverage.percent} % of {plural(coverage.blocks, 'block')} by {plural(len(coverage.signers), 'signer')}"
    if against or own is not None:
        shown = f"refuted: other bytes were computed by {plural(max(1, len(against)), 'signer')}; otherwise {shown}"
    return {
        "percent": coverage.percent,
        "blocks": coverage.blocks,
        "covered": sorted(coverage.covered),
        "signers": [str(key) for key in coverage.signers],
        "refuted": own is not None or bool(against),
        "refuted_by": against,
        "shown": shown,
    }


def _names(store: Store) -> dict[str, list[str]]:
    """Names by artifact id."""
    found: dict[str, list[str]] = {}
    for held in store.refs():
        names = found.setdefault(str(held.artifact), [])
        if held.name not in names:
            names.append(held.name)
    return found


def _signers(run: Run, stored: StoredArtifact) -> list[dict[str, object]]:
    """Trusted keys that have signed, then how many further signatures there are, with what they claim."""
    own = run.keys().signer.public
    names = {own: "(this node)", **{signer.key: signer.name for signer in run.trust().signers()}}
    valid = stored.envelope.signers(names)
    found: list[dict[str, object]] = [{"name": names[key], "key": str(key), "trusted": True} for key in valid]
    known = {key.key_id for key in valid}
    for signature in stored.envelope.signatures:
        if signature.key_id not in known:
            found.append(
                {"name": "(unknown)", "key": f"claims key id {signature.key_id or 'none'}", "trusted": False}
            )
    return found


def _fingerprint(fingerprint: Fingerprint) -> dict[str, object]:
    return {"digest": str(fingerprint.digest), "fields": fingerprint.as_json()}


def _fingerprint_view(fingerprint: Fingerprint) -> list[str | Table | Facts]:
    return [
        f"{fingerprint.kind.value} {fingerprint.digest}",
        Facts([(f"  {n}", v) for n, v in sorted(fingerprint.fields.items())]),
    ]


def _group_row(group: AnyGroup) -> tuple[object, ...]:
    head = (group.name, group.kind.value, number_ranges(group.layers))
    if isinstance(group, StateGroup):
        parts = ", ".join(f"{part.name} {part.dtype.value}" for part in group.parts)
        return (*head, "-", "-", "-", parts, f"snapshot every {group.every} blocks")
    return (*head, group.kv_heads, group.key_dim, group.value_dim, group.dtype.value, group.window or "-")


def number_ranges(numbers: Sequence[int]) -> str:
    """`0-4, 6-10` for the numbers of layers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
