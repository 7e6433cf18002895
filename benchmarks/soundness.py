"""What must hold of a store and of a registry's file whenever nobody works on them, looked at from outside.

Each function returns what is wrong as lines of text; none when all is well.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from kvsync.store import Store, StoreLimits
from kvsync.store.index import Snapshot, snapshot
from kvsync_protocol.reader import PLACE_BYTES

Ask = Callable[[str], Iterable[tuple[Any, ...]]]


def store_problems(root: Path, limits: StoreLimits) -> list[str]:
    """A store that no process has open: chunk files, the index against one made from the files, fsck."""
    found = [
        f"{path.name} holds other bytes"
        for path in (root / "chunks").glob("*/*")
        if hashlib.sha256(path.read_bytes()).hexdigest() != path.name
    ]
    with Store.open(root, limits) as store:
        before = _rows(root)
        store.rebuild_index()
        after = _rows(root)
        found += [f"the index's {name} differ from the files'" for name in after if before[name] != after[name]]
        found += [f"fsck: {finding}" for finding in store.fsck().findings]
        if store.usage().reserved_bytes:
            found.append(f"{store.usage().reserved_bytes} bytes are reserved for nobody")
        for stored in store.artifacts():
            if store.whole(stored.artifact) is None:
                found.append(f"{stored.artifact.short} is visible and not whole")
    return found


def _rows(root: Path) -> Snapshot:
    with closing(sqlite3.connect(root / "index.sqlite")) as db:
        return snapshot(db)


def registry_problems(path: Path) -> list[str]:
    """A registry's SQLite file."""
    with closing(sqlite3.connect(path)) as db:
        whole = db.execute("PRAGMA integrity_check").fetchall()
        foreign = db.execute("PRAGMA foreign_key_check").fetchall()
        found = row_problems(lambda query: db.execute(query).fetchall())
    if whole != [("ok",)]:
        found.append(f"integrity_check: {whole}")
    if foreign:
        found.append(f"foreign_key_check: {foreign}")
    return found


def row_problems(ask: Ask) -> list[str]:
    """A registry's rows, each against every other. `ask` runs a query."""
    found = []
    entries = {(bytes(place), claim) for place, claim in ask("SELECT place, claim FROM entries")}
    expected = {
        (bytes(places)[at : at + PLACE_BYTES], number)
        for number, places in ask("SELECT id, places FROM claims")
        for at in range(0, len(places), PLACE_BYTES)
    }
    if entries != expected:
        found.append(f"{len(entries ^ expected)} entries are not those of the claims")
    [(wrong,)] = ask(
        "SELECT count(*) FROM offers o LEFT JOIN claims c ON c.id = o.claim"
        " LEFT JOIN providers p ON p.id = o.provider"
        " WHERE c.id IS NULL OR p.id IS NULL OR o.generation > p.generation OR c.artifact <> o.artifact"
        " OR length(c.places) <> 16 * o.entries"
    )
    if wrong:
        found.append(f"{wrong} offers contradict their claim or provider")
    return found
