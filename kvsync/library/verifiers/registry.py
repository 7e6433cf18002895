"""Which verifiers there are, and how a spec becomes one: built-ins, then plug-ins of group `kvsync.verifiers`.

A plug-in's entry point names a callable that takes the parameters (a dict of strict JSON) and returns a `Verifier`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from typing import Final

from kvsync.errors import NotFoundError, UsageError
from kvsync.library.sandbox import ISOLATION
from kvsync.library.verifiers.bounded import PlugInVerifier, read_math, read_regex, read_schema
from kvsync.library.verifiers.judge import GROUP
from kvsync.library.verifiers.majority import MajorityVote
from kvsync.library.verifiers.parameters import Parameters
from kvsync.library.verifiers.plain import NormalisedTextVerifier, NumberVerifier, TextVerifier
from kvsync.library.verifiers.programs import CommandVerifier, PythonVerifier
from kvsync.library.verifiers.verifier import Verifier, VerifierSpec
from kvsync_protocol.errors import VersionError

_PURE: Final[dict[str, Callable[[Parameters], Verifier]]] = {
    "text": TextVerifier.read,
    "normalised": NormalisedTextVerifier.read,
    "number": NumberVerifier.read,
    "majority": MajorityVote.read,
    "regex": read_regex,
    "schema": read_schema,
    "math": read_math,
}
_PROGRAMS: Final[dict[str, Callable[[Parameters, frozenset[str]], Verifier]]] = {
    "python": PythonVerifier.read,
    "command": CommandVerifier.read,
}


def load_verifier(source: str | Mapping[str, object] | VerifierSpec, *, without: Iterable[str] = ()) -> Verifier:
    """The verifier that a spec names; of its own `VerifierSpec.of(verifier)` it is made again, the same.

    Args:
        without: isolations of the sandbox (`files`, `network`, `processes`) that a host which cannot give them may do
            without. Never part of a spec.

    Raises:
        UsageError: `verifier.syntax`, `verifier.parameter`, `verifier.extra`, `verifier.plug_in`, `sandbox.without`.
        NotFoundError: `verifier.unknown`.
        VersionError: `verifier.version` when the spec names a version that is not the one installed here.
        UnavailableError: `verifier.start`.
    """
    spec = VerifierSpec.parse(source)
    missing = frozenset(without)
    if missing - set(ISOLATION):
        raise UsageError("sandbox.without", f"there is no isolation {min(missing - set(ISOLATION))!r}")
    if spec.name in _PURE:
        made = _PURE[spec.name](Parameters(spec.name, spec.parameters))
    elif spec.name in _PROGRAMS:
        made = _PROGRAMS[spec.name](Parameters(spec.name, spec.parameters), missing)
    elif spec.name in plug_ins():
        made = PlugInVerifier.load(spec.name, spec.parameters)
    else:
        raise NotFoundError(
            "verifier.unknown",
            f"there is no verifier {spec.name!r}",
            hint=f"one of {', '.join(verifier_names())}",
        )
    if spec.version is not None and spec.version != made.version:
        raise VersionError(
            "verifier.version", f"verifier {spec.name} is version {made.version} here, not {spec.version}"
        )
    return made


def plug_ins() -> list[str]:
    """Names of the installed plug-ins; one that takes a built-in's name is not among them."""
    found = {each.name for each in metadata.entry_points(group=GROUP)}
    return sorted(found - set(_PURE) - set(_PROGRAMS))


def is_verifier(name: str) -> bool:
    """Whether there is a verifier of that name; plug-ins, which are looked up on disk, are asked last."""
    return name in _PURE or name in _PROGRAMS or name in plug_ins()


def verifier_names() -> list[str]:
    return [*_PURE, *_PROGRAMS, *plug_ins()]
