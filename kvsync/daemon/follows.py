"""What a node follows, in `follows.json`: patterns of names, and which rules an artifact must pass to be fetched."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvsync.config import Home
from kvsync.daemon.pull_policy import NO_FURTHER_RULES, PullPolicy
from kvsync.daemon.transfer_params import fingerprints_json, read_fingerprints
from kvsync.errors import NotFoundError
from kvsync.files import exclusive
from kvsync.keys.lists import load_list, save_list
from kvsync.keys.patterns import check_pattern, covers
from kvsync_protocol import strictjson
from kvsync_protocol.fingerprint import Fingerprints
from kvsync_protocol.limits import KiB


@dataclass(frozen=True, slots=True)
class Follow:
    """`model` is what the owner called the model of `fingerprints`; without them an artifact is merely carried.

    Raises:
        UsageError: `names.pattern`.
    """

    pattern: str
    policy: PullPolicy = NO_FURTHER_RULES
    model: str | None = None
    fingerprints: Fingerprints | None = None

    def __post_init__(self) -> None:
        check_pattern(self.pattern)

    def covers(self, name: str) -> bool:
        return covers((self.pattern,), name)


class Follows:
    """The list. Safe for several processes."""

    def __init__(self, home: Home) -> None:
        self._path = home.follows_file
        self._lock = home.lock_file

    def follows(self) -> list[Follow]:
        """In the order in which they were added: the first that covers a name decides. Raises StoreError
        `follows.damaged`."""
        return load_list(self._path, "follows", _read)

    def add(self, follows: Iterable[Follow]) -> None:
        """Follow patterns; one that is followed already is followed by the new rules. Raises UsageError
        `follows.full`."""
        added = {follow.pattern: follow for follow in follows}
        with exclusive(self._lock):
            known = {follow.pattern: follow for follow in self.follows()}
            self._save({**known, **added}.values())

    def remove(self, patterns: Iterable[str]) -> list[Follow]:
        """Raises NotFoundError `follow.unknown` for a pattern that is not followed; nothing is changed then."""
        wanted = set(patterns)
        with exclusive(self._lock):
            known = self.follows()
            missing = wanted - {follow.pattern for follow in known}
            if missing:
                raise NotFoundError("follow.unknown", f"{min(missing)!r} is not followed", hint="kvsync follow ls")
            self._save(follow for follow in known if follow.pattern not in wanted)
        return [follow for follow in known if follow.pattern in wanted]

    def _save(self, follows: Iterable[Follow]) -> None:
        entries = [
            {
                "pattern": each.pattern,
                "policy": each.policy.as_json(),
                "model": each.model,
                "fingerprints": None if each.fingerprints is None else fingerprints_json(each.fingerprints),
            }
            for each in follows
        ]
        save_list(self._path, "follows", entries)


def _read(entry: strictjson.Fields, version: int) -> Follow:
    return Follow(
        entry.string("pattern", limit=800),
        PullPolicy.parse(entry.take("policy")),
        entry.optional("model", lambda name: entry.string(name, limit=4 * KiB)),
        entry.optional("fingerprints", lambda name: read_fingerprints(entry.take(name))),
    )
