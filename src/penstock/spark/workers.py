"""Spark's Python workers: what they would do again and again for tasks of ours, and need not.

Spark uses its workers again, and has each collect garbage behind every task: that goes through all
objects of all modules, some 30 ms during which the next stage has a core less. A process that Spark
does not use again is left as it is.
"""

from __future__ import annotations

import functools
import gc
import os

REUSED = "SPARK_REUSE_WORKER"  # what Spark sets for the workers that it uses again


@functools.cache
def settle() -> bool:
    """Once in a worker, when what it needs is imported; False if this process is none.

    What is there by now, mostly modules, stays until the process ends. Garbage that comes later is
    collected as ever.
    """
    if REUSED not in os.environ:
        return False
    gc.freeze()
    return True
