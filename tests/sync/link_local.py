"""Pulls over an IPv6 address of one link, in a network namespace; prints where they went and whether in the clear."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
from pathlib import Path

from tests.conftest import SIGNER, build_artifact
from tests.sync.nodes import Node

PLACE = "fe80::1%lo"
LISTED = ("", "fe80::/64", "fe80::%lo/64", "fe80::%eth0/64")
"""What each pull's owners list."""


async def pull(root: Path, network: str) -> None:
    artifact = build_artifact(tokens=120)
    provider, getter = Node(root, "provider"), Node(root, "getter")
    provider.meet(getter, "get")
    for node in (provider, getter):
        node.trust.add("signer", SIGNER.public)
        node.settings = dataclasses.replace(
            node.settings, listen_host=PLACE, unencrypted_bulk_networks=(network,) if network else ()
        )
    provider.keep(artifact)
    async with provider.serving():
        host, _, port = provider.address.rpartition(":")
        report = await getter.pull(provider, artifact.id, peer=provider.as_peer(f"[{host}]:{port}"))
    assert report.bytes_moved == sum(map(len, artifact.chunks))
    print(host, report.bytes_unencrypted == report.bytes_wire)
    for node in (provider, getter):
        node.close()


if __name__ == "__main__":
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "address", "add", "fe80::1/64", "dev", "lo", "nodad"], check=True)
    for number, listed in enumerate(LISTED):
        asyncio.run(pull(Path(sys.argv[1]) / str(number), listed))
