"""Documents in a library: what is ingested, what answers, and that it answers exactly."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import kvsync
from kvsync.engines import load_engine
from kvsync.engines.engine import Engine
from kvsync.errors import NotFoundError, UsageError
from kvsync.library.corpus import phrasing
from kvsync.library.corpus.ask import DEPTH
from kvsync.library.corpus.folder import MAX_FILE_BYTES
from kvsync.library.corpus.ingest import Ingest
from kvsync.library.corpus.report import Ingested
from kvsync.library.library import Library, artifact_name
from kvsync.progress import Progress
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.prefix import tokens_digest
from tests.library.conftest import Knows

LEAVE = "# Leave\n\nw1 w2 days of leave in Brimoult w3\n\n## Sick\n\nw4 w5 call the warden Klourd w6\n"
MILL = "w7 the door code of Kraidel Mill is w8 w9\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "docs"
    (found / "sub").mkdir(parents=True)
    (found / "leave.md").write_text(LEAVE)
    (found / "sub" / "mill.txt").write_text(MILL)
    return found


def ingest(library: Library, folder: Path, engine: Engine, **options: object) -> Ingested:
    return library.ingest(folder, engine, max_tokens=32, **options)


def test_a_folder_answers_with_the_passage_that_was_asked_about(library: Library, engine: Engine, folder: Path):
    report = ingest(library, folder, engine)
    assert (report.new, report.changed, report.unchanged, report.passages, report.computed) == (2, 0, 0, 2, 2)
    assert report.tokens_computed == report.tokens > 0
    asked = library.ask("What is the door code of Kraidel Mill?", engine, max_tokens=5)
    assert asked.cited is not None
    said = asked.cited.passage
    assert (said.source, said.section, said.start, said.stop) == ("sub/mill.txt", "", 0, len(MILL))
    assert MILL[said.start : said.stop] == said.text
    assert "sub/mill.txt, characters 0-42, artifact " in asked.cited.citation
    question = phrasing.question(engine, asked.question)
    assert (asked.cost.decoded, asked.cost.prefilled, asked.cost.grafted) == (5, len(question), said.tokens)
    assert set(asked.seconds) == {"route", "verify", "restore", "prefill", "decode"}
    assert library.client.store.resolve(artifact_name(library.name, asked.cited.digest)) == said.artifact
    sick = library.route("Which warden does one call?")[0].passage
    assert (sick.source, sick.section) == ("leave.md", "Leave")


def test_an_answer_is_that_of_a_fresh_run_over_passage_and_question(library: Library, engine: Engine, folder: Path):
    ingest(library, folder, engine)
    asked = library.ask("the door code of Kraidel Mill", engine, max_tokens=6)
    assert asked.cited is not None
    held = engine.encode(asked.cited.passage.prompt)
    tokens = [*held, *phrasing.question(engine, asked.question)]
    assert asked.prompt == tokens_digest(tokens)
    schedule = engine.schedule.with_boundary(len(held))
    context = engine.new_context()
    logits = engine.prefill(context, tokens, schedule)
    plain, plain_logits = engine.decode_greedy(context, logits, 6)
    assert asked.output == tokens_digest(plain)
    graft = library.client.graft(engine, tokens, artifact=asked.cited.passage.artifact)
    assert graft.report.tokens_grafted == len(held)
    first = engine.prefill(graft.context, graft.next_tokens, graft.schedule)
    assert first.sha256() == logits.sha256()
    assert engine.decode_greedy(graft.context, first, 6)[1].sha256() == plain_logits.sha256()
    assert engine.state_digest(graft.context) == engine.state_digest(context)


def test_only_what_has_changed_is_computed_again(library: Library, engine: Engine, folder: Path):
    ingest(library, folder, engine)
    before = {stored.digest for stored in library.store.passages()}
    again = ingest(library, folder, engine)
    assert (again.unchanged, again.computed, again.removed, again.tokens_computed) == (2, 0, 0, 0)
    (folder / "sub" / "mill.txt").write_text("w7 the door code of Kraidel Mill is w10\n")
    changed = ingest(library, folder, engine)
    assert (changed.changed, changed.unchanged, changed.computed, changed.removed) == (1, 1, 1, 1)
    (stored,) = (each for each in library.store.passages() if each.digest not in before)
    assert stored.passage.text.endswith("w10\n")
    assert [each.passage.text for each in library.route("door code")] == [stored.passage.text]
    (old,) = before - {each.digest for each in library.store.passages()}
    with pytest.raises(NotFoundError):
        library.client.store.resolve(artifact_name(library.name, old))


def test_documents_that_are_gone_stay_until_they_are_pruned(library: Library, engine: Engine, folder: Path):
    ingest(library, folder, engine)
    (folder / "leave.md").unlink()
    kept = ingest(library, folder, engine)
    assert (kept.gone, kept.removed) == (("leave.md",), 0)
    assert library.route("warden Klourd") != []
    pruned = ingest(library, folder, engine, prune=True)
    assert (pruned.gone, pruned.removed) == (("leave.md",), 1)
    assert library.route("warden Klourd") == []
    assert [each.passage.source for each in library.store.passages()] == ["sub/mill.txt"]


def test_a_lost_artifact_and_a_lost_name_are_made_again(library: Library, engine: Engine, folder: Path):
    ingest(library, folder, engine)
    store = library.client.store
    lost, kept = library.route("door code")[0], library.route("warden")[0]
    for each in (lost, kept):
        store.remove_ref(artifact_name(library.name, each.digest))
    store.remove(lost.passage.artifact)
    assert library.ask("door code", engine).candidates[0].passed_over == "store.unknown_artifact"
    report = ingest(library, folder, engine)
    assert (report.computed, report.removed, report.passages) == (1, 0, 2)
    for each in (lost, kept):
        assert store.resolve(artifact_name(library.name, each.digest)) == each.passage.artifact
    assert library.ask("door code", engine, max_tokens=1).cited is not None


def test_a_run_that_was_killed_goes_on_where_it_was(
    client: kvsync.Client, library: Library, engine: Engine, tiny_model_dir: Path, tmp_path: Path
):
    folder = tmp_path / "docs"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.txt").write_text(f"w{number} w{number} document of number{number}\n")
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "import kvsync\n"
        "from kvsync.engines import load_engine\n"
        "from kvsync.library.corpus import ingest\n"
        "from kvsync.library.library import Library\n"
        "ingest.LIST_EVERY = 2\n"
        "engine, client = load_engine(Path(sys.argv[1]), threads=1, block_tokens=16), kvsync.Client(sys.argv[2])\n"
        "done = []\n"
        "def compute(text, progress):\n"
        "    if len(done) == 3:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    done.append(client.deposit(engine, text).artifact)\n"
        "    return done[-1]\n"
        "library = Library.open(client, 'maths/easy')\n"
        "ingest.Ingest(library, engine, Path(sys.argv[3]), compute=compute, max_tokens=32).run()\n"
    )
    arguments = [sys.executable, "-c", script, str(tiny_model_dir), str(client.home.root), str(folder)]
    killed = subprocess.run(arguments, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert len(list(library.store.passages())) == 2
    assert len(client.store.artifacts()) == 3
    computed = set()

    def compute(text: str, progress: Progress) -> ArtifactId:
        def tell(stage: str, done: int, total: int, unit: str) -> None:
            if done == total:
                computed.add(text)

        return client.deposit(engine, text, progress=tell).artifact

    report = Ingest(library, engine, folder, compute=compute, max_tokens=32).run()
    assert (report.passages, report.computed) == (6, 4)
    assert len(computed) == 3
    names = {ref.name for ref in client.store.refs()}
    for stored in library.store.passages():
        assert artifact_name(library.name, stored.digest) in names
    assert [library.route(f"number{number}")[0].passage.source for number in range(6)] == [
        f"{number}.txt" for number in range(6)
    ]


def test_planted_facts_are_found_among_many_documents(library: Library, engine: Engine, tmp_path: Path):
    folder = tmp_path / "docs"
    folder.mkdir()
    rng = random.Random(7)
    towns = [f"{first}{second}" for first in ("brim", "krai", "sko", "tor") for second in ("dell", "mouth", "ford")]
    things = ("door code", "closing day", "warden", "ferry")
    for town in towns:
        said = [f"The {thing} of {town} is w{rng.randrange(100)}." for thing in things]
        prose = [f"A {rng.choice(things)} is kept near {rng.choice(towns)}, they say." for _ in range(8)]
        lines = [*said, *prose]
        rng.shuffle(lines)
        (folder / f"{town}.txt").write_text("\n\n".join(lines))
    library.ingest(folder, engine, max_tokens=40)
    for town in towns:
        for thing in things:
            best = library.route(f"What is the {thing} of {town}?", 1)[0].passage
            assert f"The {thing} of {town} is" in best.text


def test_what_is_no_document_is_named_and_harms_no_other(library: Library, engine: Engine, folder: Path):
    (folder / "binary.txt").write_bytes(b"w1\0w2")
    (folder / "escape.txt").write_bytes(b"w1 \x1b[2J")
    (folder / "latin.txt").write_bytes("é".encode("latin-1"))
    (folder / "empty.txt").write_bytes(b"")
    (folder / "blank.txt").write_text(" \n\t\n")
    (folder / "picture.png").write_bytes(b"w1")
    (folder / "link.txt").symlink_to(folder / "leave.md")
    (folder / "folder").symlink_to(folder / "sub")
    os.mkfifo(folder / "pipe.txt")
    with (folder / "large.txt").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    (folder / ".hidden.txt").write_text("w1")
    (folder / "back\\slash.txt").write_text("w1")
    Path(os.fsdecode(os.fsencode(folder) + b"/bad\xff.txt")).write_text("w1")
    (folder / "README").write_bytes(b"\xef\xbb\xbfw11 marked\r\nw12\rw13\x0cw14")
    report = ingest(library, folder, engine)
    assert {each.source: each.reason for each in report.passed_over} == {
        "binary.txt": "binary",
        "escape.txt": "binary",
        "latin.txt": "encoding",
        "empty.txt": "empty",
        "blank.txt": "empty",
        "picture.png": "suffix",
        "link.txt": "link",
        "folder": "link",
        "pipe.txt": "kind",
        "large.txt": "size",
        "back\\slash.txt": "name",
        "bad\N{REPLACEMENT CHARACTER}.txt": "name",
    }
    assert report.documents == 3
    assert library.route("marked")[0].passage.text == "w11 marked\nw12\nw13\nw14"


def test_no_folder_and_a_library_that_would_be_too_full_are_refused_before_anything_is_computed(
    library: Library, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(NotFoundError) as missing:
        library.ingest(tmp_path / "none", engine)
    assert missing.value.code == "corpus.missing"
    (tmp_path / "file").write_text("w1")
    with pytest.raises(UsageError) as file:
        library.ingest(tmp_path / "file", engine)
    assert file.value.code == "corpus.kind"
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "long.txt").write_text(("w1 " * 25 + "\n\n") * 9)
    monkeypatch.setattr("kvsync.library.corpus.ingest.MAX_LIBRARY_ENTRIES", 8)
    with pytest.raises(UsageError) as full:
        ingest(library, folder, engine)
    assert full.value.code == "library.full"
    assert library.client.store.artifacts() == []


def test_what_matches_nothing_is_said_and_computes_nothing(library: Library, engine: Engine, folder: Path):
    assert library.ask("door code", engine).candidates == ()
    ingest(library, folder, engine)
    asked = library.ask("quantum zebra?", engine)
    assert (asked.answer, asked.cited, asked.candidates) == (None, None, ())
    assert library.ask("?!", engine).cited is None
    with pytest.raises(UsageError) as empty:
        library.ask("  ", engine)
    assert empty.value.code == "problem.empty"
    library.delete()
    with pytest.raises(NotFoundError) as gone:
        library.ask("door code", engine)
    assert gone.value.code == "library.unknown"


def test_what_cannot_be_used_is_passed_over_for_the_next(library: Library, engine: Engine, tmp_path: Path):
    folder = tmp_path / "docs"
    folder.mkdir()
    for number, text in enumerate(["door code door code w1", "door code w2 w3", "door w4 w5 w6 w7 w8 w9 w10 w11"]):
        (folder / f"{number}.txt").write_text(text)
    ingest(library, folder, engine)
    first, second, third = (each.passage for each in library.route("door code"))
    store = library.client.store
    (leaf, *_) = store.artifact(first.artifact).leaves().leaves
    chunk = library.client.home.store_dir / "chunks" / leaf.digest.hex[:2] / leaf.digest.hex
    chunk.chmod(0o600)
    data = bytearray(chunk.read_bytes())
    data[-1] ^= 1
    chunk.write_bytes(data)
    told = dataclasses.replace(second, text=second.text.replace("w3", "w9")).seal(library.client.keys.signer)
    (old,) = (each.digest for each in library.store.passages() if each.passage == second)
    library.store.change([told], [old])
    asked = library.ask("door code", engine, max_tokens=1)
    assert [each.passed_over for each in asked.candidates] == ["integrity.chunk", "entry.tokens", ""]
    assert asked.cited is not None
    assert asked.cited.passage == third
    assert len(asked.candidates) <= DEPTH


def test_passages_of_another_model_and_of_strangers_never_answer(
    library: Library, engine: Engine, folder: Path, tiny_model_dir: Path, make_client: Callable[..., kvsync.Client]
):
    ingest(library, folder, engine)
    other = load_engine(tiny_model_dir, threads=1, block_tokens=32)
    asked = library.ask("door code", other)
    assert (asked.answer, [each.passed_over for each in asked.candidates]) == (None, ["entry.other_model"])
    mallory = make_client("mallory")
    forged = dataclasses.replace(library.route("door code")[0].passage, source="forged.txt")
    library.client.trust.add("mallory", mallory.keys.signer.public)
    library.store.change([forged.seal(mallory.keys.signer)])
    assert len(library.route("door code")) == 2
    library.client.trust.remove("mallory")
    assert [each.passage.source for each in library.route("door code")] == ["sub/mill.txt"]
    again = ingest(library, folder, engine, prune=True)
    assert (again.computed, again.removed, again.gone) == (0, 0, ())


def test_passages_and_entries_share_a_library_and_do_not_answer_for_each_other(
    library: Library, engine: Engine, folder: Path
):
    library.add("door code", "w20", engine, Knows("w20"))
    ingest(library, folder, engine)
    assert [stored.entry.problem for stored in library.entries()] == ["door code"]
    assert [hit.stored.entry.problem for hit in library.search("the door code of Kraidel Mill")] == ["door code"]
    assert [each.passage.source for each in library.route("door code")] == ["sub/mill.txt"]


def test_a_node_that_never_grafts_says_so(library: Library, engine: Engine, folder: Path):
    ingest(library, folder, engine)
    home = library.client.home
    dataclasses.replace(library.client.settings, graft_when="never").save(home)
    with kvsync.Client(home.root) as client:
        asked = Library.open(client, library.name).ask("door code", engine)
    assert [each.passed_over for each in asked.candidates] == ["graft.never"]
