"""Passages of a library: a piece of a document, where it stands, and the artifact that holds it (LIBRARY 5).

A passage is immutable and signed; its name is SHA-256 of the signed bytes. It says whose text it is and which tokens
were computed of it; that the tokens are those of the text is for whoever has the model's tokenizer. Knows no files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvsync_protocol import strictjson
from kvsync_protocol.digest import ArtifactId, Digest, sha256
from kvsync_protocol.envelope import Envelope, VerifiedPayload
from kvsync_protocol.errors import MalformedError, TrustError, VersionError
from kvsync_protocol.limits import MAX_TOKENS, KiB
from kvsync_protocol.signing import SigningKey

FORMAT: Final = 1
PAYLOAD_TYPE: Final = "application/vnd.kvsync.passage+json"
MAX_SOURCE_BYTES: Final = 1 * KiB
MAX_SECTION_BYTES: Final = 1 * KiB
MAX_HEADING_BYTES: Final = 4 * KiB
MAX_TEXT_BYTES: Final = 256 * KiB
MAX_PASSAGE_BYTES: Final = 768 * KiB


@dataclass(frozen=True, slots=True)
class Passage:
    """`Passage.parse(verified) == p` for a verified payload of `p.encode()`.

    `text` are the characters `start` to `stop` of the `characters` that the document `source` has; `document` is the
    digest of its bytes. `section` are the titles that it stands under. The artifact's tokens, of digest
    `tokens_digest` (SPEC 3.1), are those of `prompt`.
    """

    source: str
    document: Digest
    characters: int
    section: str
    start: int
    stop: int
    heading: str
    text: str
    artifact: ArtifactId
    tokens: int
    tokens_digest: Digest
    compatibility: Digest

    @property
    def digest(self) -> Digest:
        """Names the passage."""
        return sha256(self.encode())

    @property
    def prompt(self) -> str:
        """What was computed: the heading, if there is one, an empty line, the text on lines of its own."""
        return prompt(self.heading, self.text)

    def encode(self) -> bytes:
        return strictjson.dumps(
            {
                "format": FORMAT,
                "source": self.source,
                "document": {"digest": str(self.document), "characters": self.characters},
                "section": self.section,
                "start": self.start,
                "stop": self.stop,
                "heading": self.heading,
                "text": self.text,
                "artifact": str(self.artifact),
                "tokens": {"count": self.tokens, "digest": str(self.tokens_digest)},
                "compatibility": str(self.compatibility),
            }
        )

    def seal(self, key: SigningKey) -> Envelope:
        """Sign. Raises as `parse`, so that nothing is signed that would not be read."""
        payload = self.encode()
        self._read(payload)
        return Envelope.seal(PAYLOAD_TYPE, payload, key)

    @classmethod
    def parse(cls, verified: VerifiedPayload) -> Passage:
        """Raises MalformedError `json.*`, `passage.*`, `digest.*`; TrustError `trust.payload_type`; VersionError
        `version.format`."""
        if verified.payload_type != PAYLOAD_TYPE:
            raise TrustError("trust.payload_type", "not a passage")
        return cls._read(verified.payload)

    @classmethod
    def _read(cls, payload: bytes) -> Passage:
        fields = strictjson.Fields(strictjson.loads(payload, limit=MAX_PASSAGE_BYTES, what="the passage"), "passage")
        if fields.integer("format", 0, strictjson.MAX_SAFE_INTEGER) != FORMAT:
            raise VersionError("version.format", "a passage of another format", hint="use the kvsync that wrote it")
        document = strictjson.Fields(fields.take("document"), "passage")
        tokens = strictjson.Fields(fields.take("tokens"), "passage")
        characters = document.integer("characters", 1, strictjson.MAX_SAFE_INTEGER)
        found = cls(
            source=check_source(fields.string("source", limit=MAX_SOURCE_BYTES)),
            document=document.digest("digest"),
            characters=characters,
            section=fields.string("section", limit=MAX_SECTION_BYTES),
            start=fields.integer("start", 0, characters),
            stop=fields.integer("stop", 0, characters),
            heading=fields.string("heading", limit=MAX_HEADING_BYTES),
            text=fields.text("text", limit=MAX_TEXT_BYTES),
            artifact=ArtifactId(fields.digest("artifact")),
            tokens=tokens.integer("count", 1, MAX_TOKENS),
            tokens_digest=tokens.digest("digest"),
            compatibility=fields.digest("compatibility"),
        )
        for each in (document, tokens, fields):
            each.done()
        if not found.text or found.stop - found.start != len(found.text):
            raise MalformedError("passage.range", "the text is not as long as its place in the document")
        if found.encode() != payload:
            raise MalformedError("passage.canonical", "the passage is written in another form than its one form")
        return found


def prompt(heading: str, text: str) -> str:
    """The text that a passage's artifact is computed of."""
    return f"{heading}\n\n{text.strip()}\n" if heading else f"{text.strip()}\n"


def check_source(source: str) -> str:
    """A path below a folder, parts joined by `/`; shown and compared, never opened.

    Raises:
        MalformedError: `passage.source`.
    """
    if any(part in ("", ".", "..") for part in source.split("/")) or "\\" in source:
        raise MalformedError("passage.source", "a source is a path below a folder, without . and ..")
    return source
