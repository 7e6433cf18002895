"""`kvsync.AsyncClient`: the same calls for programs with an event loop; work runs on threads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kvsync.graft.client import Client
from kvsync.graft.graft import Graft
from kvsync.graft.match import Match
from kvsync.graft.tokens import Tokens
from kvsync.progress import Progress, silent
from kvsync.store import StoredArtifact
from kvsync_protocol.digest import ArtifactId, Digest

if TYPE_CHECKING:
    from kvsync.sync import PullReport


class AsyncClient:
    """See `Client`; every method is its counterpart, awaited. Opens the store when entered.

    A model is used by one call at a time: its forward pass is not re-entrant, so deposits, lookups and grafts are
    queued on a lock.
    """

    def __init__(self, home: Path | str | None = None) -> None:
        self._client = Client(home)
        self._model_lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await asyncio.to_thread(self._client.close)

    async def deposit(
        self,
        model: Any,
        document: str | Tokens,
        *,
        name: str | None = None,
        template: Digest | None = None,
        boundaries: Sequence[int] = (),
        progress: Progress = silent,
    ) -> StoredArtifact:
        async with self._model_lock:
            return await asyncio.to_thread(
                self._client.deposit,
                model,
                document,
                name=name,
                template=template,
                boundaries=boundaries,
                progress=progress,
            )

    async def lookup(self, tokens: Tokens, *, model: Any) -> Match | None:
        async with self._model_lock:
            return await asyncio.to_thread(self._client.lookup, tokens, model=model)

    async def graft(
        self,
        model: Any,
        tokens: Tokens,
        *,
        artifact: ArtifactId | str | None = None,
        template: Digest | None = None,
        recompute: bool = False,
    ) -> Graft:
        async with self._model_lock:
            return await asyncio.to_thread(
                self._client.graft, model, tokens, artifact=artifact, template=template, recompute=recompute
            )

    async def pull(
        self,
        peer: str | Sequence[str],
        wanted: str,
        *,
        model: Any = None,
        tokens: int | None = None,
        blocks: int | None = None,
        progress: Progress = silent,
    ) -> PullReport:
        return await self._client.pull_async(
            peer, wanted, model=model, tokens=tokens, blocks=blocks, progress=progress
        )
