"""The two fingerprints: may these bytes be interpreted here, and would this host compute the same.

Both are SHA-256 over a canonical, tagged, length-prefixed record of named fields. The record itself
travels in the manifest, so a difference can be named field by field. What the fields are is decided
where they are measured (an engine); here is only their form and meaning (SPEC 6.1).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from kvsync_protocol.digest import Digest, hash_record
from kvsync_protocol.errors import MalformedError, MismatchError
from kvsync_protocol.limits import MAX_FIELD_BYTES, MAX_FIELD_NAME_CHARS, MAX_FINGERPRINT_FIELDS
from kvsync_protocol.strictjson import has_control

CANARY_FIELD = "canary"
_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_FIELD_NAME_CHARS}}}", re.ASCII)


class FingerprintKind(enum.Enum):
    """Which question a fingerprint answers."""

    COMPATIBILITY = "compatibility"
    NUMERICS = "numerics"

    @property
    def affects(self) -> str:
        """What a difference means, for people."""
        if self is FingerprintKind.COMPATIBILITY:
            return "interpretation: these bytes would mean something else here"
        return "numerics: this host may compute other bytes"


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that differs; None where a side lacks it."""

    kind: FingerprintKind
    field: str
    ours: str | None
    theirs: str | None


@dataclass(frozen=True)
class Fingerprint:
    """Named fields under one kind. `Fingerprint.parse(kind, f.as_json()) == f`.

    Names are short ASCII words, values text of at most 8 KiB without control characters, so that both
    can be shown as they are.

    Raises:
        MalformedError: `fingerprint.fields` for no fields, too many, or ones of another form.
    """

    kind: FingerprintKind
    fields: Mapping[str, str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", dict(self.fields))  # the digest is cached: nobody else may change them
        if not 1 <= len(self.fields) <= MAX_FINGERPRINT_FIELDS:
            raise MalformedError("fingerprint.fields", f"a fingerprint has 1 to {MAX_FINGERPRINT_FIELDS} fields")
        for name, value in self.fields.items():
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise MalformedError("fingerprint.fields", "a field's name is letters, digits, '.', '_' and '-'")
            if not isinstance(value, str) or not _is_text(value):
                raise MalformedError("fingerprint.fields", f"field {name!r} is not plain text, or too long")

    @classmethod
    def parse(cls, kind: FingerprintKind, value: object) -> Fingerprint:
        """Raises MalformedError `fingerprint.fields`."""
        if not isinstance(value, dict):
            raise MalformedError("fingerprint.fields", "a fingerprint is an object of text fields")
        return cls(kind, dict(value))

    def as_json(self) -> dict[str, str]:
        return dict(self.fields)

    @cached_property
    def digest(self) -> Digest:
        items = [part.encode() for name in sorted(self.fields) for part in (name, self.fields[name])]
        return hash_record(f"kvsync/fingerprint/{self.kind.value}/1", items)

    def differences(self, theirs: Fingerprint) -> list[Difference]:
        """Fields of which the two sides do not say the same, by name."""
        names = sorted(set(self.fields) | set(theirs.fields))
        return [
            Difference(self.kind, name, self.fields.get(name), theirs.fields.get(name))
            for name in names
            if self.fields.get(name) != theirs.fields.get(name)
        ]

    def __hash__(self) -> int:
        return hash(self.digest)


def _is_text(value: str) -> bool:
    try:
        return len(value.encode()) <= MAX_FIELD_BYTES and not has_control(value)
    except UnicodeEncodeError:
        return False


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """A host's pair for one model."""

    compatibility: Fingerprint
    numerics: Fingerprint

    def check(self, theirs: Fingerprints, *, accept: str = "equal") -> list[Difference]:
        """Refuse what cannot be used here; return the differences that were tolerated.

        `accept` is "equal", or "canary": numerics may differ in the fields that only describe the
        stack when the canary, which tests it, is present and equal.

        Raises:
            MismatchError: `mismatch.compatibility`, `mismatch.numerics`, `mismatch.canary`, naming the fields.
        """
        self.check_compatibility(theirs)
        tolerated = self.check_described(theirs, accept=accept)
        self.check_canary(theirs, required=bool(tolerated))
        return tolerated

    def check_compatibility(self, theirs: Fingerprints) -> None:
        """Raises MismatchError `mismatch.compatibility`."""
        wrong = self.compatibility.differences(theirs.compatibility)
        if wrong:
            raise _mismatch("mismatch.compatibility", "computed for another model or layout", wrong)

    def check_described(self, theirs: Fingerprints, *, accept: str) -> list[Difference]:
        """What describes the arithmetic: all numerics but the canary. Raises MismatchError `mismatch.numerics`."""
        drift = self.numerics.differences(theirs.numerics)
        described = [difference for difference in drift if difference.field != CANARY_FIELD]
        if described and accept != "canary":
            raise _mismatch("mismatch.numerics", "computed by other arithmetic", drift)
        return described

    def check_canary(self, theirs: Fingerprints, *, required: bool) -> None:
        """What tests the arithmetic; `required` where descriptions differ. Raises MismatchError `mismatch.canary`."""
        drift = [d for d in self.numerics.differences(theirs.numerics) if d.field == CANARY_FIELD]
        if drift or (required and not self.numerics.fields.get(CANARY_FIELD)):
            raise _mismatch("mismatch.canary", "computed by arithmetic that gives other results", drift)


def _mismatch(code: str, text: str, found: list[Difference]) -> MismatchError:
    names = [difference.field for difference in found]
    return MismatchError(
        code,
        f"{text}: {', '.join(names[:6])}{' …' if len(names) > 6 else ''} differ",
        hint="kvsync fingerprint explain names every difference",
        differing=names,
    )
