"""`kvsync trust`: the signers whose bytes count here, and the keys that count for nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvsync.cli._command import Run, add_group
from kvsync.cli._render import Outcome, Table
from kvsync.errors import UsageError

if TYPE_CHECKING:
    from kvsync_protocol.signing import PublicKey


def add_commands(app: typer.Typer) -> None:
    text = "Signers whose artifacts count here, and revoked keys."
    add_group(app, "trust", text, {"add": add, "ls": ls, "rm": rm, "revoke": revoke, "revoked": revoked})


def add(
    run: Run,
    name: Annotated[str, typer.Argument(help="How you call the signer.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="Its signer key, from its `kvsync keys show`.")],
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--names", metavar="PATTERN", help="Names it may give: a name, team/* or *; may be repeated, default all."
        ),
    ] = None,
    authority: Annotated[bool, typer.Option("--authority", help="It may also revoke keys for this node.")] = False,
) -> Outcome:
    """Trust a signer, or change how far.

    What it signed may be pulled and grafted here. Make sure whose key it is before.
    """
    from kvsync_protocol.signing import PublicKey

    found = PublicKey.parse(key)
    run.trust().add(name, found, names=names or (), authority=authority)
    data = {"name": name, "key": str(found), "names": names or [], "authority": authority}
    return Outcome(data, [f"{name} is trusted"])


def ls(run: Run) -> Outcome:
    """List trusted signers.

    This node's own key is always one of them.
    """
    own = run.keys().signer.public
    trust = run.trust()
    now = trust.standing()
    data, rows = [], [("(this node)", own, "*", _state(now.current("signer", own)))]
    for signer in trust.signers():
        counting = now.current("signer", signer.key)
        data.append(
            {
                "name": signer.name,
                "key": str(signer.key),
                "names": list(signer.names),
                "authority": signer.authority,
                "counting": [str(key) for key in counting],
            }
        )
        rows.append((signer.name, signer.key, " ".join(signer.names) or "*", _state(counting, signer.authority)))
        rows += [("", key, "", "follows") for key in counting if key != signer.key]
    return Outcome({"own": str(own), "signers": data}, [Table(("NAME", "KEY", "GIVES", ""), rows)])


def _state(counting: tuple[object, ...], authority: bool = False) -> str:
    if not counting:
        return "revoked"
    return "authority" if authority else ""


def rm(run: Run, signer: Annotated[str, typer.Argument(help="Name or key.")]) -> Outcome:
    """Trust a signer no longer.

    Artifacts that only it signed can then not be grafted.
    """
    removed = run.trust().remove(signer)
    return Outcome({"name": removed.name, "key": str(removed.key)}, [f"{removed.name} is no longer trusted"])


def revoke(
    run: Run, key: Annotated[str, typer.Argument(metavar="KEY", help="A signer's or peer's key, or its name here.")]
) -> Outcome:
    """Declare that a key counts for nothing any more.

    Takes effect here at once, also on open connections, and spreads at every contact to the nodes that list this
    node's signer as an authority. An own key is revoked in its own name, which everybody who knows it believes.
    Nothing takes a revocation back.
    """
    from kvsync.keys import Statements

    ring, now = run.key_ring(), run.trust().standing()
    found = _key(run, key)
    own = ring.find(found)
    authority = own or ring.active("signer")
    if own is not None and found in (ring.active("signer").public, ring.active("peer").public):
        raise UsageError("trust.own_key", "this key is in use", hint="kvsync keys rotate, then revoke the old one")
    said = Statements(run.home).revoke(found, authority)
    follow = [str(each) for kind in ("signer", "peer") for each in now.chain(kind, found)[1:]]
    notes = [f"{each} follows it and still counts; revoke it too unless it is its owner's" for each in follow]
    data = {"key": str(found), "authority": str(said.authority), "sequence": said.sequence, "successors": follow}
    return Outcome(data, [f"{found} is revoked"], notes=notes if own is None else [])


def _key(run: Run, text: str) -> PublicKey:
    """A key as it is, or by its name among signers and peers when only one of them has it."""
    from kvsync_protocol.errors import MalformedError
    from kvsync_protocol.signing import PublicKey

    try:
        return PublicKey.parse(text)
    except MalformedError:
        listed = {s.key for s in run.trust().signers() if s.name == text}
        listed |= {p.key for p in run.peers().peers() if p.name == text}
        if len(listed) == 1:
            return listed.pop()
        if listed:
            raise UsageError("trust.ambiguous", f"{text!r} is a signer and a peer", hint="give the key") from None
        raise


def revoked(run: Run) -> Outcome:
    """List revocation lists, and which keys they take out here."""
    from kvsync.keys import Statements

    now = run.trust().standing()
    data, rows = [], []
    for found, _ in Statements(run.node()).held().revocations:
        for key in found.keys:
            effective = key in now.revoked
            data.append(
                {
                    "key": str(key),
                    "authority": str(found.authority),
                    "sequence": found.sequence,
                    "effective": effective,
                }
            )
            rows.append((key, found.authority.key_id, found.sequence, "" if effective else "no authority here"))
    return Outcome({"revoked": data}, [Table(("KEY", "AUTHORITY", "SEQUENCE", ""), rows)])
