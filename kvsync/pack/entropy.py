"""zstd as an entropy coder: Huffman codes alone, for planes in which there is nothing to match.

Half of what zstd's fast strategy does is looking for matches, and among exponents it finds runs that cost more than
their codes would. A `target_length` lets it skip ahead instead, but then it leaves literals plain, unless it is told
not to. `zstandard` wraps no such parameter, so this module calls the C library that it carries (`zstandard[cffi]`).
What comes out are ordinary frames. Source: zstd.h, ZSTD_c_literalCompressionMode.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from zstandard.backend_cffi import ffi, lib

Bytes = npt.NDArray[np.uint8]

_PARAMETERS: Final = (
    (lib.ZSTD_c_compressionLevel, 1),
    (lib.ZSTD_c_strategy, lib.ZSTD_fast),
    (lib.ZSTD_c_hashLog, 6),
    (lib.ZSTD_c_windowLog, 17),
    (lib.ZSTD_c_targetLength, 1 << 17),
    (lib.ZSTD_c_literalCompressionMode, lib.ZSTD_ps_enable),
)


class EntropyCoder:
    """Compresses planes, a table of codes every 128 KiB. For one thread."""

    def __init__(self) -> None:
        self._context: Any = ffi.gc(lib.ZSTD_createCCtx(), lib.ZSTD_freeCCtx)
        for parameter, value in _PARAMETERS:
            _checked(lib.ZSTD_CCtx_setParameter(self._context, parameter, value))

    def compress(self, plane: Bytes, out: Bytes) -> int:
        """Write a frame of `plane` into `out`; how long it is, or 0 when `out` is too small for it."""
        size = lib.ZSTD_compress2(
            self._context, ffi.from_buffer(out, require_writable=True), len(out), ffi.from_buffer(plane), len(plane)
        )
        if lib.ZSTD_isError(size) and lib.ZSTD_getErrorCode(size) == lib.ZSTD_error_dstSize_tooSmall:
            return 0
        return _checked(size)


def _checked(result: int) -> int:
    if lib.ZSTD_isError(result):
        raise RuntimeError(f"zstd: {ffi.string(lib.ZSTD_getErrorName(result)).decode()}")
    return result
