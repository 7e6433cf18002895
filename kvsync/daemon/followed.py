"""How far each followed name is, in `daemon/followed.json`: a restart neither repeats nor forgets a failure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kvsync.config import Home
from kvsync.daemon.messages import JobId, parse_job_id
from kvsync.keys.lists import load_list, save_list
from kvsync_protocol import strictjson
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.limits import MAX_CODE_CHARS, MAX_LIST_ENTRIES
from kvsync_protocol.ref import check_name

IN_STEP: Final = "in step"
FETCHING: Final = "fetching"
FAILING: Final = "failing"
FIRST_PAUSE_S: Final = 30
LONGEST_PAUSE_S: Final = 3600


@dataclass(frozen=True, slots=True)
class Followed:
    """One name: what it stands for by the newest ref, the job that fetches it, and how often that has failed.

    `again` is the Unix time before which a failed one is left alone.
    """

    name: str
    artifact: ArtifactId
    sequence: int
    state: str
    job: JobId | None = None
    failures: int = 0
    code: str = ""
    again: int = 0

    def failed(self, code: str, now: int) -> Followed:
        pause = min(FIRST_PAUSE_S * 2**self.failures, LONGEST_PAUSE_S)
        return Followed(
            self.name, self.artifact, self.sequence, FAILING, None, min(self.failures + 1, 16), code, now + pause
        )

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "artifact": str(self.artifact),
            "sequence": self.sequence,
            "state": self.state,
            "job": self.job,
            "failures": self.failures,
            "code": self.code,
            "again": self.again,
        }


def load_followed(home: Home) -> dict[str, Followed]:
    """Raises StoreError `followed.damaged`."""
    return {each.name: each for each in load_list(home.followed_file, "followed", _read)}


def save_followed(home: Home, followed: Iterable[Followed]) -> None:
    """At most 1,000: of more, those in step are left out, since the store knows them."""
    ordered = sorted(followed, key=lambda each: (each.state == IN_STEP, each.name))
    save_list(home.followed_file, "followed", [each.as_json() for each in ordered[:MAX_LIST_ENTRIES]])


def _read(entry: strictjson.Fields, version: int) -> Followed:
    state = entry.string("state", limit=20)
    if state not in (IN_STEP, FETCHING, FAILING):
        raise MalformedError("followed.state", "a name is in no state that there is")
    most = strictjson.MAX_SAFE_INTEGER
    return Followed(
        check_name(entry.string("name", limit=800)),
        ArtifactId(entry.digest("artifact")),
        entry.integer("sequence", 1, most),
        state,
        entry.optional("job", lambda name: parse_job_id(entry.take(name))),
        entry.integer("failures", 0, 16),
        entry.string("code", limit=MAX_CODE_CHARS),
        entry.integer("again", 0, most),
    )
