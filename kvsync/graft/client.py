"""`kvsync.Client`: deposit, look up, pull and graft from Python, with or without a daemon.

The store is safe to share between processes, so everything here works on it directly, beside a running
daemon or without one; a host still downloads each artifact once, whoever asks for it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kvsync.config import Home, Settings
from kvsync.engines import as_engine
from kvsync.engines.engine import Engine
from kvsync.graft.costs import Costs
from kvsync.graft.decision import ALWAYS, NEVER
from kvsync.graft.deposit import deposit, set_name
from kvsync.graft.graft import Graft, graft, lookup
from kvsync.graft.match import Match
from kvsync.graft.tokens import Tokens, token_ids
from kvsync.keys import NodeKeys, PeerBook, TrustList
from kvsync.pack import VerifiedChunks
from kvsync.progress import Progress, silent
from kvsync.store import Store, StoredArtifact, StoreLimits
from kvsync_protocol.digest import ArtifactId, Digest

if TYPE_CHECKING:
    from kvsync.sync import PullReport


class Client:
    """One node's artifacts, from Python.

    Args:
        home: the node's home; default as for the command line ($KVSYNC_HOME, else the user's data directory).

    Raises:
        StoreError: `home.missing` unless `kvsync init` was run there.

    A `model` is an `Engine`, or a transformers model in eval mode that is already loaded. Token ids are whole
    numbers in a list, or the tensor or array of one sequence that a tokenizer returns.
    """

    def __init__(self, home: Path | str | None = None) -> None:
        self.home = Home.locate(None if home is None else Path(home))
        self.settings = Settings.load(self.home)
        self._keys = NodeKeys.load(self.home)
        self._trust = TrustList(self.home, self._keys.signer.public)
        self.store = Store.open(self.home.store_dir, StoreLimits.of(self.settings))
        self._verified = VerifiedChunks(self.settings.verified_bytes)
        self._costs = Costs(self.home)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._costs.save()
        self._verified.close()
        self.store.close()

    @property
    def keys(self) -> NodeKeys:
        """This node's keys, as they are now."""
        return self._keys.current()

    @property
    def trust(self) -> TrustList:
        """The signers whose bytes count here."""
        return self._trust

    def deposit(
        self,
        model: Any,
        document: str | Tokens,
        *,
        name: str | None = None,
        template: Digest | None = None,
        boundaries: Sequence[int] = (),
        progress: Progress = silent,
    ) -> StoredArtifact:
        """Compute, sign and store the artifact of a text or of token ids. Raises as `deposit.deposit`."""
        engine = self._engine(model)
        text = None
        if isinstance(document, str):
            text = Digest(hashlib.sha256(document.encode()).digest())
            document = engine.encode(document)
        return deposit(
            self.store,
            engine,
            self._keys.current().signer,
            token_ids(document),
            text=text,
            template=template,
            boundaries=boundaries,
            name=name,
            progress=progress,
            costs=self._costs,
        )

    def lookup(self, tokens: Tokens, *, model: Any) -> Match | None:
        """The artifact that a graft of `tokens` would begin with, all checks but its chunks' hashes passed."""
        ids = token_ids(tokens)
        if not ids:
            return None
        return lookup(self.store, self._trust.keys(), self._engine(model), ids, accept=self.settings.accept)

    def graft(
        self,
        model: Any,
        tokens: Tokens,
        *,
        artifact: ArtifactId | str | None = None,
        template: Digest | None = None,
        recompute: bool = False,
    ) -> Graft:
        """Graft the longest verified prefix of `tokens`; see `kvsync.graft.graft.graft`.

        Under the setting `graft_when = "auto"` a prefix is computed again where that has proved faster on this host;
        an `artifact` that is named is grafted.

        Raises:
            NotFoundError: `store.unknown_artifact` for a name or id that is not here.
            EngineError: the model cannot be restored exactly.
        """
        wanted = self.store.resolve(artifact) if isinstance(artifact, str) else artifact
        if wanted is not None:
            self.store.artifact(wanted)
        named = wanted is not None and self.settings.graft_when != NEVER
        when = ALWAYS if named else self.settings.graft_when
        return graft(
            self.store,
            self._trust.keys(),
            self._engine(model),
            token_ids(tokens),
            artifact=wanted,
            accept=self.settings.accept,
            template=template,
            recompute=recompute,
            verified=self._verified,
            when=when,
            costs=self._costs,
        )

    def pull(
        self,
        peer: str | Sequence[str],
        wanted: str,
        *,
        model: Any = None,
        tokens: int | None = None,
        blocks: int | None = None,
        progress: Progress = silent,
    ) -> PullReport:
        """Fetch an artifact by name or id from a known peer, or several; every chunk is verified on arrival.

        With a `model`, fingerprints are compared before anything is downloaded. With `tokens` or `blocks` only
        what a graft behind so many needs is fetched, and later pulls fetch what they need beyond it. Raises as
        `kvsync.sync.pull`.
        """
        pulling = self.pull_async(peer, wanted, model=model, tokens=tokens, blocks=blocks, progress=progress)
        return asyncio.run(pulling)

    async def pull_async(
        self,
        peer: str | Sequence[str],
        wanted: str,
        *,
        model: Any = None,
        tokens: int | None = None,
        blocks: int | None = None,
        progress: Progress = silent,
    ) -> PullReport:
        """`pull` for callers that run an event loop."""
        from kvsync.sync import pull

        book = PeerBook(self.home)
        peers = [book.get(name) for name in ([peer] if isinstance(peer, str) else peer)]
        # Making an engine takes seconds, in which the caller's loop has other things to do.
        fingerprints = None if model is None else (await asyncio.to_thread(self._engine, model)).fingerprints
        return await pull(
            self.store,
            self._trust,
            peers,
            wanted,
            keys=self._keys,
            settings=self.settings,
            fingerprints=fingerprints,
            progress=progress,
            position=tokens,
            blocks=blocks,
        )

    def name(self, artifact: ArtifactId, name: str) -> None:
        """Point a signed name at a stored artifact."""
        set_name(self.store, self._keys.current().signer, name, artifact)

    def _engine(self, model: Any) -> Engine:
        return as_engine(model, threads=self.settings.threads)
