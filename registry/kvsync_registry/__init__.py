"""Who has what: reserved for the registry service.

Until it exists, a node asks the peers it knows directly (`kvsync.sync`).
"""
