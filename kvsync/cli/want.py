"""`kvsync want`: fetch the longest prefix of a prompt that this node may have from others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsync.cli._command import Run, command
from kvsync.cli._document import read_document
from kvsync.cli._jobs import LocalOption, running_daemon
from kvsync.cli._models import DEFAULT_MODEL, DeviceOption, DTypeOption, ModelOption, open_engine
from kvsync.cli._render import Facts, Outcome, size
from kvsync.errors import NotFoundError, UsageError
from kvsync.files import read_limited
from kvsync_protocol.limits import MAX_TOKENS, MiB

if TYPE_CHECKING:
    from kvsync.daemon.client import DaemonClient
    from kvsync.daemon.hearsay import Hearsay
    from kvsync.daemon.transfer_params import PullParams
    from kvsync.daemon.wanting import Offer, Wanted
    from kvsync.store import Store
    from kvsync_protocol.fingerprint import Fingerprints
    from kvsync_protocol.schedule import Schedule

_NUMBERS = re.compile(r"[0-9,\s\[\]]*", re.ASCII)
_MAX_TOKENS_FILE = 64 * MiB


def add_commands(app: typer.Typer) -> None:
    command(app, "want")(want)


def want(
    run: Run,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="The prompt itself.")] = None,
    doc: Annotated[
        str | None, typer.Option("--doc", metavar="FILE", help="The prompt as a UTF-8 text, or - for standard input.")
    ] = None,
    tokens: Annotated[
        str | None, typer.Option("--tokens", metavar="FILE", help="The prompt as token ids, in JSON or in words.")
    ] = None,
    model: ModelOption = DEFAULT_MODEL,
    dtype: DTypeOption = None,
    device: DeviceOption = "cpu",
    local: LocalOption = False,
) -> Outcome:
    """Have as much of a prompt as others have computed.

    The store is asked first, then every registry and peer; what is fetched is only what a graft of these tokens
    needs, and judged like any pull. The exit status is 7 when nobody has any of it.
    """
    import asyncio

    given = [each for each in (text, doc, tokens) if each is not None]
    if len(given) != 1 or not given[0]:
        raise UsageError("want.prompt", "give one prompt: TEXT, --doc or --tokens")
    if tokens is not None:
        ids, engine = _read_tokens(Path(tokens)), open_engine(run, model, dtype, device)
    else:
        prompt = text if text is not None else read_document(str(doc))
        engine = open_engine(run, model, dtype, device)
        ids = engine.encode(prompt)
    with ExitStack() as stack:
        store = stack.enter_context(run.store())
        hearsay = _hearsay(run, stack)
        daemon = running_daemon(run, local=local)
        found = asyncio.run(_want(run, store, hearsay, ids, engine.fingerprints, daemon, engine.schedule))
    return _outcome(found, len(ids))


async def _want(
    run: Run,
    store: Store,
    hearsay: Hearsay,
    ids: list[int],
    fingerprints: Fingerprints,
    daemon: DaemonClient | None,
    schedule: Schedule,
) -> Wanted:
    from kvsync.daemon.transfer_params import PullParams
    from kvsync.daemon.wanting import want as want_prefix

    async def fetch(offer: Offer) -> Mapping[str, object]:
        params = PullParams(
            offer.origins.peers[0],
            str(offer.artifact),
            fingerprints,
            offer.origins.peers[1:],
            offer.origins.hints,
            blocks=offer.blocks,
        )
        return await _fetch(run, store, daemon, params)

    settings = run.settings()
    return await want_prefix(store, hearsay, ids, fingerprints, schedule, fetch, accept=settings.accept)


async def _fetch(run: Run, store: Store, daemon: DaemonClient | None, params: PullParams) -> Mapping[str, object]:
    import asyncio

    from kvsync.cli._jobs import do
    from kvsync.daemon.messages import JobKind
    from kvsync.daemon.pulling import pull_here

    if daemon is not None:
        return await asyncio.to_thread(do, run, daemon, JobKind.PULL, params)
    with run.progress() as progress:
        return await pull_here(store, run.trust(), run.peers(), run.keys(), run.settings(), params, progress)


def _hearsay(run: Run, stack: ExitStack) -> Hearsay:
    """Whom to ask: peers, listed registries, and what this node's own registry was told, with or without a daemon."""
    from kvsync.daemon.embedded import EmbeddedRegistry
    from kvsync.daemon.hearsay import Hearsay
    from kvsync.keys import KeySpread, PeerBook, RegistryBook

    home, keys, settings = run.node(), run.keys(), run.settings()
    embedded = None
    if settings.registry and home.registry_file.exists():
        embedded = EmbeddedRegistry.open(home, keys.peer.public)
    if embedded is not None:
        stack.enter_context(closing(embedded))
    registry = None if embedded is None else embedded.registry
    return Hearsay(keys, KeySpread(home, run.trust()), settings, PeerBook(home), RegistryBook(home), registry)


def _read_tokens(path: Path) -> list[int]:
    """Raises UsageError `want.tokens`; NotFoundError, StoreError `file.*`."""
    data = read_limited(path, _MAX_TOKENS_FILE, what="the token ids")
    words = data.decode("ascii", "replace")
    found = [int(word) for word in re.findall(r"[0-9]{1,10}", words)] if _NUMBERS.fullmatch(words) else []
    if not found or len(found) > MAX_TOKENS or max(found) >= 2**32:
        raise UsageError("want.tokens", f"{path} holds no token ids", hint="for example [1, 2, 3], or 1 2 3")
    return found


def _outcome(found: Wanted, tokens: int) -> Outcome:
    refused = [f"{artifact} {code}" for artifact, code in found.refused]
    if found.match is None:
        raise NotFoundError(
            "want.nothing",
            "nobody who can be asked has any of it" if not refused else f"none of it could be had: {refused[0]}",
            hint="kvsync compute, here or --on a peer",
            refused=refused,
        )
    fetched = found.fetched or {}
    moved = fetched.get("bytes_moved")
    data = {
        "artifact": str(found.match.artifact),
        "mode": found.match.mode,
        "tokens": tokens,
        "covered": found.position,
        "fetched": bool(fetched),
        "peer": fetched.get("peer"),
        "bytes_moved": moved if isinstance(moved, int) else 0,
        "refused": refused,
    }
    facts = [
        ("artifact", found.match.artifact),
        ("covers", f"{found.position} of {tokens} tokens"),
        ("from", f"{fetched.get('peer')}, {size(moved)}" if isinstance(moved, int) else "here already"),
    ]
    return Outcome(data, [Facts(facts)], [f"not taken: {each}" for each in refused])
