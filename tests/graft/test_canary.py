"""accept = "canary": other version strings are tolerated while the canary agrees, and the report says which."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvsync_protocol.fingerprint import Fingerprint, Fingerprints
from kvsync_protocol.manifest import Manifest
from tests.graft.bench import BLOCK, Bench, words


def elsewhere(bench: Bench, tokens: list[int], **changed: str) -> Manifest:
    """The bench's artifact of these tokens as a host with other numerics fields would have signed it."""
    stored = bench.deposit(tokens)
    pair = stored.manifest.fingerprints
    numerics = Fingerprint(pair.numerics.kind, {**pair.numerics.fields, **changed})
    manifest = replace(stored.manifest, fingerprints=Fingerprints(pair.compatibility, numerics))
    leaves = b"".join(leaf.digest.raw + leaf.size.to_bytes(8, "big") for leaf in stored.leaves().leaves)
    ids = b"".join(token.to_bytes(4, "little") for token in tokens)
    with bench.store.pull_draft(manifest.seal(bench.key), manifest, leaves, ids) as draft:
        draft.publish()  # equal bytes: every chunk is here
    bench.store.remove(stored.artifact)
    return manifest


@pytest.mark.parametrize("named", [True, False])
def test_a_graft_tolerates_other_versions_under_an_equal_canary_and_names_them(bench: Bench, named: bool) -> None:
    tokens = words(3 * BLOCK + 4)
    manifest = elsewhere(bench, tokens[:-1], torch="2.99.0", engine="transformers 99")
    wanted = {"artifact": manifest.artifact} if named else {}
    refused = bench.graft(tokens, **wanted).report.refused
    assert refused is not None
    assert refused.code == ("mismatch.numerics" if named else "graft.miss")
    found = bench.graft(tokens, accept="canary", **wanted)
    assert found.report.refused is None
    assert (found.report.artifact, found.report.tokens_grafted) == (manifest.artifact, len(tokens) - 1)
    assert found.report.as_dict()["tolerated"] == ["engine", "torch"]
    assert "canary" in found.report.checks
    assert "numerics" not in found.report.checks
    assert bench.continued(found) == bench.fresh(tokens, (len(tokens) - 1,))


def test_a_graft_under_equal_numerics_tolerates_nothing_even_where_it_might(bench: Bench) -> None:
    tokens = words(2 * BLOCK + 2)
    bench.deposit(tokens[:-1])
    report = bench.graft(tokens, accept="canary").report
    assert report.tolerated == ()
    assert "numerics" in report.checks


@pytest.mark.parametrize("canary", ["sha256:" + "11" * 32, ""])
def test_another_or_no_canary_is_never_tolerated(bench: Bench, canary: str) -> None:
    tokens = words(2 * BLOCK + 2)
    manifest = elsewhere(bench, tokens[:-1], torch="2.99.0", canary=canary)
    refused = bench.graft(tokens, artifact=manifest.artifact, accept="canary").report.refused
    assert refused is not None
    assert refused.code == "mismatch.canary"
    assert bench.graft(tokens, accept="canary").report.refused is not None


def test_another_model_is_refused_whatever_its_canary(bench: Bench) -> None:
    tokens = words(2 * BLOCK + 2)
    stored = bench.deposit(tokens[:-1])
    pair = stored.manifest.fingerprints
    other = Fingerprint(pair.compatibility.kind, {**pair.compatibility.fields, "weights": "sha256:" + "22" * 32})
    manifest = replace(stored.manifest, fingerprints=Fingerprints(other, pair.numerics))
    leaves = b"".join(leaf.digest.raw + leaf.size.to_bytes(8, "big") for leaf in stored.leaves().leaves)
    ids = b"".join(token.to_bytes(4, "little") for token in tokens[:-1])
    with bench.store.pull_draft(manifest.seal(bench.key), manifest, leaves, ids) as draft:
        draft.publish()
    refused = bench.graft(tokens, artifact=manifest.artifact, accept="canary").report.refused
    assert refused is not None
    assert refused.code == "mismatch.compatibility"
