"""Paths on which a node answers about libraries, on the control lane (LIBRARY 3).

GET   LIBRARIES       ?name=NAME      the library's list, an envelope
GET   ENTRY           ?library=NAME   one of its entries, an envelope
"""

from __future__ import annotations

from typing import Final

LIBRARIES: Final = "/v1/libraries"
ENTRY: Final = "/v1/entries/{entry}"
