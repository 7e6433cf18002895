"""`Library`: problems that were solved once and verified, as artifacts that answer again.

    with kvsync.Client() as client:
        library = Library.open(client, "maths")
        solved = library.solve("What is 6 × 7?", model, load_verifier("number:answer=42"), budget=4000)

Stores through `Client`, computes through engines, judges by verifiers; knows none of their kinds.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kvsync.engines import as_engine
from kvsync.engines.engine import Engine
from kvsync.errors import NotFoundError, PolicyError
from kvsync.graft.client import Client
from kvsync.library.entries import EntryStore, Hit, StoredEntry
from kvsync.library.problem import Problem
from kvsync.library.recipe import Recipe
from kvsync.library.report import Cost, Solved
from kvsync.library.verifiers import Verdict, Verifier
from kvsync.library.wording import Wording
from kvsync.progress import Progress, silent
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.entry import Entry, EntryCost, VerifierRecord
from kvsync_protocol.library import Finding
from kvsync_protocol.ref import check_name

if TYPE_CHECKING:
    from kvsync.library.corpus.report import Asked, Candidate, Ingested


class Library:
    """One library of a client's home. What another process changes is seen at the next call."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.store = EntryStore(client.home, client.trust, lambda: client.keys.signer, name)

    @classmethod
    def create(cls, client: Client, name: str) -> Self:
        """An empty library. Raises MalformedError `ref.name`; UsageError `library.exists`."""
        check_name(artifact_name(name, Digest(bytes(32))))
        library = cls(client, name)
        library.store.create()
        return library

    @classmethod
    def open(cls, client: Client, name: str) -> Self:
        """Raises NotFoundError `library.unknown`; MalformedError `ref.name`."""
        library = cls(client, name)
        library.store.shelf.require()
        return library

    @property
    def name(self) -> str:
        return self.store.name

    def entries(self) -> list[StoredEntry]:
        """All that stand in the list, by digest. Raises NotFoundError `library.unknown`."""
        return list(self.store.entries())

    def find(self, address: Digest) -> list[StoredEntry]:
        """Entries of exactly this problem that may answer, the latest first."""
        return self.store.find(address)

    def search(self, text: str, limit: int = 10) -> list[Hit]:
        """Entries of other problems that share words with this one, the most related first."""
        return self.store.search(Problem.of(text), limit)

    def add(
        self,
        problem: str,
        solution: str,
        model: Any,
        verifier: Verifier,
        *,
        cost: Cost = Cost(),  # noqa: B008  frozen
        progress: Progress = silent,
    ) -> StoredEntry:
        """Verify a solution and store it. `cost` is what finding it took.

        Raises:
            PolicyError: `library.not_verified` for a solution that does not pass, `library.weak_verifier` for a
                verifier whose word is not enough; nothing is stored.
            UsageError: `problem.*`, `library.full`; MalformedError `entry.*` for text that no entry can hold.
        """
        asked = Problem.of(problem)
        verdict = verifier.verify(asked, solution)
        if not verdict.passed:
            raise PolicyError("library.not_verified", f"the solution does not pass: {verdict.detail}")
        return self.deposit(asked, solution, self.engine(model), verifier, verdict, cost, progress)

    def deposit(
        self,
        problem: Problem,
        solution: str,
        engine: Engine,
        verifier: Verifier,
        verdict: Verdict,
        cost: Cost,
        progress: Progress = silent,
    ) -> StoredEntry:
        """Compute, sign and list what `verdict` says has passed. Raises as `add`."""
        if not (verdict.passed and verifier.deposits):
            raise PolicyError(
                "library.weak_verifier",
                f"what {verifier.name} passes is not stored",
                hint="use a verifier that knows the answer",
            )
        self.store.shelf.require()
        wording, text = Wording(engine), problem.text.replace("\r\n", "\n")
        tokens = wording.example(text, solution)
        artifact = self.client.deposit(engine, tokens, template=wording.template, progress=progress)
        entry = Entry(
            problem=text,
            address=problem.address,
            solution=solution,
            verifier=VerifierRecord(verifier.name, verifier.version, verifier.parameters),
            score=verdict.score,
            detail=verdict.detail,
            artifact=artifact.artifact,
            tokens=artifact.manifest.tokens.count,
            tokens_digest=artifact.manifest.tokens.digest,
            template=wording.template,
            compatibility=engine.fingerprints.compatibility.digest,
            cost=EntryCost(cost.decoded, cost.prefilled, round(cost.seconds, 6)),
        )
        self.store.add(entry.seal(self.client.keys.signer))
        self.keep(entry.digest, artifact.artifact)
        return self.store.read(entry.digest)

    def remove(self, entry: Digest) -> None:
        """Take an entry out; its artifact stays, without the library's name. Raises NotFoundError `library.*`."""
        self.store.shelf.read_entry(entry)
        self.store.remove(entry)
        self.release(entry)

    def delete(self) -> None:
        """The library as a whole; artifacts stay, without its names. Raises NotFoundError `library.unknown`."""
        listed = self.store.listing()
        self.store.shelf.remove()
        for digest in (*listed.entries, *(each.entry for each in listed.quarantined)):
            self.release(digest)

    def quarantine(self, entry: Digest, *history: Finding) -> None:
        """Let an entry answer no more. Raises NotFoundError `library.unknown`."""
        self.store.quarantine(entry, *history)

    def solve(
        self,
        problem: str,
        model: Any,
        verifier: Verifier,
        *,
        budget: int,
        recipe: Recipe = Recipe(),  # noqa: B008  frozen
        progress: Progress = silent,
    ) -> Solved:
        """Answer a problem as cheaply as the library allows, within `budget` decoded tokens in all attempts.

        Raises:
            UsageError: `solve.budget`, `problem.*`.
            EngineError: the model changed, or cannot be restored exactly.
            CodedError: of a verifier that cannot judge here.
        """
        from kvsync.library.solve import Ladder

        return Ladder(self, Problem.of(problem), self.engine(model), verifier, budget, recipe, progress).climb()

    def ingest(
        self,
        folder: Path | str,
        model: Any,
        *,
        max_tokens: int = 1024,
        prune: bool = False,
        progress: Progress = silent,
    ) -> Ingested:
        """Make the documents of a folder, cut into passages of at most `max_tokens`, answer here (docs/library.md).

        Raises:
            NotFoundError: `library.unknown`, `corpus.missing`; StoreError `corpus.unreadable`.
            UsageError: `corpus.kind`, `corpus.files`, `corpus.max_tokens`, `library.full`.
            EngineError: from the engine; StoreError `store.full` and others. What was listed stays.
        """
        from kvsync.library.corpus.ingest import Ingest

        engine = self.engine(model)

        def compute(text: str, tell: Progress) -> ArtifactId:
            return self.client.deposit(engine, text, progress=tell).artifact

        work = Ingest(
            self, engine, Path(folder), compute=compute, max_tokens=max_tokens, prune=prune, progress=progress
        )
        return work.run()

    def ask(self, question: str, model: Any, *, max_tokens: int = 64, progress: Progress = silent) -> Asked:
        """Graft the passage that most likely holds the answer, and decode at most `max_tokens` behind the question.

        Raises:
            UsageError: `problem.*`, `ask.max_tokens`; NotFoundError `library.unknown`.
            EngineError: the model changed, or cannot be restored exactly.
        """
        from kvsync.library.corpus.ask import Question

        return Question(self, question, self.engine(model), max_tokens=max_tokens, progress=progress).answer()

    def route(self, question: str, limit: int = 10) -> list[Candidate]:
        """Passages that may hold the answer, the most likely first; needs no model. Raises as `ask`."""
        from kvsync.library.corpus.ask import route

        return route(self, question, limit)

    def engine(self, model: Any) -> Engine:
        return as_engine(model, threads=self.client.settings.threads)

    def keep(self, entry: Digest, artifact: ArtifactId) -> None:
        """Name an entry's artifact, which keeps it, and lets peers get it whose patterns cover the library's."""
        self.client.name(artifact, artifact_name(self.name, entry))

    def release(self, entry: Digest) -> None:
        """Take that name away, if it is there."""
        with contextlib.suppress(NotFoundError):
            self.client.store.remove_ref(artifact_name(self.name, entry))


def artifact_name(library: str, entry: Digest) -> str:
    """The name under which an entry's artifact is kept."""
    return f"{library}/{entry.hex[:16]}"
