"""Spark's Python workers: what they would do again and again for tasks of ours, and need not.

Spark uses its workers again, and has each collect garbage behind every task: that goes through all
objects of all modules, some 30 ms during which the next stage has a core less. And the C library
gives the memory of a batch back to the kernel as soon as nobody needs it, which then clears every
page anew for the next batch. A process that Spark does not use again is left as it is.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os

REUSED = "SPARK_REUSE_WORKER"  # what Spark sets for the workers that it uses again
KEPT_BYTES = 32 << 20  # of freed memory; several batches on their way take less
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3), as malloc.h numbers them


@functools.cache
def settle() -> bool:
    """Once in a worker, when what it needs is imported; False if this process is none.

    What is there by now, mostly modules, stays until the process ends. Garbage that comes later is
    collected as ever.
    """
    if REUSED not in os.environ:
        return False
    gc.freeze()
    _keep_memory()
    return True


def _keep_memory() -> None:
    """Have freed memory used again, also that of large blocks."""
    change = getattr(ctypes.CDLL(None), "mallopt", None)
    if change is not None:  # else it is another C library, and batches just take longer
        change(_MMAP_THRESHOLD, KEPT_BYTES)
        change(_TRIM_THRESHOLD, KEPT_BYTES)
