"""The Linux calls that the standard library lacks: namespaces, mounts, prctl, and a filter on sockets.

Every function raises OSError. Imports nothing of kvsync, since the jail starts once per verdict.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Final

NEW_MOUNTS: Final = 0x00020000
NEW_IPC: Final = 0x08000000
NEW_USERS: Final = 0x10000000
NEW_PIDS: Final = 0x20000000
NEW_NET: Final = 0x40000000

READ_ONLY, NO_SUID, NO_DEVICES = 0x1, 0x2, 0x4
_REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 0x20, 0x1000, 0x4000, 0x40000
_DETACH: Final = 2
_MOUNT_SETATTR: Final = 442  # the same number on every architecture
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000

_PDEATHSIG, _DUMPABLE, _SECCOMP, _NO_NEW_PRIVS = 1, 4, 22, 38
_SECCOMP_FILTER: Final = 2

_libc: Final = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def _long(value: int) -> ctypes.c_ulong:
    return ctypes.c_ulong(value)


def unshare(flags: int) -> None:
    """Leave the shared namespaces of `flags`."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    _check(_libc.mount(texts[0], texts[1], texts[2], _long(flags), texts[3]), f"mount {target}")


def make_private() -> None:
    """No mount made from here on is seen outside."""
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)


def mount_tmpfs(target: str, options: str) -> None:
    _mount("tmpfs", target, "tmpfs", NO_SUID | NO_DEVICES, options)


def mount_proc(target: str) -> None:
    _mount("proc", target, "proc", NO_SUID | NO_DEVICES)


def bind(source: str, target: str, *, read_only: bool = True) -> None:
    """Show `source` with all that is mounted below it at `target`."""
    _mount(source, target, None, _BIND | _RECURSIVE)
    if read_only:
        attributes = struct.pack("=QQQQ", READ_ONLY | NO_SUID | NO_DEVICES, 0, 0, 0)
        _check(
            _libc.syscall(
                ctypes.c_long(_MOUNT_SETATTR),
                ctypes.c_int(_AT_FDCWD),
                os.fsencode(target),
                ctypes.c_uint(_AT_RECURSIVE),
                attributes,
                ctypes.c_size_t(len(attributes)),
            ),
            f"mount_setattr {target}",
        )


def close_root() -> None:
    """Make the root itself read-only."""
    _mount(None, "/", None, _REMOUNT | _BIND | READ_ONLY | NO_SUID | NO_DEVICES)


def change_root(new: str) -> None:
    """Make `new`, a mount, the root, and let go of the old one."""
    os.chdir(new)
    _check(_libc.pivot_root(b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", ctypes.c_int(_DETACH)), "umount")
    os.chdir("/")


def _prctl(option: int, value: int) -> None:
    _check(_libc.prctl(ctypes.c_int(option), _long(value), _long(0), _long(0), _long(0)), "prctl")


def die_with_parent(signal: int) -> None:
    """Be sent `signal` when the parent is gone. A change of user takes it back."""
    _prctl(_PDEATHSIG, signal)


def set_dumpable(value: bool) -> None:
    """Whether this user's other processes may look into this one, and who owns its files in /proc."""
    _prctl(_DUMPABLE, int(value))


def gain_no_privileges() -> None:
    """No set-uid file gives anything from here on."""
    _prctl(_NO_NEW_PRIVS, 1)


# ── sockets ──────────────────────────────────────────────────────────────────────────────────────────
# A network namespace holds IP, netlink and abstract unix sockets. Other families pass it by: AF_VSOCK reaches the
# host of a virtual machine. socket(2) is therefore refused for all but four, and io_uring, which can make sockets
# that no filter sees, altogether.

_AUDIT: Final = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}  # the filter's name of it, socket(2)
_IO_URING_SETUP: Final = 425
_X32: Final = 0x40000000
_FAMILIES: Final = (1, 2, 10, 16)  # unix, IPv4, IPv6, netlink
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_ENOSYS, _EAFNOSUPPORT = 38, 97
_NUMBER, _ARCH, _FIRST = 0, 4, 16  # offsets into what a filter reads


def limit_sockets() -> None:
    """Refuse sockets of families that a network namespace does not hold; `gain_no_privileges` comes first.

    Raises:
        OSError: also for an architecture whose call numbers are not known here.
    """
    machine = os.uname().machine
    if machine not in _AUDIT:
        raise OSError(_ENOSYS, f"no socket filter for {machine}")
    arch, socket = _AUDIT[machine]
    families = [(_EQUAL, len(_FAMILIES) - index, 0, family) for index, family in enumerate(_FAMILIES)]
    code = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, arch),
        (_RETURN, 0, 0, _ERRNO | _ENOSYS),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 1, 0, _X32),
        (_EQUAL, 0, 1, _IO_URING_SETUP),
        (_RETURN, 0, 0, _ERRNO | _ENOSYS),
        (_EQUAL, 0, len(_FAMILIES) + 2, socket),
        (_LOAD, 0, 0, _FIRST),
        *families,
        (_RETURN, 0, 0, _ERRNO | _EAFNOSUPPORT),
        (_RETURN, 0, 0, _ALLOW),
    ]
    packed = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in code))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(code), ctypes.addressof(packed)))
    _check(_libc.prctl(ctypes.c_int(_SECCOMP), _long(_SECCOMP_FILTER), program, _long(0), _long(0)), "prctl seccomp")
