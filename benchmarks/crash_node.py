"""The processes that benchmarks/crash.py kills.

    python -m benchmarks.crash_node register OPTIONS… | provide HOME NOTES | pull | push HOME ARTIFACT NOTES

`register` is the program `kvsync-registry`; `provide` is the daemon, in the foreground. `pull` asks the registry who
has the artifact, as a follower does, gets it, and tells the registry that it is here as well; `push` sends it to the
only peer. Whoever sends chunks notes each one before it goes out.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Final

from kvsync import log
from kvsync.cli import _registry
from kvsync.config import Home, Settings
from kvsync.daemon import lifecycle
from kvsync.daemon.epoch import next_epoch
from kvsync.daemon.hearsay import Hearsay
from kvsync.daemon.holdings import Holdings
from kvsync.daemon.messages import Status
from kvsync.daemon.pulling import pull_here
from kvsync.daemon.transfer_params import PullParams
from kvsync.errors import exit_status
from kvsync.keys import KeySpread, NodeKeys, PeerBook, RegistryBook, TrustList
from kvsync.pack.shape import ChunkShape
from kvsync.peer import bulk_client
from kvsync.peer.bulk_server import BulkLane, BulkSession
from kvsync.peer.chunk_file import ChunkFile
from kvsync.peer.deadline import Deadline
from kvsync.peer.identity import NodeIdentity
from kvsync.peer.registry_client import RegistryClient
from kvsync.peer.registry_link import RegistryLink
from kvsync.peer.server import PeerServer
from kvsync.peer.stream import Stream
from kvsync.progress import silent
from kvsync.store import Store, StoreLimits
from kvsync.sync import push
from kvsync_protocol.bulk import BulkRequest, Encoding
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.errors import CodedError
from kvsync_protocol.reader import MEMBERS
from kvsync_protocol.signing import PublicKey

PAUSE_S: Final = 0.004
"""Before each chunk, so that a transfer of a few hundred KiB has a middle."""


class Notes:
    """A file with the index of every chunk that began to go out, kept through any number of kills."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def add(self, index: int) -> None:
        os.write(self._file, f"{index}\n".encode())
        time.sleep(PAUSE_S)


class NotingLane(BulkLane):
    notes: Notes

    def session(self, key: PublicKey, stream: Stream) -> BulkSession:
        session = super().session(key, stream)
        send = session.send_chunk

        def noted(request: BulkRequest, chunk: ChunkFile) -> None:
            self.notes.add(request.index)
            send(request, chunk)

        session.send_chunk = noted  # type: ignore[method-assign]
        return session


def provide(root: Path, notes: Path) -> None:
    NotingLane.notes = Notes(notes)
    PeerServer.bulk_type = NotingLane

    def ready(status: Status) -> None:
        print(status.address, flush=True)

    lifecycle.run(Home(root), ready)


async def fetch(root: Path, artifact: ArtifactId) -> None:
    home = Home(root)
    keys, settings, book = NodeKeys.load(home), Settings.load(home), PeerBook(home)
    trust, registries = TrustList(home, keys.signer.public), RegistryBook(home)
    with Store.open(home.store_dir, StoreLimits.of(settings)) as store:
        hearsay = Hearsay(keys, KeySpread(home, trust), settings, book, registries)
        origins = await hearsay.providers(artifact)
        peers = origins.peers or tuple(peer.name for peer in book.peers() if peer.addresses)
        params = PullParams(peers[0], str(artifact), also=peers[1:], hints=origins.hints)
        await pull_here(store, trust, book, keys, settings, params, silent)
        picture = Holdings(store, trust, book).look()
        for listed in registries.registries():
            connect = partial(RegistryClient, listed.peer, NodeIdentity(keys.peer), settings, Deadline.after(30))
            link = RegistryLink(keys.peer, next_epoch(home.daemon_dir / "epoch"), connect)
            for holding in picture.holdings(MEMBERS):
                link.offer(holding)
            await link.tell()


async def send(root: Path, artifact: ArtifactId, notes: Notes) -> None:
    really = bulk_client.BulkConnection.send

    def noted(
        connection: bulk_client.BulkConnection,
        artifact: ArtifactId,
        index: int,
        chunk: ChunkFile,
        encoding: Encoding,
        shape: ChunkShape | None = None,
    ) -> int:
        notes.add(index)
        return really(connection, artifact, index, chunk, encoding, shape)

    bulk_client.BulkConnection.send = noted  # type: ignore[method-assign]
    home = Home(root)
    [peer] = PeerBook(home).peers()
    settings = Settings.load(home)
    with Store.open(home.store_dir, StoreLimits.of(settings)) as store:
        await push(store, peer, artifact, keys=NodeKeys.load(home), settings=settings)


def main() -> int:
    log.configure()
    try:
        match sys.argv[1:]:
            case ["register", *words]:
                return _registry.main(words)
            case ["provide", root, notes]:
                provide(Path(root), Path(notes))
            case ["pull", root, artifact, _]:
                asyncio.run(fetch(Path(root), ArtifactId(Digest.parse(artifact))))
            case ["push", root, artifact, notes]:
                asyncio.run(send(Path(root), ArtifactId(Digest.parse(artifact)), Notes(Path(notes))))
            case words:
                raise SystemExit(f"unknown: {words}")
    except CodedError as error:
        print(f"{error.code}: {error.message}", file=sys.stderr)
        return exit_status(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
