"""kvsync: the KV state of a frozen language model as a verified artifact.

    with kvsync.Client() as client:
        client.deposit(model, document, name="team/handbook")
        graft = client.graft(model, tokens)
        model.generate(input_ids, cache=graft.cache)

Names are loaded when first used, so that importing this package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsync.graft.async_client import AsyncClient
    from kvsync.graft.client import Client
    from kvsync.graft.graft import Graft
    from kvsync.graft.report import GraftReport
    from kvsync.library.library import Library
    from kvsync_protocol.errors import CodedError

__all__ = ["AsyncClient", "Client", "CodedError", "Graft", "GraftReport", "Library"]
__version__ = "0.1.0"

_HOMES = {
    "AsyncClient": "kvsync.graft.async_client",
    "Client": "kvsync.graft.client",
    "CodedError": "kvsync_protocol.errors",
    "Graft": "kvsync.graft.graft",
    "GraftReport": "kvsync.graft.report",
    "Library": "kvsync.library.library",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
