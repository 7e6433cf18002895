"""What `doctor` looks at. Every check ends in a finding, whatever it runs into, and the next one is still made."""

from __future__ import annotations

import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvsync.cli._models import model_path, open_engine
from kvsync.cli._render import UNEXPECTED, plural, size
from kvsync.cli.artifacts import counted
from kvsync.errors import EngineError, StoreError, exit_status
from kvsync.networks import Networks
from kvsync.progress import Progress
from kvsync_protocol.errors import CodedError
from kvsync_protocol.limits import GiB

if TYPE_CHECKING:
    from kvsync.cli._command import Run

OK: Final = "ok"
NOTE: Final = "note"
BROKEN: Final = "broken"

SKEW_S: Final = 300.0
"""Files of this home that were written so far in the future show a clock that went back."""
COMFORTABLE_FREE_BYTES: Final = 2 * GiB
PROBE_TOKENS: Final = 48


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `status` is the exit status it stands for, 0 unless something is broken."""

    name: str
    state: str
    detail: str
    hint: str = ""
    code: str = ""
    status: int = 0

    def as_json(self) -> dict[str, object]:
        return {"name": self.name, "state": self.state, "detail": self.detail, "hint": self.hint, "code": self.code}


def checkup(run: Run, model: str | None, progress: Progress) -> list[Check]:
    """Every check, in the order in which one would repair."""
    checks: list[tuple[str, Callable[[], tuple[str, str, str]]]] = [
        ("python", _python),
        ("home", lambda: _home(run)),
        ("settings", lambda: _settings(run)),
        ("keys", lambda: _keys(run)),
        ("lists", lambda: _lists(run)),
        ("clock", lambda: _clock(run)),
        ("disk", lambda: _disk(run)),
        ("store", lambda: _store(run)),
        ("daemon", lambda: _daemon(run)),
        ("encryption", lambda: _encryption(run)),
        ("registries", lambda: _registries(run)),
        ("codec", _codec),
        ("engine", _engine),
        ("models", _models),
        ("costs", lambda: _costs(run)),
        ("determinism", lambda: _determinism(run, model)),
    ]
    found = []
    for number, (name, check) in enumerate(checks):
        progress("checks", number, len(checks), "checks")
        found.append(_finding(name, check))
    progress("checks", len(checks), len(checks), "checks")
    return found


def _finding(name: str, check: Callable[[], tuple[str, str, str]]) -> Check:
    try:
        state, detail, hint = check()
    except CodedError as error:
        return Check(name, BROKEN, error.message, error.hint, error.code, exit_status(error))
    except OSError as error:
        return Check(name, BROKEN, str(error), "check owner and mode", "run.unexpected", UNEXPECTED)
    return Check(name, state, detail, hint)


def _python() -> tuple[str, str, str]:
    return OK, f"kvsync {version('kvsync')}, Python {platform.python_version()}, {platform.platform(terse=True)}", ""


def _home(run: Run) -> tuple[str, str, str]:
    return OK, f"{run.node().root}, closed to other users", ""


def _settings(run: Run) -> tuple[str, str, str]:
    settings = run.settings()
    return OK, f"accept = {settings.accept}, threads = {settings.threads or 'as torch chooses'}", ""


def _keys(run: Run) -> tuple[str, str, str]:
    keys = run.keys()
    return OK, f"signer {keys.signer.public.key_id}, peer {keys.peer.public.key_id}", ""


def _lists(run: Run) -> tuple[str, str, str]:
    signers, peers = run.trust().signers(), run.peers().peers()
    return OK, f"{plural(len(signers), 'trusted signer')} besides this node, {plural(len(peers), 'peer')}", ""


def _clock(run: Run) -> tuple[str, str, str]:
    """Names expire by this clock. Nothing here can ask for the time, so it is compared with files."""
    now = time.time()
    witnesses = [Path(__file__), *(path for path in (run.home.keys_dir, run.home.store_dir) if path.exists())]
    latest = max(path.stat().st_mtime for path in witnesses)
    shown = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    if latest > now + SKEW_S:
        raise StoreError(
            "clock.behind", f"it is {shown} here, but files are {latest - now:.0f} s younger", hint="set the clock"
        )
    return OK, shown, ""


def _disk(run: Run) -> tuple[str, str, str]:
    root = run.node().root
    free, floor = shutil.disk_usage(root).free, run.settings().free_floor_bytes
    text = f"{size(free)} free, {size(floor)} of them never used"
    if free <= floor:
        raise StoreError("store.full", text, hint="kvsync gc, kvsync rm, or a larger disk")
    if free - floor < COMFORTABLE_FREE_BYTES:
        return NOTE, text, "kvsync gc, kvsync rm, or a larger disk"
    return OK, text, ""


def _store(run: Run) -> tuple[str, str, str]:
    with run.store() as store:
        usage = store.usage()
    quota = f" of {size(usage.quota_bytes)} allowed" if usage.quota_bytes else ""
    held = f"{counted(usage)}, {plural(usage.chunks, 'chunk')}"
    text = f"{held}, {size(usage.bytes)}{quota}, {usage.drafts} unfinished"
    if usage.quota_bytes and usage.bytes > usage.quota_bytes:
        return NOTE, text, "kvsync gc"
    return OK, text, ""


def _daemon(run: Run) -> tuple[str, str, str]:
    from kvsync.daemon import lifecycle

    found = lifecycle.status(run.node())
    if found is None:
        return NOTE, "not running: commands work in their own process, peers cannot connect", "kvsync daemon start"
    return OK, f"pid {found['pid']}, peers reach it at {found['address']}", ""


def _encryption(run: Run) -> tuple[str, str, str]:
    networks = Networks(run.settings().unencrypted_bulk_networks)
    if not networks:
        return OK, "everything to and from peers", ""
    hint = "unencrypted_bulk_networks is for links that nobody else can be on; a KV state gives its document away"
    if outside := networks.reachable_from_outside:
        hint = f"{', '.join(map(str, outside))} is no private network; {hint}"
    return NOTE, f"chunks go UNENCRYPTED to and from {networks}", hint


def _registries(run: Run) -> tuple[str, str, str]:
    """As the daemon sees them; without one, none is told or asked."""
    from kvsync.daemon import lifecycle
    from kvsync.daemon.messages import Status
    from kvsync.keys import RegistryBook

    listed = len(RegistryBook(run.node()).registries())
    found = lifecycle.status(run.node())
    if found is None:
        return OK, f"{listed} listed, none in use while no daemon runs", ""
    states = Status.parse(found).registries
    text = ", ".join(f"{each.name} {each.state}{f' ({each.code})' if each.code else ''}" for each in states)
    if any(each.state in ("away", "refused") for each in states):
        return NOTE, text, "everything else works without; is its address right, and does it know this node?"
    return OK, text or "none", ""


def _codec() -> tuple[str, str, str]:
    from kvsync.pack.loading import LOADER

    try:
        found = version("numba")
    except PackageNotFoundError:
        return OK, "numpy; `pip install 'kvsync[compiled]'` for machine code where much is moved in planes", ""
    if LOADER.load():
        return OK, f"numpy, and machine code by numba {found} in a process that has coded a GiB", ""
    return NOTE, f"numpy alone: numba {found} is here and fails", "clear ~/.cache/numba, or uninstall numba"


def _engine() -> tuple[str, str, str]:
    found = []
    for package in ("torch", "transformers"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            return (
                NOTE,
                f"{package} is not installed: this node can carry artifacts only",
                "pip install 'kvsync[torch]'",
            )
    return OK, ", ".join(found), ""


def _models() -> tuple[str, str, str]:
    from kvsync.models import list_models

    fetched = [entry.name for entry in list_models() if entry.fetched]
    if not fetched:
        return NOTE, "none fetched", "kvsync model fetch smollm2-135m"
    return OK, ", ".join(fetched), ""


def _costs(run: Run) -> tuple[str, str, str]:
    """What decides whether a stored prefix is restored or computed again."""
    from kvsync.graft.costs import Costs

    when, costs = run.settings().graft_when, Costs(run.home)
    found = costs.latest()
    if found is None:
        return OK, f"graft_when = {when}, nothing measured yet: grafts are made", ""
    speeds = [
        f"{found.tokens_per_s:.0f} tokens/s computed" if found.prefilled else "no computation measured",
        f"{size(int(found.bytes_per_s))}/s restored" if found.restored else "no graft measured",
    ]
    return OK, f"graft_when = {when}, of {plural(costs.measured(), 'model')}, the last: {', '.join(speeds)}", ""


def _determinism(run: Run, model: str | None) -> tuple[str, str, str]:
    """Compute the same tokens twice: everything kvsync promises rests on getting the same bytes."""
    from kvsync.models import list_models

    fetched = min((entry for entry in list_models() if entry.fetched), key=lambda entry: entry.bytes, default=None)
    name = model or (fetched.name if fetched is not None else None)
    if name is None:
        return NOTE, "not tested: there is no model to test with", "kvsync model fetch smollm2-135m"
    model_path(name)
    if _engine()[0] != OK:
        return NOTE, "not tested: there is no engine here", ""
    engine = open_engine(run, name, None, "cpu")
    tokens = engine.encode("the same tokens, computed twice, give the same bytes " * 8)[:PROBE_TOKENS]
    digests = {engine.prefill(engine.new_context(), tokens, engine.schedule).sha256() for _ in range(2)}
    if len(digests) != 1:
        raise EngineError(
            "engine.not_repeatable",
            f"{name} gives other logits when the same tokens are computed again",
            hint="artifacts from this host cannot be exact; look for overclocking or an unusual BLAS",
        )
    return OK, f"{name} gives the same logits twice, canary {engine.fingerprints.numerics.fields['canary'][:19]}", ""
