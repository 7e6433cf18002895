"""Every vector gives what it names: the value, or the error code. SPEC and vectors alone define both."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvsync.pack.compiled import CompiledSplitter
from kvsync.pack.planes import PlaneCoder
from kvsync.pack.shape import leaf_shape
from kvsync.pack.splitter import Splitter
from kvsync_protocol import figure, merkle, messages, registry_messages, strictjson
from kvsync_protocol.announcement import parse_statement
from kvsync_protocol.attestation import Attestation
from kvsync_protocol.blame import Blame
from kvsync_protocol.blockfile import block_file, logits_file, state_file
from kvsync_protocol.bulk import BulkReply, BulkRequest
from kvsync_protocol.bundle import BundleIndex, Member, chunk_encoding
from kvsync_protocol.computation import ComputeRequest, ComputeState, Models
from kvsync_protocol.digest import ArtifactId, Digest, PrefixKey, hash_record, sha256
from kvsync_protocol.divergence import Divergence
from kvsync_protocol.entry import Entry
from kvsync_protocol.envelope import Envelope, VerifiedPayload, pae
from kvsync_protocol.errors import ProtocolError
from kvsync_protocol.fingerprint import Fingerprint, FingerprintKind, Fingerprints
from kvsync_protocol.group import DType, Group
from kvsync_protocol.groups import parse_group
from kvsync_protocol.have import Have
from kvsync_protocol.join import JoinAnswer, JoinRequest
from kvsync_protocol.layout import Layout
from kvsync_protocol.leaves import LeafTable
from kvsync_protocol.library import LibraryList
from kvsync_protocol.manifest import PAYLOAD_TYPE, Manifest
from kvsync_protocol.passage import Passage
from kvsync_protocol.prefix import block_keys, decode_tokens, encode_tokens, start_key
from kvsync_protocol.reader import artifact_place, block_places, name_place
from kvsync_protocol.receipt import Receipt
from kvsync_protocol.ref import Ref
from kvsync_protocol.revocation import RevocationList
from kvsync_protocol.schedule import Schedule
from kvsync_protocol.scorers import SCORERS
from kvsync_protocol.signing import PublicKey
from kvsync_protocol.state import StateGroup
from kvsync_protocol.statements import KeyStatements
from kvsync_protocol.successor import Successor
from kvsync_protocol.ticket import Ticket
from kvsync_protocol.unencrypted import Seals, Side
from tests.protocol.spec import error_codes

VECTORS = Path(__file__).parents[2] / "protocol" / "vectors"
FILES = sorted(path for path in VECTORS.glob("*.json") if path.name != "example.json")
CASES: list[tuple[str, dict[str, Any]]] = [
    (path.stem, case) for path in FILES for case in json.loads(path.read_text(encoding="utf-8"))["cases"]
]
WITHOUT_A_VECTOR = {
    "manifest.size": "an inverse of json.size that only a writer meets; its vector would have 1 MiB",
    "integrity.chunk": "raised where chunks are stored and read",
    "integrity.header": "raised where chunks are read",
    "trust.rollback": "raised where refs are kept",
    "trust.ref_owner": "raised where refs are kept",
}


def raw(text: str) -> bytes:
    return bytes.fromhex(text)


def hashes(texts: list[str]) -> list[Digest]:
    return [Digest(raw(text)) for text in texts]


def geometry(given: dict[str, Any]) -> Layout:
    return Layout(
        given["tokens"],
        given["block_tokens"],
        tuple(parse_group(group) for group in given["groups"]),
        given["vocab"],
        DType(given["logits_dtype"]),
    )


def manifest(payload: str, payload_type: str = PAYLOAD_TYPE) -> Manifest:
    return Manifest.parse(VerifiedPayload(payload_type, payload.encode(), ()))


def fingerprint(kind: str, fields: object) -> Fingerprint:
    return Fingerprint.parse(FingerprintKind(kind), fields)


def fingerprints(given: dict[str, Any]) -> Fingerprints:
    return Fingerprints(*(fingerprint(kind, given[kind]) for kind in ("compatibility", "numerics")))


def ref(given: dict[str, Any]) -> Ref:
    return Ref(given["name"], ArtifactId(Digest.parse(given["artifact"])), given["sequence"], given["expires"])


def run_envelope(text: str, payload_type: str, keys: list[str], threshold: int) -> dict[str, Any]:
    trusted = [PublicKey.parse(key) for key in keys]
    verified = Envelope.parse(text.encode()).verify(payload_type, trusted, threshold=threshold)
    return {"payload": verified.payload.hex(), "signers": sorted(map(str, verified.signers))}


def run_layout(**given: Any) -> dict[str, Any]:
    layout = geometry(given)
    spans = list(layout.chunks())
    assert [span.index for span in spans] == list(range(layout.leaf_count))
    return {
        "chunks": [[span.block, span.group, span.offset, span.size] for span in spans],
        "bytes": layout.total_bytes,
        "full_leaves": layout.full_leaves,
    }


def run_header(group: object, tokens: int) -> str:
    found = parse_group(group)
    assert isinstance(found, Group)
    return block_file(found, tokens).header.hex()


def run_state_header(group: object) -> str:
    found = parse_group(group)
    assert isinstance(found, StateGroup)
    return state_file(found).header.hex()


def run_graft_chunks(position: int, logits: bool, **given: Any) -> list[int]:
    return [span.index for span in geometry(given).chunks_for_graft(position, logits=logits)]


def run_accepts(ours: dict[str, Any], theirs: dict[str, Any], accept: str) -> list[str]:
    return [found.field for found in fingerprints(ours).check(fingerprints(theirs), accept=accept)]


def run_block_keys(salt: str, tokens: list[int], block_tokens: int, boundaries: list[int], **sides: Any) -> list[str]:
    schedule = Schedule(block_tokens, tuple(boundaries))
    return [key.hex for key in block_keys(start_key(fingerprints(sides), raw(salt)), tokens, schedule)]


def run_json(limit: int, text: str | None = None, **given: str) -> dict[str, object]:
    data = raw(given["bytes"]) if text is None else text.encode()
    return strictjson.loads(data, limit=limit, what="the vector")


def run_leaf_table(**given: str) -> dict[str, Any]:
    table = LeafTable.parse(raw(given["bytes"]))
    return {"sizes": [leaf.size for leaf in table.leaves], "root": table.root.hex}


def run_key(text: object) -> dict[str, str]:
    key = PublicKey.parse(text)
    assert str(key) == text
    return {"raw": key.raw.hex(), "key_id": key.key_id}


def run_entry(payload: str, payload_type: str) -> dict[str, Any]:
    found = Entry.parse(VerifiedPayload(payload_type, payload.encode(), ()))
    return {"digest": found.digest.hex, "address": str(found.address), "tokens": found.tokens}


def run_passage(payload: str, payload_type: str) -> dict[str, Any]:
    found = Passage.parse(VerifiedPayload(payload_type, payload.encode(), ()))
    return {"digest": found.digest.hex, "prompt": found.prompt}


def run_member(header: str) -> dict[str, Any]:
    found = Member.decode(raw(header))
    assert found.encode() == raw(header)
    return {"name": found.name, "size": found.size}


def run_chunk(member: str, digest: str) -> int:
    return int(chunk_encoding(member, Digest(raw(digest))))


def run_bundle(payload: str, payload_type: str) -> dict[str, Any]:
    found = BundleIndex.parse(VerifiedPayload(payload_type, payload.encode(), ()))
    assert found.encode() == payload.encode()
    return {"artifacts": [str(each.artifact) for each in found.artifacts]}


def run_library(payload: str, payload_type: str) -> dict[str, Any]:
    found = LibraryList.parse(VerifiedPayload(payload_type, payload.encode(), ()))
    entries = [str(entry) for entry in found.entries]
    return {"entries": entries, "quarantined": len(found.quarantined), "sequence": found.sequence}


def run_ref(payload: str, payload_type: str) -> dict[str, Any]:
    found = Ref.parse(VerifiedPayload(payload_type, payload.encode(), ()))
    return {
        "name": found.name,
        "artifact": str(found.artifact),
        "sequence": found.sequence,
        "expires": found.expires,
    }


def run_hello(text: str) -> dict[str, Any]:
    found = messages.Hello.parse(text.encode())
    return {
        "protocol": found.protocol,
        "software": found.software,
        "signers": list(map(str, found.signers)),
        "roles": list(found.roles),
        "statements": None if found.statements is None else str(found.statements),
    }


def run_refs(text: str) -> dict[str, Any]:
    found = messages.RefList.parse(text.encode())
    return {"count": len(found.refs), "more": found.more}


def run_accepted(text: str) -> dict[str, Any]:
    found = messages.Accepted.parse(text.encode())
    return {"artifact": str(found.artifact), "complete": found.complete}


def run_error(text: str) -> dict[str, str]:
    found = messages.ErrorReply.parse(text.encode())
    return {"code": found.code, "message": found.message, "hint": found.hint}


def run_bulk_request(**given: str) -> dict[str, Any]:
    found = BulkRequest.decode(raw(given["bytes"]))
    return {
        "verb": found.verb.name,
        "encoding": found.encoding.name,
        "artifact": found.artifact.hex,
        "index": found.index,
        "length": found.length,
    }


def run_bulk_reply(**given: str) -> dict[str, Any]:
    found = BulkReply.decode(raw(given["bytes"]))
    return {"status": found.status.name, "encoding": found.encoding.name, "length": found.length}


def run_seals(key: str, sender: int, messages: list[dict[str, str]]) -> int:
    """How many messages were believed."""
    seals = Seals(raw(key), Side(sender))
    for each in messages:
        seals.check(raw(each["message"]), raw(each["seal"]))
    return len(messages)


def run_planes(layout: dict[str, Any], index: int, body: str) -> str:
    shape = leaf_shape(geometry(layout), index)
    found = set()
    for coder in PlaneCoder(Splitter()), PlaneCoder(CompiledSplitter()):
        out = bytearray(shape.size)
        coder.decode(memoryview(raw(body)), shape, memoryview(out))
        found.add(sha256(out).hex)
    assert len(found) == 1
    return found.pop()


def run_check_template(payload: str, template: str) -> None:
    manifest(payload).check_template(Digest.parse(template))


def run_attestation(payload: str, payload_type: str, **given: str) -> dict[str, Any]:
    found = Attestation.parse(VerifiedPayload(payload_type, payload.encode(), ()))
    about = manifest(given["manifest"])
    found.check(about)
    return {"blocks": list(found.audited()), "refutes": found.refutes(about)}


def run_statement(payload_type: str, payload: str) -> dict[str, Any]:
    found = parse_statement(VerifiedPayload(payload_type, payload.encode(), ()))
    assert parse_statement(VerifiedPayload(payload_type, found.encode(), ())) == found
    return {"kind": type(found).__name__, "epoch": found.at.epoch, "sequence": found.at.sequence}


def run_matches(text: str) -> dict[str, int]:
    found = registry_messages.Matches.parse(text.encode())
    return {"shared": found.shared, "count": len(found.matches)}


def run_outcomes(text: str) -> dict[str, int]:
    found = registry_messages.Outcomes.parse(text.encode())
    return {"epoch": found.epoch, "count": len(found.outcomes)}


def run_place(kind: str, reader: str, key: str) -> str:
    if kind == "names":
        return name_place(reader).hex()
    if kind == "artifact":
        return artifact_place(reader, ArtifactId(Digest(raw(key)))).hex()
    return block_places(reader, [PrefixKey(Digest(raw(key)))]).hex()


def run_receipt(text: str, signer: str | None) -> dict[str, Any]:
    keys = [] if signer is None else [PublicKey.parse(signer)]
    found = Receipt.parse(text.encode(), SCORERS, keys)
    assert found.encode() == text.encode()
    return {"records": found.header.count, "summary": dict(found.header.summary)}


def run_successor(envelope: str) -> dict[str, Any]:
    found = Successor.open(Envelope.parse(envelope.encode()))
    return {"kind": found.kind, "old": str(found.old), "new": str(found.new), "until": found.until}


def run_blame(envelope: str, signer: str) -> dict[str, Any]:
    found = Blame.open(Envelope.parse(envelope.encode()), {PublicKey.parse(signer)})
    assert Blame.parse(found.encode()) == found
    return dict(json.loads(found.encode()))


def run_revocations(envelope: str) -> dict[str, Any]:
    found = RevocationList.open(Envelope.parse(envelope.encode()))
    return {"authority": str(found.authority), "sequence": found.sequence, "keys": list(map(str, found.keys))}


def run_key_statements(text: str) -> dict[str, Any]:
    found = KeyStatements.parse(text.encode())
    return {"count": len(found.successors) + len(found.revocations), "digest": found.digest.hex}


def run_compute_request(text: str) -> dict[str, Any]:
    found = ComputeRequest.parse(text.encode())
    return {"id": found.id, "tokens": len(found.tokens or ())}


def run_compute_state(text: str) -> dict[str, Any]:
    found = ComputeState.parse(text.encode())
    return {"state": found.state, "final": found.final}


def run_ticket(text: str) -> dict[str, Any]:
    found = Ticket.parse(text)
    assert str(found) == text
    return {
        "identity": str(found.identity),
        "key": str(found.key.public),
        "expires": found.expires,
        "addresses": list(found.addresses),
        "registry": found.registry,
    }


def run_join(envelope: str, key: str) -> dict[str, str]:
    found, _ = JoinRequest.open(Envelope.parse(envelope.encode()), {PublicKey.parse(key)})
    return {"joiner": str(found.joiner), "name": found.about.name}


def run_join_answer(text: str) -> list[str] | str:
    found = JoinAnswer.parse(text.encode())
    return list(found.roles) if isinstance(found, JoinAnswer) else found.code


OPERATIONS: dict[str, Callable[..., Any]] = {
    "digest": lambda text: Digest.parse(text).hex,
    "digest_raw": lambda **given: Digest(raw(given["bytes"])).hex,
    "record": lambda tag, items: hash_record(tag, map(raw, items)).hex,
    "json": run_json,
    "key": run_key,
    "key_raw": lambda **given: str(PublicKey(raw(given["bytes"]))),
    "tokens_decode": lambda **given: list(decode_tokens(raw(given["bytes"]))),
    "tokens_encode": lambda tokens: encode_tokens(tokens).hex(),
    "segments": lambda block_tokens, boundaries, start, stop: [
        list(pair) for pair in Schedule(block_tokens, tuple(boundaries)).segments(start, stop)
    ],
    "cuts_inside": lambda block_tokens, boundaries, block: list(
        Schedule(block_tokens, tuple(boundaries)).cuts_inside(block)
    ),
    "fingerprint": lambda kind, fields: fingerprint(kind, fields).digest.hex,
    "accepts": run_accepts,
    "attestation": run_attestation,
    "divergence": lambda text: Divergence.parse(text.encode()).check() and None,
    "attestations": lambda text: len(messages.Attestations.parse(text.encode()).envelopes),
    "related": lambda text: list(map(str, messages.Related.parse(text.encode()).artifacts)),
    "block_keys": run_block_keys,
    "root": lambda data: merkle.root([merkle.leaf_hash(raw(leaf)) for leaf in data]).hex,
    "inclusion": lambda leaf, index, size, proof, root: merkle.verify_inclusion(
        Digest(raw(leaf)), index, size, hashes(proof), Digest(raw(root))
    ),
    "consistency": lambda first, second, first_root, second_root, proof: merkle.verify_consistency(
        first, second, Digest(raw(first_root)), Digest(raw(second_root)), hashes(proof)
    ),
    "leaf_table": run_leaf_table,
    "check_leaves": lambda payload, **given: manifest(payload).check_leaves(raw(given["bytes"])) and None,
    "check_tokens": lambda payload, **given: list(manifest(payload).check_tokens(raw(given["bytes"]))),
    "check_template": run_check_template,
    "layout": run_layout,
    "header": run_header,
    "state_header": run_state_header,
    "restorable": lambda position, **given: geometry(given).restorable(position),
    "logits_header": lambda vocab, dtype: logits_file(vocab, DType(dtype)).header.hex(),
    "graft_chunks": run_graft_chunks,
    "pae": lambda payload_type, payload: pae(payload_type, raw(payload)).hex(),
    "envelope": run_envelope,
    "manifest": lambda payload, payload_type: manifest(payload, payload_type).artifact.hex,
    "entry": run_entry,
    "library": run_library,
    "member": run_member,
    "bundle": run_bundle,
    "chunk": run_chunk,
    "passage": run_passage,
    "ref": run_ref,
    "ref_fresh": lambda now, **given: ref(given["ref"]).check_fresh(now),
    "hello": run_hello,
    "refs": run_refs,
    "missing": lambda text, leaves: list(messages.Missing.parse(text.encode(), leaves=leaves).indices()),
    "have": lambda text, leaves: list(Have.parse(text.encode(), leaves=leaves).indices()),
    "accepted": run_accepted,
    "commit": lambda text: messages.Commit.parse(text.encode()).ref is not None,
    "error": run_error,
    "bulk_request": run_bulk_request,
    "bulk_reply": run_bulk_reply,
    "seals": run_seals,
    "planes": run_planes,
    "statement": run_statement,
    "prefix_query": lambda text: len(registry_messages.PrefixQuery.parse(text.encode()).keys),
    "matches": run_matches,
    "outcomes": run_outcomes,
    "vouched": lambda text: len(registry_messages.Vouched.parse(text.encode()).signers),
    "place": run_place,
    "compute_request": run_compute_request,
    "compute_state": run_compute_state,
    "models": lambda text: len(Models.parse(text.encode()).offered),
    "successor": run_successor,
    "blame": run_blame,
    "revocations": run_revocations,
    "statements": run_key_statements,
    "ticket": run_ticket,
    "join": run_join,
    "join_answer": run_join_answer,
    "figure": lambda text: repr(figure.read(text)),
    "receipt": run_receipt,
}


@pytest.mark.parametrize("case", [pytest.param(case, id=f"{topic}: {case['name']}") for topic, case in CASES])
def test_the_vector_gives_what_it_names(case: dict[str, Any]) -> None:
    operation = OPERATIONS[case["op"]]
    if case["expect"] == "ok":
        found = operation(**case["in"])
        assert "out" not in case or found == case["out"]
    else:
        with pytest.raises(ProtocolError) as caught:
            operation(**case["in"])
        assert caught.value.code == case["expect"]


def test_there_are_vectors_enough_and_most_of_them_are_malformed_inputs() -> None:
    expected = [case["expect"] for _, case in CASES]
    assert len(expected) >= 60
    assert len([code for code in expected if code != "ok"]) >= 40


def test_every_code_of_the_spec_has_a_vector() -> None:
    covered = {case["expect"] for _, case in CASES} - {"ok"}
    assert covered | set(WITHOUT_A_VECTOR) == error_codes()
    assert not covered & set(WITHOUT_A_VECTOR)
