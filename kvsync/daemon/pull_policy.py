"""A pull's own rules on top of the settings': each may only be stricter. `X.parse(x.as_json()) == x`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kvsync.config import Settings
from kvsync.errors import UsageError
from kvsync_protocol.strictjson import MAX_SAFE_INTEGER, Fields

_NUMBERS: Final = {
    "max_artifact_bytes": min,
    "require_signers": max,
    "require_audited_percent": max,
}
"""Which of two values is the stricter."""


@dataclass(frozen=True, slots=True)
class PullPolicy:
    """Settings by their own names; None leaves one as it is. `accept` can only be `equal`."""

    accept: str | None = None
    max_artifact_bytes: int | None = None
    require_signers: int | None = None
    require_audited_percent: int | None = None

    def __post_init__(self) -> None:
        if self.accept not in (None, "equal"):
            raise UsageError("policy.value", f"accept = {self.accept!r} is no stricter rule", hint="accept=equal")
        self.tightened(Settings())  # which checks the ranges

    @classmethod
    def of(cls, words: Iterable[str]) -> PullPolicy:
        """From `name=value` words. Raises UsageError `policy.name`, `policy.value`, `config.value`."""
        given: dict[str, int | str] = {}
        names = [field.name for field in dataclasses.fields(cls)]
        for word in words:
            name, parted, value = word.partition("=")
            if not parted or name not in names:
                raise UsageError("policy.name", f"{word!r} is not a rule", hint=f"NAME=VALUE of {', '.join(names)}")
            if name != "accept" and not (value.isascii() and value.isdigit() and len(value) < 20):
                raise UsageError("policy.value", f"{name} is a whole number", hint=f"{name}=2")
            given[name] = value if name == "accept" else int(value)
        return cls(**given)  # type: ignore[arg-type]

    def tightened(self, settings: Settings) -> Settings:
        """Raises UsageError `config.value`."""
        changes: dict[str, int | str] = {} if self.accept is None else {"accept": self.accept}
        for name, stricter in _NUMBERS.items():
            value = getattr(self, name)
            if value is not None:
                changes[name] = stricter(value, getattr(settings, name))
        return dataclasses.replace(settings, **changes)  # type: ignore[arg-type]

    def as_json(self) -> dict[str, object]:
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    @classmethod
    def parse(cls, value: object) -> PullPolicy:
        """Raises MalformedError `policy.*`; UsageError `policy.*`, `config.value`."""
        fields = Fields(value, "policy")
        found = cls(
            fields.optional("accept", lambda name: fields.string(name, limit=20)),
            *(
                fields.optional(each, lambda name: fields.integer(name, 0, MAX_SAFE_INTEGER))
                for each in ("max_artifact_bytes", "require_signers", "require_audited_percent")
            ),
        )
        fields.done()
        return found


NO_FURTHER_RULES: Final = PullPolicy()
