"""The bulk lane's TLS over real sockets: what it moves, whom it lets in, and how it waits."""

from __future__ import annotations

import datetime
import gc
import os
import signal
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from OpenSSL import SSL

from kvsync.errors import UnavailableError
from kvsync.peer.identity import JOIN_NAME, NODE_NAME, NodeIdentity, anchor, check_peer, peer_key
from kvsync.peer.tls_connection import TlsConnection
from kvsync.peer.tls_context import asking_context, join_context, serving_context
from kvsync_protocol import join
from kvsync_protocol.errors import TrustError
from kvsync_protocol.signing import PublicKey, SigningKey

A, B, C = (SigningKey(bytes([number]) * 32) for number in (1, 2, 3))
PROTOCOL = "test/1"
FOREVER = float("inf")


def sockets(stack: ExitStack) -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        far = stack.enter_context(socket.create_connection(server.getsockname()))
        return stack.enter_context(server.accept()[0]), far


def half(
    stack: ExitStack, serving: SSL.Context, asking: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[TlsConnection, ssl.SSLSocket]:
    """A connection after its handshake whose asking side is Python's own TLS."""
    near_socket, plain = sockets(stack)
    near = TlsConnection(serving, near_socket, serving=True)
    with ThreadPoolExecutor(1) as executor:
        other = executor.submit(near.handshake, 5)
        far = stack.enter_context(asking.wrap_socket(plain, session=session))
        other.result()
    return near, far


class Line:
    """Two ends of a TCP connection, `near` serving and `far` asking."""

    def __init__(self, stack: ExitStack, serving: SSL.Context, asking: SSL.Context) -> None:
        self.near_socket, self.far_socket = sockets(stack)
        self.near = TlsConnection(serving, self.near_socket, serving=True)
        self.far = TlsConnection(asking, self.far_socket, serving=False)

    def shake(self) -> None:
        """Both handshakes. Raises what the asking side's raises, or else the serving side's."""
        with ThreadPoolExecutor(1) as executor:
            other = executor.submit(self.near.handshake, 5)
            self.far.handshake(5)
            other.result()


def serving(pins: list[PublicKey], protocol: str = PROTOCOL) -> SSL.Context:
    return serving_context(NodeIdentity(A), pins, protocol)


def asking(who: SigningKey = B, pin: SigningKey = A, *protocols: str) -> SSL.Context:
    return asking_context(NodeIdentity(who), [pin.public], *(protocols or (PROTOCOL,)))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def line(stack: ExitStack) -> Line:
    made = Line(stack, serving([B.public]), asking())
    made.shake()
    return made


def read(connection: TlsConnection, size: int, wait_s: float = 5, end: float = FOREVER) -> bytes:
    view = memoryview(bytearray(size))
    return bytes(view[: connection.read_into(view, wait_s, end)])


def test_both_sides_know_whom_they_talk_to(line: Line) -> None:
    check_peer(line.near, B.public, PROTOCOL)
    check_peer(line.far, A.public, PROTOCOL)
    with pytest.raises(TrustError, match="another key"):
        check_peer(line.far, C.public, PROTOCOL)


@pytest.mark.parametrize("size", [1, 16 * 1024, 16 * 1024 + 1, 3_000_017])
def test_bytes_arrive_as_they_were_sent(line: Line, size: int) -> None:
    data = os.urandom(size)
    with ThreadPoolExecutor(1) as executor:
        sent = executor.submit(line.near.write, data, 5, FOREVER)
        assert read(line.far, size) == data
        sent.result()


def test_a_side_of_pythons_own_tls_is_understood(stack: ExitStack) -> None:
    """Another implementation of the protocol, and every node of before."""
    near, far = half(stack, serving([B.public]), NodeIdentity(B).client_context(A.public, PROTOCOL))
    check_peer(near, B.public, PROTOCOL)
    near.write(b"hello", 5, FOREVER)
    assert far.recv(5) == b"hello"
    far.sendall(b"and back")
    assert read(near, 8) == b"and back"


def test_somebody_else_than_the_pinned_one_is_not_talked_to(stack: ExitStack) -> None:
    line = Line(stack, serving([B.public]), asking(pin=C))
    with pytest.raises(TrustError) as caught:
        line.shake()
    assert caught.value.code == "peer.identity"


def test_a_stranger_learns_that_he_is_one(stack: ExitStack) -> None:
    line = Line(stack, serving([B.public]), asking(who=C))
    with ThreadPoolExecutor(1) as executor:
        other = executor.submit(line.near.handshake, 5)
        line.far.handshake(5)  # done for this side before the other has seen the certificate
        with pytest.raises(TrustError) as refused:
            read(line.far, 1)
        with pytest.raises(TrustError) as stranger:
            other.result()
    assert (refused.value.code, stranger.value.code) == ("peer.refused", "peer.identity")


def test_anybody_may_join_and_has_proved_a_key(stack: ExitStack) -> None:
    near, _ = half(stack, join_context(NodeIdentity(A)), NodeIdentity(C).join_client_context(A.public))
    check_peer(near, C.public, join.ALPN)


def test_another_protocol_is_nobodys_choice(stack: ExitStack) -> None:
    line = Line(stack, serving([B.public], "other/1"), asking())
    line.shake()
    assert line.near.selected_alpn_protocol() is None
    with pytest.raises(TrustError, match="does not speak"):
        check_peer(line.far, A.public, PROTOCOL)


def test_the_first_common_protocol_is_the_servers(stack: ExitStack) -> None:
    line = Line(stack, serving([B.public], "b/1"), asking(B, A, "a/1", "b/1"))
    line.shake()
    assert (line.near.selected_alpn_protocol(), line.far.selected_alpn_protocol()) == ("b/1", "b/1")


def test_no_session_outlives_its_connection(stack: ExitStack) -> None:
    """A resumed one would let a key in that is no longer pinned."""
    server, client = serving([B.public]), NodeIdentity(B).client_context(A.public, PROTOCOL)
    session = None
    for _ in range(2):
        near, far = half(stack, server, client, session)
        near.write(b"x", 5, FOREVER)
        assert far.recv(1) == b"x"  # tickets come before it
        assert not far.session_reused
        session = far.session


# how it waits


def test_a_signal_ends_no_write(line: Line) -> None:
    data, heard = os.urandom(8_000_000), threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda *_: heard.set())
    try:
        with ThreadPoolExecutor(1) as executor:
            sent = executor.submit(line.near.write, data, 5, FOREVER)
            (writer,) = executor._threads
            for _ in range(20):  # the first only cuts a record in two
                time.sleep(0.02)
                signal.pthread_kill(writer.ident or 0, signal.SIGUSR1)
            assert heard.wait(5)
            assert read(line.far, len(data)) == data
            sent.result()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_who_takes_nothing_is_not_waited_for_long(line: Line) -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        line.near.write(bytes(8_000_000), 0.4, FOREVER)
    assert time.monotonic() - began >= 0.4


def test_who_sends_nothing_is_not_waited_for_long(line: Line) -> None:
    with pytest.raises(TimeoutError):
        read(line.far, 1, wait_s=0.2)


def test_who_takes_little_is_waited_for_until_the_end(line: Line) -> None:
    done = threading.Event()

    def sip() -> None:
        while not done.wait(0.02):
            read(line.far, 100_000)

    with ThreadPoolExecutor(1) as executor:
        sipping = executor.submit(sip)
        with pytest.raises(TimeoutError):
            line.near.write(bytes(100_000_000), 5, time.monotonic() + 0.5)
        done.set()
        line.near_socket.shutdown(socket.SHUT_RDWR)
        sipping.result()


def test_who_sends_little_is_waited_for_until_the_end(line: Line) -> None:
    done = threading.Event()

    def drip() -> None:
        while not done.wait(0.02):
            line.near.write(b"drop", 5, FOREVER)

    with ThreadPoolExecutor(1) as executor:
        dripping = executor.submit(drip)
        with pytest.raises(TimeoutError):
            read(line.far, 1_000_000, end=time.monotonic() + 0.5)
        done.set()
        dripping.result()


def test_a_shutdown_wakes_a_reader_and_a_writer(line: Line) -> None:
    with ThreadPoolExecutor(2) as executor:
        reading = executor.submit(read, line.far, 1, 60)
        writing = executor.submit(line.near.write, bytes(100_000_000), 60, FOREVER)
        assert reading.result() == b"\0"
        line.near_socket.shutdown(socket.SHUT_RDWR)
        with pytest.raises(UnavailableError):
            writing.result()


def test_a_broken_read_leaves_the_interpreter_whole(line: Line) -> None:
    """Its buffer dies with the traceback, in a cycle: CPython 3.11 dies of that when something still exports it."""

    class Node:
        own: object

    for _ in range(3):
        with pytest.raises(TimeoutError) as caught:
            read(line.far, 1, wait_s=0)
        node = Node()
        node.own = (node, caught.value)
        del node, caught
    gc.collect()


# leaving it


def test_both_leave_and_the_socket_goes_on_without_tls(line: Line) -> None:
    line.near.write(b"last", 5, FOREVER)
    assert read(line.far, 4) == b"last"
    with ThreadPoolExecutor(1) as executor:
        other = executor.submit(line.near.leave, 5)
        line.far.leave(5)
        other.result()
    line.near_socket.setblocking(True)
    line.far_socket.setblocking(True)
    line.near_socket.sendall(b"plain")
    assert line.far_socket.recv(5) == b"plain"


def test_nobody_leaves_alone(line: Line) -> None:
    with pytest.raises(TimeoutError):
        line.near.leave(0.3)


def test_a_lost_connection_is_no_goodbye(line: Line) -> None:
    line.far_socket.shutdown(socket.SHUT_WR)
    with pytest.raises(UnavailableError) as caught:
        line.near.leave(5)
    assert caught.value.code == "peer.closed"


def test_a_certificate_that_only_openssl_understands_names_nobody(stack: ExitStack) -> None:
    """Anybody can sign one for the join lane: version 2, which OpenSSL takes and cryptography does not know."""
    owner = Ed25519PrivateKey.from_private_bytes(C.seed)
    signer = Ed25519PrivateKey.from_private_bytes(join.ANCHOR_SEED)
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in (NODE_NAME, JOIN_NAME)]
    builder = x509.CertificateBuilder().subject_name(names[0]).issuer_name(names[1]).public_key(owner.public_key())
    builder = builder.not_valid_before(datetime.datetime(2000, 1, 1)).not_valid_after(datetime.datetime(2100, 1, 1))
    body = builder.serial_number(1).sign(signer, None).tbs_certificate_bytes
    body = body.replace(bytes.fromhex("a003020102"), bytes.fromhex("a003020101"), 1)
    rest = bytes.fromhex("300506032b6570") + bytes.fromhex("034100") + signer.sign(body)
    assert 128 <= len(body + rest) < 256
    whole = bytes((0x30, 0x81, len(body + rest))) + body + rest
    with pytest.raises(x509.InvalidVersion):
        x509.load_der_x509_certificate(whole)

    secret = owner.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with tempfile.NamedTemporaryFile() as file:
        file.write(secret + ssl.DER_cert_to_PEM_cert(whole).encode())
        file.flush()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_cert_chain(file.name)
    context.load_verify_locations(cadata=anchor(A.public).public_bytes(Encoding.DER))
    context.set_alpn_protocols([join.ALPN])
    near, _ = half(stack, join_context(NodeIdentity(A)), context)
    with pytest.raises(TrustError) as caught:
        peer_key(near)
    assert caught.value.code == "peer.identity"
