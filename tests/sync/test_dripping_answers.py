"""A provider whose answers on the control lane never end."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from kvsync.errors import UnavailableError
from kvsync.peer.identity import NodeIdentity
from kvsync_protocol import parts
from kvsync_protocol.messages import Hello
from tests.sync.nodes import Node

HELLO = Hello("x", (), ("get",)).encode()


BEGINNINGS = {
    "a body": (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + parts.LENGTH.pack(90000), b" ", "peer.stalled"),
    "headers": (b"HTTP/1.1 200 OK\r\nX: ", b" ", "peer.stalled"),
    "nothing after a promise": (b"HTTP/1.1 100 Continue\r\n\r\n", b"", "peer.stalled"),
    "nothing after a wrong chunk": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n0ZZ\r\n",
        b"",
        "peer.closed",
    ),
}


@pytest.mark.parametrize(("beginning", "drop", "code"), BEGINNINGS.values(), ids=BEGINNINGS.keys())
async def test_a_byte_now_and_then_is_as_good_as_nothing(
    provider: Node, getter: Node, beginning: bytes, drop: bytes, code: str
) -> None:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            asked = await reader.readuntil(b"\r\n\r\n")
            if b"/hello " in asked:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(HELLO), HELLO))
                await reader.readuntil(b"\r\n\r\n")
            writer.write(beginning)
            while not writer.is_closing():
                writer.write(drop)
                await writer.drain()
                await asyncio.sleep(0.2)
        writer.close()

    context = NodeIdentity(provider.keys.peer).server_context([getter.keys.peer.public], "http/1.1")
    server = await asyncio.start_server(reply, "127.0.0.1", 0, ssl=context)
    provider.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        with pytest.raises(UnavailableError) as caught:
            await getter.pull(provider, "f" * 64, settings={"stall_timeout_s": 1, "transfer_deadline_s": 20})
    assert caught.value.code == code  # and never the deadline
