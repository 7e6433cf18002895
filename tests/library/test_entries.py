"""The entries of a library: found by address and by words, kept whole, changed by several at once."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvsync
from kvsync.engines.engine import Engine
from kvsync.errors import NotFoundError, StoreError, UsageError
from kvsync.library.entries import EntryStore, finding
from kvsync.library.index import EntryIndex
from kvsync.library.library import Library
from kvsync.library.problem import Problem
from kvsync.library.shelf import shelves
from kvsync_protocol.digest import ArtifactId, Digest, sha256
from kvsync_protocol.entry import Entry, EntryCost, VerifierRecord
from kvsync_protocol.errors import IntegrityError, TrustError
from kvsync_protocol.limits import KiB

NOTHING = Digest(bytes(32))


def entry(problem: str, solution: str = "42") -> Entry:
    """An entry whose artifact is nowhere: the store does not ask for it."""
    return Entry(
        problem=problem,
        address=Problem.of(problem).address,
        solution=solution,
        verifier=VerifierRecord("number", "1", {"answer": "42"}),
        score=1.0,
        detail="found 42",
        artifact=ArtifactId(NOTHING),
        tokens=1,
        tokens_digest=NOTHING,
        template=None,
        compatibility=NOTHING,
        cost=EntryCost(1, 1, 0.5),
    )


@pytest.fixture
def store(library: Library) -> EntryStore:
    return library.store


@pytest.fixture
def put(library: Library) -> Callable[..., Digest]:
    def add(problem: str, solution: str = "42") -> Digest:
        made = entry(problem, solution)
        assert library.store.add(made.seal(library.client.keys.signer))
        return made.digest

    return add


def test_an_entry_is_found_by_its_address_and_only_there(store: EntryStore, put: Callable[..., Digest]):
    first = put("What is 6 × 7?")
    put("What is 6 × 8?")
    assert [each.digest for each in store.find(Problem.of(" What\nis 6 × 7? ").address)] == [first]
    assert store.find(Problem.of("what is 6 × 7?").address) == []
    latest = put("What is 6 × 7?", "forty-two")
    assert [each.digest for each in store.find(Problem.of("What is 6 × 7?").address)] == [latest, first]


def test_related_entries_come_by_the_words_they_share_and_never_the_problem_itself(
    store: EntryStore, put: Callable[..., Digest]
):
    near, far = put("the cost of seven red apples"), put("the cost of one pear")
    put("seven red apples cost how much")
    hits = store.search(Problem.of("seven red apples cost how much"), 2)
    assert [hit.stored.digest for hit in hits] == [near, far]
    assert hits[0].overlap == pytest.approx(4 / 6)
    assert store.search(Problem.of("unrelated"), 5) == []


@settings(max_examples=40)
@given(st.text(max_size=60))
def test_no_text_is_taken_for_a_search_expression(tmp_path_factory: pytest.TempPathFactory, text: str):
    index = EntryIndex(tmp_path_factory.mktemp("index") / "i.sqlite", lambda digest: (NOTHING, f"{text} common"))
    found = index.search(NOTHING, lambda: [sha256(b"one")], f"{text} common", 5)
    assert found == [sha256(b"one")]


def test_a_lost_or_damaged_index_is_made_again(store: EntryStore, put: Callable[..., Digest]):
    first = put("What is 6 × 7?")
    address = Problem.of("What is 6 × 7?").address
    for damage in (lambda path: path.unlink(), lambda path: path.write_bytes(b"x" * 5000)):
        assert [each.digest for each in store.find(address)] == [first]
        damage(store.shelf.index)
    assert [each.digest for each in store.find(address)] == [first]


def test_what_lies_under_another_problems_address_or_is_signed_as_something_else_is_refused(library: Library):
    signer = library.client.keys.signer
    moved = dataclasses.replace(entry("What is 6 × 7?"), address=Problem.of("What is 6 × 8?").address)
    with pytest.raises(IntegrityError) as elsewhere:
        library.store.add(moved.seal(signer))
    assert elsewhere.value.code == "entry.address"
    blank = dataclasses.replace(entry("What?"), problem=" \n")
    with pytest.raises(IntegrityError):
        library.store.add(blank.seal(signer))
    with pytest.raises(TrustError) as other_type:
        library.store.add(library.store.shelf.read_list())
    assert other_type.value.code == "trust.payload_type"
    assert library.entries() == []


def test_quarantine_keeps_the_history_and_holds_against_the_entry_itself(
    library: Library, put: Callable[..., Digest]
):
    digest = put("What is 6 × 7?")
    for number in range(10):
        library.quarantine(digest, finding(f"reason {number}\x1b[31m {'x' * KiB}"))
    (apart,) = library.store.listing().quarantined
    assert len(apart.history) == 8
    assert apart.history[-1].reason.startswith("reason 9 [31m")
    assert not library.store.add(entry("What is 6 × 7?").seal(library.client.keys.signer))
    assert library.find(Problem.of("What is 6 × 7?").address) == []
    assert library.store.named(digest.hex[:10]).digest == digest
    library.remove(digest)
    assert library.store.listing().quarantined == ()


def test_several_processes_that_add_at_once_lose_nothing(library: Library, tmp_path: Path):
    program = tmp_path / "adder.py"
    program.write_text(
        "import sys, kvsync\n"
        "from kvsync.library.library import Library\n"
        "from tests.library.test_entries import entry\n"
        "with kvsync.Client(sys.argv[1]) as client:\n"
        "    library = Library.open(client, 'maths/easy')\n"
        "    for number in range(6):\n"
        "        library.store.add(entry(f'{sys.argv[2]} {number}').seal(client.keys.signer))\n"
        "        library.search(f'{sys.argv[2]} {number} more')\n"
    )
    command = [sys.executable, str(program), str(library.client.home.root)]
    root = Path(__file__).parents[2]
    running = [subprocess.Popen([*command, name], cwd=root, env=_environment(root)) for name in ("left", "right")]
    assert [process.wait() for process in running] == [0, 0]
    assert len(library.entries()) == 12
    assert library.store.listing().sequence == 13
    assert len(library.search("left right", 12)) == 12


def _environment(root: Path) -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(root)}


def test_libraries_are_listed_by_name_and_strangers_passed_over(client: kvsync.Client):
    for name in ("b", "a/b", "a"):
        Library.create(client, name)
    folder = client.home.libraries_dir
    (folder / "A~~").mkdir()
    (folder / "c").write_text("a file")
    assert [shelf.name for shelf in shelves(client.home)] == ["a", "a/b", "b"]
    with pytest.raises(UsageError) as twice:
        Library.create(client, "a/b")
    assert twice.value.code == "library.exists"
    Library.open(client, "a").delete()
    with pytest.raises(NotFoundError) as gone:
        Library.open(client, "a")
    assert gone.value.code == "library.unknown"
    assert [shelf.name for shelf in shelves(client.home)] == ["a/b", "b"]


def test_a_list_of_another_library_or_of_nobody_here_is_damage(
    client: kvsync.Client, make_client: Callable[..., kvsync.Client]
):
    mine, other = Library.create(client, "mine"), Library.create(client, "other")
    mine.store.shelf.write_list(other.store.shelf.read_list())
    with pytest.raises(StoreError) as swapped:
        mine.entries()
    stranger = Library.create(make_client("stranger"), "mine")
    mine.store.shelf.write_list(stranger.store.shelf.read_list())
    with pytest.raises(StoreError) as foreign:
        mine.entries()
    assert swapped.value.code == foreign.value.code == "library.damaged"


def test_a_chat_template_shapes_prompts_and_examples_and_its_digest_is_kept(
    client: kvsync.Client, tiny_model_dir: Path, tmp_path: Path
):
    from transformers import AutoTokenizer

    from kvsync.engines import load_engine
    from kvsync.library.recipe import Recipe
    from kvsync.library.wording import Wording
    from tests.library.conftest import Knows

    folder = tmp_path / "chat"
    shutil.copytree(tiny_model_dir, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.content == 'w66' %}{{ raise_exception('no sixty-six') }}{% endif %}"
        "{{ 'w90 ' if m.role == 'user' else 'w91 ' }}{{ m.content }}{{ ' w92 ' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'w91' }}{% endif %}"
    )
    tokenizer.save_pretrained(folder)
    engine: Engine = load_engine(folder, threads=1, block_tokens=16)
    wording = Wording(engine)
    assert wording.ask("w1") == [90, 1, 92, 91]
    assert wording.example("w1", "w2") == [90, 1, 92, 91, 2, 92]
    assert wording.follow("w1", "w2", "w3") == [90, 3, 92, 91]
    library = Library.create(client, "chat")
    stored = library.add("w1 w2", "w20", engine, Knows("w20"))
    assert stored.entry.template == engine.template
    assert client.store.artifact(stored.entry.artifact).tokens() == tuple(wording.example("w1 w2", "w20"))
    solved = library.solve("w1 w2", engine, Knows("w20"), budget=3, recipe=Recipe(recall="stored"))
    assert (solved.strategy, solved.cost.grafted) == ("exact", stored.entry.tokens)
    with pytest.raises(kvsync.CodedError) as refused:
        wording.ask("w66")
    assert refused.value.code == "engine.template"
