"""What Penstock relies on in Spark that PySpark does not document. All of it is here.

Everything here was seen in the version `SEEN`. Each item, and each line of the table, has a test in
``tests/spark/test_quirks.py`` that asks Spark itself, so that it fails first when Spark changes.
Nothing here imports PySpark or pyarrow before it is called.

Some behaviour needs no code of its own:

| What Spark does | Where we rely on it |
|---|---|
| A read without splits has one `InputPartition` of Spark's own | `read.source`, `read.stream` |
| A streaming sink gets the option ``checkpointLocation`` | `write.sink`, `write.bound` |
| A batch is committed by another writer than the one that the tasks had | `write.sink` |
| `foreachBatch` gets frames of a session that belongs to the query alone | `lake.stream` |
"""

from __future__ import annotations

import functools
import gc
import json
import os
import socket
import stat
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.errors import Corrupt
from penstock.system import files

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

SEEN = "4.3.0"

# Options: ``load`` with a list of paths gives the option "paths", as a JSON array.

PATHS = "paths"

# Planning a read. Spark asks a reader for its splits in a worker that runs one module. If filters
# can be pushed down, it asks in a worker that runs another module, and only there it calls
# ``pushFilters``. In the first worker, a class that defines ``pushFilters`` is an error unless
# ``spark.sql.python.filterPushdown.enabled`` is set, and that setting cannot be seen from Python.

_FILTERS_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


def pushes_filters() -> bool:
    """Whether this process is the worker in which Spark pushes filters down to a reader.

    Spark's daemon imports the module of a worker; without the daemon the module is run as a script.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _FILTERS_WORKER in sys.modules or (spec is not None and spec.name == _FILTERS_WORKER)


# Properties of a task. `TaskContext.getLocalProperty` is documented, the names are not.

_BATCH = "streaming.sql.batchId"
_QUERY = "sql.streaming.queryId"
_RUN = "spark.jobGroup.id"  # in a streaming query, the id of the run


def batch_number() -> int | None:
    """The number of the micro-batch that the current task belongs to; None outside a stream."""
    found = _local_property(_BATCH)
    return None if found is None else int(found)


def query_id() -> str | None:
    """The id of the streaming query that the current task belongs to; None outside a stream.

    A query keeps it as long as it has the same checkpoint. Writes in ``foreachBatch`` have it too.
    """
    return _local_property(_QUERY)


def run_id() -> str | None:
    """The id of the query's run, which is new each time the query starts; None outside a stream."""
    return _local_property(_RUN)


def _local_property(name: str) -> str | None:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "called outside a task"
    return context.getLocalProperty(name)


# Checkpoints: the files in them that Spark keeps to itself.

_METADATA = "metadata"  # {"id": the query's id}; written before the first batch is planned
_OFFSETS = "offsets"  # a file for each batch; its last line is the end offset of the one source


def is_checkpoint(directory: str) -> bool:
    """Whether a directory of this host is the checkpoint of a query that has started."""
    return files.is_file(os.path.join(directory, _METADATA))


def query_of(checkpoint: str) -> str | None:
    """The id of the query that a checkpoint belongs to; None if there is no checkpoint."""
    path = os.path.join(checkpoint, _METADATA)
    text = files.read_text(path)
    if text is None:
        return None
    try:
        return str(json.loads(text)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"{path}: must be the metadata of a streaming query, got {text[:80]!r}", path=path
        ) from error


def ends_of(checkpoint: str, batch: int) -> dict[str, int]:
    """Where a batch ends, by log, as the checkpoint of a query with one Penstock source says.

    Empty for a batch without offsets, which is the first one of a query that found no log.
    """
    path = os.path.join(checkpoint, _OFFSETS, str(batch))
    last = (files.read_text(path) or "").strip().rpartition("\n")[2]
    if last in ("", "{}"):
        return {}
    try:
        found = json.loads(last)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(type(end) is int for end in found.values()):
        raise Corrupt(f"{path}: the last line must be offsets of logs, got {last!r}", path=path)
    return found


# Columns: the first batch that a reader yields must have exactly this Arrow schema.


def arrow_schema(schema: StructType) -> pyarrow.Schema:
    """The Arrow schema that Spark expects for columns, down to what may be null."""
    from pyspark.sql.pandas.types import to_arrow_schema

    found: pyarrow.Schema = to_arrow_schema(schema, timezone="UTC")
    return found


# Sessions: a builder has no method that returns a setting.


def builder_setting(builder: SparkSession.Builder, name: str, default: str) -> str:
    """A setting that a session builder was given."""
    return str(builder._options.get(name, default))


# Workers. Spark uses a worker for many tasks, and collects garbage after each of them: that goes
# through all objects of all modules, about 30 ms in which the next stage has one core less.

REUSED = "SPARK_REUSE_WORKER"  # set in workers that Spark uses again


@functools.cache
def prepare_worker() -> bool:
    """Exempt from garbage collection what a worker has imported; False if this is not a worker.

    Call it when everything is imported. What exists by then, mostly modules, stays until the
    process ends; later garbage is collected as usual. Only the first call does anything.
    """
    if REUSED not in os.environ:
        return False
    import penstock.opening  # noqa: F401  # which else the first task would load

    gc.freeze()
    return True


# Sockets. For each task, Spark sends a worker two messages: the pickled reader or writer, then the
# split or the rows. The kernel of the JVM holds the second message back until the first is
# acknowledged (Nagle's algorithm), and the worker's kernel waits 40 ms for data to send along with
# the acknowledgement. So every task would take 40 ms longer. Code that runs while the first message
# is unpickled runs between the two, and can send the acknowledgement at once. With Unix sockets
# (``spark.python.unix.domain.socket.enabled``) there is no such wait.

_INTERNET = (socket.AF_INET, socket.AF_INET6)


class Shipped:
    """The base of readers and writers, which Spark pickles and ships to its workers."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        acknowledge()
        prepare_worker()


def acknowledge() -> None:
    """Send the acknowledgements that this process's TCP connections owe."""
    for descriptor in _descriptors():
        with suppress(OSError):  # another thread has closed it
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                _acknowledge(descriptor)


def _descriptors() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except FileNotFoundError:
        return []  # without /proc, tasks only take longer


def _acknowledge(descriptor: int) -> None:
    borrowed = socket.socket(fileno=descriptor)
    try:
        if borrowed.family in _INTERNET and borrowed.type == socket.SOCK_STREAM:
            borrowed.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    finally:
        borrowed.detach()  # Spark owns it
