"""The numbers of this node's preregistrations, and those of others that it has replayed.

A number is used up before anything is signed under it, so a signer never gives one number to two statements; and
whoever has seen it given twice can say so.
"""

from __future__ import annotations

import json
from typing import Final

from kvsync.config import Home
from kvsync.errors import NotFoundError, StoreError
from kvsync.files import exclusive, read_limited, write_atomic
from kvsync_protocol import strictjson
from kvsync_protocol.digest import Digest
from kvsync_protocol.errors import ProtocolError, TrustError
from kvsync_protocol.limits import MAX_NAME_CHARS, MiB
from kvsync_protocol.signing import PublicKey

_MAX_BYTES: Final = 16 * MiB


def next_sequence(home: Home) -> int:
    """Use up and return the next number; the first is 1.

    Raises:
        StoreError: `prereg.damaged`, `store.full`, `store.unwritable`.
    """
    with exclusive(home.lock_file):
        last, seen = _load(home)
        _save(home, last + 1, seen)
        return last + 1


def note(home: Home, signer: PublicKey, sequence: int, prereg: Digest) -> None:
    """Remember which statement a signer gave a number to.

    Raises:
        TrustError: `prereg.sequence` when it was another one before.
        StoreError: as `next_sequence`.
    """
    name = f"{signer}/{sequence}"
    with exclusive(home.lock_file):
        last, seen = _load(home)
        if seen.get(name, str(prereg)) != str(prereg):
            raise TrustError(
                "prereg.sequence",
                f"its signer has given number {sequence} to another preregistration as well",
                hint="ask the signer which one was made first",
                other=seen[name],
            )
        if name not in seen:
            _save(home, last, {**seen, name: str(prereg)})


def _load(home: Home) -> tuple[int, dict[str, str]]:
    try:
        data = read_limited(home.prereg_file, _MAX_BYTES, what="the list of preregistrations")
    except NotFoundError:
        return 0, {}
    try:
        fields = strictjson.Fields(strictjson.loads(data, limit=_MAX_BYTES, what="the list"), "prereg")
        last = fields.integer("last", 0, strictjson.MAX_SAFE_INTEGER - 1)
        seen = {name: str(Digest.parse(value)) for name, value in fields.mapping("seen").items()}
        fields.done()
        if any(len(name) > MAX_NAME_CHARS for name in seen):
            raise ValueError
    except (ProtocolError, ValueError) as error:
        raise StoreError(
            "prereg.damaged", f"{home.prereg_file} is damaged", hint="restore it from a backup"
        ) from error
    return last, seen


def _save(home: Home, last: int, seen: dict[str, str]) -> None:
    write_atomic(home.prereg_file, json.dumps({"last": last, "seen": seen}, indent=1).encode() + b"\n")
