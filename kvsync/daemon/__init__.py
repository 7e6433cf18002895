"""The background service of one node: local API, job queue, supervised worker, peer listener.

    CLI ── DaemonClient ──unix socket──► api ─► board ─► queue (SQLite)
                                          ▲       │
    peers ──TLS──► PeerServer             │       ├─► supervisor ──pipes──► worker (torch lives here only)
                                          └ app   └─► transfers (pull and push, in the daemon's own loop)

`messages`, `params`, `client` and `lifecycle` import neither aiohttp nor torch, so that commands start fast.
"""
