"""Networks as an owner writes them down, and whether an address lies in one. Knows no sockets."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

from kvsync.errors import UsageError

MAX_NETWORKS: Final = 100
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Networks:
    """A set of networks; empty holds nothing."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        """Raises UsageError `config.value` for more than MAX_NETWORKS, and for what is no network in CIDR notation or
        has bits beyond its prefix."""
        self.networks = tuple(_network(text) for text in texts)
        if len(self.networks) > MAX_NETWORKS:
            raise UsageError("config.value", f"more than {MAX_NETWORKS} networks")

    def __bool__(self) -> bool:
        return bool(self.networks)

    def __str__(self) -> str:
        return ", ".join(map(str, self.networks))

    def hold(self, host: str) -> bool:
        """Whether `host`, an address as a socket names it, lies in one of them."""
        address: Address = ipaddress.ip_address(host)
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped  # what an IPv6 socket that takes IPv4 as well calls it
        return any(_lies_in(address, network) for network in self.networks)

    @property
    def reachable_from_outside(self) -> tuple[Network, ...]:
        """Those of them with addresses that the whole Internet could have."""
        return tuple(network for network in self.networks if network.is_global)


def _lies_in(address: Address, network: Network) -> bool:
    """Also by the interface where the network names one, as fe80::%eth1/64: others have the same addresses."""
    if address not in network:
        return False
    if isinstance(address, ipaddress.IPv6Address) and isinstance(network, ipaddress.IPv6Network):
        return network.network_address.scope_id in (None, address.scope_id)
    return True


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise UsageError(
            "config.value", f"{text!r} is no network: {error}", hint='use CIDR notation, such as "192.168.7.0/24"'
        ) from error
