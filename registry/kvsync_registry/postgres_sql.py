"""The statements of PostgresRegistryStore that are its own, by what they do."""

from __future__ import annotations

from typing import Final

STANDING: Final = """
SELECT count(*), coalesce(sum(entries), 0)::bigint FROM offers
WHERE provider = %s AND generation = %s AND expires > %s
"""
LIVE: Final = """
SELECT artifact, entries FROM offers
WHERE provider = %s AND generation = %s AND expires > %s AND artifact = ANY(%s)
"""
CLAIM: Final = """
WITH new AS (
  INSERT INTO claims (digest, artifact, compatibility, numerics, blocks, bytes, places)
  SELECT digest, artifact, compatibility, numerics, blocks, bytes, places
  FROM unnest(%s::bytea[], %s::bytea[], %s::bytea[], %s::bytea[], %s::bigint[], %s::bigint[], %s::bytea[])
    WITH ORDINALITY AS given (digest, artifact, compatibility, numerics, blocks, bytes, places, place)
  ORDER BY place
  ON CONFLICT (digest) DO NOTHING RETURNING id, places)
INSERT INTO entries SELECT substr(places, 16 * n - 15, 16), id FROM new, generate_series(1, length(places) / 16) n
"""
OFFER: Final = """
INSERT INTO offers (provider, artifact, claim, generation, expires, entries)
SELECT %s, c.artifact, c.id, %s, given.expires, length(c.places) / 16
FROM unnest(%s::bytea[], %s::bigint[]) AS given (digest, expires) JOIN claims c ON c.digest = given.digest
ON CONFLICT (provider, artifact) DO UPDATE SET
  claim = excluded.claim, generation = excluded.generation, expires = excluded.expires, entries = excluded.entries
"""
REF: Final = """
INSERT INTO refs (name, signer, sequence, artifact, expires, envelope, member) VALUES (%s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (name, signer) DO UPDATE SET sequence = excluded.sequence, artifact = excluded.artifact,
  expires = excluded.expires, envelope = excluded.envelope, member = excluded.member
WHERE refs.sequence < excluded.sequence OR (refs.sequence = excluded.sequence AND refs.artifact = excluded.artifact)
RETURNING id
"""
DEAD: Final = """
DELETE FROM offers WHERE (provider, artifact) IN (
  SELECT o.provider, o.artifact FROM offers o JOIN providers p ON p.id = o.provider
  WHERE o.expires <= %s OR o.generation <> p.generation LIMIT %s FOR UPDATE OF o SKIP LOCKED)
"""
LOOSE: Final = """
SELECT id FROM claims c WHERE NOT EXISTS (SELECT 1 FROM offers o WHERE o.claim = c.id)
LIMIT %s FOR UPDATE SKIP LOCKED
"""
UNCLAIM: Final = """
WITH gone AS (
  DELETE FROM claims c WHERE id = ANY(%s) AND NOT EXISTS (SELECT 1 FROM offers o WHERE o.claim = c.id)
  RETURNING id, places)
DELETE FROM entries e USING (
  SELECT substr(places, 16 * n - 15, 16) AS place, id FROM gone, generate_series(1, length(places) / 16) n) g
WHERE e.place = g.place AND e.claim = g.id
"""
