"""Cases for computations that are asked of a peer: requests, states, what is offered."""

from __future__ import annotations

import reference as ref
from cases import Cases

ID = "0123456789abcdef"
DIGEST = "sha256:" + "11" * 32


def computation() -> Cases:
    c = Cases("COMPUTE.md: compute requests, compute states and models")
    _requests(c)
    _states(c)
    _models(c)
    return c


def _text(value: ref.Json) -> dict[str, object]:
    return {"text": ref.canonical(value).decode()}


def _requests(c: Cases) -> None:
    good = {"id": ID, "compatibility": DIGEST, "numerics": DIGEST, "text": "a text\n", "tokens": None}
    c.ok("a request by text", "compute_request", {"id": ID, "tokens": 0}, **_text(good))
    by_tokens = {**good, "text": None, "tokens": [1, 4294967295]}
    c.ok("a request by tokens", "compute_request", {"id": ID, "tokens": 2}, **_text(by_tokens))
    for name, code, change in [
        ("both text and tokens", "compute.document", {"tokens": [1]}),
        ("neither", "compute.document", {"text": None}),
        ("an empty text", "compute.document", {"text": ""}),
        ("no tokens", "compute.document", {"text": None, "tokens": []}),
        ("a token that is none", "compute.range", {"text": None, "tokens": [4294967296]}),
        ("a text that is a number", "compute.type", {"text": 1}),
        ("an id that is a path", "compute.id", {"id": "../../etc/passwd"}),
        ("an id in capitals", "compute.id", {"id": ID.upper()}),
        ("a model that is a path", "digest.syntax", {"compatibility": "/models/tiny"}),
        ("a model's path beside it", "compute.unknown", {"model": "/models/tiny"}),
    ]:
        c.bad(f"compute request: {name}", "compute_request", code, **_text({**good, **change}))
    rest = {key: value for key, value in good.items() if key != "numerics"}
    c.bad("compute request: numerics left out", "compute_request", "compute.missing", **_text(rest))


def _states(c: Cases) -> None:
    good = {
        "id": ID,
        "state": "running",
        "ahead": 0,
        "stage": "prefill",
        "done": 256,
        "total": 1024,
        "unit": "tokens",
        "artifact": None,
        "code": "",
        "message": "",
    }
    c.ok("a running computation", "compute_state", {"state": "running", "final": False}, **_text(good))
    done = {**good, "state": "done", "artifact": DIGEST}
    c.ok("a finished computation", "compute_state", {"state": "done", "final": True}, **_text(done))
    for name, code, change in [
        ("done without an artifact", "compute.state", {"state": "done"}),
        ("an artifact before its time", "compute.state", {"artifact": DIGEST}),
        ("a state that there is not", "compute.state", {"state": "asleep"}),
        ("a negative count", "compute.range", {"done": -1}),
        ("a control character", "compute.range", {"message": "\x1b[2J"}),
        ("a place to fetch it from", "compute.unknown", {"url": "https://example.com"}),
    ]:
        c.bad(f"compute state: {name}", "compute_state", code, **_text({**good, **change}))


def _models(c: Cases) -> None:
    pair = {"compatibility": {"weights": "example"}, "numerics": {"engine": "example 1.0"}}
    c.ok("one model", "models", 1, **_text({"models": [pair]}))
    c.ok("no model", "models", 0, **_text({"models": []}))
    c.bad("models: 65", "models", "compute.range", **_text({"models": [pair] * 65}))
    c.bad("models: no fields", "models", "fingerprint.fields", **_text({"models": [{**pair, "numerics": {}}]}))
    c.bad("models: a path", "models", "compute.unknown", **_text({"models": [{**pair, "path": "/models/tiny"}]}))
