"""One private key in one file: a seed in hex, or PKCS #8 encrypted under a passphrase.

The encrypted form is standard PEM (RFC 5958, PBES2 of RFC 8018 with scrypt and AES-256-CBC), which
`openssl pkey` reads too. CBC alone notices neither a changed byte nor, once in 256 times, a wrong passphrase. So the
line before the PEM text holds its digest, which tells damage from a wrong passphrase, and the public key, which the
opened key is compared with. A line without a digest is of a file from before there was one.
"""

from __future__ import annotations

import base64
import os
import secrets
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from kvsync.errors import StoreError
from kvsync.files import read_limited, write_atomic
from kvsync_protocol.digest import Digest, sha256
from kvsync_protocol.errors import ProtocolError
from kvsync_protocol.limits import KiB
from kvsync_protocol.signing import PublicKey, SigningKey

Passphrase = Callable[[], bytes]
"""Gives the passphrase when one is needed, and not before. Raises StoreError `keys.locked`."""

SCRYPT_N: Final = 2**14
"""With r = 8 this takes 16 MiB a lane, what OpenSSL allows without being asked; p makes up for it."""
SCRYPT_R: Final = 8
SCRYPT_P: Final = 5
_BEGIN: Final = b"-----BEGIN ENCRYPTED PRIVATE KEY-----"
_MARK: Final = "kvsync key "
_ED25519: Final = bytes.fromhex("302e020100300506032b657004220420")
"""PKCS #8 before the seed (RFC 8410)."""
_PBES2: Final = bytes.fromhex("06092a864886f70d01050d")
_SCRYPT: Final = bytes.fromhex("06092b06010401da47040b")
_AES_256_CBC: Final = bytes.fromhex("060960864801650304012a")


def read_key(path: Path, passphrase: Passphrase) -> SigningKey:
    """Raises StoreError `keys.lax_mode`, `keys.damaged`, `keys.locked`, `keys.passphrase`."""
    data = read_limited(path, 4 * KiB, what="the key file", lax_code="keys.lax_mode")
    try:
        if _BEGIN not in data:
            return SigningKey(bytes.fromhex(data.decode("ascii").strip()))
        public, pem = _parse(data)
    except (ValueError, ProtocolError) as error:
        raise _damaged(path) from error
    key = _decrypt(pem, passphrase(), path)
    if key.public != public:
        raise _damaged(path)
    return key


def is_encrypted(path: Path) -> bool:
    """Raises StoreError `keys.lax_mode`."""
    return _BEGIN in read_limited(path, 4 * KiB, what="the key file", lax_code="keys.lax_mode")


def write_key(path: Path, key: SigningKey, passphrase: bytes | None) -> None:
    """Replace the file, mode 0600 from its first byte. None writes it in the clear."""
    write_atomic(path, key.seed.hex().encode() + b"\n" if passphrase is None else _encrypt(key, passphrase))


def _encrypt(key: SigningKey, passphrase: bytes) -> bytes:
    salt, start = secrets.token_bytes(16), os.urandom(16)
    derived = Scrypt(salt=salt, length=32, n=SCRYPT_N, r=SCRYPT_R, p=SCRYPT_P).derive(passphrase)
    plain = _ED25519 + key.seed
    filled = plain + bytes([16 - len(plain) % 16]) * (16 - len(plain) % 16)
    encryptor = Cipher(AES(derived), CBC(start)).encryptor()
    body = encryptor.update(filled) + encryptor.finalize()
    costs = b"".join(_der(0x02, _number(cost)) for cost in (SCRYPT_N, SCRYPT_R, SCRYPT_P))
    kdf = _der(0x30, _SCRYPT + _der(0x30, _der(0x04, salt) + costs))
    cipher = _der(0x30, _AES_256_CBC + _der(0x04, start))
    algorithm = _der(0x30, _PBES2 + _der(0x30, kdf + cipher))
    text = base64.b64encode(_der(0x30, algorithm + _der(0x04, body))).decode()
    lines = [_BEGIN.decode(), *textwrap.wrap(text, 64), _BEGIN.decode().replace("BEGIN", "END")]
    pem = "".join(f"{line}\n" for line in lines).encode()
    return f"{_MARK}{key.public} {sha256(pem)}\n".encode() + pem


def _parse(data: bytes) -> tuple[PublicKey, bytes]:
    """The public key and the PEM text. Raises ValueError, ProtocolError when they are not as written."""
    public, _, digest = data.decode("ascii").partition("\n")[0].removeprefix(_MARK).partition(" ")
    pem = data[data.index(_BEGIN) :]
    if digest and sha256(pem) != Digest.parse(digest):
        raise ValueError("its text is not what was written")
    return PublicKey.parse(public), pem


def _decrypt(pem: bytes, passphrase: bytes, path: Path) -> SigningKey:
    try:
        private = serialization.load_pem_private_key(pem, passphrase)
    except (ValueError, TypeError) as error:  # several kinds of the one; the other for an empty passphrase
        raise StoreError("keys.passphrase", f"the passphrase does not open {path}", hint="try again") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise _damaged(path)
    return SigningKey(private.private_bytes_raw())


def _damaged(path: Path) -> StoreError:
    return StoreError("keys.damaged", f"{path} does not hold a key", hint="restore it from a backup")


def _number(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big")  # a leading zero bit: DER integers have a sign


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    return bytes([tag, size]) + content if size < 128 else bytes([tag, 0x81, size]) + content
