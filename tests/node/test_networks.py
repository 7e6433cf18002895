"""Which addresses lie in the networks that an owner has listed."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsync.errors import UsageError
from kvsync.networks import Networks


@pytest.mark.parametrize(
    ("networks", "host", "held"),
    [
        ((), "127.0.0.1", False),
        (("192.168.7.0/24",), "192.168.7.255", True),
        (("192.168.7.0/24",), "192.168.8.0", False),
        (("192.168.7.0/24",), "::ffff:192.168.7.1", True),
        (("192.168.7.0/24",), "::ffff:192.168.8.1", False),
        (("192.168.7.0/24",), "::192.168.7.1", False),
        (("::ffff:0:0/96",), "10.0.0.1", False),
        (("10.0.0.0/8", "fe80::/10"), "fe80::1%eth0", True),
        (("fe80::%eth1/64",), "fe80::1%eth1", True),
        (("fe80::%eth1/64",), "fe80::1%eth0", False),
        (("fe80::%eth1/64",), "fe80::1", False),
        (("fe80::%eth1/64", "10.0.0.0/8"), "10.0.0.1", True),
        (("0.0.0.0/0",), "::1", False),
        (("10.1.2.3",), "10.1.2.3", True),
        (("10.1.2.3",), "10.1.2.4", False),
    ],
)
def test_an_address_is_held_by_the_networks_it_lies_in(networks: tuple[str, ...], host: str, held: bool) -> None:
    assert Networks(networks).hold(host) is held


@given(st.ip_addresses(), st.integers(0, 32))
def test_every_address_lies_in_the_network_around_it(address: ipaddress.IPv4Address, prefix: int) -> None:
    around = ipaddress.ip_network(f"{address}/{prefix}", strict=False)
    assert Networks([str(around)]).hold(str(address)) or getattr(address, "ipv4_mapped", None) is not None


def test_what_the_whole_internet_could_have_is_told_apart() -> None:
    found = Networks(["10.0.0.0/8", "8.8.8.0/24", "100.64.0.0/10", "0.0.0.0/0", "2000::/3", "fd00::/8", "127.0.0.1"])
    assert [str(each) for each in found.reachable_from_outside] == ["8.8.8.0/24", "0.0.0.0/0", "2000::/3"]


def test_no_network_is_an_error() -> None:
    with pytest.raises(UsageError) as caught:
        Networks(["10.0.0.0/8", "site-a"])
    assert caught.value.code == "config.value"
