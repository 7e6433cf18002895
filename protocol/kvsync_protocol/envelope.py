"""DSSE envelopes: sign bytes, verify, and hand on exactly the bytes that were verified (SPEC 5.2).

`Envelope.parse` reads untrusted JSON and trusts nothing. `Envelope.verify` returns a
`VerifiedPayload`, the only thing from which a manifest or a ref can be parsed.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection
from dataclasses import dataclass

from kvsync_protocol import strictjson
from kvsync_protocol.errors import MalformedError, TrustError
from kvsync_protocol.limits import (
    MAX_ENVELOPE_BYTES,
    MAX_KEYID_BYTES,
    MAX_MANIFEST_BYTES,
    MAX_PAYLOAD_TYPE_BYTES,
    MAX_SIGNATURE_BYTES,
    MAX_SIGNATURES,
)
from kvsync_protocol.signing import PublicKey, SigningKey


def pae(payload_type: str, payload: bytes) -> bytes:
    """DSSE pre-authentication encoding; lengths count bytes, not characters."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


@dataclass(frozen=True, slots=True)
class Signature:
    """`key_id` is a hint for finding the key and nothing more."""

    key_id: str
    signature: bytes


@dataclass(frozen=True, slots=True)
class VerifiedPayload:
    """Bytes under valid signatures of `signers`, every one of them trusted by the caller."""

    payload_type: str
    payload: bytes
    signers: tuple[PublicKey, ...]


@dataclass(frozen=True, slots=True)
class Envelope:
    """`Envelope.parse(e.encode()) == e`."""

    payload_type: str
    payload: bytes
    signatures: tuple[Signature, ...]

    @classmethod
    def parse(cls, data: bytes) -> Envelope:
        """Read an envelope. Unknown members are ignored, as DSSE demands.

        A signature may have any length up to a limit: those of algorithms this build does not know
        stand beside ours and count for nothing.

        Raises:
            MalformedError: `json.*`, `envelope.missing`, `envelope.type`, `envelope.range`,
                `envelope.base64`, `envelope.signatures`.
        """
        found = strictjson.loads(data, limit=MAX_ENVELOPE_BYTES, what="the envelope")
        fields = strictjson.Fields(found, "envelope")
        payload_type = fields.string("payloadType", limit=MAX_PAYLOAD_TYPE_BYTES)
        payload = _base64(fields.string("payload", limit=MAX_ENVELOPE_BYTES))
        if len(payload) > MAX_MANIFEST_BYTES:
            raise MalformedError("envelope.range", f"payload is larger than {MAX_MANIFEST_BYTES} bytes")
        entries = fields.array("signatures", limit=MAX_ENVELOPE_BYTES)
        if not 1 <= len(entries) <= MAX_SIGNATURES:
            raise MalformedError("envelope.signatures", f"an envelope has 1 to {MAX_SIGNATURES} signatures")
        return cls(payload_type, payload, tuple(map(_signature, entries)))

    @classmethod
    def seal(cls, payload_type: str, payload: bytes, *keys: SigningKey) -> Envelope:
        """Sign `payload` with every key."""
        message = pae(payload_type, payload)
        return cls(payload_type, payload, tuple(Signature(k.public.key_id, k.sign(message)) for k in keys))

    def encode(self) -> bytes:
        return strictjson.dumps(
            {
                "payload": base64.b64encode(self.payload).decode(),
                "payloadType": self.payload_type,
                "signatures": [
                    {"keyid": s.key_id, "sig": base64.b64encode(s.signature).decode()} for s in self.signatures
                ],
            }
        )

    def signers(self, keys: Collection[PublicKey]) -> tuple[PublicKey, ...]:
        """Those of `keys` with a valid signature here, each once, in a stable order."""
        message, distinct = pae(self.payload_type, self.payload), set(keys)
        claimed = {s.key_id for s in self.signatures}
        found: set[PublicKey] = set()
        unexplained = list(self.signatures)
        # Those that are named are tried first. A signature is one key's, so only what they leave is for all others.
        for some in ([k for k in distinct if k.key_id in claimed], distinct):
            for key in some:
                rest = [s for s in unexplained if not key.verify(message, s.signature)]
                if len(rest) < len(unexplained):
                    found.add(key)
                    unexplained = rest
        return tuple(sorted(found))

    def verify(self, payload_type: str, keys: Collection[PublicKey], *, threshold: int = 1) -> VerifiedPayload:
        """Check type and signatures; distinct keys count towards `threshold`, not signatures.

        Raises:
            TrustError: `trust.payload_type`; when fewer than `threshold` of `keys` have signed
                `trust.bad_signature` if one of them is named without having signed this, else
                `trust.untrusted_signer`.
        """
        if self.payload_type != payload_type:
            raise TrustError("trust.payload_type", f"signed as {self.payload_type!r}, not as {payload_type!r}")
        found = self.signers(keys)
        if len(found) < max(1, threshold):
            raise self._refusal(set(keys) - set(found), len(found), max(1, threshold))
        return VerifiedPayload(self.payload_type, self.payload, found)

    def _refusal(self, others: set[PublicKey], found: int, needed: int) -> TrustError:
        """Why the signatures do not suffice; the hints only choose the words, since both ways it is refused."""
        claimed = sorted({s.key_id for s in self.signatures if s.key_id})
        if any(key.key_id in claimed for key in others):
            return TrustError(
                "trust.bad_signature",
                "a signature in the name of a trusted key is not over these bytes",
                hint="whoever sent this changed it, or signed in another's name",
                claimed_key_ids=claimed,
            )
        return TrustError(
            "trust.untrusted_signer",
            f"signed by {found} of the trusted keys, {needed} needed",
            hint="kvsync trust add KEY, once you know whose key it is",
            claimed_key_ids=claimed,
        )

    def endorsed(self, keys: Collection[PublicKey]) -> Envelope:
        """This envelope with one valid signature of each of `keys` and no other: what is worth keeping.

        Raises:
            TrustError: `trust.untrusted_signer` when none of `keys` has signed.
        """
        kept = self._by_key(keys)
        if not kept:
            raise TrustError("trust.untrusted_signer", "signed by none of the trusted keys")
        return Envelope(self.payload_type, self.payload, tuple(kept[:MAX_SIGNATURES]))

    def merged(self, other: Envelope, keys: Collection[PublicKey] = ()) -> Envelope:
        """This envelope with the other's further signatures over the same payload, up to the cap.

        Valid signatures by `keys` come first, one of each key, so that neither a heap of meaningless ones nor
        a key that signs again and again crowds them out. Of the rest the other's, which are newer, come first.

        Raises:
            ValueError: the payloads differ; a caller's mistake.
        """
        if (other.payload_type, other.payload) != (self.payload_type, self.payload):
            raise ValueError("envelopes of different payloads")
        everything = Envelope(self.payload_type, self.payload, (*self.signatures, *other.signatures))
        message = pae(self.payload_type, self.payload)
        rest = (
            s
            for s in (*other.signatures, *self.signatures)
            if not any(key.verify(message, s.signature) for key in keys)
        )
        found = {s.signature: s for s in (*everything._by_key(keys), *rest)}
        if found.keys() == {s.signature for s in self.signatures}:
            return self
        return Envelope(self.payload_type, self.payload, tuple(found.values())[:MAX_SIGNATURES])

    def _by_key(self, keys: Collection[PublicKey]) -> list[Signature]:
        """The first valid signature of each of `keys`, in a stable order."""
        message = pae(self.payload_type, self.payload)
        firsts = (
            next((s for s in self.signatures if key.verify(message, s.signature)), None) for key in sorted(set(keys))
        )
        return [signature for signature in firsts if signature is not None]


def _signature(entry: object) -> Signature:
    fields = strictjson.Fields(entry, "envelope")
    key_id = fields.optional("keyid", lambda name: fields.string(name, limit=MAX_KEYID_BYTES))
    signature = _base64(fields.string("sig", limit=2 * MAX_SIGNATURE_BYTES))
    if not 1 <= len(signature) <= MAX_SIGNATURE_BYTES:
        raise MalformedError("envelope.range", f"a signature has 1 to {MAX_SIGNATURE_BYTES} bytes")
    return Signature(key_id or "", signature)


def _base64(text: str) -> bytes:
    """Standard or url-safe base64, both of which a DSSE verifier must accept, padded and not mixed."""
    altchars = b"-_" if "-" in text or "_" in text else b"+/"
    try:
        raw = base64.b64decode(text, altchars, validate=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedError("envelope.base64", "payload or signature is not base64") from error
    if base64.b64encode(raw, altchars).decode() != text:
        raise MalformedError("envelope.base64", "payload or signature is base64 in another than its one spelling")
    return raw
