"""`Ladder`: strategies one after another until a candidate passes the verifier or the budget is used up.

    exact     the entry of this very problem: graft it, decode the answer again, else its stored text
    related   entries of other problems: graft one as a worked example, decode behind it
    greedy    the problem alone
    sampled   the problem alone, with other seeds and temperatures

What the library cannot give (gone, damaged, of another model, not trusted) is passed over, never an error. Similar
text only suggests; the verifier decides, for stored answers as for new ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kvsync.engines.engine import Context, Engine, Logits
from kvsync.errors import EngineError, UsageError
from kvsync.graft.graft import Graft
from kvsync.graft.report import WHOLE
from kvsync.library.decoding import Decoded, Sampling, decode, decode_rows
from kvsync.library.entries import StoredEntry, finding
from kvsync.library.problem import Problem
from kvsync.library.recipe import DECODE, EXACT, GREEDY, RELATED, SAMPLED, Recipe
from kvsync.library.report import Attempt, Cost, Deposited, Solved, total
from kvsync.library.verifiers import Verdict, Verifier
from kvsync.library.wording import Wording
from kvsync.progress import Progress
from kvsync_protocol.errors import CodedError
from kvsync_protocol.prefix import tokens_digest
from kvsync_protocol.schedule import Schedule

if TYPE_CHECKING:
    from kvsync.library.library import Library

RECALL_SLACK: Final = 16
"""Tokens that a recalled answer may have more than the stored one."""
_TOO_LONG: Final = "engine.too_long"


class Ladder:
    """One problem on its way through the strategies. Used once."""

    def __init__(
        self,
        library: Library,
        problem: Problem,
        engine: Engine,
        verifier: Verifier,
        budget: int,
        recipe: Recipe,
        progress: Progress,
    ) -> None:
        if budget < 1:
            raise UsageError("solve.budget", f"a budget of {budget} tokens answers nothing", hint="give at least 1")
        self._library = library
        self._problem = problem
        self._engine = engine
        self._wording = Wording(engine)
        self._verifier = verifier
        self._budget = budget
        self._recipe = recipe
        self._progress = progress
        self._left = budget
        self._attempts: list[Attempt] = []
        self._beside: list[Attempt] = []
        """Attempts that were made side by side with the last one and stand behind it."""
        self._doubted: list[StoredEntry] = []

    def climb(self) -> Solved:
        """Raises as `Library.solve`."""
        answered = next((attempt for attempt in self._all() if attempt.passed), None)
        self._attempts += self._beside
        deposited = None
        if answered is not None and answered.strategy != EXACT and self._recipe.deposit and self._verifier.deposits:
            deposited = self._deposit(answered)
        return Solved(
            self._problem.text,
            self._problem.address,
            tuple(self._attempts),
            deposited,
            tuple(stored.digest for stored in self._doubted),
        )

    def _all(self) -> Iterator[Attempt]:
        """Every attempt of every strategy, made when it is asked for and kept for the report."""
        strategies: dict[str, Callable[[], Iterator[Attempt]]] = {
            EXACT: self._exact,
            RELATED: self._related,
            GREEDY: self._greedy,
            SAMPLED: self._sampled,
        }
        for name in self._recipe.order:
            for attempt in strategies[name]():
                self._attempts.append(attempt)
                yield attempt

    # strategies

    def _exact(self) -> Iterator[Attempt]:
        for stored in self._library.find(self._problem.address):
            entry = stored.entry
            found = None
            if self._recipe.recall == DECODE and self._left > 0:
                behind = self._wording.follow(entry.problem, entry.solution, self._problem.text)
                length = len(self._engine.encode(entry.solution, continuation=True)) + RECALL_SLACK
                found = self._grafted(EXACT, stored, behind, length)
                yield found
                if found.passed_over and found.passed_over != _TOO_LONG:
                    continue
            if found is None or found.passed_over:
                found = self._grafted(EXACT, stored, [], 0)
            else:
                found = Attempt(EXACT, stored.digest)  # its state was grafted, and paid for, above
            yield found if found.passed_over else self._as_stored(found, stored)

    def _as_stored(self, found: Attempt, stored: StoredEntry) -> Attempt:
        """The stored text as the candidate. One that its own verifier no longer passes leaves the library."""
        entry, began = stored.entry, time.perf_counter()
        verdict = self._verifier.verify(self._problem, entry.solution)
        ours = (self._verifier.name, self._verifier.version, dict(self._verifier.parameters))
        record = entry.verifier
        if not verdict.passed and ours == (record.name, record.version, dict(record.parameters)):
            self._doubt(stored, verdict)
        cost = found.cost + Cost(seconds=time.perf_counter() - began)
        return replace(found, detail="stored text", answer=entry.solution, verdict=verdict, cost=cost)

    def _related(self) -> Iterator[Attempt]:
        for hit in self._library.store.search(self._problem, self._recipe.related_entries):
            if self._left < 1:
                return
            detail = f"overlap {hit.overlap:.2f}"
            if hit.overlap < self._recipe.related_overlap:
                yield Attempt(RELATED, hit.stored.digest, detail, passed_over="solve.gate")
                continue
            entry = hit.stored.entry
            behind = self._wording.follow(entry.problem, entry.solution, self._problem.text)
            yield replace(self._grafted(RELATED, hit.stored, behind, self._recipe.max_tokens), detail=detail)

    def _greedy(self) -> Iterator[Attempt]:
        if self._left > 0:
            yield self._fresh(GREEDY, None)

    def _sampled(self) -> Iterator[Attempt]:
        recipe = self._recipe
        ways = [
            Sampling(recipe.temperatures[number % len(recipe.temperatures)], recipe.top_p, recipe.seed, number)
            for number in range(recipe.samples)
        ]
        while ways and self._left > 0:
            count = min(recipe.rows, len(ways), max(1, self._left // self._expected()))
            now, ways = ways[:count], ways[count:]
            made = [self._fresh(SAMPLED, now[0])] if count == 1 else self._rows(now)
            self._beside = [
                replace(
                    attempt,
                    detail=f"temperature {way.temperature:g}, seed {recipe.seed}, attempt {way.attempt}",
                )
                for attempt, way in zip(made, now, strict=True)
            ]
            while self._beside:
                yield self._beside.pop(0)

    def _expected(self) -> int:
        """Tokens of one more sampled attempt, by those before it: with more rows than the budget has whole answers
        for, all of them would be paid for and cut short."""
        lengths = [attempt.cost.decoded for attempt in self._attempts if attempt.strategy == SAMPLED]
        return max(1, -(-sum(lengths) // len(lengths))) if lengths else self._recipe.max_tokens

    # attempts

    def _grafted(self, strategy: str, stored: StoredEntry, behind: list[int], limit: int) -> Attempt:
        """Graft an entry's worked example, compute `behind`, decode at most `limit` tokens and have them judged."""
        began = time.perf_counter()
        entry, client = stored.entry, self._library.client
        if entry.compatibility != self._engine.fingerprints.compatibility.digest:
            return Attempt(strategy, stored.digest, passed_over="entry.other_model")
        try:
            held = client.store.artifact(entry.artifact).tokens()
            if tokens_digest(held) != entry.tokens_digest:
                return Attempt(strategy, stored.digest, passed_over="entry.tokens")
            tokens = [*held, *behind]
            graft = client.graft(self._engine, tokens, artifact=entry.artifact, template=self._wording.template)
        except CodedError as error:
            if isinstance(error, EngineError) and error.code != _TOO_LONG:
                raise
            return Attempt(strategy, stored.digest, passed_over=error.code)
        report = graft.report
        if report.mode != WHOLE:
            code = report.refused.code if report.refused is not None else "entry.tokens"
            return Attempt(strategy, stored.digest, passed_over=code)
        found = Attempt(strategy, stored.digest, prompt=tokens_digest(tokens), graft=report.mode)
        cost = Cost(0, report.tokens_recomputed, report.tokens_grafted)
        if not limit:
            return replace(found, cost=replace(cost, seconds=time.perf_counter() - began))
        logits = self._logits(graft)
        return self._judged(found, cost, began, self._decode(graft.context, logits, graft.schedule, limit, None))

    def _logits(self, graft: Graft) -> Logits:
        if graft.next_tokens:
            # `prefill`, whose logits are those of a fresh run to the bit: `extend` multiplies more rows at once.
            return self._engine.prefill(graft.context, graft.next_tokens, graft.schedule)
        if graft.final_logits is None:
            raise EngineError("engine.restore", "a whole graft without logits to go on from")
        return graft.final_logits

    def _fresh(self, strategy: str, sampling: Sampling | None) -> Attempt:
        """The problem alone, from an empty cache."""
        began = time.perf_counter()
        engine, tokens = self._engine, self._wording.ask(self._problem.text)
        try:
            context = engine.new_context()
            logits = engine.prefill(context, tokens, engine.schedule)
            decoded = self._decode(context, logits, engine.schedule, self._recipe.max_tokens, sampling)
        except EngineError as error:
            if error.code != _TOO_LONG:
                raise
            return Attempt(strategy, passed_over=error.code)
        found = Attempt(strategy, prompt=tokens_digest(tokens))
        return self._judged(found, Cost(0, len(tokens)), began, decoded)

    def _rows(self, ways: list[Sampling]) -> list[Attempt]:
        """As `_fresh`, for several at once; the first one bears what they share."""
        began = time.perf_counter()
        engine, tokens = self._engine, self._wording.ask(self._problem.text)
        try:
            context = engine.new_context()
            logits = engine.prefill(context, tokens, engine.schedule)
            limit, stops = self._recipe.max_tokens, (*self._wording.stops, *self._recipe.stops)
            rows = decode_rows(
                engine, context, logits, limit, ways, budget=self._left, stops=stops, tell=self._decoded
            )
        except EngineError as error:
            if error.code != _TOO_LONG:
                raise
            return [Attempt(SAMPLED, passed_over=error.code)] * len(ways)
        found, cost = Attempt(SAMPLED, prompt=tokens_digest(tokens)), Cost(0, len(tokens))
        first = self._judged(found, cost, began, rows[0])
        return [first, *(self._judged(found, Cost(), time.perf_counter(), row) for row in rows[1:])]

    def _decode(
        self, context: Context, logits: Logits, schedule: Schedule, limit: int, sampling: Sampling | None
    ) -> Decoded:
        stops = (*self._wording.stops, *self._recipe.stops)
        limit = min(limit, self._left)
        return decode(
            self._engine, context, logits, schedule, limit, sampling=sampling, stops=stops, tell=self._decoded
        )

    def _decoded(self) -> None:
        self._left -= 1
        self._progress("decode", self._budget - self._left, self._budget, "tokens")

    def _judged(self, found: Attempt, cost: Cost, began: float, decoded: Decoded) -> Attempt:
        verdict = self._verifier.verify(self._problem, decoded.text)
        cost = replace(cost, decoded=len(decoded.tokens), seconds=time.perf_counter() - began)
        tokens = tokens_digest(decoded.tokens) if decoded.tokens else None
        return replace(found, answer=decoded.text, verdict=verdict, cost=cost, tokens=tokens)

    # what the library learns

    def _doubt(self, stored: StoredEntry, verdict: Verdict) -> None:
        reason = f"fails {self._verifier.name} {self._verifier.version}: {verdict.detail}"
        try:
            self._library.quarantine(stored.digest, finding(reason))
        except CodedError:
            return  # the library went away meanwhile: nothing of it answers any more
        self._doubted.append(stored)

    def _deposit(self, answered: Attempt) -> Deposited:
        """Store a new solution, at the price of everything that was tried for it. A refusal costs no answer."""
        if answered.verdict is None:
            raise ValueError("only what a verifier has passed is stored")
        began, library = time.perf_counter(), self._library
        try:
            stored = library.deposit(
                self._problem,
                answered.answer,
                self._engine,
                self._verifier,
                answered.verdict,
                total(attempt.cost for attempt in self._attempts),
                self._progress,
            )
        except CodedError as error:
            return Deposited(refused=error.code, cost=Cost(seconds=time.perf_counter() - began))
        cost = Cost(prefilled=stored.entry.tokens, seconds=time.perf_counter() - began)
        return Deposited(stored.digest, stored.entry.artifact, cost=cost)
