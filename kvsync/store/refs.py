"""Refs on disk: one file per name, with the highest sequence seen of every signer.

    refs/<SHA-256 of the name>.json   {"version", "name", "current": envelope or null, "signer",
                                       "sequences": {signer: highest sequence seen}}

The sequences outlive the ref: removing it does not let an older one back in. The file is the only
record; it is written under the index's transaction.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsync.errors import NotFoundError, StoreError
from kvsync.store.folder import Folder
from kvsync.store.temp import TempFiles
from kvsync_protocol import ref as ref_format
from kvsync_protocol import strictjson
from kvsync_protocol.digest import ArtifactId, sha256
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import ProtocolError, TrustError
from kvsync_protocol.limits import MAX_JSON_BYTES, MAX_LIST_ENTRIES, MAX_NAME_CHARS
from kvsync_protocol.ref import Ref, check_name
from kvsync_protocol.signing import PublicKey

_END = ".json"


@dataclass(frozen=True, slots=True)
class StoredRef:
    """A name, what it stands for, and who said so in `envelope`."""

    name: str
    artifact: ArtifactId
    sequence: int
    signer: PublicKey
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class _State:
    """What is remembered of a name, whether or not it stands for anything now."""

    current: StoredRef | None
    sequences: dict[str, int]


class RefFiles:
    """The refs/ folder."""

    def __init__(self, folder: Folder, temp: TempFiles) -> None:
        self._folder = folder
        self._temp = temp

    def refs(self) -> list[StoredRef]:
        """All names that stand for something, by name. Raises StoreError `store.ref_damaged`."""
        states = [self._read(name) for name in self.file_names()]
        return sorted((s.current for s in states if s is not None and s.current is not None), key=lambda r: r.name)

    def get(self, name: str) -> StoredRef | None:
        state = self._read(_file(name))
        return state.current if state else None

    def sequence(self, name: str, signer: PublicKey) -> int:
        """The highest sequence seen of `signer` for `name`, 0 for none."""
        state = self._read(_file(name))
        return state.sequences.get(str(signer), 0) if state else 0

    def set(self, ref: Ref, envelope: Envelope, signer: PublicKey) -> None:
        """Let the name stand for the artifact; the same ref again changes nothing.

        Raises:
            TrustError: `trust.payload_type`, `trust.untrusted_signer` when `envelope` is not this ref
                signed by `signer`; `trust.rollback` when the signer's sequence is not above the last,
                or repeats it for something else.
        """
        verified = envelope.verify(ref_format.PAYLOAD_TYPE, {signer})
        if Ref.parse(verified) != ref:
            raise TrustError("trust.untrusted_signer", "the envelope holds another ref")
        state = self._read(_file(ref.name)) or _State(None, {})
        last = state.sequences.get(str(signer), 0)
        held = state.current
        if held is not None and (held.artifact, held.sequence, held.signer) == (ref.artifact, ref.sequence, signer):
            return
        if ref.sequence <= last:
            raise TrustError(
                "trust.rollback",
                f"{ref.name} has sequence {ref.sequence}, but {last} of the same signer was seen",
                hint="the sender's copy is outdated, or somebody replays an old one",
                name=ref.name,
                sequence=ref.sequence,
                seen=last,
            )
        if len(state.sequences) >= MAX_LIST_ENTRIES and str(signer) not in state.sequences:
            raise StoreError("store.ref_signers", f"{ref.name} was signed by more than {MAX_LIST_ENTRIES} keys")
        current = StoredRef(ref.name, ref.artifact, ref.sequence, signer, envelope)
        self._write(ref.name, _State(current, {**state.sequences, str(signer): ref.sequence}))

    def remove(self, name: str) -> None:
        """Let the name stand for nothing. Raises NotFoundError `store.unknown_name`."""
        state = self._read(_file(name))
        if state is None or state.current is None:
            raise unknown_name(name)
        self._write(name, _State(None, state.sequences))

    def file_names(self) -> list[str]:
        return [name for name in self._folder.names() if name.endswith(_END)]

    def check(self, file_name: str) -> None:
        """Raises StoreError `store.ref_damaged` unless the file is a ref's."""
        self._read(file_name)

    def _write(self, name: str, state: _State) -> None:
        current = state.current
        content = {
            "version": 1,
            "name": name,
            "current": current.envelope.encode().decode() if current else None,
            "signer": str(current.signer) if current else None,
            "sequences": [{"signer": signer, "sequence": number} for signer, number in state.sequences.items()],
        }
        self._temp.publish(strictjson.dumps(content), self._folder, _file(name))
        self._folder.sync()

    def _read(self, file_name: str) -> _State | None:
        try:
            data = self._folder.read(file_name, MAX_JSON_BYTES)
        except NotFoundError:
            return None
        try:
            return _parse(data, file_name)
        except ProtocolError as error:
            raise StoreError(
                "store.ref_damaged",
                f"{self._folder.path / file_name} is damaged: {error.message}",
                hint="restore or remove it",
            ) from error


def _parse(data: bytes, file_name: str) -> _State:
    fields = strictjson.Fields(strictjson.loads(data, limit=MAX_JSON_BYTES, what=file_name), "ref")
    fields.integer("version", 1, 1)
    name = check_name(fields.string("name", limit=4 * MAX_NAME_CHARS))
    sequences = {}
    for entry in fields.array("sequences", limit=MAX_LIST_ENTRIES):
        member = strictjson.Fields(entry, "ref")
        signer = str(PublicKey.parse(member.take("signer")))
        sequences[signer] = member.integer("sequence", 1, strictjson.MAX_SAFE_INTEGER)
        member.done()
    text = fields.optional("current", lambda key: fields.string(key, limit=MAX_JSON_BYTES))
    by = fields.optional("signer", lambda key: PublicKey.parse(fields.take(key)))
    fields.done()
    current = None
    if text is not None and by is not None:
        envelope = Envelope.parse(text.encode())
        ref = Ref.parse(envelope.verify(ref_format.PAYLOAD_TYPE, {by}))
        current = StoredRef(ref.name, ref.artifact, ref.sequence, by, envelope)
    if _file(name) != file_name or (current is not None and current.name != name):
        raise TrustError("trust.ref_name", "it is the file of another name")
    return _State(current, sequences)


def _file(name: str) -> str:
    return sha256(name.encode()).hex + _END


def unknown_name(name: str) -> NotFoundError:
    return NotFoundError("store.unknown_name", f"{name!r} is neither a name nor an artifact here", hint="kvsync ls")
