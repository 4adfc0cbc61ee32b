"""The socket between a Spark worker and its JVM: an acknowledgement that should not wait.

Spark sends a Python worker two messages for each task: the reader or writer, pickled, and then the
split or the rows. The JVM's kernel keeps the second one back until the first is acknowledged
(Nagle), and the worker's kernel waits 40 ms for data to send along with that acknowledgement: all
tasks of Python sources last so much longer. Whoever is unpickled runs between the two messages, and
can have the first one acknowledged at once. With Unix sockets there is no such wait.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from typing import Any

from penstock.spark.workers import settle

_INTERNET = (socket.AF_INET, socket.AF_INET6)


class Prompt:
    """A reader or writer that has the message acknowledged in which it came.

    Where it arrives is a worker that may have more tasks to come.
    """

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        acknowledge()
        settle()


def acknowledge() -> None:
    """Send the acknowledgements that this process's TCP connections owe."""
    for descriptor in _descriptors():
        with suppress(OSError):  # it was closed meanwhile
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                _acknowledge(descriptor)


def _descriptors() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except FileNotFoundError:
        return []  # without /proc, tasks just take longer


def _acknowledge(descriptor: int) -> None:
    borrowed = socket.socket(fileno=descriptor)
    try:
        if borrowed.family in _INTERNET and borrowed.type == socket.SOCK_STREAM:
            borrowed.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    finally:
        borrowed.detach()  # it is Spark's
