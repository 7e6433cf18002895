"""The network side of a node: who may connect, one port, a control lane and a bulk lane (SPEC 8).

Knows identities, routes and frames. What a whole transfer is, and which artifact is wanted, stands
in `kvsync.sync`.
"""
