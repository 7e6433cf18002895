"""A node's home directory and its settings.

<home>/config.toml      settings, all optional; an unknown or ill-typed one is an error
<home>/keys/            signer.key and peer.key, 0600, and those that followed them
<home>/trust.json       signer keys whose bytes count
<home>/peers.json       peer keys that may connect, with addresses and roles
<home>/prereg.json      numbers of the preregistrations that were made and seen here
<home>/statements.json  which keys follow which, and which are revoked
<home>/invitations.json tickets given out, as hashes
<home>/registries.json  registries to use beside this node's own
<home>/follows.json     names that are kept in step with other nodes
<home>/offered.json     models with which others may have this node compute
<home>/costs.json       how long computing and restoring have taken on this host
<home>/registry.sqlite  what this node's own registry was told
<home>/store/           artifacts and chunks
<home>/libraries/       lists and entries of libraries
<home>/daemon/          socket, queue, log and lock of the daemon
<home>/blame/           signed records of chunks that peers sent wrong
<home>/paused           while it is there, no chunks move
<home>/home.lock        held while keys and lists are changed
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import platformdirs

from kvsync.errors import NotFoundError, StoreError, UsageError
from kvsync.files import make_private_dir, read_limited, write_atomic
from kvsync.networks import Networks
from kvsync_protocol.limits import GiB, KiB, MiB

HOME_VARIABLE: Final = "KVSYNC_HOME"
MAX_CONFIG_BYTES: Final = 256 * KiB
MIN_RATE: Final = 128 * KiB
"""Bytes per second. Below it the other side of a few streams would take each for stalled."""
MAX_RATE: Final = 2**40
_HOST = re.compile(r"[0-9A-Za-z.:_%-]{1,255}", re.ASCII)
"""A host name or an IP address, as far as its characters go; the resolver judges the rest."""


def is_host(text: str) -> bool:
    """True when `text` can be a host's name or address and holds nothing that means more in a URL or a log."""
    return _HOST.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Home:
    """Paths of one node. Nothing is created or read until asked for."""

    root: Path

    @classmethod
    def locate(cls, explicit: Path | None = None) -> Home:
        """`explicit`, else $KVSYNC_HOME, else the user's data directory.

        Raises:
            UsageError: `home.variable` when the variable is empty, `home.user` for a `~name` of nobody here.
        """
        if explicit is None and HOME_VARIABLE in os.environ:
            value = os.environ[HOME_VARIABLE]
            if not value:
                raise UsageError(
                    "home.variable", f"{HOME_VARIABLE} is set but empty", hint="unset it or name a directory"
                )
            explicit = Path(value)
        root = explicit or Path(platformdirs.user_data_dir("kvsync", appauthor=False))
        try:
            return cls(root.expanduser().absolute())
        except RuntimeError as error:
            raise UsageError("home.user", f"{root} names nobody's directory", hint="give a full path") from error

    @property
    def config_file(self) -> Path:
        return self.root / "config.toml"

    @property
    def keys_dir(self) -> Path:
        return self.root / "keys"

    @property
    def trust_file(self) -> Path:
        return self.root / "trust.json"

    @property
    def peers_file(self) -> Path:
        return self.root / "peers.json"

    @property
    def statements_file(self) -> Path:
        return self.root / "statements.json"

    @property
    def invitations_file(self) -> Path:
        return self.root / "invitations.json"

    @property
    def registries_file(self) -> Path:
        return self.root / "registries.json"

    @property
    def registry_file(self) -> Path:
        """The rows of the registry that the daemon embeds."""
        return self.root / "registry.sqlite"

    @property
    def follows_file(self) -> Path:
        return self.root / "follows.json"

    @property
    def followed_file(self) -> Path:
        """How far each followed name is."""
        return self.daemon_dir / "followed.json"

    @property
    def offered_file(self) -> Path:
        return self.root / "offered.json"

    @property
    def costs_file(self) -> Path:
        """How long computing and restoring have taken on this host."""
        return self.root / "costs.json"

    @property
    def blame_dir(self) -> Path:
        """Signed records of chunks that came wrong."""
        return self.root / "blame"

    @property
    def paused_file(self) -> Path:
        """While it exists, no chunks move to or from any peer."""
        return self.root / "paused"

    @property
    def prereg_file(self) -> Path:
        """Numbers of preregistrations, made and seen."""
        return self.root / "prereg.json"

    @property
    def store_dir(self) -> Path:
        return self.root / "store"

    @property
    def libraries_dir(self) -> Path:
        return self.root / "libraries"

    @property
    def daemon_dir(self) -> Path:
        return self.root / "daemon"

    @property
    def socket(self) -> Path:
        """The daemon's local API. `kvsync.daemon.endpoint` copes with paths too long for a socket's name."""
        return self.daemon_dir / "api.sock"

    @property
    def pid_file(self) -> Path:
        """Locked by the running daemon."""
        return self.daemon_dir / "pid"

    @property
    def log_file(self) -> Path:
        """What a daemon in the background says."""
        return self.daemon_dir / "daemon.log"

    @property
    def jobs_file(self) -> Path:
        return self.daemon_dir / "jobs.sqlite"

    @property
    def lock_file(self) -> Path:
        """Held while keys or lists are changed, so that two commands at once lose nothing."""
        return self.root / "home.lock"

    def create(self) -> None:
        """Make the private directories. Raises StoreError `home.*`."""
        for path in (self.root, self.keys_dir, self.store_dir, self.daemon_dir):
            make_private_dir(path)

    def require(self) -> None:
        """Raises StoreError `home.missing`, `home.unreadable` or `home.lax_mode` unless `kvsync init` was run here
        and nobody else can replace its keys and lists."""
        try:
            (self.keys_dir / "signer.key").stat()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StoreError("home.missing", f"{self.root} is not a kvsync home", hint="kvsync init") from error
        except OSError as error:
            raise StoreError(
                "home.unreadable", f"{self.root} cannot be read: {error.strerror}", hint="check owner and mode"
            ) from error
        for path in (self.root, self.keys_dir):
            make_private_dir(path)


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings with their defaults; `config.toml` has the same names at its top level."""

    listen_host: str = "127.0.0.1"
    listen_port: int = 0
    """0 picks a free port at every start; `kvsync daemon status` shows it."""
    quota_bytes: int = 0
    """Largest size of the store, 0 for no quota."""
    quota_files: int = 0
    """Largest number of files in the store, 0 for no quota."""
    free_floor_bytes: int = 256 * MiB
    """Space on the disk that the store never uses."""
    accept: str = "equal"
    """`equal`, or `canary` to accept other version strings when the canary agrees."""
    streams: int = 2
    """Bulk connections per transfer; twice as many on a far line."""
    encoding: str = "identity"
    """On the wire only: `identity`, `zstd`, `planes`, or `auto` to encode where the link is slower than the codec."""
    transfer_deadline_s: int = 3600
    rate_bytes_per_s: int = 0
    """Bytes of chunks a second that go out, and that come in, at most; 0 for no limit. Read again while they do."""
    stall_timeout_s: int = 30
    """A connection that moves nothing for so long is given up."""
    max_connections: int = 64
    unencrypted_bulk_networks: tuple[str, ...] = ()
    """Networks, in CIDR notation, whose addresses exchange chunks WITHOUT ENCRYPTION with this node where they allow
    the same: whoever can listen there reads the documents. None by default; loopback only if listed."""
    max_artifact_bytes: int = 256 * GiB
    require_signers: int = 1
    """Distinct trusted signers that must vouch for every block of what is taken from a peer."""
    require_audited_percent: int = 0
    """Part of the blocks that trusted auditors must have recomputed with equal bytes."""
    graft_when: str = "auto"
    """`auto` computes what would take longer to restore than to compute, `always` grafts, `never` does not."""
    verified_bytes: int = 0
    """Memory in which a `Client` keeps verified chunks, sealed, so that its next graft need not hash them again."""
    lan_discovery: bool = False
    """The daemon announces itself by multicast DNS; a hint for others, never a proof."""
    registry: bool = True
    """The daemon answers its peers' questions about who has what, from a registry of its own."""
    follow_interval_s: int = 60
    """How often peers and registries are asked for new names that are followed."""
    compute_max_tokens: int = 131_072
    """Longest document that a peer may have computed here."""
    compute_max_jobs: int = 4
    """Unfinished computations of one peer."""
    compute_deadline_s: int = 86_400
    """A computation asked of a peer that is not done by then is given up."""
    threads: int = 0
    """Torch's intra-op threads, part of the numerics fingerprint; 0 takes torch's own default."""

    def __post_init__(self) -> None:
        Networks(self.unencrypted_bulk_networks)
        if self.accept not in ("equal", "canary"):
            raise UsageError("config.value", f"accept = {self.accept!r} is unknown", hint='use "equal" or "canary"')
        if self.graft_when not in ("auto", "always", "never"):
            raise UsageError(
                "config.value",
                f"graft_when = {self.graft_when!r} is unknown",
                hint='use "auto", "always" or "never"',
            )
        if self.encoding not in ("identity", "zstd", "planes", "auto"):
            raise UsageError(
                "config.value",
                f"encoding = {self.encoding!r} is unknown",
                hint='use "identity", "zstd", "planes" or "auto"',
            )
        if not is_host(self.listen_host):
            raise UsageError(
                "config.value", f"listen_host = {self.listen_host!r} is not a host", hint="use a name or an address"
            )
        if self.rate_bytes_per_s and not MIN_RATE <= self.rate_bytes_per_s <= MAX_RATE:
            raise UsageError(
                "config.value",
                f"rate_bytes_per_s is not in {MIN_RATE}..{MAX_RATE}, nor 0 for no limit",
                field="rate_bytes_per_s",
            )
        for name, low, high in (
            ("listen_port", 0, 65535),
            ("quota_bytes", 0, 2**60),
            ("quota_files", 0, 2**40),
            ("free_floor_bytes", 0, 2**60),
            ("streams", 1, 16),
            ("transfer_deadline_s", 1, 7 * 86400),
            ("stall_timeout_s", 1, 3600),
            ("max_connections", 1, 4096),
            ("max_artifact_bytes", 1, 2**60),
            ("require_signers", 1, 16),
            ("require_audited_percent", 0, 100),
            ("verified_bytes", 0, 2**60),
            ("follow_interval_s", 1, 86_400),
            ("compute_max_tokens", 1, 2**24),
            ("compute_max_jobs", 1, 1000),
            ("compute_deadline_s", 1, 30 * 86_400),
            ("threads", 0, 1024),
        ):
            if not low <= getattr(self, name) <= high:
                raise UsageError("config.value", f"{name} is not in {low}..{high}", field=name)

    @classmethod
    def load(cls, home: Home) -> Settings:
        """Read `config.toml`; a missing file means defaults.

        Raises:
            UsageError: `config.syntax`, `config.unknown`, `config.type`, `config.value`.
            StoreError: `file.unreadable`, `file.too_large`.
        """
        try:
            data = read_limited(home.config_file, MAX_CONFIG_BYTES, what="the configuration")
        except NotFoundError:
            return cls()
        try:
            found = tomllib.loads(data.decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError("config.syntax", f"{home.config_file} is not TOML: {error}") from error
        defaults = {field.name: field.default for field in dataclasses.fields(cls)}
        for name, value in found.items():
            if name not in defaults:
                raise UsageError("config.unknown", f"{home.config_file}: unknown setting {name!r}", field=name)
            if isinstance(value, list) and all(isinstance(each, str) for each in value):
                value = found[name] = tuple(value)
            if type(value) is not type(defaults[name]):
                kind = type(defaults[name]).__name__.replace("tuple", "list of strings")
                raise UsageError("config.type", f"{home.config_file}: {name} is not of type {kind}", field=name)
        return cls(**found)

    def save(self, home: Home) -> None:
        """Write every setting that is not at its default."""
        lines = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                lines.append(
                    f"{field.name} = {json.dumps(value, ensure_ascii=False)}"
                )  # numbers, booleans, plain strings, lists of them
        write_atomic(home.config_file, "".join(line + "\n" for line in lines).encode())
