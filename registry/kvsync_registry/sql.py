"""The statements that SQLite and PostgreSQL share, with parameters as `:name`.

LOOKUP is one query: a binary search for the highest asked place that has a live claim (whoever holds a block
holds all before it, so "is there one?" answers yes up to some place and no from there on), then the first
claims there with their providers. Each probe looks at no more than SCAN_ROWS claims per reader; where there are as
many and none of them is live, it goes on as if one were, since dead ones pile up where prompts begin alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.limits import MAX_PROVIDERS
from kvsync_protocol.registry_messages import MAX_MATCHES, Match, Matches, Provider
from kvsync_protocol.signing import PublicKey
from kvsync_registry.store import MAX_READERS_ASKED, SCAN_ROWS

_LIVE: Final = "JOIN providers p ON p.id = o.provider AND p.generation = o.generation WHERE o.expires > :now"


def _near(at: str) -> str:
    """Claims at place `at` (from 1) of any reader, each reader's first ones, in index order."""
    return " UNION ALL ".join(
        f"SELECT * FROM (SELECT claim FROM entries WHERE place = substr(:places{reader}, 16 * {at} - 15, 16)"  # noqa: S608
        f" ORDER BY claim LIMIT {SCAN_ROWS}) near{reader}"
        for reader in range(MAX_READERS_ASKED)
    )


def _any(at: str) -> str:
    """Whether a claim there is live, or there are too many to tell."""
    crowded = " UNION ALL ".join(
        f"SELECT * FROM (SELECT claim FROM entries WHERE place = substr(:places{reader}, 16 * {at} - 15, 16)"  # noqa: S608
        f" ORDER BY claim LIMIT 1 OFFSET {SCAN_ROWS - 1}) crowd{reader}"
        for reader in range(MAX_READERS_ASKED)
    )
    live = f"SELECT 1 FROM ({_near(at)}) e JOIN offers o ON o.claim = e.claim {_LIVE}"  # noqa: S608
    return f"(EXISTS ({live}) OR EXISTS ({crowded}))"


_NEXT: Final = "(CASE WHEN hit THEN (middle + high + 1) / 2 ELSE (low + middle) / 2 END)"

LOOKUP: Final = f"""
WITH RECURSIVE search (low, high, middle, hit) AS (
  SELECT 0, CAST(:asked AS integer), (CAST(:asked AS integer) + 1) / 2, {_any("((CAST(:asked AS integer) + 1) / 2)")}
  UNION ALL
  SELECT CASE WHEN hit THEN middle ELSE low END, CASE WHEN hit THEN high ELSE middle - 1 END, {_NEXT}, {_any(_NEXT)}
  FROM search WHERE low < high),
best (shared) AS (SELECT max(low) FROM search),
live (claim) AS (
  SELECT DISTINCT e.claim FROM ({_near("(SELECT shared FROM best)")}) e
  WHERE EXISTS (SELECT 1 FROM offers o {_LIVE} AND o.claim = e.claim)
  ORDER BY e.claim LIMIT {MAX_MATCHES})
SELECT best.shared, c.id, c.artifact, c.compatibility, c.numerics, c.blocks, c.bytes, p.key,
  CASE WHEN p.contact_expires > :now THEN p.addresses ELSE '[]' END
FROM best, live JOIN claims c ON c.id = live.claim JOIN offers o ON o.claim = c.id {_LIVE} AND best.shared > 0
AND o.provider IN (
  SELECT o.provider FROM offers o {_LIVE} AND o.claim = c.id ORDER BY o.provider LIMIT {MAX_PROVIDERS})
ORDER BY c.id, o.provider
"""  # noqa: S608  constants only

REFS: Final = """
SELECT DISTINCT r.name, r.signer, r.envelope FROM ref_readers a JOIN refs r ON r.id = a.ref
WHERE a.place IN (:places0, :places1, :places2) AND (r.expires IS NULL OR r.expires >= :now) AND {which}
ORDER BY r.name, r.signer LIMIT :limit
"""
REFS_NAMED: Final = REFS.format(which="a.name = :name")
REFS_AFTER: Final = REFS.format(which="a.name > :name")


def place_parameters(places: Sequence[bytes]) -> dict[str, bytes]:
    """For `:places0` to `:places2`; absent readers find nothing."""
    padded = (*places, *([b""] * (MAX_READERS_ASKED - len(places))))
    return {f"places{number}": column for number, column in enumerate(padded)}


def as_matches(rows: Iterable[Sequence[Any]]) -> Matches:
    """The answer that LOOKUP's rows stand for."""
    shared = 0
    found: dict[int, tuple[Sequence[Any], list[Provider]]] = {}
    for row in rows:
        shared = row[0]
        provider = Provider(PublicKey(bytes(row[7])), addresses_of(row[8]))
        found.setdefault(row[1], (row, []))[1].append(provider)
    return Matches(shared, tuple(_match(row, tuple(providers)) for row, providers in found.values()))


def _match(row: Sequence[Any], providers: tuple[Provider, ...]) -> Match:
    artifact, compatibility, numerics = (Digest(bytes(value)) for value in row[2:5])
    return Match(ArtifactId(artifact), compatibility, numerics, row[5], row[6], providers)


def addresses_text(addresses: Sequence[str]) -> str:
    return json.dumps(list(addresses))


def addresses_of(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))
