"""`RegistryPort`: a registry to talk to, over the network or in this process; and the one in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self, TypeVar

from kvsync.errors import KvsyncError, NotFoundError, PolicyError, StoreError, UnavailableError
from kvsync_protocol.digest import ArtifactId, PrefixKey
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.messages import RefList
from kvsync_protocol.registry_messages import MAX_QUERY_KEYS, Matches, Outcomes, PrefixQuery, Vouched
from kvsync_protocol.signing import PublicKey
from kvsync_registry.errors import FullError, RefusedError, RegistryError
from kvsync_registry.errors import NotFoundError as UnknownError
from kvsync_registry.service import Registry

T = TypeVar("T")


class RegistryPort(Protocol):
    """An async context manager; `hello` comes first. Everything that is answered is a hint."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def hello(self) -> object: ...

    async def declare(self, statements: Sequence[Envelope]) -> Outcomes: ...

    async def lookup(self, keys: Sequence[PrefixKey]) -> Matches: ...

    async def providers(self, artifact: ArtifactId) -> Matches: ...

    async def names(self, *, name: str = "", after: str = "") -> RefList: ...

    async def set_name(self, vouched: Vouched) -> None: ...

    async def vouch(self, artifact: ArtifactId, vouched: Vouched) -> None: ...


class LocalRegistry:
    """A registry in this process, asked under this node's own key. Its errors are those that peers would get."""

    def __init__(self, registry: Registry, own: PublicKey) -> None:
        self._registry = registry
        self._own = own

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing was opened."""

    async def hello(self) -> object:
        return None

    async def declare(self, statements: Sequence[Envelope]) -> Outcomes:
        return await self._ask(lambda: self._registry.declare(self._own, statements))

    async def lookup(self, keys: Sequence[PrefixKey]) -> Matches:
        query = PrefixQuery(tuple(keys[:MAX_QUERY_KEYS]))
        return await self._ask(lambda: self._registry.lookup(self._own, query))

    async def providers(self, artifact: ArtifactId) -> Matches:
        return await self._ask(lambda: self._registry.providers(self._own, artifact))

    async def names(self, *, name: str = "", after: str = "") -> RefList:
        return await self._ask(lambda: self._registry.refs(self._own, name, after))

    async def set_name(self, vouched: Vouched) -> None:
        await self._ask(lambda: self._registry.set_ref(self._own, vouched))

    async def vouch(self, artifact: ArtifactId, vouched: Vouched) -> None:
        await self._ask(lambda: self._registry.attest(self._own, artifact, vouched))

    async def _ask(self, call: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(call)
        except RegistryError as error:
            raise named(error) from error


def named(error: RegistryError) -> KvsyncError:
    """The error under the same code in this package's tree."""
    classes: tuple[tuple[type[RegistryError], type[KvsyncError]], ...] = (
        (RefusedError, PolicyError),
        (UnknownError, NotFoundError),
        (FullError, StoreError),
    )
    kind = next((ours for theirs, ours in classes if isinstance(error, theirs)), UnavailableError)
    return kind(error.code, error.message, hint=error.hint)
