"""Addresses of this host's network interfaces, as Linux lists them, without loopback and link-local ones."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path
from typing import Final

_SIOCGIFADDR: Final = 0x8915
_IPV6: Final = Path("/proc/net/if_inet6")


def local_addresses(*, ipv6: bool = True) -> list[str]:
    """IPv4 first, then global IPv6; at least loopback."""
    found = [address for _, name in socket.if_nameindex() if (address := _ipv4(name)) is not None]
    if ipv6:
        found += _ipv6()
    reachable = [each for each in dict.fromkeys(found) if _reachable(each)]
    return reachable or ["127.0.0.1"]


def _reachable(text: str) -> bool:
    address = ipaddress.ip_address(text)
    return not (address.is_loopback or address.is_link_local or address.is_unspecified)


def _ipv4(interface: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return None  # an interface without an IPv4 address
    return socket.inet_ntoa(answer[20:24])


def _ipv6() -> list[str]:
    try:
        lines = _IPV6.read_text().splitlines()
    except OSError:
        return []  # no IPv6 on this host
    return [str(ipaddress.IPv6Address(int(line.split()[0], 16))) for line in lines]
