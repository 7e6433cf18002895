"""Ends work with a peer as soon as no key of it counts any more, in the middle of whatever is under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from kvsync.keys import KeySpread, Peer
from kvsync_protocol.errors import TrustError

LOOK_S: Final = 0.25


@asynccontextmanager
async def while_trusted(peer: Peer, spread: KeySpread) -> AsyncIterator[None]:
    """Cancel what happens inside when the peer's keys are all revoked meanwhile.

    Raises:
        TrustError: `peer.revoked`.
    """
    inside = asyncio.current_task()
    ended = False

    async def look() -> None:
        nonlocal ended
        seen = spread.state()
        while True:
            await asyncio.sleep(LOOK_S)
            state = spread.state()
            if state != seen and set(peer.keys) <= await asyncio.to_thread(spread.revoked):
                ended = True
                if inside is not None:
                    inside.cancel()
                return
            seen = state

    looking = asyncio.create_task(look(), name="kvsync-while-trusted")
    try:
        yield
    except asyncio.CancelledError:
        if ended and inside is not None and inside.uncancel() == 0:
            raise revoked(peer) from None
        raise
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


def revoked(peer: Peer) -> TrustError:
    return TrustError(
        "peer.revoked", f"the key of {peer.name} is revoked", hint="kvsync trust revoked", peer=peer.name
    )
