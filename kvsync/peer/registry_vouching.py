"""Names and attestations as one registry is told them: signed by whoever signed them, brought by this node.

What a registry does not take (another name for it, no room, unknown there) is no error: it is told again later,
and nothing here depends on it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from kvsync.errors import UnavailableError
from kvsync.peer.registry_port import RegistryPort
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.errors import CodedError
from kvsync_protocol.registry_messages import Vouched

AGAIN_S: Final = 1800.0
"""A registry may have lost what it was told."""
_ENOUGH: Final = ("trust.rollback",)
"""It has heard as much or more."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Word:
    """A ref, or with `artifact` an attestation of it."""

    vouched: Vouched
    artifact: ArtifactId | None = None


class Vouching:
    """For one event loop and one registry."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._words: tuple[Word, ...] = ()
        self._told: dict[Word, float] = {}

    def keep(self, words: Iterable[Word]) -> None:
        """What is to be told from now on."""
        self._words = tuple(words)
        self._told = {word: self._told[word] for word in self._words if word in self._told}

    def due(self) -> list[Word]:
        now = self._clock()
        return [word for word in self._words if now - self._told.get(word, float("-inf")) > AGAIN_S]

    async def tell(self, registry: RegistryPort) -> None:
        """Say what is due, over a connection that is open. Raises UnavailableError when it breaks."""
        for word in self.due():
            try:
                if word.artifact is None:
                    await registry.set_name(word.vouched)
                else:
                    await registry.vouch(word.artifact, word.vouched)
            except UnavailableError:
                raise
            except CodedError as error:
                if error.code not in _ENOUGH:
                    log.info("the registry did not take a %s: %s", "name" if word.artifact is None else "word", error)
            self._told[word] = self._clock()
