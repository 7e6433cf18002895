"""Whether the time of a refusal tells what is here: requests for a hidden artifact against those for an absent one.

    python -m benchmarks.access [--json] [--requests N]

A node keeps an artifact whose names the asking peer may not see. The peer asks for it and for one that is not there,
in turns that a seed draws, on the control lane (its envelope), the bulk lane (a chunk) and in a registry (its
providers; a SQLite one, asked in process). For each way: medians and quartiles of both, and how often a single pair
of answers would tell them apart, were one to guess that the slower of the two is the hidden one. 50 % is a coin.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import socket
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.pair import LIMITS, open_node
from benchmarks.seeded import build_artifact
from kvsync.config import Settings
from kvsync.keys import Peer, PeerBook, TrustList
from kvsync.peer.identity import NodeIdentity
from kvsync.peer.server import PeerServer
from kvsync.store import Store
from kvsync_protocol import bulk, routes
from kvsync_protocol.announcement import Announcement, Moment
from kvsync_protocol.bulk import BulkReply, BulkRequest, Encoding, Status, Verb
from kvsync_protocol.digest import ArtifactId, PrefixKey, sha256
from kvsync_protocol.ref import Ref
from kvsync_protocol.signing import PublicKey, SigningKey
from kvsync_registry.member import Member
from kvsync_registry.service import Registry
from kvsync_registry.sqlite import SqliteRegistryStore

ABSENT: Final = ArtifactId(sha256(b"nobody has it"))
WARM_UP: Final = 200
BAR: Final = 0.05
"""How far from a coin guesses may be, either way."""

Ask = Callable[[bool], None]
"""Ask once, for the hidden one or for the absent one, and wait for the answer."""


def measure(ask: Ask, requests: int, seed: int) -> dict[str, Any]:
    """Times of `requests` answers of each kind."""
    drawn = random.Random(seed)
    turns = [True, False] * (requests + WARM_UP)
    drawn.shuffle(turns)
    times: dict[bool, list[float]] = {True: [], False: []}
    for turn, hidden in enumerate(turns):
        began = time.perf_counter()
        ask(hidden)
        took = time.perf_counter() - began
        if turn >= 2 * WARM_UP:
            times[hidden].append(took * 1e6)
    hidden, absent = times[True], times[False]
    return {"hidden_us": spread(hidden), "absent_us": spread(absent), "told_apart": told_apart(hidden, absent)}


def spread(times: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(times, n=4)
    return {"p25": round(low, 1), "median": round(middle, 1), "p75": round(high, 1), "count": len(times)}


def told_apart(hidden: list[float], absent: list[float]) -> float:
    """The share of all pairs in which the hidden one's answer came later: 0.5 when times tell nothing."""
    ranked = sorted([(took, True) for took in hidden] + [(took, False) for took in absent])
    earlier = later = 0
    for _, is_hidden in ranked:
        if is_hidden:
            later += earlier
        else:
            earlier += 1
    return round(later / (len(hidden) * len(absent)), 4)


def connect(identity: NodeIdentity, pin: Any, address: tuple[str, int], protocol: str) -> ssl.SSLSocket:
    plain = socket.create_connection(address)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return identity.client_context([pin], protocol).wrap_socket(plain)


def over_control(connection: ssl.SSLSocket, hidden: ArtifactId) -> Ask:
    frames = {
        which: f"GET {routes.path(routes.ENVELOPE, name)} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        for which, name in ((True, hidden), (False, ABSENT))
    }

    def ask(which: bool) -> None:
        connection.sendall(frames[which])
        if not answer(connection).startswith(b"HTTP/1.1 404 "):
            raise RuntimeError("it was not refused")

    return ask


def answer(connection: ssl.SSLSocket) -> bytes:
    """Head and body, in however many pieces they come."""
    data = b""
    while True:
        piece = connection.recv(65_536)
        if not piece:
            raise RuntimeError("the connection was closed")
        data += piece
        head, end, body = data.partition(b"\r\n\r\n")
        if end:
            length = next(int(x[16:]) for x in head.lower().split(b"\r\n") if x.startswith(b"content-length: "))
            if len(body) >= length:
                return data


def over_bulk(connection: ssl.SSLSocket, hidden: ArtifactId) -> Ask:
    frames = {
        which: BulkRequest(Verb.GET, name, 0, Encoding.IDENTITY).encode()
        for which, name in ((True, hidden), (False, ABSENT))
    }

    def ask(which: bool) -> None:
        connection.sendall(frames[which])
        if BulkReply.decode(connection.recv(bulk.REPLY_BYTES)).status is not Status.NOT_FOUND:
            raise RuntimeError("it was not refused")

    return ask


class Two:
    """The registry's members: one who tells, and one who belongs to somebody else."""

    def __init__(self, teller: PublicKey, asker: PublicKey) -> None:
        self._members = {teller: Member(teller, "one", publish=True), asker: Member(asker, "two")}

    def find(self, caller: PublicKey) -> Member | None:
        return self._members.get(caller)


def in_registry(path: Path) -> Ask:
    teller, asker = SigningKey(b"\x01" * 32), SigningKey(b"\x02" * 32)
    registry = Registry(SqliteRegistryStore(path), Two(teller.public, asker.public))
    digest = sha256(b"fingerprint")
    hidden = [ArtifactId(sha256(b"hidden %d" % number)) for number in range(500)]
    said = [
        Announcement(
            Moment(1, number + 1), name, digest, digest, (PrefixKey(name),), 1000, ("tenant:one",), 3600
        ).seal(teller)
        for number, name in enumerate(hidden)
    ]
    if set(registry.declare(teller.public, said).outcomes) != {"ok"}:
        raise RuntimeError("not all was heard")
    names = {True: hidden[7], False: ABSENT}

    def ask(which: bool) -> None:
        if registry.providers(asker.public, names[which]).matches:
            raise RuntimeError("it was not refused")

    return ask


async def run(root: Path, requests: int, seed: int) -> dict[str, Any]:
    home, keys = open_node(root / "provider")
    _, other = open_node(root / "asking")
    hidden, seen = build_artifact(1, 400), build_artifact(2, 400)
    PeerBook(home).add(Peer("asking", other.peer.public, (), ("get",), ("team/*",)))
    with Store.open(home.store_dir, LIMITS) as store:
        for made, name in ((hidden, "other/a"), (seen, "team/b")):
            with store.pull_draft(*made.parts) as draft:
                for index in draft.missing():
                    draft.put(index, made.chunks[index])
                draft.publish()
            ref = Ref(name, made.id, 1)
            store.set_ref(ref, ref.seal(keys.signer), keys.signer.public)
        server = PeerServer(store, keys, home, TrustList(home, keys.signer.public), Settings())
        address = await server.start()
        identity, found = NodeIdentity(other.peer), {}
        try:
            for way, protocol, make in (("control", "http/1.1", over_control), ("bulk", bulk.ALPN, over_bulk)):

                def asked(protocol: str = protocol, make: Any = make) -> dict[str, Any]:
                    with connect(identity, keys.peer.public, address, protocol) as connection:
                        return measure(make(connection, hidden.id), requests, seed)

                found[way] = await asyncio.to_thread(asked)
        finally:
            await server.stop()
    found["registry"] = await asyncio.to_thread(measure, in_registry(root / "registry.sqlite"), requests, seed)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--requests", type=int, default=3000, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="kvsync-access-"))
    try:
        ways = asyncio.run(run(root, options.requests, options.seed))
    finally:
        shutil.rmtree(root)
    held = all(abs(way["told_apart"] - 0.5) <= BAR for way in ways.values())
    if options.json:
        print(json.dumps({"ways": ways, "held": held}))
    else:
        for name, way in ways.items():
            print(
                f"{name:9} hidden {way['hidden_us']['median']:8.1f} µs   absent {way['absent_us']['median']:8.1f} µs",
                end="",
            )
            print(f"   {100 * way['told_apart']:.1f} % told apart (50 % is a coin)")
        print(f"within {100 * BAR:.0f} % of a coin: {held}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
