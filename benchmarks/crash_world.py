"""A registry, a provider and a getter that know each other, as processes that can be killed and started again.

    registry  kvsync-registry over SQLite   ◄─ told by the provider's daemon, the getter, and a teller (teller.py)
    provider  a daemon with one artifact    ◄─ pulled from, or pushed to, by the getter
    getter    one transfer, which asks the registry first

Knows how they are run, not when they are killed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks import trap
from benchmarks.seeded import SIGNER, Artifact, build_artifact
from benchmarks.soundness import store_problems
from benchmarks.teller import Teller
from benchmarks.trap import Trap
from kvsync.config import Home, Settings
from kvsync.errors import NotFoundError
from kvsync.keys import ListedRegistry, NodeKeys, Peer, PeerBook, RegistryBook, TrustList
from kvsync.store import Store, StoreLimits
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.signing import SigningKey

ROLES: Final = ("registry", "provider", "getter")
STREAMS: Final = 3
SETTINGS: Final = Settings(free_floor_bytes=0, streams=STREAMS, stall_timeout_s=10, transfer_deadline_s=60)
LIMITS: Final = StoreLimits.of(SETTINGS)
PATIENCE_S: Final = 120.0


class World:
    """Context manager. `kept` is the provider's artifact, `sent` the one that is pushed to it."""

    def __init__(self, root: Path) -> None:
        self.homes = {role: Home(root / role) for role in ROLES}
        self.kept, self.sent = (build_artifact(seed, 400, heads=2, dim=32) for seed in (0, 1))
        self.teller = Teller(SigningKey(hashlib.sha256(b"teller").digest()))
        self._keys: dict[str, NodeKeys] = {}
        self._notes, self._errors = root / "notes", root / "errors"
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._addresses = dict.fromkeys(ROLES, "127.0.0.1:0")

    def __enter__(self) -> World:
        try:
            self._meet()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _meet(self) -> None:
        for role, home in self.homes.items():
            home.create()
            self._keys[role] = NodeKeys.create(home)
            TrustList(home, self._keys[role].signer.public).add("signer", SIGNER.public)
            SETTINGS.save(home)
        peers = {role: Peer(role, keys.peer.public, (), ("get", "push")) for role, keys in self._keys.items()}
        registry, provider, getter = (self.homes[role] for role in ROLES)
        for peer in (peers["provider"], peers["getter"], Peer("teller", self.teller.key.public, (), ("get", "push"))):
            PeerBook(registry).add(peer)
        PeerBook(provider).add(peers["getter"])
        _keep(provider, self.kept)
        self.start("registry")
        self.teller.registry = replace(peers["registry"], addresses=(self._addresses["registry"],), roles=())
        for home in (provider, getter):
            RegistryBook(home).add(ListedRegistry(self.teller.registry, "members"))
        self.start("provider")
        PeerBook(getter).add(replace(peers["provider"], addresses=(self._addresses["provider"],)))

    def __exit__(self, *_: object) -> None:
        for role in list(self._running):
            self.kill(role)

    # processes

    def start(self, role: str, trapped: Trap | None = None) -> bool:
        """A server, where it was before. False when it died before it was ready, which only a trapped one may."""
        home, address = self.homes[role], self._addresses[role]
        if role == "registry":
            words = ["register", "--json", "--home", str(home.root), "--listen", address]
        else:
            replace(SETTINGS, listen_port=int(address.rpartition(":")[2])).save(home)
            words = ["provide", str(home.root), str(self._notes)]
        process = self._running[role] = trap.start(["benchmarks.crash_node", *words], self._errors, trapped)
        line = process.stdout.readline() if process.stdout is not None else ""
        if not line:
            process.wait()
            if trapped is None:
                raise RuntimeError(f"the {role} does not start: {self._errors.read_text()[-2000:]}")
            return False
        self._addresses[role] = json.loads(line)["address"] if role == "registry" else line.strip()
        return True

    def process(self, role: str) -> subprocess.Popen[str]:
        """The server that runs, or has run last."""
        return self._running[role]

    def kill(self, role: str) -> bool:
        """End a server with SIGKILL; False when it was dead already, or none."""
        process = self._running.pop(role, None)
        if process is None:
            return False
        alive = process.poll() is None
        process.kill()
        process.communicate()
        return alive

    def transfer(self, action: str, trapped: Trap | None = None) -> subprocess.Popen[str]:
        """Start the getter: `pull` what the provider keeps, or `push` what it lacks."""
        words = [action, str(self.homes["getter"].root), str(self.artifact(action).id), str(self._notes)]
        process = trap.start(["benchmarks.crash_node", *words], self._errors, trapped)
        if process.stdout is not None:
            process.stdout.close()
        return process

    # what is moved

    def artifact(self, action: str) -> Artifact:
        return self.kept if action == "pull" else self.sent

    def target(self, action: str) -> Home:
        """Where the artifact arrives."""
        return self.homes["getter" if action == "pull" else "provider"]

    def begin(self, action: str) -> None:
        """The target has nothing of the artifact yet."""
        getter, provider = self.homes["getter"], self.homes["provider"]
        shutil.rmtree(getter.store_dir, ignore_errors=True)
        getter.create()
        if action == "push":
            _keep(getter, self.sent)
            with Store.open(provider.store_dir, LIMITS) as store:
                with suppress(NotFoundError):
                    store.remove(self.sent.id)
                store.gc()
        self._notes.write_text("")

    @property
    def moved(self) -> list[int]:
        """Indices of all chunks that began to go out since `begin`, by any life of whoever sends."""
        return [int(word) for word in self._notes.read_text().split()]

    def await_moved(self, count: int, moving: subprocess.Popen[str]) -> None:
        """Until so many chunks have begun to go out, or the transfer has ended."""
        give_up = time.monotonic() + PATIENCE_S
        while len(self.moved) < count and moving.poll() is None:
            if time.monotonic() > give_up:
                raise RuntimeError("nothing is moved")
            time.sleep(0.002)

    # checks, each a list of what is wrong

    def problems_of(self, role: str) -> list[str]:
        return [f"{role}: {each}" for each in store_problems(self.homes[role].store_dir, LIMITS)]

    def lacking(self, action: str) -> list[str]:
        """The artifact is where it was to go, with the right bytes, and nothing else is left of its way there."""
        home, expected = self.target(action), self.artifact(action)
        found, digests = [], {hashlib.sha256(chunk).hexdigest() for chunk in expected.chunks}
        if not digests <= {path.name for path in (home.store_dir / "chunks").glob("*/*")}:
            found.append("chunks of the artifact are missing")
        with Store.open(home.store_dir, LIMITS) as store:
            stored = store.whole(expected.id)
            if stored is None or stored.leaves().encode() != expected.leaves:
                found.append("the artifact is not whole")
            store.gc()
            usage = store.usage()
        if usage.drafts or usage.leases:
            found.append(f"{usage.drafts} drafts and {usage.leases} leases are left")
        left = [path.name for name in ("tmp", "partial", "quarantine") for path in (home.store_dir / name).iterdir()]
        return [*found, *([f"files are left: {left}"] if left else [])]

    def untold(self, artifact: ArtifactId) -> list[str]:
        """The registry comes to name both who have the artifact."""
        wanted = {self._keys[role].peer.public for role in ("provider", "getter")}
        give_up = time.monotonic() + 30
        while wanted - self.teller.providers(artifact):
            if time.monotonic() > give_up:
                return ["the registry does not come to know who has the artifact"]
            time.sleep(0.2)
        return []


def _keep(home: Home, artifact: Artifact) -> None:
    with Store.open(home.store_dir, LIMITS) as store, store.pull_draft(*artifact.parts) as draft:
        for index in draft.missing():
            draft.put(index, artifact.chunks[index])
        draft.publish()
