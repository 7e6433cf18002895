"""Answer a question from a corpus: find the passage, check it, graft it, decode behind it, cite it.

    question ─► words ─► passages by BM25 ─► the first that is sound ─► graft ─► the question behind it ─► answer

One passage is in the context and no other: its state is grafted at its own positions, whole, so that every logit is
that of a fresh run over the same tokens. What cannot be used (gone, damaged, of another model or of another text than
it says) is passed over with the reason, never an error.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from kvsync.engines.engine import Engine
from kvsync.errors import EngineError, UsageError
from kvsync.graft.graft import Graft
from kvsync.graft.report import MISS, WHOLE
from kvsync.library.corpus import phrasing
from kvsync.library.corpus.report import Asked, Candidate
from kvsync.library.corpus.terms import terms
from kvsync.library.decoding import decode
from kvsync.library.library import Library
from kvsync.library.problem import Problem
from kvsync.library.report import Cost
from kvsync.progress import Progress, silent
from kvsync_protocol.digest import Digest
from kvsync_protocol.errors import CodedError
from kvsync_protocol.passage import Passage
from kvsync_protocol.prefix import tokens_digest

DEFAULT_ANSWER: Final = 64
DEPTH: Final = 8
"""Passages that are tried, the best first, until one can be grafted."""


def route(library: Library, question: str, limit: int) -> list[Candidate]:
    """At most `limit` passages that share telling words with the question, the most likely first.

    Raises:
        UsageError: `problem.empty`, `problem.size`, `problem.encoding`.
        NotFoundError: `library.unknown`.
    """
    return list(_routed(library, question, limit))


def _routed(library: Library, question: str, limit: int) -> Iterator[Candidate]:
    library.store.shelf.require()
    for stored, score in library.store.route(terms(Problem.of(question).normalised), limit):
        yield Candidate(stored.digest, stored.passage, score)


class Question:
    """One question to one library. Used once."""

    def __init__(
        self,
        library: Library,
        question: str,
        engine: Engine,
        *,
        max_tokens: int = DEFAULT_ANSWER,
        progress: Progress = silent,
    ) -> None:
        if max_tokens < 1:
            raise UsageError("ask.max_tokens", f"{max_tokens} tokens are no answer", hint="give at least 1")
        self._library = library
        self._question = Problem.of(question).normalised
        self._engine = engine
        self._max_tokens = max_tokens
        self._progress = progress
        self._decoded = 0

    def answer(self) -> Asked:
        """Raises as `Library.ask`."""
        tried: list[Candidate] = []
        began, routed = time.perf_counter(), 0.0
        for candidate in _routed(self._library, self._question, DEPTH):
            found_at = time.perf_counter()
            routed += found_at - began
            found = self._graft(candidate.passage)
            began = time.perf_counter()
            if isinstance(found, str):
                tried.append(replace(candidate, passed_over=found))
                continue
            graft, prompt = found
            stages = graft.report.seconds
            restored, computed = stages.get("restore", 0.0), stages.get("recompute", 0.0)
            seconds = {
                "route": routed,
                "verify": began - found_at - restored - computed,
                "restore": restored,
                "prefill": computed,
            }
            every = (*tried, candidate)
            return self._decode(graft, Asked(self._question, every, candidate, seconds=seconds, prompt=prompt))
        return Asked(self._question, tuple(tried), seconds={"route": routed + time.perf_counter() - began})

    def _graft(self, passage: Passage) -> tuple[Graft, Digest] | str:
        """The passage's state with the question still to compute, and the digest of all tokens; or why not."""
        engine = self._engine
        if passage.compatibility != engine.fingerprints.compatibility.digest:
            return "entry.other_model"
        held = engine.encode(passage.prompt)
        if tokens_digest(held) != passage.tokens_digest:
            return "entry.tokens"
        tokens = [*held, *phrasing.question(engine, self._question)]
        try:
            graft = self._library.client.graft(engine, tokens, artifact=passage.artifact)
        except CodedError as error:
            if isinstance(error, EngineError) and error.code != "engine.too_long":
                raise
            return error.code
        report = graft.report
        if report.mode == WHOLE and report.tokens_grafted == len(held):
            return graft, tokens_digest(tokens)
        if report.refused is not None:
            return report.refused.code
        return "graft.never" if report.mode == MISS else "store.partial"

    def _decode(self, graft: Graft, asked: Asked) -> Asked:
        engine, report, began = self._engine, graft.report, time.perf_counter()
        logits = engine.prefill(graft.context, graft.next_tokens, graft.schedule)
        prefilled = time.perf_counter()
        decoded = decode(
            engine, graft.context, logits, graft.schedule, self._max_tokens, stops=phrasing.STOPS, tell=self._tell
        )
        seconds = {
            **asked.seconds,
            "prefill": asked.seconds["prefill"] + prefilled - began,
            "decode": time.perf_counter() - prefilled,
        }
        return replace(
            asked,
            answer=decoded.text,
            cost=Cost(len(decoded.tokens), report.tokens_recomputed, report.tokens_grafted, sum(seconds.values())),
            seconds=seconds,
            output=tokens_digest(decoded.tokens) if decoded.tokens else None,
        )

    def _tell(self) -> None:
        self._decoded += 1
        self._progress("decode", self._decoded, self._max_tokens, "tokens")
