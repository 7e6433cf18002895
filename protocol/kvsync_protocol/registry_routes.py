"""Paths of a registry, on the control lane of whoever serves it (REGISTRY.md).

    POST  STATEMENTS       Envelopes       Outcomes
    POST  LOOKUP           PrefixQuery     Matches
    GET   PROVIDERS                        Matches, of that artifact alone
    GET   NAMES            ?name=, ?after= RefList
    POST  NAMES            Vouched         nothing
    GET   ATTESTATIONS                     Envelopes
    POST  ATTESTATIONS     Vouched         nothing
    GET   CONTACT                          Addresses

A lookup is a POST so that the keys of a prompt stand in no log.
"""

from __future__ import annotations

from typing import Final

STATEMENTS: Final = "/v1/registry/statements"
LOOKUP: Final = "/v1/registry/lookup"
PROVIDERS: Final = "/v1/registry/artifacts/{artifact}"
NAMES: Final = "/v1/registry/names"
ATTESTATIONS: Final = "/v1/registry/artifacts/{artifact}/attestations"
CONTACT: Final = "/v1/registry/contacts/{key}"
