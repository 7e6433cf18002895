"""What stands in a library's files: entries and passages, whose signatures are another question. Knows no files."""

from __future__ import annotations

from kvsync.errors import UsageError
from kvsync.library.problem import Problem
from kvsync_protocol import entry as entry_format
from kvsync_protocol import passage as passage_format
from kvsync_protocol.entry import Entry
from kvsync_protocol.envelope import Envelope, VerifiedPayload
from kvsync_protocol.errors import IntegrityError, TrustError
from kvsync_protocol.passage import Passage


def parse_any(envelope: Envelope) -> Entry | Passage:
    """An entry or a passage whose signature is another question. Raises as `parse_entry`, `Passage.parse`."""
    if envelope.payload_type == passage_format.PAYLOAD_TYPE:
        return Passage.parse(VerifiedPayload(envelope.payload_type, envelope.payload, ()))
    return parse_entry(envelope)


def parse_entry(envelope: Envelope) -> Entry:
    """An entry whose signature is another question.

    Raises:
        MalformedError: as `Entry.parse`; TrustError `trust.payload_type`.
        IntegrityError: `entry.address` when it does not lie where its problem belongs.
    """
    if envelope.payload_type != entry_format.PAYLOAD_TYPE:
        raise TrustError("trust.payload_type", f"signed as {envelope.payload_type!r}, not as an entry")
    entry = Entry.parse(VerifiedPayload(envelope.payload_type, envelope.payload, ()))
    try:
        address = Problem.of(entry.problem).address
    except UsageError as error:
        raise IntegrityError("entry.address", f"an entry without a problem: {error.message}") from error
    if address != entry.address:
        raise IntegrityError("entry.address", "the entry lies under the address of another problem")
    return entry
