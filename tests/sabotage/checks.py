"""Every check of the product by name: where it lives, and what stands in its place when exactly it is off.

The product has no off-switches. `without` swaps one function for its neutral replacement and swaps it back.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kvsync.engines.transformers.layers import KNOWN
from kvsync_protocol.prefix import decode_tokens
from kvsync_protocol.signing import PublicKey
from tests.sabotage.cast import EVERYBODY

Neutral = Callable[[Any], Any]
"""From the original to what replaces it."""


@dataclass(frozen=True)
class Check:
    """`path` is `module:attribute`, with dots inside a class; `neutral` refuses nothing."""

    path: str
    neutral: Neutral

    @property
    def place(self) -> str:
        """As the published table names it."""
        module, _, attribute = self.path.partition(":")
        return f"{module.rpartition('.')[2]}.{attribute}"


def nothing(_: Any) -> Callable[..., None]:
    """A check that returns nothing, passed."""
    return lambda *args, **kwargs: None


def always(_: Any) -> Callable[..., bool]:
    return lambda *args, **kwargs: True


def _by_ancestry(_: Any) -> Any:
    """Layer classes known by their parents: what identity forbids."""
    return staticmethod(lambda layer: next((KNOWN[kind] for kind in type(layer).__mro__ if kind in KNOWN), None))


def _unasked(_: Any) -> Callable[..., str]:
    return lambda *args, **kwargs: "not asked"


def _trusting(original: Any) -> Callable[..., frozenset[PublicKey]]:
    return lambda trust, *args: original(trust, *args) | EVERYBODY


def _any_tokens(original: Any) -> Callable[..., Any]:
    """As if the caller had asked for the artifact's own tokens."""
    return lambda artifact, manifest, held, tokens, schedule: original(artifact, manifest, held, held, schedule)


CHECKS: dict[str, Check] = {
    "signature": Check("kvsync_protocol.signing:PublicKey.verify", always),
    "key trust": Check("kvsync.keys.trust:TrustList.keys", _trusting),
    "Merkle root": Check("kvsync_protocol.manifest:Manifest.check_root", nothing),
    "chunk digest": Check("kvsync_protocol.leaves:Leaf.names", always),
    "chunk size": Check("kvsync_protocol.leaves:LeafTable.check_sizes", nothing),
    "block header": Check("kvsync.pack.reader:ArtifactReader._check_header", nothing),
    "compatibility fingerprint": Check("kvsync_protocol.fingerprint:Fingerprints.check_compatibility", nothing),
    "numerics fingerprint": Check(
        "kvsync_protocol.fingerprint:Fingerprints.check_described", lambda _: lambda *args, **kwargs: []
    ),
    "canary": Check("kvsync_protocol.fingerprint:Fingerprints.check_canary", nothing),
    "signed token ids": Check(
        "kvsync_protocol.manifest:Manifest.check_tokens", lambda _: lambda manifest, data: decode_tokens(data)
    ),
    "caller's token ids": Check("kvsync.graft.graft:match_artifact", _any_tokens),
    "place of a cut": Check("kvsync_protocol.layout:Layout.restorable", lambda _: lambda layout, position: position),
    "live position": Check("kvsync.engines.transformers.context:TransformersContext.check_unmoved", nothing),
    "sliding window": Check("kvsync.pack.geometry:check_windows", nothing),
    "layer kinds": Check("kvsync.pack.geometry:check_kinds", nothing),
    "layer classes": Check("kvsync.engines.transformers.layers:Known.of", _by_ancestry),
    "complete state": Check("kvsync.engines.transformers.probe:_check_complete", nothing),
    "tensor layout": Check("kvsync.pack.geometry:check_shapes", nothing),
    "template digest": Check("kvsync_protocol.manifest:Manifest.check_template", nothing),
    "artifact asked for": Check("kvsync.sync.policy:check_wanted", nothing),
    "artifact on disk": Check("kvsync.store.artifacts:check_id", nothing),
    "artifact size": Check("kvsync.sync.policy:Policies.size", nothing),
    "own audits": Check("kvsync.store.evidence:Evidence.check", nothing),
    "name asked for": Check("kvsync.sync.policy:check_named", nothing),
    "names of a signer": Check("kvsync.keys.signers:Signer.gives", always),
    "ref sequence": Check("kvsync.store.refs:_State.check_sequence", nothing),
    "ref expiry": Check("kvsync_protocol.ref:Ref.check_fresh", nothing),
    "ref owner": Check("kvsync.store.refs:_State.check_owner", nothing),
    "audits": Check("kvsync.peer.vouching:Vouching.audited", _unasked),
    "refutation": Check("kvsync.peer.vouching:Vouching.refutation", _unasked),
    "independent signers": Check("kvsync.peer.vouching:Vouching.signers", _unasked),
    "divergence": Check("kvsync.peer.vouching:Vouching.divergence", _unasked),
    "weights in memory": Check("kvsync.engines.transformers.watch:ModelWatch.check", nothing),
}


@contextmanager
def without(name: str) -> Iterator[None]:
    """Exactly this check is off inside the block, and on again after it."""
    check = CHECKS[name]
    module, _, attribute = check.path.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, last = attribute.split(".")
    for part in outer:
        owner = getattr(owner, part)
    original = vars(owner)[last]
    setattr(owner, last, check.neutral(original))
    try:
        yield
    finally:
        setattr(owner, last, original)
