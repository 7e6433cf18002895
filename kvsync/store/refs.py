"""Refs on disk: one file per name, with the highest sequence seen of every signer.

    refs/<SHA-256 of the name>.json   {"version", "name", "current": envelope or null, "signer",
                                       "sequences": [{signer, highest sequence seen, its artifact}]}

The sequences outlive the ref: removing it does not let an older one back in. A name belongs to the keys that
signed what it stands for now, so that one trusted signer's names are not another's to move. The file is the
only record; it is written under the index's transaction.
"""

from __future__ import annotations

from collections.abc import Collection
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
    """A name, what it stands for until when (Unix time, or None), and who said so in `envelope`.

    `signers` are all the keys that count as its owners, `signer` the first of them.
    """

    name: str
    artifact: ArtifactId
    sequence: int
    expires: int | None
    signers: tuple[PublicKey, ...]
    envelope: Envelope

    @property
    def signer(self) -> PublicKey:
        return self.signers[0]

    @property
    def ref(self) -> Ref:
        return Ref(self.name, self.artifact, self.sequence, self.expires)

    @classmethod
    def of(cls, ref: Ref, signers: tuple[PublicKey, ...], envelope: Envelope) -> StoredRef:
        return cls(ref.name, ref.artifact, ref.sequence, ref.expires, signers, envelope)


@dataclass(frozen=True, slots=True)
class _Seen:
    """The highest sequence of one signer, and what it stood for; files of before that was kept do not say."""

    sequence: int
    artifact: ArtifactId | None


@dataclass(frozen=True, slots=True)
class _State:
    """What is remembered of a name, whether or not it stands for anything now."""

    current: StoredRef | None
    seen: dict[str, _Seen]

    def check_sequence(self, ref: Ref, signers: Collection[PublicKey]) -> None:
        """Refuse what a signer has replaced since. Raises TrustError `trust.rollback`."""
        for signer in signers:
            last = self.seen.get(str(signer), _Seen(0, None))
            again = self.current is None or self.current.ref == ref
            if ref.sequence < last.sequence + (not again) or (
                ref.sequence == last.sequence and ref.artifact != last.artifact
            ):
                raise TrustError(
                    "trust.rollback",
                    f"{ref.name} has sequence {ref.sequence}, but {last.sequence} of the same signer was seen",
                    hint="the sender's copy is outdated, or somebody replays an old one",
                    name=ref.name,
                    sequence=ref.sequence,
                    seen=last.sequence,
                )

    def check_owner(self, ref: Ref, signers: Collection[PublicKey], owners: Collection[PublicKey]) -> None:
        """Refuse a name that one of `owners` has given to somebody else. Raises TrustError `trust.ref_owner`."""
        held = self.current
        if held is not None and set(held.signers) & set(owners) and not set(held.signers) & set(signers):
            raise TrustError(
                "trust.ref_owner",
                f"{ref.name} is a name that another signer has given, {held.signer.key_id}",
                hint="remove it here to take the other's, or ask for the artifact by its id",
                name=ref.name,
            )


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
        last = state.seen.get(str(signer)) if state else None
        return last.sequence if last else 0

    def check(self, ref: Ref, signers: Collection[PublicKey], owners: Collection[PublicKey]) -> None:
        """Raises as `set`, changing nothing; the signatures are not looked at."""
        self._judge(ref, signers, owners)

    def set(
        self, ref: Ref, envelope: Envelope, signers: Collection[PublicKey], owners: Collection[PublicKey] = ()
    ) -> None:
        """Let the name stand for the artifact; the same ref again changes nothing.

        `signers` all have signed. A name that one of `owners` has given is moved by a ref of the same key only.

        Raises:
            TrustError: `trust.payload_type`, `trust.untrusted_signer` when `envelope` is not this ref
                signed by all `signers`; `trust.rollback` when a signer's sequence is below the last,
                or repeats it for something else; `trust.ref_owner` for another's name.
        """
        verified = envelope.verify(ref_format.PAYLOAD_TYPE, signers, threshold=len(set(signers)))
        if Ref.parse(verified) != ref:
            raise TrustError("trust.untrusted_signer", "the envelope holds another ref")
        state = self._judge(ref, signers, owners)
        current = StoredRef.of(ref, verified.signers, envelope.endorsed(signers))
        if state.current == current:
            return
        seen = {**state.seen, **{str(signer): _Seen(ref.sequence, ref.artifact) for signer in signers}}
        if len(seen) > MAX_LIST_ENTRIES:
            raise StoreError("store.ref_signers", f"{ref.name} was signed by more than {MAX_LIST_ENTRIES} keys")
        self._write(ref.name, _State(current, seen))

    def _judge(self, ref: Ref, signers: Collection[PublicKey], owners: Collection[PublicKey]) -> _State:
        """The state of the ref's name, if it may be moved to this ref."""
        state = self._read(_file(ref.name)) or _State(None, {})
        state.check_sequence(ref, signers)
        state.check_owner(ref, signers, owners)
        return state

    def remove(self, name: str) -> None:
        """Let the name stand for nothing. Raises NotFoundError `store.unknown_name`."""
        state = self._read(_file(name))
        if state is None or state.current is None:
            raise unknown_name(name)
        self._write(name, _State(None, state.seen))

    def file_names(self) -> list[str]:
        return [name for name in self._folder.names() if name.endswith(_END)]

    def check_file(self, file_name: str) -> None:
        """Raises StoreError `store.ref_damaged` unless the file is a ref's."""
        self._read(file_name)

    def _write(self, name: str, state: _State) -> None:
        current = state.current
        content = {
            "version": 1,
            "name": name,
            "current": current.envelope.encode().decode() if current else None,
            "signer": str(current.signer) if current else None,
            "sequences": [
                {"signer": signer, "sequence": last.sequence, "artifact": last.artifact and str(last.artifact)}
                for signer, last in state.seen.items()
            ],
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
    seen = {}
    for entry in fields.array("sequences", limit=MAX_LIST_ENTRIES):
        member = strictjson.Fields(entry, "ref")
        signer = str(PublicKey.parse(member.take("signer")))
        number = member.integer("sequence", 1, strictjson.MAX_SAFE_INTEGER)
        digest = member.optional("artifact", member.digest)
        seen[signer] = _Seen(number, None if digest is None else ArtifactId(digest))
        member.done()
    text = fields.optional("current", lambda key: fields.string(key, limit=MAX_JSON_BYTES))
    by = fields.optional("signer", lambda key: PublicKey.parse(fields.take(key)))
    fields.done()
    current = None
    if text is not None and by is not None:
        envelope = Envelope.parse(text.encode())
        ref = Ref.parse(envelope.verify(ref_format.PAYLOAD_TYPE, {by}))
        current = StoredRef.of(ref, envelope.signers({by, *map(PublicKey.parse, seen)}), envelope)
    if _file(name) != file_name or (current is not None and current.name != name):
        raise TrustError("trust.ref_name", "it is the file of another name")
    return _State(current, seen)


def _file(name: str) -> str:
    return sha256(name.encode()).hex + _END


def unknown_name(name: str) -> NotFoundError:
    return NotFoundError("store.unknown_name", f"{name!r} is neither a name nor an artifact here", hint="kvsync ls")
