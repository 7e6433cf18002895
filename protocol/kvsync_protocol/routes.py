"""Paths of the peer API's control lane, HTTP/1.1 over mutual TLS (SPEC 8.1).

    GET   HELLO                         Hello
    POST  STATEMENTS      KeyStatements KeyStatements
    GET   REFS            ?name=NAME    RefList of that one, or of none
                          ?after=NAME   RefList, a page of the names after NAME
    GET   ENVELOPE                      the envelope's JSON
    GET   LEAVES, TOKENS                the leaf table, the token ids, as bytes
    GET   HAVE                          Have
    GET   DESCRIPTION                   parts: the envelope, Attestations, leaf table, token ids, Have
    GET   ATTESTATIONS                  Attestations
    POST  ATTESTATIONS    Attestations  nothing
    GET   RELATED                       Related
    POST  OFFERS          an envelope   Accepted
    PUT   OFFER_LEAVES, OFFER_TOKENS    bytes in, nothing out
    GET   OFFER_MISSING                 Missing
    POST  OFFER_COMMIT    a Commit      Accepted

A reply of status 400 or above is an ErrorReply; its code counts, the status only helps HTTP tools.
"""

from __future__ import annotations

from typing import Final

from kvsync_protocol.digest import ArtifactId

CONTROL_ALPN: Final = "http/1.1"

HELLO: Final = "/v1/hello"
STATEMENTS: Final = "/v1/statements"
REFS: Final = "/v1/refs"
ENVELOPE: Final = "/v1/artifacts/{artifact}/envelope"
LEAVES: Final = "/v1/artifacts/{artifact}/leaves"
TOKENS: Final = "/v1/artifacts/{artifact}/tokens"
HAVE: Final = "/v1/artifacts/{artifact}/have"
DESCRIPTION: Final = "/v1/artifacts/{artifact}/description"
ATTESTATIONS: Final = "/v1/artifacts/{artifact}/attestations"
RELATED: Final = "/v1/artifacts/{artifact}/related"
OFFERS: Final = "/v1/offers"
OFFER_LEAVES: Final = "/v1/offers/{artifact}/leaves"
OFFER_TOKENS: Final = "/v1/offers/{artifact}/tokens"
OFFER_MISSING: Final = "/v1/offers/{artifact}/missing"
OFFER_COMMIT: Final = "/v1/offers/{artifact}/commit"


def path(route: str, artifact: ArtifactId) -> str:
    """`route` with its artifact filled in, as plain hex."""
    return route.format(artifact=artifact.hex)
