"""Which commands there are, where each is made and what it does in one line.

With this `kvsync --help` imports no command, and a command only its own module. What a module makes and
says of itself has to be what stands here (tests/cli/test_catalogue.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Entry:
    """`module` of this package has `add_commands(app)`, which makes the command or the group of commands."""

    module: str
    text: str


CATALOGUE: Final[Mapping[str, Entry]] = {
    "init": Entry("home", "Create this node's home and keys."),
    "compute": Entry("compute", "Compute and sign a document's KV state."),
    "pull": Entry("transfer", "Fetch an artifact, or the first part of one, from peers."),
    "push": Entry("transfer", "Send an artifact to a peer."),
    "transfers": Entry("transfers", "Pause and resume, see limits."),
    "export": Entry("bundle", "Pack artifacts into one signed file."),
    "import": Entry("bundle", "Take all artifacts of a bundle, each judged like a pull."),
    "want": Entry("want", "Have as much of a prompt as others have computed."),
    "ls": Entry("artifacts", "List the artifacts stored here, newest first."),
    "show": Entry("artifacts", "Show one artifact: contents, fingerprints, signers."),
    "verify": Entry("artifacts", "Check one artifact fully: signature, leaves, every chunk here."),
    "graft": Entry("graft", "Graft an artifact and continue from it."),
    "library": Entry("library", "Verified solutions that answer again."),
    "solve": Entry("solve", "Answer a problem from a library, or by trying."),
    "ask": Entry("ask", "Answer a question from documents, and cite the passage."),
    "rm": Entry("upkeep", "Remove an artifact and its names."),
    "pin": Entry("upkeep", "Keep an artifact, whatever quota or `rm` say."),
    "unpin": Entry("upkeep", "Let an artifact be removed again."),
    "gc": Entry("upkeep", "Remove what nobody needs, and enforce the quota."),
    "fsck": Entry("upkeep", "Check every byte in the store."),
    "audit": Entry("audit", "Recompute blocks of an artifact and compare bytes."),
    "divergences": Entry("audit", "Artifacts that cannot both be right."),
    "fingerprint": Entry("fingerprint", "What makes KV state usable here."),
    "invite": Entry("invite", "Print a ticket with which one other host may join."),
    "join": Entry("invite", "Join the node that gave out a ticket."),
    "trust": Entry("trust", "Signers whose artifacts count here, and revoked keys."),
    "peer": Entry("peer", "Hosts to exchange artifacts with."),
    "registry": Entry("registry", "Who has what: registries to tell and to ask."),
    "follow": Entry("follow", "Keep in step with names that others give; the daemon fetches them."),
    "keys": Entry("keys", "This node's own keys."),
    "model": Entry("model", "Models that kvsync knows by name, and those that others may use."),
    "daemon": Entry("daemon", "The background service of this node."),
    "doctor": Entry("doctor", "Check this node, each finding with a hint."),
    "demo": Entry("demo", "Show the whole promise on this machine."),
    "prove": Entry("prove", "Prove on this host that grafts are exact, in a receipt."),
    "receipts": Entry("receipts", "Signed records of runs: check, show, compare."),
    "prereg": Entry("prereg", "Commit to outputs first, replay afterwards."),
    "completion": Entry("completion", "Print a shell's completion script."),
}
"""In the order of `--help`."""
