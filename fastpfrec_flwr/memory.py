"""Freed memory stays with the process, because each round asks for the same again.

By default glibc returns every large block to the system and the next round pays for each of its pages anew: measured here, a third
of a round. What is kept is bounded by the largest round.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

# Parameters of glibc's mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = 1 << 30


@cache
def keep_freed_memory() -> bool:
    """Tell the C library to keep freed blocks for reuse; once per process.

    Returns
    -------
    Whether that worked (glibc only; elsewhere nothing changes).
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, _NEVER))
