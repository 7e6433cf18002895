"""Every limit a peer could otherwise stretch. Units stand in the expressions."""

from __future__ import annotations

from typing import Final

KiB: Final = 1024
MiB: Final = 1024 * KiB
GiB: Final = 1024 * MiB

BLOCK_TOKENS: Final = 256
SNAPSHOT_BLOCKS: Final = 4
MAX_BLOCK_TOKENS: Final = 4096
MAX_CHUNK_BYTES: Final = 4 * MiB

MAX_TOKENS: Final = 16 * 1024 * 1024
MAX_LAYERS: Final = 1024
MAX_GROUPS: Final = 32
MAX_HEADS: Final = 1024
MAX_HEAD_DIM: Final = 16 * KiB
MAX_SNAPSHOT_BLOCKS: Final = 64 * 1024
MAX_STATE_PARTS: Final = 8
MAX_STATE_DIMS: Final = 4
MAX_STATE_NUMBERS: Final = 64 * 1024 * 1024
MAX_VOCAB: Final = 4 * 1024 * 1024
MAX_BOUNDARIES: Final = 64 * 1024

MAX_LEAVES: Final = 1024 * 1024
LEAF_ENTRY_BYTES: Final = 40
MAX_LEAF_TABLE_BYTES: Final = MAX_LEAVES * LEAF_ENTRY_BYTES
MAX_TOKEN_BYTES: Final = MAX_TOKENS * 4

MAX_MANIFEST_BYTES: Final = 1 * MiB
MAX_ENVELOPE_BYTES: Final = 2 * MiB
MAX_SIGNATURES: Final = 16
MAX_SIGNATURE_BYTES: Final = 8 * KiB
MAX_KEYID_BYTES: Final = 256
MAX_PAYLOAD_TYPE_BYTES: Final = 256
MAX_JSON_DEPTH: Final = 16
MAX_JSON_BYTES: Final = 2 * MiB

MAX_FINGERPRINT_FIELDS: Final = 256
MAX_FIELD_NAME_CHARS: Final = 100
MAX_FIELD_BYTES: Final = 8 * KiB
MAX_REF_BYTES: Final = 4 * KiB
MAX_STATEMENT_BYTES: Final = 4 * KiB
MAX_REVOCATION_BYTES: Final = 64 * KiB
MAX_RECEIPT_BYTES: Final = 64 * MiB
MAX_RECORD_BYTES: Final = 1 * MiB
MAX_RECORDS: Final = 64 * 1024
MAX_ATTESTATION_BYTES: Final = 64 * KiB
MAX_ATTESTATIONS: Final = 64
MAX_NAME_CHARS: Final = 200
MAX_LIST_ENTRIES: Final = 1000
MAX_PROVIDERS: Final = 64
MAX_RANGES: Final = 64 * 1024
MAX_ROLES: Final = 16
MAX_CODE_CHARS: Final = 100
MAX_MESSAGE_BYTES: Final = 2000

MAX_DIVERGENCE_BYTES: Final = 4 * MAX_TOKEN_BYTES
"""Two lists of token ids in base64 and what else a record holds; never sent, only kept."""
MAX_PROOF_NODES: Final = 64
"""ceil(log2 n) + 1 nodes at most, and n is a u64."""
