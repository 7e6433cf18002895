"""The samples of a run: pairs of a document and of what follows it, the same on every host and in every release.

Text and lengths follow from SHA-256 alone, so a seed, a count and the longest usable sequence name a run's inputs;
only the tokenizer is added. Kinds follow each other so that a few samples already vary: whole and prefix grafts;
documents shorter than a block, of whole blocks, of neither, and beyond twice a sliding window of 512;
continuations of one token, of a few, of tens, and of several blocks.

A model whose recurrent layers keep a snapshot at every n-th block can be grafted only there. Its generator has n
in its name, and prefix grafts end where a snapshot stands; for all other models nothing of that matters.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import lcm
from typing import TYPE_CHECKING, Final

from kvsync.errors import EngineError, UsageError
from kvsync_protocol.digest import Digest
from kvsync_protocol.errors import VersionError
from kvsync_protocol.layout import Layout
from kvsync_protocol.prefix import tokens_digest
from kvsync_protocol.receipt import Record
from kvsync_protocol.sample import GraftMode, Inputs, Settings, contradiction
from kvsync_protocol.schedule import Schedule
from kvsync_protocol.state import StateGroup

if TYPE_CHECKING:
    from kvsync.engines.engine import Engine

GENERATOR: Final = "kvsync-samples/1"
"""Where every block's end is a place to graft at; `generator` names the others."""
DECODE_STEPS: Final = 32
MAX_SAMPLES: Final = 10_000

_SNAPSHOTS: Final = re.compile(re.escape(GENERATOR) + "(?: snapshots ([1-9][0-9]{0,5}))?", re.ASCII)
_POOL_TOKENS: Final = 6000
_POOL_CHARS: Final = 40_000
_DOCUMENT_STARTS: Final = 2000
_NEW_STARTS: Final = (4000, 5000)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_ADJECTIVES: Final = _words("small exact northern quiet recent broken second ordinary careful distant plain early")
_NOUNS: Final = _words(
    "harbour engine committee letter winter bridge signal teacher archive river market window "
    "theorem garden printer valley captain ledger orchestra compass"
)
_VERBS: Final = _words("measured described repaired ignored followed opened compared recorded visited explained")
_PLACES: Final = _words("near behind under beside across after before without")
_UNITS: Final = _words("metres pages minutes barrels degrees people")
_ENDINGS: Final = (
    ".",
    ", although nobody had asked.",
    "; the result was the same as before.",
    ", and the answer did not change?",
    ":\n- first the cause,\n- then what followed.\n",
    ".\n\n",
)


class Draws:
    """A stream of numbers that depends on its name alone."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0

    def below(self, limit: int) -> int:
        self._count += 1
        return int.from_bytes(hashlib.sha256(f"{self._name}/{self._count}".encode()).digest()[:8], "big") % limit

    def between(self, low: int, high: int) -> int:
        """At least `low`, below `high`."""
        return low + self.below(high - low)

    def one_of(self, words: Sequence[str]) -> str:
        return words[self.below(len(words))]


@dataclass(frozen=True, slots=True)
class Sample:
    """Token ids are slices of one pool, so a few numbers say all."""

    index: int
    mode: GraftMode
    document_start: int
    document: int
    shared: int
    new_start: int
    new: int

    def document_tokens(self, pool: Sequence[int]) -> list[int]:
        return list(pool[self.document_start : self.document_start + self.document])

    def new_tokens(self, pool: Sequence[int]) -> list[int]:
        return list(pool[self.new_start : self.new_start + self.new])

    def sequence(self, pool: Sequence[int]) -> list[int]:
        """What a caller would ask to graft for."""
        return [*self.document_tokens(pool)[: self.shared], *self.new_tokens(pool)]

    def schedule(self, base: Schedule) -> Schedule:
        """Whole: cut at the document's end too. Prefix: the caller's own cuts, none of the document's."""
        return base.with_boundary(self.document) if self.mode is GraftMode.WHOLE else base

    def inputs(self, pool: Sequence[int], artifact: Digest, block_tokens: int) -> Inputs:
        """This sample as a record names it."""
        cut = self.document if self.mode is GraftMode.WHOLE and self.document % block_tokens else None
        tokens = tokens_digest(self.sequence(pool))
        return Inputs(self.index, self.mode, tokens, self.document, self.shared, self.new, cut, artifact)


def generator(layout: Layout) -> str:
    """The generator for models whose artifacts are laid out like this."""
    every = lcm(*(group.every for group in layout.groups if isinstance(group, StateGroup)))
    return GENERATOR if every == 1 else f"{GENERATOR} snapshots {every}"


def draw(settings: Settings) -> list[Sample]:
    """The samples that the settings name.

    Raises:
        VersionError: `version.generator`.
        UsageError: `samples.count`, `samples.limit`.
    """
    every = _every(settings.generator)
    check_count(settings.count)
    if settings.limit < 2 * settings.block_tokens + settings.decode_steps:
        raise UsageError("samples.limit", f"a model of {settings.limit} positions is too short to be proved here")
    return list(islice(_samples(settings, every), settings.count))


def _every(name: str) -> int:
    """Blocks from one place to graft at to the next, by the name of a generator."""
    found = _SNAPSHOTS.fullmatch(name)
    if found is None:
        raise VersionError(
            "version.generator",
            f"samples of {name!r} cannot be drawn here, where {GENERATOR} is known",
            hint="use the release that wrote it",
        )
    return int(found.group(1) or 1)


def check_drawn(run: Record, records: Sequence[Record]) -> None:
    """Check that the records of a checked receipt are the samples that its settings name, none left out or chosen.

    Raises:
        IntegrityError: `receipt.score` when they are others.
        VersionError: `version.generator` when nobody here can tell.
    """
    settings = Settings(**{field.name: run[field.name] for field in dataclasses.fields(Settings)})  # type: ignore[arg-type]
    try:
        drawn = draw(settings)
    except UsageError as error:
        raise contradiction(f"nobody draws such samples: {error.message}") from error
    for sample, record in zip(drawn, records, strict=True):
        own = (sample.mode.value, sample.document, sample.shared, sample.new)
        if own != tuple(record[name] for name in ("mode", "document", "shared", "new")):
            raise contradiction(f"record {sample.index} is not the sample that seed {settings.seed} gives")


def check_count(count: int) -> None:
    """Raises UsageError `samples.count`."""
    if not 1 <= count <= MAX_SAMPLES:
        raise UsageError("samples.count", f"the number of samples is not in 1..{MAX_SAMPLES}")


def _samples(settings: Settings, every: int) -> Iterator[Sample]:
    """Each document of more than a block serves a prefix graft as well, if there is a place for it to end."""
    draws = Draws(f"{GENERATOR}/{settings.seed}")
    block, index = settings.block_tokens, 0
    continuations = _continuations(draws, block)
    for wanted in _lengths(draws, block):
        start, room = draws.below(_DOCUMENT_STARTS), settings.limit - settings.decode_steps
        new = min(next(continuations), room // 3)
        length = min(wanted, room - new)
        yield Sample(index, GraftMode.WHOLE, start, length, length, draws.between(*_NEW_STARTS), new)
        index += 1
        if length > block:
            shared = _place(block * draws.between(1, (length - 1) // block + 1), length, block, every)
            if not shared:
                continue
            new = min(next(continuations), room - shared)
            yield Sample(index, GraftMode.PREFIX, start, length, shared, draws.between(*_NEW_STARTS), new)
            index += 1


def _place(wanted: int, length: int, block: int, every: int) -> int:
    """Where inside a document a graft can end: at `wanted` or the last place before it, else the first after; or 0.

    The last full block has a snapshot, too, unless the document ends with it. With `every` 1 this is `wanted`.
    """
    places = [*range(every * block, length, every * block), *([length - length % block] if length % block else [])]
    return max((place for place in places if place <= wanted), default=min(places, default=0))


def _lengths(draws: Draws, block: int) -> Iterator[int]:
    turn = 0
    while True:
        yield draws.between(block + 1, 2 * block)
        yield draws.between(block // 3, block)
        if turn % 3 == 0:
            yield draws.between(4 * block + 1, 4 * block + block)
        yield block * draws.between(1, 4)
        yield block * draws.between(2, 4) + draws.between(1, block)
        turn += 1


def _continuations(draws: Draws, block: int) -> Iterator[int]:
    while True:
        yield draws.between(2, 17)
        yield 1
        yield draws.between(17, 80)
        yield draws.between(2, 17)
        yield 2 * block + draws.below(60)
        yield draws.between(17, 80)
        yield 1


def token_pool(engine: Engine) -> list[int]:
    """Token ids of the generated text, from which all samples are cut.

    Raises:
        EngineError: `engine.no_tokenizer`.
    """
    tokens = engine.encode(text())
    if not tokens:
        raise EngineError("engine.no_tokenizer", "the tokenizer makes no tokens of plain English text")
    return (tokens * (_POOL_TOKENS // len(tokens) + 1))[:_POOL_TOKENS]


def text() -> str:
    """Sentences without much sense and with little repetition."""
    draws, parts, length = Draws(GENERATOR), [], 0
    while length < _POOL_CHARS:
        parts.append(_sentence(draws))
        length += len(parts[-1])
    return "".join(parts)


def _sentence(draws: Draws) -> str:
    def thing() -> str:
        return f"{draws.one_of(_ADJECTIVES)} {draws.one_of(_NOUNS)}"

    where = f"{draws.one_of(_PLACES)} {draws.below(1000)} {draws.one_of(_UNITS)}"
    return f"The {thing()} {draws.one_of(_VERBS)} the {thing()} {where}{draws.one_of(_ENDINGS)} "
