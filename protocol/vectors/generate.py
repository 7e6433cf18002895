"""Write the vector files and SPEC's worked example: `python protocol/vectors/generate.py [--check]`.

With --check nothing is written; the exit status is 1 when a file differs from what would be written.
All keys are fixed and nothing depends on time or on the machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Final

import acquaintance
import basics
import bundles
import computations
import envelopes
import evidence
import geometry
import hints
import libraries
import manifests
import planes
import receipts
import tiny
import trees
import wire
from cases import Cases

HERE: Final = Path(__file__).resolve().parent
SPEC: Final = HERE.parent / "SPEC.md"
BEGIN: Final = "<!-- example: written by vectors/generate.py -->"
END: Final = "<!-- end of the example -->"
TOPICS: Final = {
    "digest": basics.digest,
    "json": basics.json,
    "keys": basics.keys,
    "tokens": basics.token_ids,
    "schedule": basics.schedule,
    "fingerprint": basics.fingerprints,
    "prefix": basics.prefix,
    "merkle": trees.merkle,
    "leaves": trees.leaves,
    "layout": geometry.layout,
    "envelope": envelopes.envelope,
    "manifest": manifests.manifest,
    "ref": manifests.refs,
    "attestation": evidence.attestation,
    "divergence": evidence.divergence,
    "receipt": receipts.receipt,
    "messages": wire.messages,
    "bulk": wire.bulk,
    "unencrypted": wire.unencrypted,
    "planes": planes.planes,
    "registry": hints.registry,
    "computation": computations.computation,
    "library": libraries.library,
    "bundle": bundles.bundle,
    "statements": acquaintance.statements,
    "tickets": acquaintance.tickets,
}


def texts() -> dict[Path, str]:
    """Every generated file with its text."""
    found = {HERE / "example.json": json.dumps(tiny.as_json(), indent=1, ensure_ascii=False) + "\n"}
    for topic, make in TOPICS.items():
        found[HERE / f"{topic}.json"] = _lines(make())
    before, rest = SPEC.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    found[SPEC] = f"{before}{BEGIN}\n{tiny.as_markdown()}\n{END}{after}"
    return found


def _lines(cases: Cases) -> str:
    """One case per line, so that a change shows as one line."""
    lines = ",\n".join("  " + json.dumps(case, ensure_ascii=True) for case in cases.cases)
    return f'{{"about": {json.dumps(cases.about)},\n "cases": [\n{lines}\n ]}}\n'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when something differs")
    check = parser.parse_args().check
    stale = [path for path, text in texts().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    strangers = [path for path in HERE.glob("*.json") if path not in texts()]
    for path in (*stale, *strangers):
        print(
            f"{path.name} {'differs' if check else 'written' if path in stale else 'belongs to no topic'}",
            file=sys.stderr,
        )
    if not check:
        for path in stale:
            path.write_text(texts()[path], encoding="utf-8")
        return 0
    return 1 if stale or strangers else 0


if __name__ == "__main__":
    raise SystemExit(main())
