"""Peers of the local network by multicast DNS (RFC 6762, 6763): a hint where somebody is, and nothing more.

Anybody can announce any key at any address. What is found is shown, or an address is tried; the handshake alone
tells who is there. Needs the package's extra `lan`.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from kvsync.errors import UnavailableError, UsageError
from kvsync.keys import join_address, split_address
from kvsync.keys.peers import MAX_ADDRESSES
from kvsync_protocol.errors import ProtocolError
from kvsync_protocol.signing import PublicKey

SERVICE: Final = "_kvsync._tcp.local."
MAX_FOUND: Final = 256
_KEY: Final = b"key"
_RESOLVE_MS: Final = 2000


@dataclass(frozen=True, slots=True)
class Found:
    """Somebody who says to be `key`."""

    key: PublicKey
    addresses: tuple[str, ...]


@contextmanager
def announced(key: PublicKey, addresses: Sequence[str], interfaces: Sequence[str] | None = None) -> Iterator[None]:
    """Tell the local network while inside. `addresses` are texts of one port; host names in them are left out.

    A node that listens for its own host only is told to its own host only.

    Raises:
        UsageError: `lan.missing`; UnavailableError: `lan.unavailable`.
    """
    zeroconf = _module()
    hosts = [host for address in addresses if (host := _ip(split_address(address)[0])) is not None]
    if not hosts:
        raise UnavailableError("lan.unavailable", "no address to tell", hint="set listen_host to an address")
    if interfaces is None and all(host.is_loopback for host in hosts):
        interfaces = [str(host) for host in hosts]
    info = zeroconf.ServiceInfo(
        SERVICE,
        f"{key.key_id}.{SERVICE}",
        addresses=[host.packed for host in hosts],
        port=split_address(addresses[0])[1],
        properties={_KEY: str(key).encode()},
        server=f"kvsync-{key.key_id}.local.",
    )
    with _responder(zeroconf, interfaces) as responder:
        try:
            responder.register_service(info, allow_name_change=True)
        except (OSError, zeroconf.Error) as error:
            raise UnavailableError("lan.unavailable", f"the local network cannot be told: {error}") from error
        yield


def discover(seconds: float, interfaces: Sequence[str] | None = None) -> list[Found]:
    """Who announces himself within so long, by key; several claims of one key are merged, as all are mere claims.

    Raises:
        UsageError: `lan.missing`; UnavailableError: `lan.unavailable`.
    """
    zeroconf = _module()
    names: set[str] = set()
    lock = threading.Lock()

    def heard(zeroconf: Any, service_type: str, name: str, state_change: Any) -> None:
        with lock:
            if len(names) < MAX_FOUND:
                names.add(name)

    with _responder(zeroconf, interfaces) as responder:
        browser = zeroconf.ServiceBrowser(responder, SERVICE, handlers=[heard])
        time.sleep(seconds)
        browser.cancel()
        with lock:
            known = sorted(names)
        claims = [_read(responder.get_service_info(SERVICE, name, timeout=_RESOLVE_MS)) for name in known]
    found: dict[PublicKey, tuple[str, ...]] = {}
    for claim in claims:
        if claim is not None:
            both = dict.fromkeys((*found.get(claim.key, ()), *claim.addresses))
            found[claim.key] = tuple(both)[:MAX_ADDRESSES]
    return [Found(key, found[key]) for key in sorted(found, key=str)]


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _read(info: Any) -> Found | None:
    """A claim as far as it makes sense; everything in it is somebody's text."""
    if info is None or not info.port:
        return None
    try:
        key = PublicKey.parse((info.properties.get(_KEY) or b"").decode("ascii"))
    except (ProtocolError, UnicodeDecodeError):
        return None
    hosts = [str(ipaddress.ip_address(packed)) for packed in info.addresses_by_version(_module().IPVersion.All)]
    return Found(key, tuple(join_address(host, info.port) for host in hosts[:MAX_ADDRESSES]))


@contextmanager
def _responder(zeroconf: ModuleType, interfaces: Sequence[str] | None) -> Iterator[Any]:
    try:
        responder = zeroconf.Zeroconf(interfaces=list(interfaces) if interfaces else zeroconf.InterfaceChoice.Default)
    except OSError as error:
        raise UnavailableError(
            "lan.unavailable", f"multicast DNS does not work here: {error.strerror}", hint="kvsync peer add"
        ) from error
    try:
        yield responder
    finally:
        responder.close()


def _module() -> ModuleType:
    try:
        import zeroconf
    except ImportError as error:
        raise UsageError(
            "lan.missing", "the local network cannot be searched without zeroconf", hint="install the extra lan"
        ) from error
    return zeroconf
