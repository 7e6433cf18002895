"""A TLS handshake that ends by a given moment, however slowly the other side sends its bytes.

A socket's own timeout begins anew with every byte, so that a byte now and then would hold a connection for hours.
"""

from __future__ import annotations

import select
import socket
import ssl
import time


def accept_tls(context: ssl.SSLContext, connection: socket.socket, seconds: float) -> ssl.SSLSocket:
    """The server's side; the socket's timeout is `seconds` afterwards. On failure the connection is closed.

    Raises:
        OSError: the handshake failed; TimeoutError when it was not done in time.
    """
    end = time.monotonic() + seconds
    connection.setblocking(False)
    secured = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
    try:
        while not _step(secured, end):
            pass
    except BaseException:
        secured.close()
        raise
    secured.settimeout(seconds)
    return secured


def _step(secured: ssl.SSLSocket, end: float) -> bool:
    """True when the handshake is done; otherwise the other side has sent or taken something since."""
    try:
        secured.do_handshake()
    except ssl.SSLWantReadError:
        wanted = select.POLLIN
    except ssl.SSLWantWriteError:
        wanted = select.POLLOUT
    else:
        return True
    poller = select.poll()
    poller.register(secured, wanted)
    left = end - time.monotonic()
    if left <= 0 or not poller.poll(left * 1000):
        raise TimeoutError("the handshake takes too long")
    return False
