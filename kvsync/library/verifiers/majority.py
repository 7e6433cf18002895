"""Majority vote: a candidate passes once enough candidates for the same problem say the same.

A weak verifier: models repeat their mistakes. It therefore deposits nothing unless told to, and an entry it made
cannot be judged again on another host, where no votes have been cast.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping

from kvsync.library.extract import RULES, answer_number, take
from kvsync.library.problem import Problem
from kvsync.library.verifiers.parameters import Parameters
from kvsync.library.verifiers.plain import fold
from kvsync.library.verifiers.spec_text import JsonValue
from kvsync.library.verifiers.verifier import Verdict
from kvsync_protocol.digest import Digest

MAX_PROBLEMS = 4096


class MajorityVote:
    """`votes` equal answers pass (default 3); `take` is `number` or a rule of `extract`; `deposits` (false)."""

    name = "majority"
    version = "1"

    def __init__(self, parameters: Mapping[str, JsonValue], votes: int, rule: str, deposits: bool) -> None:
        self.parameters = parameters
        self.deposits = deposits
        self._votes = votes
        self._rule = rule
        self._cast: OrderedDict[Digest, Counter[str]] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def read(cls, given: Parameters) -> MajorityVote:
        votes = given.integer("votes", 2, 1000, 3)
        rule, deposits = given.choice("take", ("number", *RULES), "answer"), given.truth("deposits", False)
        return cls(given.done(), votes, rule, deposits)

    def verify(self, problem: Problem, candidate: str) -> Verdict:
        said = self._said(candidate)
        if not said:
            return Verdict.of(False, "no answer to vote for")
        with self._lock:
            cast = self._cast.setdefault(problem.address, Counter())
            self._cast.move_to_end(problem.address)
            cast[said] += 1
            count, total = cast[said], cast.total()
            leads = all(count > other for answer, other in cast.items() if answer != said)
            if len(self._cast) > MAX_PROBLEMS:
                self._cast.popitem(last=False)
        passed = count >= self._votes and leads
        return Verdict(passed, min(count / self._votes, 1.0), f"weak: {count} of {total} votes, {self._votes} needed")

    def _said(self, candidate: str) -> str:
        if self._rule == "number":
            number = answer_number(candidate)
            return "" if number is None else str(number)
        return fold(take(self._rule, candidate) or "")
