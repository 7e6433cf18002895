"""This node's two keys, the signers it trusts, the peers it knows, and what is said about keys.

A signer vouches for bytes, a peer merely carries them: the two are different keys and different
lists, and neither implies the other. Identity is the key, never an address.
"""

from kvsync.keys.node_keys import KeyRing, NodeKeys
from kvsync.keys.patterns import check_pattern, covers
from kvsync.keys.peers import ROLES, Peer, PeerBook, join_address, split_address
from kvsync.keys.registries import ListedRegistry, RegistryBook
from kvsync.keys.signers import Signer
from kvsync.keys.spread import KeySpread
from kvsync.keys.standing import Standing, standing
from kvsync.keys.statements import Statements
from kvsync.keys.trust import TrustList

__all__ = [
    "ROLES",
    "KeyRing",
    "KeySpread",
    "ListedRegistry",
    "NodeKeys",
    "Peer",
    "PeerBook",
    "RegistryBook",
    "Signer",
    "Standing",
    "Statements",
    "TrustList",
    "check_pattern",
    "covers",
    "join_address",
    "split_address",
    "standing",
]
