"""The nodes of the sync tests, for tests of the server itself."""

from __future__ import annotations

from tests.sync.conftest import getter, make_node, provider

__all__ = ["getter", "make_node", "provider"]
