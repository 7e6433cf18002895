"""Several addresses, one answer: attempts begin one after another, a little apart, and the first to succeed wins.

A dead first address costs the stagger and not its whole timeout (RFC 8305 does the same for one name). Knows
nothing of what an attempt is; whoever answers proves its identity in it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

from kvsync_protocol.errors import CodedError

T = TypeVar("T")

STAGGER_S: Final = 0.25


async def cut(transports: Iterable[asyncio.WriteTransport]) -> None:
    """End TLS connections now, and leave no socket to a loop that may end next.

    Closing would wait for the other side's goodbye. What was cut, here or by a failed handshake, ends in the
    loop's next rounds.
    """
    for transport in transports:
        transport.abort()
    for _ in range(2):
        await asyncio.sleep(0)


class NobodyAnsweredError(Exception):
    """`failures` by address, in the order in which they were tried."""

    def __init__(self, failures: dict[str, CodedError]) -> None:
        super().__init__("no attempt succeeded")
        self.failures = failures


async def first_to_answer(
    addresses: Sequence[str],
    attempt: Callable[[str], Awaitable[T]],
    *,
    failing: tuple[type[CodedError], ...],
    discard: Callable[[T], object] = lambda _: None,
    stagger_s: float = STAGGER_S,
) -> tuple[str, T]:
    """The first address whose attempt succeeds, and what it gave. The others are cancelled; what one
    of them has given all the same goes to `discard`.

    Raises:
        NobodyAnsweredError: every attempt ended in one of `failing`. Any other error ends all attempts and is raised.
    """
    waiting = deque(dict.fromkeys(addresses))
    under_way: dict[asyncio.Future[T], str] = {}
    failures: dict[str, CodedError] = {}
    try:
        while waiting or under_way:
            if waiting:
                address = waiting.popleft()
                under_way[asyncio.ensure_future(attempt(address))] = address
            done, _ = await asyncio.wait(
                under_way, timeout=stagger_s if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in [task for task in under_way if task in done]:  # in the order of the addresses
                address = under_way.pop(task)
                try:
                    return address, task.result()
                except failing as error:
                    failures[address] = error
        raise NobodyAnsweredError({address: failures[address] for address in addresses})
    finally:
        for task in under_way:
            task.cancel()
        for late in await asyncio.gather(*under_way, return_exceptions=True):
            if not isinstance(late, BaseException):
                discard(late)
