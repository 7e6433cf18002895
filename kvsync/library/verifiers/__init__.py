"""Verifiers: what decides whether a candidate is a solution."""

from kvsync.library.verifiers.registry import is_verifier, load_verifier, plug_ins, verifier_names
from kvsync.library.verifiers.spec_text import JsonValue
from kvsync.library.verifiers.verifier import Verdict, Verifier, VerifierSpec

__all__ = [
    "JsonValue",
    "Verdict",
    "Verifier",
    "VerifierSpec",
    "is_verifier",
    "load_verifier",
    "plug_ins",
    "verifier_names",
]
