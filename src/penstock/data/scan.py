"""Scan: events as Arrow columns, lazily, for pyarrow, pandas, polars, DuckDB and Spark.

The compiled core fills the columns straight from frames; this module selects them and hands them
over. Only ``to_arrow``, ``to_batches`` and ``to_pandas`` need pyarrow: a library with Arrow's C
stream interface takes a scan as it is.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, Self

from penstock._core import COLUMNS, BatchStream, Columns, LogCore, RowReader
from penstock.arguments import check_choice
from penstock.data.codecs import find as find_codec
from penstock.data.fields import PREFIX, Fields, arrow_schema, one_array
from penstock.errors import Gap, Usage, WrongType
from penstock.reader import Query, bounds
from penstock.system.needs import needed
from penstock.system.needs import pyarrow as _pyarrow
from penstock.system.parallel import Unwanted, in_order
from penstock.tunables import BATCH_ROWS

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

    from penstock.log import Log

DEFAULT_COLUMNS = tuple(name for name in COLUMNS if name != "append_time")
BATCH_BYTES = 8 << 20
TABLE_SIZE = (
    1 << 18,
    64 << 20,
)  # rows and bytes of one chunk of a table that is held in memory anyway
PART_SEQS = 1 << 18  # seqs of such a table that one thread reads at a time
PARTS_MAX = 1 << 14
THREADS_MAX = 8
ROWS_MAX = 1 << 30


class Scan:
    """Events of a log as columns. Nothing is read until they are requested.

    Each of ``to_arrow()``, ``to_batches()``, ``to_pandas()``, ``to_polars()`` reads the log again,
    as it is at that time. ``skipped`` counts the seqs that the last of them passed over because
    they are damaged or gone, if the scan skips those. A scan can be pickled with its log.
    """

    _call: tuple[tuple[Any, ...], dict[str, Any]]  # the arguments it was made with, after the log

    def __new__(cls, log: object = None, *args: Any, **options: Any) -> Self:
        if not (isinstance(log, LogCore) and args and isinstance(args[0], Query)):
            raise Usage("a Scan comes from log.scan(); open the log with penstock.open(path)")
        scan = super().__new__(cls)
        scan._call = (args, options)
        return scan

    def __init__(
        self,
        log: Log,
        query: Query,
        *,
        columns: Iterable[str] | None = None,
        time_unit: Literal["ns", "us"] = "ns",
        batch_rows: int = BATCH_ROWS,
        schema: Any = None,
        codec: str | None = None,
        on_malformed: Literal["raise", "null", "skip"] = "raise",
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        check_choice(time_unit, "time_unit", "ns", "us")
        check_choice(on_malformed, "on_malformed", "raise", "null", "skip")
        if isinstance(batch_rows, bool) or not isinstance(batch_rows, int):
            raise WrongType(f"batch_rows must be a whole number, got {type(batch_rows).__name__}")
        if not 0 < batch_rows <= ROWS_MAX:
            raise Usage(f"batch_rows must be from 1 to {ROWS_MAX}, got {batch_rows}")
        self._log = log
        self._query = query
        self._rows_max: int | None = None  # rows to hand out; None: as many as the query lets pass
        if on_malformed == "skip" and query.limit is not None:
            self._rows_max, self._query = query.limit, query.unlimited()
        self._fields: Fields | None = None
        self._shown: list[tuple[str, str | None]] = []  # with fields: names, and which are fields
        if schema is None:
            if codec is not None or on_malformed != "raise":
                raise Usage("codec= and on_malformed= are for a scan with a schema")
            base = _base_columns(columns)
        else:
            self._fields = _fields_for(log, schema, codec, on_malformed)
            self._shown = _with_fields(columns, self._fields.schema.names)
            own = [name for name, field in self._shown if field is None]
            base = [*own, *(c for c in ("seq", "value", "headers") if c not in own)]
        self._has_values = schema is None and "value" in base
        self._columns = Columns([(c, c) for c in base], time_unit)
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes  # bytes of frames, a little more than the columns take
        self._readers: list[RowReader] = []  # of the last run

    def __repr__(self) -> str:
        return f"<penstock.Scan of {self._log.path!r}>"

    def __reduce__(self) -> tuple[object, ...]:
        return _scan_again, (self._log, *self._call)

    @property
    def skipped(self) -> int:
        """How many seqs the last run passed over because they are damaged or gone."""
        return sum(reader.skipped for reader in self._readers)

    def _begin(self) -> tuple[int, int]:
        """The first seq to look at and the one after the last, as the log is now."""
        self._readers = []
        return bounds(self._log, self._query)

    def _reader(
        self, lowest: int, end: int, rows: int, nbytes: int, *, first: bool = True
    ) -> RowReader:
        """A reader of events from ``lowest`` to before ``end``; ``first``: of the first part."""
        reader = RowReader(self._log, self._query, lowest, end, first=first)
        self._readers.append(reader)
        return reader.shape(self._columns, rows, nbytes)

    @functools.cached_property
    def schema(self) -> pyarrow.Schema:
        """Names and types of the columns, for pyarrow."""
        pa = _pyarrow()
        base = pa.schema(self._columns)
        if self._fields is None:
            return base
        found = []
        for name, field in self._shown:
            if field is None:
                found.append(base.field(name))
            else:
                found.append(self._fields.schema.field(field).with_name(name).with_nullable(True))
        return pa.schema(found)

    def _everything(self) -> Iterator[pyarrow.RecordBatch]:
        """All batches in order, made by several threads if there is much to read."""
        lowest, end = self._begin()
        oldest = self._query.start is None
        base = max(lowest, self._log._storage.lowest_base(self._log)) if oldest else lowest
        size = max(PART_SEQS, (end - base) // PARTS_MAX)  # seqs may have holes of any size
        cuts = [lowest, *range(base + size, end, size), end]
        parts = list(itertools.pairwise(cuts))
        threads = min(len(parts), len(os.sched_getaffinity(0)), THREADS_MAX)
        limited = self._query.limit is not None or self._rows_max is not None
        if threads < 2 or self._query.by_index or limited:
            yield from self._record_batches(self._reader(lowest, end, *TABLE_SIZE))
            return

        def read(part: tuple[int, int], unwanted: Unwanted) -> list[pyarrow.RecordBatch]:
            reader = self._reader(*part, *TABLE_SIZE, first=part[0] == lowest)
            batches = self._record_batches(reader)
            # A part may be gigabytes, and Ctrl-C does not reach the threads.
            return list(itertools.takewhile(lambda _: not unwanted(), batches))

        begun = False
        try:
            for batches in in_order(read, parts, threads, "penstock-scan"):
                begun = begun or bool(batches)
                yield from batches
        except Gap:
            if begun or not oldest:
                raise
            # A ring overwrote the first parts before they were read: begin with what is there now.
            yield from self._record_batches(self._reader(*self._begin(), *TABLE_SIZE))

    def _record_batches(self, reader: RowReader) -> Iterator[pyarrow.RecordBatch]:
        pa = _pyarrow()
        left = self._rows_max
        while left != 0 and (batch := reader.batch()) is not None:
            record = pa.record_batch(batch)
            if self._fields is not None:
                record = self._decoded(record, self._fields)
            if left is not None:
                record = record.slice(0, left)
                left -= record.num_rows
            if record.num_rows:
                yield record

    def _decoded(self, record: pyarrow.RecordBatch, fields: Fields) -> pyarrow.RecordBatch:
        """A batch with its values split into fields."""
        pa = _pyarrow()
        table, keep = fields.parse(record, self._log.path)
        arrays = [
            record.column(name) if field is None else one_array(table.column(field))
            for name, field in self._shown
        ]
        decoded = pa.record_batch(arrays, schema=self.schema)
        return decoded if keep is None else decoded.filter(keep)

    def to_batches(self) -> Iterator[pyarrow.RecordBatch]:
        """The events as record batches, one after the other; memory does not grow with the log.

        >>> log = penstock.open(path)
        >>> log.extend([b"a", b"b", b"c"])
        range(1, 4)
        >>> [batch.num_rows for batch in log.scan(batch_rows=2).to_batches()]
        [2, 1]
        """
        reader = self._reader(*self._begin(), self._batch_rows, self._batch_bytes)
        return self._record_batches(reader)

    def to_arrow(self) -> pyarrow.Table:
        """All of it as one table in memory.

        >>> log = penstock.open(path)
        >>> log.extend([b"a", b"b", b"c"])
        range(1, 4)
        >>> log.scan(columns=["seq", "value"]).to_arrow().to_pydict()
        {'seq': [1, 2, 3], 'value': [b'a', b'b', b'c']}
        """
        return _pyarrow().Table.from_batches(list(self._everything()), self.schema)

    def to_pandas(self, **options: Any) -> pandas.DataFrame:
        """All of it as a pandas frame; ``options`` go to `pyarrow.Table.to_pandas`."""
        needed("pandas", "pandas")
        return self.to_arrow().to_pandas(**options)

    def to_polars(self) -> polars.DataFrame:
        """All of it as a polars frame."""
        make = needed("polars", "polars").DataFrame
        stream = _Stream(self, *TABLE_SIZE)
        try:
            return make(stream)  # type: ignore[no-any-return]
        except Exception:
            if stream.failure is not None:
                raise stream.failure from None
            raise

    def __arrow_c_schema__(self) -> object:
        return (self._columns if self._fields is None else self.schema).__arrow_c_schema__()

    @property
    def _values_codec(self) -> str | None:
        """The codec of the column ``value``, for a log that appends the scan; None without one."""
        return self._log._codec_name() if self._has_values else None

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._stream(self._batch_rows, self._batch_bytes)

    def _stream(self, rows: int, nbytes: int, watcher: _Stream | None = None) -> object:
        reader = self._reader(*self._begin(), rows, nbytes)
        if self._fields is None:
            source = reader if watcher is None else _Watched(watcher, reader.batch)
            return BatchStream(self._columns, source).capsule()
        batches = self._record_batches(reader)
        if watcher is not None:
            source = _Watched(watcher, functools.partial(next, batches, None))
            batches = iter(source.batch, None)
        stream = _pyarrow().RecordBatchReader.from_batches(self.schema, batches)
        return stream.__arrow_c_stream__()


def _scan_again(log: Log, args: tuple[Any, ...], options: dict[str, Any]) -> Scan:
    """A scan that was pickled or copied."""
    return Scan(log, *args, **options)


class _Stream:
    """A scan in batches of another size."""

    def __init__(self, scan: Scan, rows: int, nbytes: int) -> None:
        self._scan = scan
        self._size = (rows, nbytes)
        self.failure: BaseException | None = None  # the cause of Arrow's own error

    def __arrow_c_schema__(self) -> object:
        return self._scan.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._scan._stream(*self._size, self)


class _Watched:
    """Batches whose failure is noted by their stream."""

    def __init__(self, stream: _Stream, next_batch: Callable[[], Any]) -> None:
        self._stream = stream
        self._next = next_batch

    def batch(self) -> Any:
        """The next batch; None if there is nothing more."""
        try:
            return self._next()
        except BaseException as error:
            self._stream.failure = error
            raise


def _fields_for(log: Log, schema: Any, codec: str | None, on_malformed: str) -> Fields:
    name = log.settings.codec if codec is None else codec
    if find_codec(name) == (None, None):
        raise Usage(
            f"{log.path}: its codec is 'bytes', which has no fields; if the values are JSON "
            "nevertheless, give codec='json'"
        )
    return Fields(arrow_schema(schema), name, on_malformed)


def _base_columns(columns: Iterable[str] | None) -> list[str]:
    """The columns of a scan without a schema, checked."""
    found = list(DEFAULT_COLUMNS if columns is None else _listed(columns))
    for name in found:
        if name not in COLUMNS:
            raise Usage(f"a column must be one of {', '.join(COLUMNS)}, got {name!r}")
    return found


def _with_fields(columns: Iterable[str] | None, fields: list[str]) -> list[tuple[str, str | None]]:
    """Names of the columns of a scan with a schema, each with its field if it is one."""

    def named(field: str) -> str:
        return PREFIX + field if field in COLUMNS else field

    found: list[tuple[str, str | None]] = []
    if columns is None:
        found += [(c, None) for c in DEFAULT_COLUMNS if c != "value"]
        found += [(named(f), f) for f in fields]
    else:
        for name in _listed(columns):
            field = name.removeprefix(PREFIX) if isinstance(name, str) else name
            if name in COLUMNS:
                found.append((name, None))
            elif name in fields:
                found.append((name, name))
            elif field in fields:
                found.append((name, field))
            else:
                there = ", ".join([*COLUMNS, *map(named, fields)])
                raise Usage(f"a column must be one of {there}, got {name!r}")
    for name, _ in found:
        if [n for n, _ in found].count(name) > 1:
            raise Usage(f"column {name!r} is named twice; choose the columns with columns=")
    return found


def _listed(columns: Iterable[str]) -> list[str]:
    if isinstance(columns, str | bytes | bytearray | memoryview):
        raise WrongType(f"columns must be a list of names, such as ['seq'], got {columns!r:.80}")
    try:
        found = list(columns)
    except (TypeError, NotImplementedError, ValueError):
        raise WrongType(f"columns must be a list of names, got {type(columns).__name__}") from None
    for name in found:
        if not isinstance(name, str):
            raise WrongType(f"columns must be a list of names, got {type(name).__name__} in it")
    return found
