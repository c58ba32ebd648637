"""malloc options for a client that reads large arrays.

glibc serves large blocks by mmap and gives them back at once, so that every np.asarray of a large array pays for
fresh pages; with the options below it keeps them (two to four times the read rate). LANDBRIDGE_MALLOPT=0 leaves
malloc alone.
"""
import ctypes
import logging
import os

logger = logging.getLogger(__name__)

# <malloc.h>
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_INT_MAX = 2**31 - 1


def tune_malloc():
    """True when all options were taken. glibc only; harmless elsewhere."""
    if os.environ.get("LANDBRIDGE_MALLOPT", "1") == "0":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        logger.debug("this C library has no mallopt")
        return False
    mallopt.argtypes = [ctypes.c_int, ctypes.c_int]
    mallopt.restype = ctypes.c_int
    wanted = ((_M_ARENA_MAX, 1), (_M_MMAP_THRESHOLD, _INT_MAX), (_M_TRIM_THRESHOLD, _INT_MAX))
    return all([mallopt(option, value) == 1 for option, value in wanted])
