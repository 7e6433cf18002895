"""The process between kvsync and a program that nobody trusts: it builds the jail and waits inside as process 1.

    python -m kvsync.library.sandbox.jail STATUS_FD FOLDER   < request (JSON)

STATUS_FD gets one JSON object a line: `missing` with the isolations that this host does not give and the request
does not do without, `error` when the program cannot be started, `ready` right before it runs, `done` with how it
ended. What the program can see: the system's folders and Python's, read-only, and BOX, its own, which is in memory
and goes with it. It runs as nobody, without privileges, in namespaces of its own.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from kvsync.library.sandbox import kernel
from kvsync.library.sandbox.limits import BOX, ISOLATION

NOBODY = 65534
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


class Jail:
    """One run, from the shared world to the end of the program."""

    def __init__(self, request: dict[str, Any], status: int, folder: str) -> None:
        self.request = request
        self.limits: dict[str, int] = request["limits"]
        self.status = status
        self.folder = folder
        self.missing: dict[str, str] = {}
        self.proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.root = False  # whether this process has the privileges of the host's root and must give them up
        self.others = 1  # processes of the jail itself that count towards its limit

    def tell(self, **what: object) -> None:
        os.write(self.status, json.dumps(what).encode() + b"\n")

    def run(self) -> NoReturn:
        kernel.die_with_parent(signal.SIGKILL)
        with suppress(OSError):
            # Of all that runs here, this goes first when memory runs out.
            Path("/proc/self/oom_score_adj").write_text("1000")
        self.leave_shared()
        child = os.fork()
        if child:
            os.close(self.status)
            os.waitpid(child, 0)
            os._exit(0)
        kernel.die_with_parent(signal.SIGKILL)
        if "files" not in self.missing:
            try:
                self.build_root()
            except OSError as error:
                self.missing["files"] = str(error)
        if self.refused():
            os._exit(1)
        self.give_up_privileges()
        self.start()

    def refused(self) -> bool:
        """Tell which isolations are missing that the request wants."""
        wanted = {name: why for name, why in self.missing.items() if name not in self.request["without"]}
        if wanted:
            self.tell(missing=wanted)
        return bool(wanted)

    def leave_shared(self) -> None:
        """Namespaces: with root's privileges where there are any, else within a new user namespace."""
        may_become_nobody = os.geteuid() == 0 and self.maps_nobody()
        try:
            if not may_become_nobody:
                raise PermissionError
            kernel.unshare(kernel.NEW_MOUNTS)
            self.root = True
        except OSError:
            try:
                self.new_user_namespace()
                kernel.unshare(kernel.NEW_MOUNTS)
            except OSError as error:
                self.missing.update(dict.fromkeys(ISOLATION, str(error)))
                self.root = may_become_nobody
                return
            self.others += 1
        for name, flags in (("network", kernel.NEW_NET | kernel.NEW_IPC), ("processes", kernel.NEW_PIDS)):
            try:
                kernel.unshare(flags)
            except OSError as error:
                self.missing[name] = str(error)

    def maps_nobody(self) -> bool:
        """Whether root can become nobody: in a user namespace of somebody's making it may be the only user."""
        descriptor = os.open("self/uid_map", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.proc)
        with os.fdopen(descriptor) as file:
            ranges = [[int(number) for number in line.split()] for line in file]
        return any(first <= NOBODY < first + count for first, _, count in ranges)

    def new_user_namespace(self) -> None:
        """A user namespace in which this user is nobody; its processes are counted on their own."""
        user, group = os.geteuid(), os.getegid()
        kernel.unshare(kernel.NEW_USERS)
        for name, text in (
            ("setgroups", "deny"),
            ("gid_map", f"{NOBODY} {group} 1"),
            ("uid_map", f"{NOBODY} {user} 1"),
        ):
            descriptor = os.open(f"self/{name}", os.O_WRONLY | os.O_CLOEXEC, dir_fd=self.proc)
            try:
                os.write(descriptor, text.encode())
            finally:
                os.close(descriptor)

    def build_root(self) -> None:
        """A file system of the system's folders and Python's, all read-only, and the box."""
        new = self.folder
        kernel.make_private()
        kernel.mount_tmpfs(new, "mode=0755,size=1m")
        for path in dict.fromkeys((*SYSTEM, sys.base_prefix, sys.prefix)):
            show(path, new, read_only=True)
        for path in DEVICES:
            show(path, new, read_only=False)
        for name in ("proc", BOX.lstrip("/")):
            Path(new, name).mkdir()
        Path(new, "etc/passwd").write_text(f"nobody:x:{NOBODY}:{NOBODY}::{BOX}:/bin/sh\n")
        with suppress(OSError):
            # A convenience: containers that hide parts of /proc do not let another be mounted.
            kernel.mount_proc(f"{new}/proc")
        kernel.mount_tmpfs(new + BOX, f"mode=0777,size={self.limits['folder']},nr_inodes=4096")
        kernel.change_root(new)
        kernel.close_root()
        self.folder = BOX

    def give_up_privileges(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # or the program could interrupt process 1
        if self.root:
            os.chown(self.folder, NOBODY, NOBODY)
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            kernel.set_dumpable(True)  # or the files below /proc/self would be root's
            with suppress(OSError):
                # Without it, other runs of nobody count too: the limit holds, only tighter.
                self.new_user_namespace()
            kernel.die_with_parent(signal.SIGKILL)
        kernel.set_dumpable(False)
        kernel.gain_no_privileges()
        if "network" not in self.missing:
            try:
                kernel.limit_sockets()
            except OSError as error:
                self.missing["network"] = str(error)
        if "processes" not in self.missing and not counts_processes():
            self.missing["processes"] = "the kernel does not count the processes of this user"
        if self.refused():
            os._exit(1)
        os.close(self.proc)

    def start(self) -> NoReturn:
        """Put the files in place, start the program, wait, tell."""
        for name, text in self.request["files"].items():
            Path(self.folder, name).write_text(text)
        source = os.memfd_create("stdin")
        with os.fdopen(os.dup(source), "wb") as file:
            file.write(self.request["stdin"].encode())
        os.lseek(source, 0, os.SEEK_SET)
        self.tell(ready=True)
        child = os.fork()
        if not child:
            self.execute(source)
        while True:
            pid, status, usage = os.wait4(-1, 0)
            if pid == child:
                break
        self.tell(
            done={
                "status": os.waitstatus_to_exitcode(status),
                "cpu_s": usage.ru_utime + usage.ru_stime,
                "peak": usage.ru_maxrss * 1024,
            }
        )
        os._exit(0)

    def execute(self, source: int) -> NoReturn:
        limits = self.limits
        try:
            os.setsid()
            os.dup2(source, 0)
            os.chdir(self.folder)
            for what, soft, hard in (
                (resource.RLIMIT_CORE, 0, 0),
                (resource.RLIMIT_CPU, limits["cpu_s"], limits["cpu_s"] + 1),
                (resource.RLIMIT_FSIZE, limits["file"], limits["file"]),
                (resource.RLIMIT_NOFILE, 256, 256),
                (resource.RLIMIT_NPROC, limits["processes"] + self.others, limits["processes"] + self.others),
                (resource.RLIMIT_AS, limits["memory"], limits["memory"]),
            ):
                resource.setrlimit(what, (soft, hard))
            home = {"HOME": self.folder, "TMPDIR": self.folder, "PATH": os.pathsep.join(search_path())}
            argv = self.request["argv"]
            os.execvpe(argv[0], argv, {**home, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"})  # noqa: S606
        except OSError as error:
            self.tell(error=f"{self.request['argv'][0]}: {error.strerror}")
        finally:
            os._exit(127)


def counts_processes() -> bool:
    """Whether a limit on processes is kept: not for the host's root, whatever it is called inside."""
    before = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, before[1]))
    try:
        child = os.fork()
    except BlockingIOError:
        return True
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, before)
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    return False


def search_path() -> list[str]:
    return [str(Path(sys.prefix, "bin")), "/usr/local/bin", "/usr/bin", "/bin"]


def show(path: str, new: str, *, read_only: bool) -> None:
    """The host's `path` at the same place in `new`; nothing where the host has none."""
    source, target = Path(path), Path(new + path)
    if source.is_symlink() and source.parent == Path("/"):
        target.symlink_to(source.readlink())  # /bin and its like on systems with everything below /usr
        return
    if not source.exists() or target.exists():
        return  # absent, or below a folder that is shown already
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        target.mkdir()
    else:
        target.touch()
    kernel.bind(path, str(target), read_only=read_only)


def main() -> NoReturn:
    status, folder = int(sys.argv[1]), sys.argv[2]
    os.set_inheritable(status, False)
    with os.fdopen(0, "rb", closefd=False) as source:
        request = json.loads(source.read())
    os.umask(0o022)
    jail = Jail(request, status, folder)
    try:
        jail.run()
    except OSError as error:
        jail.tell(error=str(error))
        os._exit(1)


if __name__ == "__main__":
    main()
