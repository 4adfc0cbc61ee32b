"""Rows: the columns of the source, and how batches of the scan become batches of them.

The columns are those of Spark's Kafka source, and ``log``. Most are columns of the scan under
another name; the others are constant within a split. Batches must have exactly the Arrow schema
that Spark makes of the columns, down to what may be null (`quirks.arrow_schema`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import Usage
from penstock.spark.quirks import arrow_schema

if TYPE_CHECKING:
    from penstock.spark.read.typed import Typed

_HEADERS = ArrayType(
    StructType([StructField("key", StringType(), False), StructField("value", BinaryType())]), False
)
COLUMNS: dict[str, tuple[DataType, bool]] = {  # type, and whether it may be null
    "key": (BinaryType(), True),
    "value": (BinaryType(), True),
    "topic": (StringType(), False),
    "partition": (IntegerType(), False),
    "offset": (LongType(), False),
    "timestamp": (TimestampType(), False),
    "timestampType": (IntegerType(), False),
    "headers": (_HEADERS, False),
    "log": (StringType(), False),
}
CREATE_TIME, LOG_APPEND_TIME = 0, 1  # Kafka's names for an event's own time and the log's
_SCANNED = {
    "key": ("key",),
    "value": ("value",),
    "topic": ("topic",),
    "offset": ("seq",),
    "timestamp": ("time",),
    "timestampType": ("time", "append_time"),
    "headers": ("headers",),
}


def column_names(given: list[str] | None, *, with_headers: bool) -> list[str]:
    """The columns that were asked for, checked; all of them by default."""
    if given is None:
        return [name for name in COLUMNS if with_headers or name != "headers"]
    known = {name.lower(): name for name in COLUMNS}
    found = []
    for name in given:
        if name.lower() not in known:
            raise Usage(f"option 'columns' must name some of {', '.join(COLUMNS)}, got {name!r}")
        if known[name.lower()] in found:
            raise Usage(f"option 'columns' names {name!r} twice")
        found.append(known[name.lower()])
    return found


def struct_of(names: Iterable[str]) -> StructType:
    """These columns as a schema of Spark."""
    return StructType([StructField(name, *COLUMNS[name]) for name in names])


def check_struct(schema: StructType) -> None:
    """Refuse columns of the user's ``schema()`` that the source does not have."""
    for field in schema.fields:
        known = COLUMNS.get(field.name)
        if known is None:
            raise Usage(
                f"there is no column {field.name!r}; the columns are {', '.join(COLUMNS)}. To read "
                "fields of JSON values, give option('codec', 'json')"
            )
        if _plain(known[0]) != _plain(field.dataType):
            raise Usage(
                f"column {field.name!r} must be {known[0].simpleString()}, "
                f"got {field.dataType.simpleString()}"
            )


def _plain(kind: DataType) -> str:
    return kind.simpleString()  # it does not tell what may be null


class Rows:
    """How batches of a scan become rows for Spark. It is pickled to the tasks."""

    def __init__(self, schema: StructType, own: set[str], typed: Typed | None) -> None:
        self.schema = schema
        self._own = [name if name in own else None for name in schema.fieldNames()]
        self._typed = typed
        self._arrow = arrow_schema(schema)
        self._repeated: dict[tuple[str, object], pa.Array] = {}  # the longest columns of constants

    def scanned(self, *, with_topic: bool) -> list[str]:
        """The columns of the scan that are needed."""
        found = {c for name in self._own if name is not None for c in _SCANNED.get(name, ())}
        if self._typed is not None:
            found |= {"seq", "value", "headers"}
        if with_topic:
            found.add("topic")
        return sorted(found or {"seq"})  # a scan without columns does not count rows

    def record(self, batch: pa.RecordBatch, log: str, partition: int) -> pa.RecordBatch:
        """A batch of the scan as a batch of rows."""
        constants: Mapping[str, object] = {"partition": partition, "log": log}
        fields: list[pa.Array] = []
        keep = None
        if self._typed is not None:
            fields, keep = self._typed.columns(
                batch.column("value"), batch.column("headers"), batch.column("seq"), log
            )
        rest = iter(fields)
        arrays = []
        for name, field in zip(self._own, self._arrow, strict=True):
            if name is None:
                array = next(rest)
            elif name in constants:
                array = self._repeat(name, constants[name], field.type, batch.num_rows)
            elif name == "timestampType":
                array = _timestamp_types(batch, field.type)
            else:
                array = batch.column(_SCANNED[name][0])
            arrays.append(array if array.type == field.type else array.cast(field.type))
        record = pa.RecordBatch.from_arrays(arrays, schema=self._arrow)
        return record if keep is None else record.filter(keep)

    def _repeat(self, name: str, value: object, kind: pa.DataType, count: int) -> pa.Array:
        """A column of one value; batches are about equally long, so it is built once or twice."""
        found = self._repeated.get((name, value))
        if found is None or len(found) < count:
            found = self._repeated[name, value] = pa.repeat(pa.scalar(value, kind), count)
        return found.slice(0, count)


def _timestamp_types(batch: pa.RecordBatch, kind: pa.DataType) -> pa.Array:
    """For each event: who stamped its time."""
    import pyarrow.compute as pc  # large, and many reads do not need it

    return pc.if_else(
        pc.equal(batch.column("time"), batch.column("append_time")),
        pa.scalar(LOG_APPEND_TIME, kind),
        pa.scalar(CREATE_TIME, kind),
    )
