"""The kvsync protocol: bytes in, values out. No I/O, no clock, no tensors.

SPEC.md beside this package is the text this code follows; `vectors/` holds its test vectors.
"""
