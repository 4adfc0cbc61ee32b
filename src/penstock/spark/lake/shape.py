"""How events become rows of a lake: the columns, their sources, and what is a bad record.

These are column expressions only; nothing here reads or writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.errors import Usage, WrongType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

EVENT_COLUMNS = (
    *("key", "value", "topic", "partition", "offset"),
    *("timestamp", "timestampType", "headers", "log"),
)
KEPT = ("log", "offset", "timestamp", "topic", "key")
TIMES = ("date", "year", "month", "day", "hour")
REASON = "__reason"
_PARSED = "__parsed"
_MALFORMED = "__malformed"
_DAY_MICROS = 86_400_000_000
_HOUR_MICROS = 3_600_000_000


class Shape:
    """The columns of a lake.

    Parameters
    ----------
    schema : str, StructType or None
        Fields of the JSON object in each value. Without one, values are kept as they are.
    keep : sequence or mapping
        Which columns of the event are kept; a mapping says under which names. ``log`` and
        ``offset`` must be among them.
    partition_by : sequence of str
        Columns whose values name the directories: columns of the lake, or ``date``, ``year``,
        ``month``, ``day`` and ``hour`` of the event's timestamp in UTC.
    """

    def __init__(
        self,
        schema: str | StructType | None,
        keep: Sequence[str] | Mapping[str, str] | None,
        partition_by: Sequence[str],
    ) -> None:
        self.partition_by = _names(partition_by, "partition_by")
        self.schema = _struct(schema)
        if keep is None:
            keep = KEPT if self.schema is not None else (*KEPT, "value")
        if isinstance(keep, Mapping):
            _names([*keep, *keep.values()], "keep")
            self.keep = dict(keep)
        else:
            self.keep = {name: name for name in _names(keep, "keep")}
        self._check_kept()
        self._check_names()

    def _check_kept(self) -> None:
        for name in self.keep:
            if name not in EVENT_COLUMNS:
                there = ", ".join(EVENT_COLUMNS)
                raise Usage(f"keep must name columns of the event ({there}), got {name!r}")
        for name in ("log", "offset"):
            if name not in self.keep:
                raise Usage(f"keep must have {name!r}: without it, rows cannot be traced to events")

    def _check_names(self) -> None:
        names = [*self.keep.values(), *(self.schema.names if self.schema is not None else ())]
        twice = _first_twice(names)
        if twice is not None:
            raise Usage(
                f"two columns of the lake would have the name {twice!r}: give the event's column "
                f"another one, such as keep={{'log': 'log', 'offset': 'offset', {twice!r}: "
                f"'_{twice}'}}"
            )
        for name in names:
            if name in (REASON, _PARSED, _MALFORMED):
                raise Usage(f"a column cannot have the name {name!r}, which the lake uses itself")
        twice = _first_twice(self.partition_by)
        if twice is not None:
            raise Usage(f"partition_by names {twice!r} twice")
        for name in self.partition_by:
            if name[:1] in ("", "_", "."):
                raise Usage(
                    f"partition_by must have names without '_' or '.' in front, got {name!r}: "
                    "Spark and pyarrow do not read such directories"
                )
            if name not in names and name not in TIMES:
                raise Usage(
                    f"partition_by must name columns of the lake ({', '.join(names)}) or parts of "
                    f"the event's time ({', '.join(TIMES)}), got {name!r}"
                )
        if len(self.partition_by) >= len(names) and not set(names) - set(self.partition_by):
            raise Usage("partition_by must leave a column for the files, got all columns")
        self._names = names

    @property
    def event_columns(self) -> list[str]:
        """The columns of the event that the source must read."""
        wanted = {*self.keep, *(("value", "timestamp") if self.schema is not None else ())}
        if any(name not in self._names for name in self.partition_by):
            wanted.add("timestamp")
        return [name for name in EVENT_COLUMNS if name in wanted]

    def parsed(self, events: DataFrame) -> DataFrame:
        """The events with their parsed values, and the reason if a value is bad."""
        from pyspark.sql import functions as F

        if self.schema is None:
            return events.withColumn(REASON, F.lit(None).cast("string"))
        from pyspark.sql.types import StringType, StructType

        # Spark ignores what follows a value. What follows a field must be the end of the object or
        # another field, what follows an element the end of the array or another element; a value
        # that is alone in both is alone.
        text = F.col("value").cast("string")
        found = F.from_json(
            F.concat(F.lit('{"v":'), text, F.lit("}")),
            StructType().add("v", self.schema).add(_MALFORMED, StringType()),
            {
                "mode": "PERMISSIVE",
                "columnNameOfCorruptRecord": _MALFORMED,
                "allowSingleQuotes": "false",
            },
        )
        alone = F.json_array_length(F.concat(F.lit("["), text, F.lit("]"))) == 1
        value, malformed = F.col(f"{_PARSED}.v"), F.col(f"{_PARSED}.{_MALFORMED}")
        reason = (
            F.when(F.col("value").isNull(), "there is no value")
            .when(~F.is_valid_utf8(text), "not UTF-8")
            .when(value.isNull() & ~F.ltrim(text).startswith("{"), "not a JSON object")
            .when(value.isNull() | ~F.coalesce(alone, F.lit(False)), "not JSON")
            .when(malformed.isNotNull(), "a field does not fit the schema")
        )
        return events.withColumn(_PARSED, found).withColumn(REASON, reason)

    def good(self, parsed: DataFrame) -> DataFrame:
        """The rows of the lake."""
        from pyspark.sql import functions as F

        columns = [F.col(event).alias(name) for event, name in self.keep.items()]
        if self.schema is not None:
            columns += [
                F.col(_PARSED)["v"].getField(name).alias(name) for name in self.schema.names
            ]
        for name in self.partition_by:
            if name not in self._names:
                columns.append(_of_time(name).alias(name))
        return parsed.filter(F.col(REASON).isNull()).select(*columns)

    def bad(self, parsed: DataFrame) -> DataFrame:
        """The records that are not rows, with the reason."""
        from pyspark.sql import functions as F

        return parsed.filter(F.col(REASON).isNotNull()).select(
            "log", "offset", "timestamp", "value", F.col(REASON).alias("reason")
        )

    @property
    def order(self) -> tuple[str, str]:
        """The columns that tell where a row comes from."""
        return self.keep["log"], self.keep["offset"]


def spread(rows: DataFrame, by: Sequence[str], order: Sequence[str]) -> DataFrame:
    """All rows of one directory in one task, in the order given."""
    # One task per core: the default of a session, 200, is for larger batches.
    tasks = rows.sparkSession.sparkContext.defaultParallelism if by else 1
    quoted = [f"`{name.replace('`', '``')}`" for name in (*by, *order)]
    together = rows.repartition(max(1, tasks), *quoted[: len(by)])
    return together.sortWithinPartitions(*quoted)


def _of_time(name: str) -> Column:
    # Computed from the number of microseconds, so that the session's time zone does not matter.
    from pyspark.sql import functions as F

    if name == "hour":
        return F.pmod(_floor_div(_HOUR_MICROS), F.lit(24)).cast("int")
    day = F.date_from_unix_date(_floor_div(_DAY_MICROS).cast("int"))
    if name == "date":
        return day
    return {"year": F.year, "month": F.month, "day": F.dayofmonth}[name](day)


def _floor_div(micros: int) -> Column:
    from pyspark.sql import functions as F

    return F.expr(f"(unix_micros(timestamp) - pmod(unix_micros(timestamp), {micros})) div {micros}")


def _struct(schema: str | StructType | None) -> StructType | None:
    if schema is None:
        return None
    from pyspark.sql.types import StructType

    if isinstance(schema, StructType):
        found = schema
    elif isinstance(schema, str):
        try:
            parsed = StructType.fromDDL(schema)
        except Exception as error:
            first = (str(error).strip() or "?").splitlines()[0]
            raise Usage(
                f"schema must be DDL such as 'name string, total double', got {schema!r}: {first}"
            ) from None
        if not isinstance(parsed, StructType):
            raise Usage(f"schema must have fields such as 'name string', got the type {schema!r}")
        found = parsed
    else:
        raise WrongType(f"schema must be DDL text or a StructType, got {type(schema).__name__}")
    if not found.names:
        raise Usage("schema must have fields; without schema=, values are kept as they are")
    return found


def _names(given: Sequence[str], what: str) -> tuple[str, ...]:
    """A list of names, in its order."""
    if isinstance(given, str | bytes | bytearray | memoryview) or not isinstance(given, Sequence):
        raise WrongType(f"{what} must be a list of names, got {type(given).__name__}")
    for name in given:
        if not isinstance(name, str):
            raise WrongType(f"{what} must have names that are text, got {name!r}")
    return tuple(given)


def _first_twice(names: Iterable[str]) -> str | None:
    """A name that occurs twice; as in Spark, upper and lower case are the same."""
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            return name
        seen.add(name.lower())
    return None
