"""How passages and questions become the tokens of one model.

    handbook/leave.md, Leave > Sick days        the heading: where the passage is from
    <empty line>
    …text of the passage…                       an artifact ends here
    <empty line>
    Question: …                                 computed for each question; under a chat template a turn of the user's
    Answer:

A passage is plain text, whatever chat template the model has: one artifact for every question. Knows no library.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from kvsync.engines.engine import Engine
from kvsync.errors import UsageError
from kvsync.library.corpus.cutting import cut
from kvsync.library.corpus.folder import Document
from kvsync.library.corpus.outline import Outline
from kvsync.library.wording import Wording
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.passage import MAX_HEADING_BYTES, MAX_TEXT_BYTES, Passage, prompt
from kvsync_protocol.prefix import tokens_digest

MIN_TOKENS: Final = 32
STOPS: Final = ("\n\n", "\nQuestion:")
"""Texts at which an answer ends, beside the model's own end tokens."""
UNKNOWN: Final = ArtifactId(Digest(bytes(32)))
"""Stands in a passage whose artifact is not computed yet."""
_BEFORE: Final = ("Read this.", "I have read it.")
"""Turns that stand for the passage where a template writes what follows."""
_QUESTION: Final = "\nQuestion: {}\nAnswer:"
_MOST_CHARS: Final = 16
"""Characters per token that a passage may have; texts of longer tokens are cut a little shorter than they might."""


def question(engine: Engine, text: str) -> list[int]:
    """What is computed behind a passage: one more turn of a conversation, or plain words without a chat template."""
    if engine.template is not None:
        return Wording(engine).follow(*_BEFORE, text)
    return engine.encode(_QUESTION.format(text), continuation=True)


@dataclass(slots=True)
class Phrasing:
    """Cuts documents into passages of at most `max_tokens`, their headings included.

    Raises:
        UsageError: `corpus.max_tokens` when passages would be too short to hold something, or leave less than a
            quarter of the model's room for question and answer.
    """

    engine: Engine
    max_tokens: int
    _headings: dict[tuple[str, str], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        most = self.engine.max_tokens * 3 // 4
        if not MIN_TOKENS <= self.max_tokens <= most:
            raise UsageError(
                "corpus.max_tokens",
                f"passages of {self.max_tokens} tokens: this model takes {MIN_TOKENS} to {most}",
            )

    def passages(self, document: Document) -> Iterator[Passage]:
        """The document's passages without their artifacts; what holds only white space is left out."""
        outline, text = Outline.of(document.source, document.text), document.text
        self._headings.clear()

        def fits(start: int, stop: int) -> bool:
            heading = self._heading(document.source, outline.over(start, stop))
            return len(self.engine.encode(prompt(heading, text[start:stop]))) <= self.max_tokens

        most = min(_MOST_CHARS * self.max_tokens, MAX_TEXT_BYTES // 4)
        for start, stop in cut(text, outline, fits, most):
            if not text[start:stop].strip():
                continue
            section = outline.over(start, stop)
            heading = self._heading(document.source, section)
            tokens = self.engine.encode(prompt(heading, text[start:stop]))
            yield Passage(
                source=document.source,
                document=document.digest,
                characters=len(text),
                section=section,
                start=start,
                stop=stop,
                heading=heading,
                text=text[start:stop],
                artifact=UNKNOWN,
                tokens=len(tokens),
                tokens_digest=tokens_digest(tokens),
                compatibility=self.engine.fingerprints.compatibility.digest,
            )

    def _heading(self, source: str, section: str) -> str:
        """As much of the place as takes no more than a quarter of a passage."""
        if (source, section) not in self._headings:
            tries = [f"{source}, {section}", source] if section else [source]
            self._headings[source, section] = next((each for each in tries if self._short(each)), "")
        return self._headings[source, section]

    def _short(self, heading: str) -> bool:
        return len(heading.encode()) <= MAX_HEADING_BYTES and len(self.engine.encode(heading)) * 4 <= self.max_tokens
