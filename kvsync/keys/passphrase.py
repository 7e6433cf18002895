"""Where the passphrase of encrypted keys comes from: the environment, a file, a credential, a person.

    KVSYNC_PASSPHRASE            the passphrase itself
    KVSYNC_PASSPHRASE_FILE       a file that holds it, closed to other users
    $CREDENTIALS_DIRECTORY/kvsync-passphrase    what systemd's LoadCredential= leaves there

The first that is set counts. A person is asked last, and only by a program that has one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kvsync.errors import StoreError, UsageError
from kvsync.files import read_limited
from kvsync_protocol.limits import KiB

VARIABLE: Final = "KVSYNC_PASSPHRASE"
FILE_VARIABLE: Final = "KVSYNC_PASSPHRASE_FILE"
CREDENTIAL: Final = "kvsync-passphrase"

Ask = Callable[[], str]


def find_passphrase(ask: Ask | None = None) -> bytes:
    """The passphrase, without a line feed at its end.

    Raises:
        StoreError: `keys.locked` when none is to be had; `keys.lax_mode`, `file.*` for the file that holds it.
        UsageError: `keys.variable` when a variable is set but empty.
    """
    for name in (VARIABLE, FILE_VARIABLE):
        if os.environ.get(name) == "":
            raise UsageError("keys.variable", f"{name} is set but empty", hint="unset it or give it a value")
    if VARIABLE in os.environ:
        return os.fsencode(os.environ[VARIABLE])
    if FILE_VARIABLE in os.environ:
        return _read(Path(os.environ[FILE_VARIABLE]))
    credential = Path(os.environ.get("CREDENTIALS_DIRECTORY", "")) / CREDENTIAL
    if "CREDENTIALS_DIRECTORY" in os.environ and credential.exists():
        return _read(credential)
    if ask is not None:
        return ask().encode()
    raise StoreError(
        "keys.locked", "the private keys are encrypted and there is no passphrase", hint=f"set {FILE_VARIABLE}"
    )


def _read(path: Path) -> bytes:
    data = read_limited(path, 4 * KiB, what="the passphrase file", lax_code="keys.lax_mode")
    found = data.removesuffix(b"\n").removesuffix(b"\r")
    if not found:
        raise UsageError("keys.variable", f"{path} is empty", hint="write the passphrase into it")
    return found
