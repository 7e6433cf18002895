"""A handshake that comes in a byte at a time is given up in time, on every lane."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import ssl
from collections.abc import Callable

import pytest

from kvsync.keys.invitations import Invitations
from kvsync.peer.identity import NodeIdentity
from kvsync_protocol import bulk, join, routes
from tests.sync.nodes import Node

BYTES = 200
"""A client's second flight is longer; sent so slowly, even these take ten times the limit."""


def drip(address: str, context: ssl.SSLContext) -> int:
    """Send the ClientHello at once and the rest of the handshake drop by drop; how many drops were taken."""
    host, _, port = address.rpartition(":")
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing)
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        while True:
            try:
                session.do_handshake()
                break
            except ssl.SSLWantReadError:
                if outgoing.pending:
                    connection.sendall(outgoing.read())
                incoming.write(connection.recv(65536))
        rest = outgoing.read()
        assert len(rest) > BYTES
        for number in range(BYTES):
            connection.settimeout(0.05)
            with contextlib.suppress(TimeoutError):
                if not connection.recv(1):
                    return number
            try:
                connection.sendall(rest[number : number + 1])
            except OSError:
                return number
    return BYTES


@pytest.mark.parametrize("protocol", [routes.CONTROL_ALPN, bulk.ALPN, join.ALPN])
async def test_a_dripping_handshake_is_given_up(make_node: Callable[..., Node], getter: Node, protocol: str) -> None:
    node = make_node("impatient", dataclasses.replace(getter.settings, stall_timeout_s=1))
    node.meet(getter, "get")
    Invitations(node.home).invite(node.keys.peer.public, ("127.0.0.1:1",), 60)
    identity = NodeIdentity(getter.keys.peer)
    pin = node.keys.peer.public
    context = identity.join_client_context(pin) if protocol == join.ALPN else identity.client_context(pin, protocol)
    async with node.serving():
        assert await asyncio.to_thread(drip, node.address, context) < BYTES
