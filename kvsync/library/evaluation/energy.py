"""`EnergyMeter`: seconds, CPU seconds and joules of a piece of work, with the source of the joules named.

    nvml       the GPU's own counter, through nvidia-ml-py, for a model on a GPU
    rapl       the processor packages' counters, where this user may read them
    estimate   CPU seconds times a stated wattage

The first two measure everything that runs on the machine, the third only this process and its children.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DEFAULT_WATTS: Final = 15.0
"""About what one busy core of a server draws, its share of the rest included; a guess, and called one."""
_RAPL: Final = Path("/sys/class/powercap")


@dataclass(frozen=True, slots=True)
class Spent:
    """What a piece of work took."""

    seconds: float
    cpu_seconds: float
    joules: float


class EnergyMeter:
    """Counters that are read before and behind a piece of work.

    Args:
        device: where the model computes, such as `cpu` or `cuda:0`.
        watts: for an estimate, per busy core.
    """

    def __init__(self, device: str = "cpu", watts: float = DEFAULT_WATTS, rapl: Path = _RAPL) -> None:
        counter = _nvml(device) if device.startswith("cuda") else None
        self.source = "nvml" if counter else "estimate"
        if counter is None and not device.startswith("cuda"):
            counter = _packages(rapl)
            self.source = "rapl" if counter else "estimate"
        self.watts = 0.0 if counter else watts
        self._counter = counter

    def start(self) -> Callable[[], Spent]:
        """Begin; the function that is returned ends it."""
        began, cpu, joules = time.perf_counter(), _cpu_seconds(), self._counter() if self._counter else 0.0

        def stop() -> Spent:
            seconds = round(time.perf_counter() - began, 6)
            used = round(_cpu_seconds() - cpu, 6)
            spent = self._counter() - joules if self._counter else used * self.watts
            return Spent(seconds, used, round(max(0.0, spent), 6))

        return stop


def _cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    return sum(os.times()[:4])


def _nvml(device: str) -> Callable[[], float] | None:
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByIndex(int(device.partition(":")[2] or 0))
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except Exception:  # noqa: BLE001  not installed, no driver, an old card: each has errors of its own, none is ours
        return None
    return lambda: float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000


def _packages(folder: Path) -> Callable[[], float] | None:
    """The sum of the packages' counters, which begin again at their range."""
    counters = [_Package(path) for path in sorted(folder.glob("intel-rapl:[0-9]")) if _readable(path / "energy_uj")]
    return (lambda: sum(each.joules() for each in counters)) if counters else None


class _Package:
    def __init__(self, path: Path) -> None:
        self._path = path / "energy_uj"
        self._range = int((path / "max_energy_range_uj").read_text())
        self._last, self._turns = 0, 0

    def joules(self) -> float:
        found = int(self._path.read_text())
        self._turns += found < self._last
        self._last = found
        return (self._turns * self._range + found) / 1e6


def _readable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.R_OK)
