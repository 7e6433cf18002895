"""How a chunk goes out, as an answer or in a push: encoded where that was asked for and pays, else as it is."""

from __future__ import annotations

from collections.abc import Callable

from kvsync.pack.codec import Codec
from kvsync.pack.shape import ChunkShape
from kvsync.peer.chunk_file import ChunkFile
from kvsync.peer.stream import Stream
from kvsync_protocol.bulk import Encoding


def send_chunk(
    stream: Stream,
    frame: Callable[[Encoding, int], bytes],
    chunk: ChunkFile,
    encoding: Encoding,
    shape: ChunkShape | None,
    codec: Codec,
    room: memoryview,
) -> int:
    """Send the frame that announces an encoding and a length, then the chunk; its bytes on the wire.

    `shape` is what PLANES is encoded by; `room` has space for a chunk. Raises as `Stream.write_file`: a file that
    turns out damaged after its first piece leaves the other side with what is no chunk, so the connection must end.
    """
    if encoding is not Encoding.IDENTITY:
        encoding, body = codec.encode(chunk.whole(room), encoding, shape)
        if encoding is not Encoding.IDENTITY:
            stream.write_frame(frame(encoding, len(body)), body)
            return len(body)
    stream.write_file(frame(Encoding.IDENTITY, chunk.size), chunk)
    return chunk.size
