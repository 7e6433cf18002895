"""`kvsync keys`: this node's own keys. Private keys are never printed."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated

import typer

from kvsync.cli._command import Run, add_group
from kvsync.cli._render import Facts, Outcome, moment
from kvsync.errors import UsageError

if TYPE_CHECKING:
    from kvsync_protocol.signing import SigningKey


class Kind(enum.StrEnum):
    """Which of the two keys."""

    SIGNER = "signer"
    PEER = "peer"


def add_commands(app: typer.Typer) -> None:
    commands = {"show": show, "rotate": rotate, "resign": resign, "encrypt": encrypt, "decrypt": decrypt}
    add_group(app, "keys", "This node's own keys.", commands)


def show(run: Run) -> Outcome:
    """Show the public keys that others pin.

    The signer key goes into their `kvsync trust add`, the peer key into their `kvsync peer add`.
    """
    from kvsync.keys import Statements
    from kvsync.keys.node_keys import presented_from

    keys = run.keys()
    data: dict[str, object] = {
        role: {"key": str(key.public), "key_id": key.public.key_id}
        for role, key in (("signer", keys.signer), ("peer", keys.peer))
    }
    facts: list[tuple[str, object]] = [("signer", keys.signer.public), ("peer", keys.peer.public)]
    rotations = []
    for step, _ in Statements(run.home).held().successors:
        own = keys.signer if step.kind == Kind.SIGNER else keys.peer
        if own.public in (step.old, step.new):
            rotations.append({"kind": step.kind, "old": str(step.old), "new": str(step.new), "until": step.until})
            facts.append(
                (f"{step.kind} follows", f"{step.new} after {step.old.key_id}, both until {moment(step.until)}")
            )
            if step.kind == Kind.PEER and own.public == step.old:
                facts.append(("", f"presented from {moment(presented_from(step))} on"))
    if rotations:
        data["rotations"] = rotations
    return Outcome(data, [Facts(facts)])


def rotate(
    run: Run,
    signer: Annotated[bool, typer.Option("--signer", help="Only the key that signs artifacts.")] = False,
    peer: Annotated[bool, typer.Option("--peer", help="Only the key that is this node's identity.")] = False,
    overlap: Annotated[
        int, typer.Option("--overlap", metavar="DAYS", min=1, max=366, help="Days in which old and new both count.")
    ] = 30,
    stolen: Annotated[
        bool, typer.Option("--stolen", help="The old key may be in other hands: revoke it, sign nothing anew.")
    ] = False,
) -> Outcome:
    """Let a new key follow this node's signer or peer key, or both.

    The old key signs the new one. Whoever lists the old key learns of it at the next contact and then takes both
    until the overlap ends. What the old signer signed is signed anew. After a theft nobody takes a
    new key from the old one, the thief's as little as yours: tell the others the new key.
    """
    from kvsync.keys import Statements

    kinds = [kind for kind, wanted in ((Kind.SIGNER, signer), (Kind.PEER, peer)) if wanted] or list(Kind)
    ring = run.key_ring()
    data: dict[str, object] = {}
    view = []
    for kind in kinds:
        step = ring.rotate(kind.value, overlap * 86_400)
        data[kind.value] = {"old": str(step.old), "new": str(step.new), "until": step.until}
        old = ring.find(step.old)
        if stolen and old is not None:
            Statements(run.home).revoke(step.old, old)
            view.append(f"{kind}: {step.new} in place of {step.old.key_id}, which is revoked")
        else:
            view.append(f"{kind}: {step.new} follows {step.old.key_id}, both count until {moment(step.until)}")
    if Kind.SIGNER in kinds and not stolen:
        artifacts, names = _resign(run, ring.chain("signer"))
        data["resigned"] = {"artifacts": artifacts, "names": names}
        view.append(f"{artifacts} artifacts and {names} names signed anew")
    notes = ["a running daemon signs with the new key after its next start"] if Kind.SIGNER in kinds else []
    return Outcome(data, view, notes=notes)


def resign(run: Run) -> Outcome:
    """Sign with the newest key what earlier ones have signed.

    `rotate` does it; this finishes one that was interrupted.
    """
    artifacts, names = _resign(run, run.key_ring().chain("signer"))
    return Outcome({"artifacts": artifacts, "names": names}, [f"{artifacts} artifacts and {names} names signed anew"])


def _resign(run: Run, keys: list[SigningKey]) -> tuple[int, int]:
    from kvsync.store import resign as sign_anew

    with run.store() as store, run.progress() as progress:
        return sign_anew(store, keys, run.trust().keys(), progress)


def encrypt(run: Run) -> Outcome:
    """Encrypt this node's private keys under a passphrase.

    It comes from $KVSYNC_PASSPHRASE, the file in $KVSYNC_PASSPHRASE_FILE, or the keyboard. The daemon then needs
    one of the former, or a systemd credential named kvsync-passphrase.
    """
    from kvsync.keys.passphrase import find_passphrase

    def ask() -> str:
        first = run.terminal.ask_passphrase("new passphrase: ")
        if run.terminal.ask_passphrase("once more: ") != first:
            raise UsageError("keys.passphrase_differs", "the two passphrases differ")
        return first

    ring = run.key_ring()
    passphrase = find_passphrase(ask if run.terminal.has_person else None)
    if not passphrase:
        raise UsageError("keys.passphrase_empty", "the passphrase is empty")
    changed = ring.encrypt(passphrase)
    return _changed(len(changed), "encrypted")


def decrypt(run: Run) -> Outcome:
    """Keep this node's private keys in the clear again.

    The files stay readable for this user alone.
    """
    return _changed(len(run.key_ring().decrypt()), "decrypted")


def _changed(count: int, what: str) -> Outcome:
    return Outcome({"changed": count}, [f"{count} key files {what}" if count else f"they are {what} already"])
