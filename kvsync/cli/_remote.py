"""`kvsync compute --on PEER`: a document that a peer computes, through the daemon or in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kvsync.cli._jobs import do, running_daemon
from kvsync.cli._models import Precision, open_engine
from kvsync.cli._render import Facts, Outcome, seconds, size

if TYPE_CHECKING:
    from kvsync.cli._command import Run
    from kvsync.daemon.params import AskParams
    from kvsync.keys import Peer

_DIGEST = "sha256:"


def compute_on(
    run: Run,
    peer: str,
    text: str,
    model: str,
    name: str | None,
    dtype: Precision | None,
    device: str,
    *,
    local: bool,
) -> Outcome:
    """Raises what `kvsync.sync.asking.ask` raises."""
    from kvsync.daemon.messages import JobKind

    found = run.peers().get(peer)
    params = _params(run, peer, text, model, name, dtype, device)
    daemon = running_daemon(run, local=local)
    result = _here(run, found, params) if daemon is None else do(run, daemon, JobKind.ASK, params)
    return _outcome({**result, "name": name, "daemon": daemon is not None})


def _params(
    run: Run, peer: str, text: str, model: str, name: str | None, dtype: Precision | None, device: str
) -> AskParams:
    from kvsync.daemon.params import AskParams
    from kvsync_protocol.digest import Digest
    from kvsync_protocol.prefix import tokens_digest

    if model.startswith(_DIGEST):
        return AskParams(peer, Digest.parse(model), text, name=name)
    engine = open_engine(run, model, dtype, device)
    return AskParams(
        peer,
        engine.fingerprints.compatibility.digest,
        text,
        fingerprints=engine.fingerprints,
        expect=tokens_digest(engine.encode(text)),
        name=name,
    )


def _here(run: Run, peer: Peer, params: AskParams) -> dict[str, object]:
    """Without a daemon; whoever interrupts it tells the peer."""
    import asyncio

    from kvsync.daemon.messages import new_job_id
    from kvsync.graft.deposit import set_name
    from kvsync.sync.asking import Question, ask, withdraw

    keys, settings = run.keys(), run.settings()
    question = Question(new_job_id(), params.compatibility, params.text, params.tokens, params.expect)

    async def work() -> dict[str, object]:
        with run.store() as store, run.progress() as progress:
            try:
                report = await ask(
                    store,
                    run.trust(),
                    peer,
                    question,
                    keys=keys,
                    settings=settings,
                    fingerprints=params.fingerprints,
                    progress=progress,
                )
            except asyncio.CancelledError:
                await asyncio.shield(withdraw(peer, question.id, keys=keys, settings=settings))
                raise
            if params.name is not None and report.artifact is not None:
                set_name(store, keys.current().signer, params.name, report.artifact)
        return report.as_dict()

    return asyncio.run(work())


def _outcome(found: Mapping[str, object]) -> Outcome:
    moved, took = found.get("bytes_moved"), found.get("seconds")
    facts = [
        ("artifact", found["artifact"]),
        ("name", found["name"] or "-"),
        ("computed by", found["peer"]),
        ("fetched", size(moved) if isinstance(moved, int) else "-"),
        ("in", seconds(float(took)) if isinstance(took, int | float) else "-"),
    ]
    return Outcome(dict(found), [Facts(facts)])
