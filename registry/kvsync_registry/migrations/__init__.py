"""Numbered SQL, applied in order and never undone. A database that is newer than this build is refused."""

from __future__ import annotations

from importlib import resources

from kvsync_registry.errors import UnavailableError


def scripts(dialect: str) -> list[tuple[int, str]]:
    """(number, SQL) of all migrations of `sqlite` or `postgres`, ascending."""
    folder = resources.files(__name__) / dialect
    found = [(int(file.name.split("_")[0]), file.read_text("utf-8")) for file in folder.iterdir()]
    return sorted(found)


def pending(dialect: str, version: int) -> list[tuple[int, str]]:
    """Those after `version`, the number of the last one applied.

    Raises:
        UnavailableError: `registry.schema_newer`.
    """
    every = scripts(dialect)
    if version > every[-1][0]:
        raise UnavailableError(
            "registry.schema_newer",
            f"the database has schema {version}, this build knows {every[-1][0]}",
            hint="run the newer build; a database never goes back",
        )
    return [one for one in every if one[0] > version]


def statements(script: str) -> list[str]:
    """The statements of a script; none of them holds a semicolon."""
    return [part.strip() for part in script.split(";") if part.strip()]
