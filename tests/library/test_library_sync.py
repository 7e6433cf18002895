"""Entries between hosts: whose lists and entries are taken, what is verified again, and what never answers."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import kvsync
from kvsync.config import Settings
from kvsync.engines.engine import Engine
from kvsync.errors import NotFoundError, PolicyError
from kvsync.keys import Peer, PeerBook
from kvsync.library.corpus import phrasing
from kvsync.library.desk import LibraryDesk
from kvsync.library.entries import finding
from kvsync.library.library import Library, artifact_name
from kvsync.library.problem import Problem
from kvsync.library.recipe import Recipe
from kvsync.library.sync import LibrarySync, SyncReport
from kvsync.library.verifiers import Verdict
from kvsync.peer.server import PeerServer
from kvsync_protocol.entry import Entry
from kvsync_protocol.errors import TrustError
from tests.library.conftest import Knows

NAME = "maths/easy"
FIRST = "w1 w2 w3 w4 w5 w6 w7 w8 w9"
SECOND = "w30 w31 w32"
SETTINGS = Settings(stall_timeout_s=15, transfer_deadline_s=120)
Clients = Callable[..., kvsync.Client]


@asynccontextmanager
async def serving(client: kvsync.Client) -> AsyncIterator[str]:
    """The client's home as a node that peers can ask; its address."""
    server = PeerServer(
        client.store, client.keys, client.home, client.trust, SETTINGS, [LibraryDesk(client.home).mount]
    )
    host, port = await server.start()
    try:
        yield f"{host}:{port}"
    finally:
        await server.stop()


async def sync(here: kvsync.Client, there: kvsync.Client, **options: object) -> SyncReport:
    """What `here` takes of `there`'s library."""
    async with serving(there) as address:
        peer = Peer("there", there.keys.peer.public, (address,))
        return await LibrarySync(
            Library(here, NAME).store, here.store, here.trust, peer, keys=here.keys, settings=SETTINGS, **options
        ).run()


@pytest.fixture
def there(make_client: Clients) -> kvsync.Client:
    return make_client("there")


@pytest.fixture
def here(make_client: Clients, there: kvsync.Client) -> kvsync.Client:
    """Trusts the other's signatures, and may get there."""
    client = make_client("here")
    client.trust.add("there", there.keys.signer.public)
    PeerBook(there.home).add(Peer("here", client.keys.peer.public, (), ("get",), (f"{NAME}/*", NAME)))
    return client


@pytest.fixture
def theirs(there: kvsync.Client) -> Library:
    return Library.create(there, NAME)


async def test_a_second_host_answers_from_the_firsts_entries_without_computing_the_solution(
    here: kvsync.Client, there: kvsync.Client, theirs: Library, engine: Engine
):
    stored = theirs.add(FIRST, "w20 w21", engine, Knows("w20 w21"))
    report = await sync(here, there, fingerprints=engine.fingerprints)
    assert (report.taken, report.refused) == ((stored.digest,), {})
    assert report.bytes_moved > 0
    ours = Library.open(here, NAME)
    solved = ours.solve(FIRST, engine, Knows("w20 w21"), budget=9, recipe=Recipe(recall="stored"))
    assert (solved.strategy, solved.answer) == ("exact", "w20 w21")
    assert (solved.cost.prefilled, solved.cost.grafted) == (0, stored.entry.tokens)
    assert here.store.resolve(artifact_name(NAME, stored.digest)) == stored.entry.artifact
    again = await sync(here, there)
    assert (again.taken, again.offered) == ((), 1)


async def test_a_forged_entry_of_an_untrusted_key_never_answers(
    here: kvsync.Client, there: kvsync.Client, theirs: Library, engine: Engine, make_client: Clients
):
    right = theirs.add(FIRST, "w20", engine, Knows("w20"))
    mallory = make_client("mallory")
    forged = dataclasses.replace(right.entry, solution="w66").seal(mallory.keys.signer)
    there.trust.add("mallory", mallory.keys.signer.public)
    theirs.store.add(forged)
    report = await sync(here, there)
    assert report.taken == (right.digest,)
    assert list(report.refused.values()) == ["trust.untrusted_signer"]
    assert [s.entry.solution for s in Library(here, NAME).find(Problem.of(FIRST).address)] == ["w20"]


async def test_an_untrusted_list_a_list_of_old_and_a_library_out_of_sight_are_refused(
    here: kvsync.Client, there: kvsync.Client, theirs: Library, engine: Engine
):
    old = theirs.store.shelf.read_list()
    theirs.add(FIRST, "w20", engine, Knows("w20"))
    await sync(here, there)
    theirs.store.shelf.write_list(old)
    with pytest.raises(TrustError) as rollback:
        await sync(here, there)
    assert rollback.value.code == "trust.rollback"
    here.trust.remove("there")
    with pytest.raises(TrustError) as stranger:
        await sync(here, there)
    assert stranger.value.code == "trust.untrusted_signer"
    book = PeerBook(there.home)
    book.add(dataclasses.replace(book.get("here"), names=("other/*",)))
    with pytest.raises(NotFoundError) as unseen:
        await sync(here, there)
    theirs.delete()
    book.add(dataclasses.replace(book.get("here"), names=()))
    with pytest.raises(NotFoundError) as absent:
        await sync(here, there)
    assert (unseen.value.code, unseen.value.message) == (absent.value.code, absent.value.message)
    book.add(dataclasses.replace(book.get("here"), roles=("push",)))
    with pytest.raises(PolicyError):
        await sync(here, there)


async def test_a_host_that_verifies_again_takes_what_passes_and_quarantines_what_fails_later(
    here: kvsync.Client, there: kvsync.Client, theirs: Library, engine: Engine
):
    first = theirs.add(FIRST, "w20", engine, Knows("w20"))
    second = theirs.add(SECOND, "w21", engine, Knows("w21"))

    def strict(entry: Entry) -> Verdict:
        return Verdict.of(entry.solution == "w20", "another answer is right")

    report = await sync(here, there, judge=strict)
    assert (report.taken, report.refused, report.verified) == ((first.digest,), {second.digest: "entry.fails"}, 2)
    later = await sync(here, there, judge=lambda entry: Verdict.of(False, "tests were added"))
    assert later.quarantined == (first.digest,)
    ours = Library.open(here, NAME)
    assert ours.entries() == []
    (apart,) = ours.store.listing().quarantined
    assert "tests were added" in apart.history[-1].reason
    unjudged = await sync(here, there)
    assert unjudged.taken == (second.digest,)
    assert [stored.digest for stored in ours.entries()] == [second.digest]


async def test_what_a_trusted_list_has_in_quarantine_leaves_with_its_history(
    here: kvsync.Client, there: kvsync.Client, theirs: Library, engine: Engine
):
    stored = theirs.add(FIRST, "w20", engine, Knows("w20"))
    await sync(here, there)
    theirs.quarantine(stored.digest, finding("the question was wrong"))
    report = await sync(here, there)
    assert report.quarantined == (stored.digest,)
    (apart,) = Library(here, NAME).store.listing().quarantined
    assert [each.reason for each in apart.history] == ["the question was wrong"]


async def test_an_entry_whose_artifact_is_gone_there_or_of_another_model_is_named_and_harms_no_other(
    here: kvsync.Client, there: kvsync.Client, theirs: Library, engine: Engine
):
    gone = theirs.add(FIRST, "w20", engine, Knows("w20"))
    there.store.remove_ref(artifact_name(NAME, gone.digest))
    there.store.remove(gone.entry.artifact)
    kept = theirs.add(SECOND, "w21", engine, Knows("w21"))
    report = await sync(here, there)
    assert (report.taken, report.refused) == ((kept.digest,), {gone.digest: "store.unknown_artifact"})


async def test_an_entry_that_is_not_the_one_that_was_asked_for_is_refused(
    here: kvsync.Client, there: kvsync.Client, theirs: Library, engine: Engine
):
    stored = theirs.add(FIRST, "w20", engine, Knows("w20"))
    other = dataclasses.replace(stored.entry, solution="w21").seal(there.keys.signer)
    (theirs.store.shelf.path / "entries" / f"{stored.digest.hex}.json").write_bytes(other.encode())
    report = await sync(here, there)
    assert (report.taken, report.refused) == ((), {stored.digest: "library.damaged"})


async def test_a_second_host_answers_from_the_firsts_documents_without_computing_them(
    here: kvsync.Client, there: kvsync.Client, theirs: Library, engine: Engine, tmp_path: Path
):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "mill.txt").write_text("the door code of Kraidel Mill is w8\n")
    (tmp_path / "docs" / "hall.txt").write_text("the warden of Brimoult Hall is w9\n")
    theirs.ingest(tmp_path / "docs", engine, max_tokens=32)
    report = await sync(here, there, fingerprints=engine.fingerprints)
    assert (len(report.taken), report.refused, report.withdrawn) == (2, {}, ())
    ours = Library.open(here, NAME)
    asked = ours.ask("What is the door code of Kraidel Mill?", engine, max_tokens=3)
    assert asked.cited is not None
    question = phrasing.question(engine, asked.question)
    assert (asked.cost.prefilled, asked.cost.grafted) == (len(question), asked.cited.passage.tokens)
    first = theirs.ask("What is the door code of Kraidel Mill?", engine, max_tokens=3)
    assert (asked.output, asked.cited.digest) == (first.output, first.cited and first.cited.digest)
    assert here.store.resolve(artifact_name(NAME, asked.cited.digest)) == asked.cited.passage.artifact


async def test_a_passage_that_its_signer_has_dropped_is_withdrawn_and_nobody_elses(
    here: kvsync.Client, there: kvsync.Client, theirs: Library, engine: Engine, tmp_path: Path
):
    for name, text in (("mill", "the door code of Kraidel Mill is w8"), ("own", "the door code of Torford is w3")):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.txt").write_text(text)
    theirs.ingest(tmp_path / "mill", engine, max_tokens=32)
    await sync(here, there)
    ours = Library.open(here, NAME)
    ours.ingest(tmp_path / "own", engine, max_tokens=32, prune=True)
    assert {each.passage.source for each in ours.route("door code")} == {"mill.txt", "own.txt"}
    (old,) = (each.digest for each in theirs.store.passages())
    (tmp_path / "mill" / "mill.txt").write_text("the door code of Kraidel Mill is w50")
    theirs.ingest(tmp_path / "mill", engine, max_tokens=32)
    report = await sync(here, there)
    assert (len(report.taken), report.withdrawn) == (1, (old,))
    assert {each.passage.text[-3:] for each in ours.route("door code")} == {"w50", " w3"}
    with pytest.raises(NotFoundError):
        here.store.resolve(artifact_name(NAME, old))


async def test_a_forged_passage_is_refused_and_one_with_another_text_never_answers(
    here: kvsync.Client,
    there: kvsync.Client,
    theirs: Library,
    engine: Engine,
    make_client: Clients,
    tmp_path: Path,
):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "mill.txt").write_text("the door code of Kraidel Mill is w8")
    theirs.ingest(tmp_path / "docs", engine, max_tokens=32)
    (right,) = theirs.store.passages()
    mallory = make_client("mallory")
    lie = dataclasses.replace(right.passage, text=right.passage.text[:-1] + "9")
    there.trust.add("mallory", mallory.keys.signer.public)
    theirs.store.change([lie.seal(mallory.keys.signer)])
    report = await sync(here, there)
    assert (report.taken, list(report.refused.values())) == ((right.digest,), ["trust.untrusted_signer"])
    here.trust.add("mallory", mallory.keys.signer.public)
    assert len((await sync(here, there)).taken) == 1
    asked = Library.open(here, NAME).ask("door code of Kraidel Mill", engine, max_tokens=1)
    assert asked.cited is not None
    assert asked.cited.digest == right.digest
    assert {each.passed_over for each in asked.candidates} <= {"", "entry.tokens"}
