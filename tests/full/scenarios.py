"""What a node writes beside chunks, one scenario each: the write, and what must be true whether or not it found room.

`act` writes and may be refused. `sound` is called after each attempt, on the disk that is still full: it raises
unless everything is as before the attempt, or, where that is promised, as after a part of it.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from kvsync.bundle import export_bundle, import_bundle
from kvsync.config import Home, Settings
from kvsync.daemon.epoch import next_epoch
from kvsync.daemon.follows import Follow, Follows
from kvsync.daemon.jobs import JobQueue
from kvsync.daemon.messages import JobKind, JobState, new_job_id
from kvsync.daemon.offered import OfferedModel, OfferedModels
from kvsync.daemon.transfer_params import PullParams
from kvsync.errors import StoreError
from kvsync.evidence.sequence import next_sequence, note
from kvsync.keys import KeyRing, KeySpread, ListedRegistry, NodeKeys, Peer, PeerBook, RegistryBook, TrustList
from kvsync.keys.invitations import Invitations
from kvsync.library.entries import EntryStore
from kvsync.library.evaluation.journal import Journal
from kvsync.library.problem import Problem
from kvsync.peer.blame import BlameBook
from kvsync.store import Store, StoreLimits
from kvsync_protocol.digest import sha256
from kvsync_protocol.entry import Entry, EntryCost, VerifierRecord
from kvsync_protocol.errors import IntegrityError
from kvsync_protocol.join import Introduction, JoinRequest
from kvsync_protocol.ref import Ref
from kvsync_protocol.revocation import RevocationList
from kvsync_protocol.signing import SigningKey
from kvsync_protocol.statements import KeyStatements
from kvsync_protocol.trial import SPLITS_OF, Asked
from kvsync_registry.sqlite import SqliteRegistryStore
from tests.conftest import SIGNER, build_artifact
from tests.registry.world import World
from tests.sync.forging import attested, diverging

NO_FLOOR = StoreLimits(free_floor_bytes=0)
OTHERS = [SigningKey(bytes([number]) * 32) for number in range(40, 60)]


def check(condition: object, what: str) -> None:
    if not condition:
        raise RuntimeError(what)


class Scenario:
    """A node in `folder`, made while there is room."""

    codes = ("store.full",)
    """How a refusal may be called."""
    database = False
    """Whether SQLite writes too: a file that may not grow is no full disk to it."""

    def __init__(self, folder: Path) -> None:
        self.home = Home(folder / "node")
        self.home.create()
        self.keys = NodeKeys.create(self.home)
        self.trust = TrustList(self.home, self.keys.signer.public)
        self.book = PeerBook(self.home)
        self.prepare()

    def prepare(self) -> None: ...

    def act(self) -> None:
        raise NotImplementedError

    def sound(self, done: bool) -> None:
        raise NotImplementedError

    def close(self) -> None: ...


class TrustAdded(Scenario):
    def act(self) -> None:
        self.trust.add("other", OTHERS[0].public)

    def sound(self, done: bool) -> None:
        check([s.name for s in self.trust.signers()] == ["other"] * done, "another list than before or after")


class TrustRemoved(Scenario):
    def prepare(self) -> None:
        for number, key in enumerate(OTHERS):
            self.trust.add(f"other-{number}", key.public)

    def act(self) -> None:
        self.trust.remove("other-3")

    def sound(self, done: bool) -> None:
        check(len(self.trust.signers()) == len(OTHERS) - done, "another list than before or after")


class PeerLimited(Scenario):
    def prepare(self) -> None:
        self.book.add(Peer("other", OTHERS[0].public, ("host:1",)))

    def act(self) -> None:
        self.book.limit("other", paused=True)

    def sound(self, done: bool) -> None:
        check([peer.paused for peer in self.book.peers()] == [done], "another list than before or after")


class KeyRevoked(Scenario):
    def prepare(self) -> None:
        self.trust.add("authority", OTHERS[0].public, authority=True)
        self.trust.add("other", OTHERS[1].public)
        found = RevocationList(OTHERS[0].public, 1, (OTHERS[1].public,)).seal(OTHERS[0])
        self.message = KeyStatements((), (found,))

    def act(self) -> None:
        KeySpread(self.home, self.trust).take(self.message)

    def sound(self, done: bool) -> None:
        counting = self.trust.keys()
        check((OTHERS[1].public in counting) != done, "neither before nor after")


class KeyRotated(Scenario):
    def act(self) -> None:
        KeyRing(self.home).rotate("signer", 3600)

    def sound(self, done: bool) -> None:
        found = NodeKeys.load(self.home).signer.public
        check((found != self.keys.signer.public) == done, "a key that no statement makes count is in use")


class TicketGiven(Scenario):
    def act(self) -> None:
        Invitations(self.home).invite(self.keys.peer.public, ("host:1",), 3600)

    def sound(self, done: bool) -> None:
        check(len(Invitations(self.home).list()) == done, "a ticket that nobody was given")


class TicketSpent(Scenario):
    """A host joins: peers, trust and tickets change together, or it can join again with the same ticket."""

    def prepare(self) -> None:
        own, joiner = self.keys.peer.public, OTHERS[0].public
        ticket = Invitations(self.home).invite(own, ("host:1",), 3600, trust_signer=True)
        about = Introduction("joiner", OTHERS[1].public, ("host:2",), ())
        self.request = JoinRequest(own, joiner, about).seal(ticket.key)

    def act(self) -> None:
        Invitations(self.home).spend(self.request, OTHERS[0].public, self.keys.peer.public, self.trust)

    def sound(self, done: bool) -> None:
        [ticket] = Invitations(self.home).list()
        check(ticket.done >= done, "a ticket that was used is open")
        check(len(self.book.peers()) >= ticket.done, "a ticket is spent, and nobody has joined")
        check(len(self.trust.signers()) >= ticket.done, "a ticket is spent, and its signer is not trusted")


class RegistryAdded(Scenario):
    def act(self) -> None:
        RegistryBook(self.home).add(ListedRegistry(Peer("registry", OTHERS[0].public, ("host:1",), ())))

    def sound(self, done: bool) -> None:
        check(len(RegistryBook(self.home).registries()) == done, "another list than before or after")


class ModelOffered(Scenario):
    def act(self) -> None:
        prints = build_artifact(1).manifest.fingerprints
        OfferedModels(self.home).add(OfferedModel("tiny", self.home.root, None, "cpu", prints))

    def sound(self, done: bool) -> None:
        check(len(OfferedModels(self.home).models()) == done, "another list than before or after")


class NameFollowed(Scenario):
    def act(self) -> None:
        Follows(self.home).add([Follow("team/*")])

    def sound(self, done: bool) -> None:
        check(len(Follows(self.home).follows()) == done, "another list than before or after")


class SettingsSaved(Scenario):
    def act(self) -> None:
        Settings(streams=5).save(self.home)

    def sound(self, done: bool) -> None:
        check((Settings.load(self.home).streams == 5) == done, "other settings than before or after")


class EpochBegun(Scenario):
    def prepare(self) -> None:
        self.path = self.home.root / "epoch"
        self.last = next_epoch(self.path)

    def act(self) -> None:
        self.now = next_epoch(self.path)

    def sound(self, done: bool) -> None:
        check(int(self.path.read_text()) >= self.last, "an epoch that was given out is forgotten")


class NumberGiven(Scenario):
    def prepare(self) -> None:
        self.first = next_sequence(self.home)

    def act(self) -> None:
        self.second = next_sequence(self.home)
        note(self.home, self.keys.signer.public, self.second, sha256(b"prereg"))

    def sound(self, done: bool) -> None:
        check(self.home.prereg_file.read_text(), "numbers that were given out are forgotten")


class PeerBlamed(Scenario):
    """What cannot be noted while chunks move is no reason to end that."""

    def act(self) -> None:
        error = IntegrityError("integrity.chunk", "wrong")
        if BlameBook(self.home).note(self.keys.signer, OTHERS[0].public, build_artifact(1).id, 0, error) is None:
            raise StoreError("store.full", "it says so by returning nothing")

    def sound(self, done: bool) -> None:
        found = BlameBook(self.home).records(frozenset({self.keys.signer.public}))
        check(len(found) == done, "a record that was not made, or one lost")


class Stored(Scenario):
    """With two artifacts that contradict each other in the store."""

    database = True

    def prepare(self) -> None:
        self.artifact, self.other = diverging_pair()
        self.store = Store.open(self.home.store_dir, NO_FLOOR)
        self.fill(self.artifact)

    def fill(self, artifact: Any, **options: Any) -> None:
        with self.store.pull_draft(*artifact.parts, **options) as draft:
            for index in draft.missing():
                draft.put(index, artifact.chunks[index])
            draft.publish()

    def sound(self, done: bool) -> None:
        self.store.gc()
        check(self.store.whole(self.artifact.id), "the artifact is not whole")
        self.seen(done)
        check(self.store.fsck().clean, "fsck")

    def seen(self, done: bool) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.store.close()


def diverging_pair() -> tuple[Any, Any]:
    artifact = build_artifact(1)
    return artifact, diverging(artifact, 0, OTHERS[2])


class Attested(Stored):
    def act(self) -> None:
        self.store.add_attestation(attested(self.artifact, OTHERS[0]), {OTHERS[0].public})

    def seen(self, done: bool) -> None:
        check(len(self.store.attestations(self.artifact.id)) >= done, "what was kept is lost")


class Refuted(Stored):
    def act(self) -> None:
        self.store.evidence.refute(attested(self.artifact, OTHERS[0]))

    def seen(self, done: bool) -> None:
        check((self.store.evidence.refutation(self.artifact.id) is not None) >= done, "what was kept is lost")


class Diverged(Stored):
    def prepare(self) -> None:
        super().prepare()
        self.fill(self.other)
        described = self.store.evidence.describe(self.artifact.id)
        [(self.record, _)] = list(self.store.evidence.contradictions(described))[:1]

    def act(self) -> None:
        self.store.evidence.add_divergence(self.record)

    def seen(self, done: bool) -> None:
        check(len(self.store.evidence.divergences()) >= done, "what was kept is lost")


class Named(Stored):
    def act(self) -> None:
        ref = Ref("a/name", self.artifact.id, 1)
        self.store.set_ref(ref, ref.seal(SIGNER), SIGNER.public)

    def seen(self, done: bool) -> None:
        check(len(self.store.refs()) >= done, "a name that was given is lost")


class Signed(Stored):
    def act(self) -> None:
        self.store.add_signatures(self.artifact.manifest.seal(OTHERS[0]), {OTHERS[0].public})

    def seen(self, done: bool) -> None:
        found = self.store.artifact(self.artifact.id).envelope
        check(len(found.signatures) >= 1 + done, "a signature is lost")


class PartPulled(Stored):
    """A part becomes a larger part: what was kept before covers what it covered."""

    def prepare(self) -> None:
        self.artifact = build_artifact(1, 100)
        self.store = Store.open(self.home.store_dir, NO_FLOOR)
        self.fill(self.artifact, positions=[32])

    def act(self) -> None:
        self.fill(self.artifact, positions=[80])

    def seen(self, done: bool) -> None:
        stored = self.store.artifact(self.artifact.id)
        check(stored.covers(32), "what was kept is lost")
        check(stored.covers(80) >= done, "what was published is lost")


class Computed(Stored):
    """Journal, chunks, tables and what it took."""

    def act(self) -> None:
        made = build_artifact(7)
        with self.store.compute_draft(sha256(b"plan")) as draft:
            for chunk in made.chunks[len(draft.leaves) :]:
                draft.append(chunk)
            draft.publish(*made.parts, cost_s=1.0)

    def seen(self, done: bool) -> None:
        check((self.store.whole(build_artifact(7).id) is not None) >= done, "what was published is lost")


class Imported(Stored):
    """Verified chunks of a bundle stay; nothing of it is seen before all of it is here."""

    def prepare(self) -> None:
        super().prepare()
        self.extra = [build_artifact(8, 56), build_artifact(9, 56)]
        self.trust.add("signer", SIGNER.public)
        self.file = self.home.root / "bundle"
        with Store.open(self.home.root / "source", NO_FLOOR) as source:
            for artifact in self.extra:
                with source.pull_draft(*artifact.parts) as draft:
                    for index in draft.missing():
                        draft.put(index, artifact.chunks[index])
                    draft.publish()
            export_bundle(source, [a.id for a in self.extra], self.file, keys=self.keys)
        self.data = self.file.read_bytes()

    def act(self) -> None:
        import_bundle(
            self.store, self.trust, io.BytesIO(self.data), name="bundle", keys=self.keys, settings=Settings()
        )

    def seen(self, done: bool) -> None:
        found = [self.store.whole(artifact.id) is not None for artifact in self.extra]
        check(all(found) >= done, "what was published is lost")


class Exported(Stored):
    def prepare(self) -> None:
        super().prepare()
        self.file = self.home.root / "bundle"

    def act(self) -> None:
        export_bundle(self.store, [self.artifact.id], self.file, keys=self.keys)

    def seen(self, done: bool) -> None:
        check(self.file.exists() == done, "half a bundle has a name")


class StoreOpened(Stored):
    """A store is opened anew, by another version that makes its index again."""

    def act(self) -> None:
        self.store.close()
        try:
            (self.home.store_dir / "index.sqlite").unlink(missing_ok=True)
            Store.open(self.home.store_dir, NO_FLOOR).close()
        finally:
            self.reopen()

    def reopen(self) -> None:
        try:
            self.store = Store.open(self.home.store_dir, NO_FLOOR)
        except StoreError:
            check(not (self.home.store_dir / "reserve").exists(), "there was a reserve")
            raise

    def sound(self, done: bool) -> None:
        if done:
            super().sound(done)

    def seen(self, done: bool) -> None:
        check(self.store.whole(self.artifact.id), "what was published is lost")


class RegistryOpened(Scenario):
    codes = ("registry.disk",)
    database = True

    def act(self) -> None:
        SqliteRegistryStore(self.home.registry_file).close()

    def sound(self, done: bool) -> None:
        check(self.home.registry_file.exists() >= done, "it is gone")


class QueueOpened(Scenario):
    database = True

    def act(self) -> None:
        JobQueue.open(self.home.root / "jobs.sqlite").close()

    def sound(self, done: bool) -> None:
        check((self.home.root / "jobs.sqlite").exists() >= done, "it is gone")


class Announced(Scenario):
    codes = ("registry.disk",)
    database = True

    def prepare(self) -> None:
        self.store = SqliteRegistryStore(self.home.registry_file)
        self.world = World(self.store)
        self.world.join("alpha", "beta")
        check(self.world.announce("alpha", "first", range(20)) == "ok", "the first announcement")
        self.count = 0

    def act(self) -> None:
        self.count += 1
        self.world.say(
            "alpha", *(self.world.announcement("alpha", f"{self.count}-{n}", range(n, n + 60)) for n in range(20))
        )

    def sound(self, done: bool) -> None:
        check(self.world.lookup("beta", range(20)).shared == 20, "what was announced is lost")

    def close(self) -> None:
        self.store.close()


class Queued(Scenario):
    database = True

    def prepare(self) -> None:
        self.queue = JobQueue.open(self.home.root / "jobs.sqlite")
        self.running = self.queue.submit(new_job_id(), JobKind.PULL, PullParams("lab", "first")).id
        self.queue.claim([JobKind.PULL])

    def act(self) -> None:
        self.queue.submit(new_job_id(), JobKind.PULL, PullParams("lab", "a" * 3000))
        self.queue.finish(self.running, JobState.DONE, result={"seconds": 1.5})

    def sound(self, done: bool) -> None:
        state = self.queue.get(self.running).state
        check(state in (JobState.RUNNING, JobState.DONE), "a job is in another state")
        check((state is JobState.DONE) >= done, "a finished job is not")

    def close(self) -> None:
        self.queue.close()


class Judged(Scenario):
    """An evaluation goes on after a line that found no room."""

    def prepare(self) -> None:
        self.path = self.home.root / "journal"
        self.run = {"format": 1}
        self.count = 0

    def act(self) -> None:
        journal = Journal(self.path, self.run)
        verifier = VerifierRecord("number", "1", {"padding": "a" * 3000})
        condition, (split, *_) = next(iter(SPLITS_OF.items()))
        record = Asked(1, condition, "task", sha256(b"p"), split, verifier, (), None, None, 1.0, 1.0, 1.0)
        for _ in range(3):
            journal.add(record)
            self.count += 1

    def sound(self, done: bool) -> None:
        if self.path.exists():
            check(
                len(Journal(self.path, self.run).records) == self.count, "records are lost, or more than were added"
            )
        check(self.count >= 3 * done, "fewer were added")


class EntryListed(Scenario):
    database = True

    def prepare(self) -> None:
        self.library = EntryStore(self.home, self.trust, lambda: self.keys.signer, "maths")
        self.library.create()
        self.library.add(self.entry(0))

    def entry(self, number: int) -> Any:
        text = f"what is {number} times seven"
        return Entry(
            problem=text,
            address=Problem.of(text).address,
            solution=str(7 * number),
            verifier=VerifierRecord("number", "1", {}),
            score=1.0,
            detail="",
            artifact=build_artifact(1).id,
            tokens=40,
            tokens_digest=build_artifact(1).manifest.tokens.digest,
            template=None,
            compatibility=sha256(b"model"),
            cost=EntryCost(0, 0, 0.0),
        ).seal(self.keys.signer)

    def act(self) -> None:
        self.library.add(self.entry(1))

    def sound(self, done: bool) -> None:
        check(len(list(self.library.entries())) >= 1 + done, "what was listed is lost")
        found = self.library.find(Problem.of("what is 0 times seven").address)
        check(len(found) == 1, "an entry is not found any more")
        check(self.library.search(Problem.of("how much is 0 times seven"), 5), "words are not found any more")


SCENARIOS: dict[str, type[Scenario]] = {
    kind.__name__: kind
    for kind in (
        *(TrustAdded, TrustRemoved, PeerLimited, KeyRevoked, KeyRotated, TicketGiven, TicketSpent),
        *(RegistryAdded, ModelOffered, NameFollowed, StoreOpened, RegistryOpened, QueueOpened),
        *(SettingsSaved, EpochBegun, NumberGiven, PeerBlamed, Attested, Refuted, Diverged, Named, Signed),
        *(PartPulled, Computed, Imported, Exported, Announced, Queued, EntryListed, Judged),
    )
}
