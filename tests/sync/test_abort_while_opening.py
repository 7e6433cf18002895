"""A bulk connection that is still being made can be given up."""

from __future__ import annotations

import asyncio
import socket

import pytest

from kvsync.errors import UnavailableError
from kvsync.keys import Peer
from kvsync.peer.bulk_client import BulkConnection
from kvsync.peer.deadline import Deadline
from kvsync.peer.identity import NodeIdentity
from kvsync.peer.tls_context import asking_context
from kvsync_protocol.bulk import ALPN
from tests.sync.nodes import Node


@pytest.mark.parametrize("backlog_full", [False, True], ids=["in the handshake", "while connecting"])
async def test_a_connection_that_nobody_answers_can_be_given_up(getter: Node, backlog_full: bool) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent:
        held = []
        if backlog_full:
            for _ in range(4):
                held.append(socket.socket())
                held[-1].setblocking(False)
                held[-1].connect_ex(silent.getsockname())
        peer = Peer("silent", getter.keys.peer.public, (f"127.0.0.1:{silent.getsockname()[1]}",))
        context = asking_context(NodeIdentity(getter.keys.peer), peer.keys, ALPN)
        connection = BulkConnection(peer, peer.addresses[0], context, stall_s=600, deadline=Deadline.after(600))
        opening = asyncio.create_task(asyncio.to_thread(connection.open))
        await asyncio.sleep(0.2)
        assert not opening.done()
        connection.abort()
        with pytest.raises(UnavailableError):
            await asyncio.wait_for(opening, 5)
        with pytest.raises(UnavailableError):
            connection.open()  # given up for good
        for each in held:
            each.close()
