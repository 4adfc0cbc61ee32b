"""The sink: rows of a table, or of a stream, appended to a log, each batch exactly once.

A batch that Spark runs again may have other rows, or the same rows in another order. So:

1. Planning, on the driver: columns and options are checked, and the log is created if needed.
2. Each task stages its rows, as frames, in files that only this attempt knows (`staging`), and
   tells the driver their names.
3. When all tasks are done, ``commit`` on the driver publishes the files of the batch, in the order
   of partitions, as one unit (`staged`): all of them become part of the log, or none. The unit
   carries ``producer=(who, batch + 1)``, so the same atomic step makes the log remember that it has
   the batch.
4. Spark notes in its checkpoint that the batch is done. If it dies before that, it runs the batch
   again: the log has it, and ``commit`` publishes nothing.
5. The staged files are deleted, and so are those that dead runs of this batch or earlier ones left.

Who: the application, and the query that it belongs to. The id of a query is in its checkpoint. With
another checkpoint, batches are counted from 0 again and their numbers mean other rows. So an
application that comes with another query than before is refused, and not taken for a repeat.

Where: a batch is never published in another log than the one that it was planned for, and a query
stays with the log that it started with (`bound`).
"""

from __future__ import annotations

import logging
import os
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    StringType,
    StructType,
    TimestampType,
)

from penstock import layout as L
from penstock._core import Given, rows_to_stage
from penstock.errors import (
    Conflict,
    DiskFull,
    Gone,
    Internal,
    NoSuchLog,
    NotFound,
    TooLarge,
    Usage,
    gone_error,
)
from penstock.handle.producers import Done
from penstock.log import Log
from penstock.opening import open as open_log
from penstock.ring.file import is_ring
from penstock.segments.recovery import STAGING
from penstock.segments.staged import append_staged
from penstock.segments.staging import Staged
from penstock.settings import Settings
from penstock.spark.options import SourceOptions
from penstock.spark.quirks import Shipped, batch_number, query_id, run_id
from penstock.spark.write.bound import Bound
from penstock.spark.write.staging import Staging, name_of, reading
from penstock.system import files

if TYPE_CHECKING:
    from pyarrow import RecordBatch

logger = logging.getLogger("penstock")

OPTIONS = ("path", "topic", "applicationId", "stagingPath", "durable")
TABLE_OPTIONS = (*OPTIONS, "batchId")
STREAM_OPTIONS = (*OPTIONS, "checkpointLocation", "queryName")  # the last two are Spark's
_REFUSED_IN_STREAMS = {"batchid": "Spark counts the batches of a stream itself"}

_PRODUCER = re.compile(r"(?:(.+)@)?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.DOTALL)

_BYTES = "binary or string"
_TYPES = {
    "value": _BYTES,
    "key": _BYTES,
    "headers": "array<struct<key:string,value:binary>>",
    "topic": "string",
    "timestamp": "timestamp",
}


def check_columns(schema: StructType) -> tuple[str, ...]:
    """The names of the columns; `Usage` if one is unknown or has the wrong type."""
    names = tuple(schema.fieldNames())
    for field in schema.fields:
        name, given = field.name, field.dataType.simpleString()
        if name == "partition":
            raise Usage(
                "column 'partition' cannot be written: a path is one log, which has no partitions; "
                "drop the column, and write to several paths if you want several logs"
            )
        if name not in _TYPES:
            known = ", ".join(_TYPES)
            hint = f"; did you mean {name.lower()!r}?" if name.lower() in _TYPES else ""
            raise Usage(
                f"column {name!r} must be one of {known}: rename it, or put it into the value, for "
                f"example with to_json(struct(*)){hint}"
            )
        if not _fits(name, field.dataType):
            raise Usage(f"column {name!r} must be {_TYPES[name]}, got {given}: cast it")
        if names.count(name) > 1:
            raise Usage(f"column {name!r} must be given once, got {names.count(name)} of them")
    if "value" not in names:
        raise Usage(f"column 'value' is missing; the columns are {', '.join(names) or '(none)'}")
    return names


def _fits(name: str, given: DataType) -> bool:
    if name in ("value", "key"):
        return isinstance(given, BinaryType | StringType)
    if name == "topic":
        return isinstance(given, StringType)
    if name == "timestamp":
        return isinstance(given, TimestampType)
    pair = given.elementType if isinstance(given, ArrayType) else None
    return (
        isinstance(pair, StructType)
        and pair.fieldNames() == ["key", "value"]
        and isinstance(pair.fields[0].dataType, StringType)
        and isinstance(pair.fields[1].dataType, BinaryType)
    )


@dataclass
class Message(WriterCommitMessage):
    """What a task tells the driver: the plan, the query and batch, and the staged rows."""

    sink: Sink
    query: str | None
    batch: int | None
    directory: str
    partition: int
    staged: tuple[Staged, ...]


@dataclass(frozen=True)
class Sink:
    """Where rows go and how, from the options; tasks and the driver each have a copy."""

    path: str
    uuid: bytes  # of the log that was there when the write was planned
    columns: tuple[str, ...]
    topic: str | None
    application: str | None
    durable: bool
    staging: Staging

    @classmethod
    def plan(cls, options: SourceOptions, schema: StructType, overwrite: bool) -> Sink:
        """Check everything that can be checked before there are rows; create the log if needed."""
        if overwrite:
            raise Usage(
                "a log is never overwritten: seqs are never reused, and readers, consumers and "
                "checkpoints hold positions in it. Use mode('append') or outputMode('append'), "
                "or write to another path"
            )
        columns = check_columns(schema)
        given = options.text("path")
        if not given:
            raise Usage("the path of a log is missing: save('/data/orders')")
        path = files.path_text(given, "path")
        topic = options.text("topic")
        if topic is not None and len(topic.encode()) > L.TOPIC_BYTES_MAX:
            raise TooLarge(
                f"option 'topic' must be at most {L.TOPIC_BYTES_MAX} bytes, got "
                f"{len(topic.encode())}"
            )
        elsewhere = options.text("stagingPath")
        root = f"{path}-{STAGING}" if is_ring(path) else os.path.join(path, STAGING)
        if elsewhere:
            root = files.path_text(elsewhere, "stagingPath")
        application = _application(options)
        durable = options.flag("durable", True)
        parent = os.path.dirname(path)
        if not files.is_dir(parent):
            raise NoSuchLog(
                f"{path}: a log cannot be created here, because there is no directory {parent}",
                filename=parent,
            )
        bound = Bound.of(path, options.text("checkpointLocation"))
        bound.check()
        uuid, settings = _look_at(path)
        bound.keep(uuid)
        staging = Staging(root, settings.dir_mode, settings.file_mode, settings.segment_size)
        staging.make()
        return cls(path, uuid, columns, topic, application, durable, staging)

    def stage(
        self, batches: Iterator[RecordBatch], query: str | None, batch: int | None, directory: str
    ) -> Message:
        """In a task: put its rows where the driver finds them."""
        context = TaskContext.get()
        assert context is not None
        partition = context.partitionId()
        staged = self.staging.stage(directory, partition, self.rows(batches))
        return Message(self, query, batch, directory, partition, staged)

    def rows(self, batches: Iterator[RecordBatch]) -> Iterator[Given]:
        """Rows to append, from the batches of Spark."""
        wanted = [c for c in self.columns if c != "topic" or self.topic is None]
        # A topic with the name of a column would be taken for the column.
        prefix = "" if self.topic is None else f"{self.topic}."

        def named(column: str) -> str | None:
            return prefix + column if column in wanted else None

        topic = named("topic") if self.topic is None else self.topic
        columns = (named("value"), named("key"), topic, named("headers"), named("timestamp"))
        before = 0
        for batch in batches:
            own = batch.select(wanted).rename_columns([prefix + c for c in wanted])
            yield rows_to_stage(own, self.path, *columns, before)
            before += batch.num_rows

    def publish(self, messages: Sequence[Message], *, stream: bool) -> None:
        """On the driver: append all rows to the log, once."""
        staged = [s for m in sorted(messages, key=lambda m: m.partition) for s in m.staged]
        if not staged:
            return
        query, batch = messages[0].query, messages[0].batch
        began_ns = self.staging.began_ns(messages[0].directory)
        with open_log(self.path, create=False) as log:
            if log._uuid() != self.uuid:
                raise gone_error(self.path)
            if batch is None:
                self._load(log, staged, None)
            elif not self._has(log, query, batch, sum(s.rows for s in staged), stream=stream):
                self._load(log, staged, (self.producer(query), batch + 1))
            elif self.durable:
                log.sync()  # the process that published it may have died before its sync
        if batch is not None:
            self.staging.sweep(messages[0].directory, began_ns)
        self.staging.sweep_abandoned()

    def producer(self, query: str | None) -> str:
        """The producer's name, by which the log remembers the batches."""
        if self.application is None:
            assert query is not None
            return query
        return self.application if query is None else f"{self.application}@{query}"

    def _has(self, log: Log, query: str | None, batch: int, rows: int, *, stream: bool) -> bool:
        """Whether the log has the batch; `Conflict` if its number cannot mean these rows."""
        remembered = log._last_of_producers()
        own = self.producer(query)
        for other in remembered:
            application, other_query = _parts_of(other)
            if stream and other_query == query:
                own = _later(remembered, own, other)  # the application had another name then
            elif application is not None and application == self.application and other != own:
                raise Conflict(
                    f"{log.path}: the application {self.application!r} has written batches of "
                    f"{_said(other_query)}, and this is batch {batch} of {_said(query)}, whose "
                    "numbers mean other rows; nothing was written. Use the checkpoint that the "
                    "application started with, or give another applicationId to append all rows "
                    "of the new one",
                    path=log.path,
                    expected=batch,
                )
        last = remembered.get(own)
        if last is None or last.n <= batch:
            return False
        if last.n > batch + 1:
            raise Conflict(
                f"{log.path}: has batch {last.n - 1} of {own!r} already, and this is batch "
                f"{batch}; nothing was written. If the checkpoint or the batchId went back on "
                "purpose, give another applicationId to append the rows again",
                path=log.path,
                expected=batch,
                found=last.n - 1,
            )
        if last.count != rows:
            logger.warning(
                "%s: has batch %d of %r already, at seq %d, with %d rows; run again, the batch has "
                "%d rows, which are not written",
                *(log.path, batch, own, last.first_seq, last.count, rows),
            )
        return True

    def _load(self, log: Log, staged: Sequence[Staged], producer: tuple[str, int] | None) -> None:
        """Append all staged rows as one unit."""
        with reading():
            append_staged(log, staged, producer=producer, durable=self.durable)


def _look_at(path: str) -> tuple[bytes, Settings]:
    """The log's uuid and settings. It is created if needed, and must accept appends."""
    try:
        with open_log(path) as log:
            return log._uuid(), log.settings
    except DiskFull:  # an abort gets here too, and can still delete what was staged
        with suppress(NotFound), open_log(path, "r") as log:
            return log._uuid(), log.settings
        raise


def _parts_of(producer: str) -> tuple[str | None, str | None]:
    """The application and the query of a producer; either may be missing."""
    found = _PRODUCER.fullmatch(producer)
    return (found[1], found[2]) if found else (producer, None)


def _later(remembered: Mapping[str, Done], one: str, other: str) -> str:
    """The one of two producers that has written more batches."""
    known = remembered.get(one)
    return other if known is None or remembered[other].n > known.n else one


def _said(query: str | None) -> str:
    return "no query" if query is None else f"the query {query} (the id in its checkpoint)"


def _application(options: SourceOptions) -> str | None:
    name = options.text("applicationId")
    if name is None:
        return None
    room = L.PRODUCER_ID_BYTES_MAX - 64  # for the query
    if not 0 < len(name.encode()) <= room:
        raise Usage(
            f"option 'applicationId' must be 1 to {room} bytes of text, got {len(name.encode())}"
        )
    return name


class TableWriter(Shipped, DataSourceArrowWriter):
    """``df.write.format("penstock")``: one write, one atomic unit."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        checked = SourceOptions(options, TABLE_OPTIONS, what="the sink")
        self._batch = checked.whole("batchId", least=0)
        if checked.given("applicationId") != checked.given("batchId"):
            raise Usage(
                "options 'applicationId' and 'batchId' must be given together: by both, the log "
                "recognises a write that it has already"
            )
        self._sink = Sink.plan(checked, schema, overwrite)
        self._directory = name_of(
            self._sink.application, 0 if self._batch is None else self._batch, uuid.uuid4().hex
        )
        # Tasks do not create it, so that a task that outlives the write cannot leave anything.
        self._sink.staging.begin(self._directory)

    def write(self, iterator: Iterator[RecordBatch]) -> Message:
        """On an executor: stage the rows of a task."""
        query = None if self._batch is None else query_id()  # of the stream around foreachBatch
        return self._sink.stage(iterator, query, self._batch, self._directory)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: publish what all tasks have staged."""
        self._sink.publish(_all_of(messages), stream=False)
        self._sink.staging.remove(self._directory)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: delete what tasks have staged."""
        self._sink.staging.remove(self._directory)


class StreamWriter(Shipped, DataSourceStreamArrowWriter):
    """``df.writeStream.format("penstock")``: each micro-batch is one atomic unit, written once."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        checked = SourceOptions(
            options, STREAM_OPTIONS, what="the streaming sink", refused=_REFUSED_IN_STREAMS
        )
        self._gone: Gone | None = None
        try:
            self._sink = Sink.plan(checked, schema, overwrite)
        except Gone as error:  # Spark also plans for an abort, which has something to delete
            self._gone = error

    def write(self, iterator: Iterator[RecordBatch]) -> Message:
        """On an executor: stage the rows of a task."""
        if self._gone is not None:
            raise self._gone
        query, batch = query_id(), batch_number()
        if query is None or batch is None:
            raise Internal(
                "this version of Spark does not tell tasks which query and batch they belong to; "
                "use foreachBatch with applicationId and batchId"
            )
        directory = name_of(self._sink.producer(query), batch, run_id() or "run")
        self._sink.staging.begin(directory)
        return self._sink.stage(iterator, query, batch, directory)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: publish what all tasks have staged, with the plan of the tasks.

        Spark has planned again for the commit, and another log may be at the path by now.
        """
        found = _all_of(messages)
        if self._gone is not None:
            raise self._gone
        if any(m.batch != batchId for m in found):
            raise Internal(f"tasks staged batch {found[0].batch}, but Spark commits {batchId}")
        if found:
            found[0].sink.publish(found, stream=True)
        self._clear(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: delete what tasks have staged; published rows stay."""
        self._clear(messages)

    def _clear(self, messages: list[WriterCommitMessage | None]) -> None:
        found = {m.directory: m.sink.staging for m in messages if isinstance(m, Message)}
        for name, staging in found.items():
            staging.remove(name)


def _all_of(messages: Sequence[WriterCommitMessage | None]) -> list[Message]:
    """The messages of a commit, one from each task."""
    found = [m for m in messages if isinstance(m, Message)]
    if len(found) != len(messages):
        raise Internal(f"Spark commits with messages of {len(found)} of {len(messages)} tasks")
    return found
