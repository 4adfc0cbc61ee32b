"""The log as a table: ``spark.read.format("penstock").load(path)``.

The driver makes a `TableReader`, whose ``partitions`` fixes what is read; tasks get a copy of it
and call ``read``. All options are checked on the driver, before a task runs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import penstock
from penstock import layout as L
from penstock.errors import Usage
from penstock.spark.options import SourceOptions
from penstock.spark.quirks import PATHS, Shipped, pushes_filters
from penstock.spark.read.filters import Limits, take_filters
from penstock.spark.read.logs import find_logs, given_paths, open_log
from penstock.spark.read.offsets import ENDING, STARTING, check_there, ending_edge, starting_edge
from penstock.spark.read.rows import Rows, check_struct, column_names, struct_of
from penstock.spark.read.splits import Care, Picks, Range, Split, Topics, cut, read_split

_COMMON = (
    "path",
    PATHS,
    *STARTING,
    "subscribe",
    "subscribePattern",
    "assign",
    "includeHeaders",
    "columns",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "durable",
    "onDamage",
    "codec",
    "mode",
    "columnNameOfCorruptRecord",
    "sampleRows",
)
LIMITS = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_OTHER_NAMES = {  # the words of Python's API, where Spark has a word of its own
    "ongap": "for Spark it is failOnDataLoss, as in its Kafka source",
    "onmalformed": "for Spark it is mode, as in its JSON source",
}
SAMPLE_ROWS = 1000


def read_options(given: Mapping[str, str], *, stream: bool) -> SourceOptions:
    """The options of a read, known and allowed."""
    if stream:
        refused = {name.lower(): "a stream has no end" for name in ENDING} | _OTHER_NAMES
        return SourceOptions(given, (*_COMMON, *LIMITS), what="a stream", refused=refused)
    refused = {name.lower(): "only a stream has triggers; use readStream" for name in LIMITS}
    refused |= _OTHER_NAMES
    return SourceOptions(given, (*_COMMON, *ENDING), what="a table", refused=refused)


@dataclass(frozen=True)
class Request:
    """What a table and a stream have in common: all but where they start and end."""

    paths: list[str]
    rows: Rows
    picks: Picks
    care: Care
    durable: bool
    min_partitions: int | None
    max_records: int | None

    def end_of(self, log: penstock.Log) -> int:
        """The seq after the last event of a log that is to be read."""
        return (log.durable_seq if self.durable else log.last_seq) + 1

    def splits(self, ranges: list[Range], picks: Picks) -> list[InputPartition]:
        """Ranges of logs, cut into splits."""
        return list(
            cut(ranges, picks, min_partitions=self.min_partitions, max_records=self.max_records)
        )


def request(options: SourceOptions, schema: StructType) -> Request:
    """Check the options of a read."""
    return Request(
        paths=given_paths(options),
        rows=_rows(options, schema),
        picks=Picks(_topics(options)),
        care=care_of(options),
        durable=options.flag("durable", False),
        min_partitions=options.whole("minPartitions"),
        max_records=options.whole("maxRecordsPerPartition"),
    )


def care_of(options: SourceOptions) -> Care:
    """How the read treats loss and damage."""
    return Care(
        fail_on_loss=options.flag("failOnDataLoss", True),
        skip_damaged=options.choice("onDamage", ("raise", "skip"), "raise") == "skip",
    )


def schema(given: Mapping[str, str]) -> StructType:
    """The columns of a read without a schema of the user."""
    known = (*_COMMON, *LIMITS, *ENDING)  # Spark does not tell whether it is for a stream
    options = SourceOptions(given, known, what="a read", refused=_OTHER_NAMES)
    codec = options.text("codec")
    names = _own_names(options)
    if codec is None:
        return struct_of(names)
    from penstock.spark.read.typed import infer

    sample = _sample(options)
    inferred = infer(
        [event.value for event in sample],
        codec,
        names=[_codec_of(event, codec) for event in sample],
        path=", ".join(given_paths(options)),
        **_typing(options),
    )
    own = struct_of(names)
    fields = [field for field in inferred.fields if field.name not in names]
    if not fields:
        raise Usage(
            "the logs have no value to infer a schema from; give one with .schema('name type, …')"
        )
    return StructType([*own.fields, *fields])


def _own_names(options: SourceOptions) -> list[str]:
    """The columns of the log, as opposed to fields of values, that the user asked for."""
    given = options.names("columns")
    with_headers = options.flag("includeHeaders", False)
    if options.text("codec") is None or given is not None:
        return column_names(given, with_headers=with_headers)
    return ["headers"] if with_headers else []


def _typing(options: SourceOptions) -> dict[str, str]:
    from penstock.spark.read.typed import CORRUPT_COLUMN, MODES

    return {
        "mode": options.choice("mode", MODES, "PERMISSIVE"),
        "corrupt_column": options.text("columnNameOfCorruptRecord") or CORRUPT_COLUMN,
    }


def _rows(options: SourceOptions, schema: StructType) -> Rows:
    codec = options.text("codec")
    if codec is None:
        for name in ("mode", "columnNameOfCorruptRecord", "sampleRows"):
            if options.given(name):
                raise Usage(f"option {name!r} is for values with fields: give codec=json as well")
        check_struct(schema)
        return Rows(schema, set(schema.fieldNames()), None)
    from penstock.spark.read.typed import Typed

    own = set(_own_names(options))
    check_struct(StructType([field for field in schema.fields if field.name in own]))
    fields = StructType([field for field in schema.fields if field.name not in own])
    return Rows(schema, own, Typed(fields, codec=codec, **_typing(options)))


def _sample(options: SourceOptions) -> list[penstock.Event]:
    """Events from the start and the end of each log."""
    care = care_of(options)
    paths = find_logs(given_paths(options))
    each = max(1, (options.whole("sampleRows") or SAMPLE_ROWS) // len(paths))
    damaged: Any = "skip" if care.skip_damaged else "raise"
    found: list[penstock.Event] = []
    for path in paths:
        with open_log(path) as log:
            head = -(-each // 2)
            found += itertools.islice(log.read(on_damage=damaged), head)
            rest = log.read(
                start=log.first_seq + head, reverse=True, on_damage=damaged, on_gap="skip"
            )
            found += itertools.islice(rest, each - head)
    return found


def _codec_of(event: penstock.Event, codec: str) -> str:
    """What an event's value was encoded with."""
    own = dict(event.headers or ()).get(L.CODEC_NAME.decode())
    return codec if own is None else own.decode("utf-8", "replace")


def _topics(options: SourceOptions) -> Topics:
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if options.given(name)]
    if len(ways) > 1:
        raise Usage(f"options {' and '.join(ways)} exclude each other: give one of them")
    names = options.names("subscribe")
    if names is not None:
        return Topics(frozenset(names))
    pattern = options.text("subscribePattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise Usage(
                f"option 'subscribePattern' must be a regular expression, got {pattern!r} ({error})"
            ) from None
        return Topics(pattern=pattern)
    assigned = options.object("assign")
    if assigned is None:
        return Topics()
    for topic, numbers in assigned.items():
        if not isinstance(numbers, list) or not all(type(n) is int and n >= 0 for n in numbers):
            raise Usage(
                "option 'assign' must be JSON with the partitions of topics, such as "
                f'{{"orders": [0, 1]}}, got {numbers!r} for {topic!r}'
            )
    return Topics(assigned={topic: frozenset(numbers) for topic, numbers in assigned.items()})


class TableReader(Shipped, DataSourceReader):
    """Reads logs as they are when the query is planned."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        options = read_options(given, stream=False)
        self._request = request(options, schema)
        self._start = starting_edge(options, stream=False)
        self._end = ending_edge(options)
        self._limits = Limits()

    def partitions(self) -> list[InputPartition]:
        """Fix what is read, and cut it into splits."""
        asked = self._request
        with ExitStack() as stack:
            logs = {path: stack.enter_context(open_log(path)) for path in find_logs(asked.paths)}
            ends = {path: asked.end_of(log) for path, log in logs.items()}
            starts = self._start.of(logs.items(), ends)
            stops = self._end.of(logs.items(), ends)
            ranges = []
            for path, log in logs.items():
                start, stop = starts[path], stops[path]
                if asked.durable:
                    stop = min(stop, ends[path])
                start, stop = check_there(path, log, start, stop, fail=asked.care.fail_on_loss)
                start, stop = self._limits.clip(path, start, stop)
                if start < stop:
                    ranges.append((path, log, start, stop))
            return asked.splits(ranges, self._picks())

    def _picks(self) -> Picks:
        return self._limits.narrow(self._request.picks)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split."""
        if isinstance(partition, Split):  # Spark makes up one of its own if there are none
            asked = self._request
            yield from read_split(partition, asked.rows, self._picks(), asked.care)


class FilteringReader(TableReader):
    """A reader that takes filters; Spark allows such a class only in one of its workers."""

    def pushFilters(self, filters: list[Any]) -> list[Any]:
        """Take the filters that a log can answer; return the others."""
        self._limits, left = take_filters(filters)
        return left


def table_reader(given: Mapping[str, str], schema: StructType) -> TableReader:
    """The reader for this process."""
    kind = FilteringReader if pushes_filters() else TableReader
    return kind(given, schema)
