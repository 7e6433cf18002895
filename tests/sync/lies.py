"""What a provider can say of a chunk that is not so, each as an answer to a GET, with the code it is known by."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import zstandard

from kvsync_protocol import bulk
from kvsync_protocol.bulk import BulkReply, BulkRequest, Encoding, Status
from kvsync_protocol.limits import MiB
from tests.conftest import build_artifact
from tests.sync.faulty import FaultySession

ARTIFACT = build_artifact(tokens=120)
OTHER = build_artifact(seed=99, tokens=120)
BOMB = zstandard.compress(bytes(256 * MiB))


def plain(session: FaultySession, body: bytes) -> None:
    session.stream.write(BulkReply(Status.OK, Encoding.IDENTITY, len(body)).encode(), body)


def wrong_bytes(session: FaultySession, request: BulkRequest, data: memoryview) -> None:
    plain(session, bytes([data[0] ^ 1]) + bytes(data[1:]))


def another_index(session: FaultySession, request: BulkRequest, data: memoryview) -> None:
    plain(session, ARTIFACT.chunks[(request.index + 2) % len(ARTIFACT.chunks)])


def too_short(session: FaultySession, request: BulkRequest, data: memoryview) -> None:
    plain(session, bytes(data[:-1]))


def too_long(session: FaultySession, request: BulkRequest, data: memoryview) -> None:
    plain(session, bytes(data) + b"\x00")


def bomb(session: FaultySession, request: BulkRequest, data: memoryview) -> None:
    session.stream.write(BulkReply(Status.OK, Encoding.ZSTD, len(BOMB)).encode(), BOMB)


def no_frame(session: FaultySession, request: BulkRequest, data: memoryview) -> None:
    session.stream.write(BulkReply(Status.OK, Encoding.ZSTD, len(data)).encode(), os.urandom(len(data)))


def huge_length(session: FaultySession, request: BulkRequest, data: memoryview) -> None:
    session.stream.write(BulkReply(Status.OK, Encoding.IDENTITY, 2**32 - 1).encode())


def garbage(session: FaultySession, request: BulkRequest, data: memoryview) -> None:
    session.stream.write(b"HTTP/1.1 200 OK\r\n"[: bulk.REPLY_BYTES])


def closes(session: FaultySession, request: BulkRequest, data: memoryview) -> None:
    session.stream.write(BulkReply(Status.OK, Encoding.IDENTITY, len(data)).encode(), data[: len(data) // 2])
    session.stream.abort()


def stalls(session: FaultySession, request: BulkRequest, data: memoryview) -> None:
    session.stream.write(BulkReply(Status.OK, Encoding.IDENTITY, len(data)).encode(), data[: len(data) // 2])
    session.stream.read_frame(1)  # until the getter gives up


def drips(session: FaultySession, request: BulkRequest, data: memoryview) -> None:
    session.stream.write(BulkReply(Status.OK, Encoding.IDENTITY, len(data)).encode())
    for place in range(len(data)):
        session.stream.write(data[place : place + 1])
        time.sleep(0.25)


def refuses(status: Status) -> Callable[[FaultySession, BulkRequest, memoryview], None]:
    return lambda session, request, data: session.stream.write(BulkReply(status).encode())


def silent(session: FaultySession, request: BulkRequest, data: memoryview) -> None:
    session.stream.read_frame(1)  # until the getter gives up


def of_another_artifact(session: FaultySession, request: BulkRequest, data: memoryview) -> None:
    plain(session, OTHER.chunks[request.index])


CHUNK_LIES = {
    "wrong bytes": (wrong_bytes, "integrity.chunk"),
    "right bytes of another index": (another_index, "integrity.chunk"),
    "too short": (too_short, "bulk.size"),
    "too long": (too_long, "bulk.size"),
    "zip bomb": (bomb, "codec.size"),
    "no zstd frame": (no_frame, "codec.frame"),
    "huge length": (huge_length, "bulk.length"),
    "garbage for a frame": (garbage, "bulk.frame"),
    "closes mid-chunk": (closes, "peer.closed"),
    "stalls mid-chunk": (stalls, "peer.stalled"),
    "drips": (drips, "peer.stalled"),
    "says not found": (refuses(Status.NOT_FOUND), "peer.chunk_gone"),
    "says failed": (refuses(Status.FAILED), "peer.failed"),
    "says busy": (refuses(Status.BUSY), "peer.busy"),
}
