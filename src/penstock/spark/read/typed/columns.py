"""Typed: values as the columns of a Spark schema, as Spark's own JSON source would read them.

The vectorised parser takes a whole batch. Values that it does not take, or might read differently
from Spark, go through `rows` one by one. Values of other codecs become JSON first. An event is one
row, whatever its value is.
"""

from __future__ import annotations

import binascii
import decimal
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from penstock.data.fields import one_array, parse_json
from penstock.errors import BadData, Usage
from penstock.spark.quirks import arrow_schema
from penstock.spark.read.typed import moments
from penstock.spark.read.typed.rows import Row, RowParser, converter
from penstock.spark.read.typed.texts import CORRUPT_COLUMN, Texts, check_mode
from penstock.spark.read.typed.tokens import DEPTH_MAX, NAME_CHARS_MAX, NUMBER_DIGITS_MAX

_DAY = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_LOCAL = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
_ZONE = r"(Z|[+-](0[0-9]|1[0-7]):[0-5][0-9])$"
_LONG = re.compile(
    rb"[-+.0-9eE]{%d}|[\"'][^\"']{%d}" % (NUMBER_DIGITS_MAX, NAME_CHARS_MAX), re.DOTALL
)


class Typed:
    """How values become the columns of a schema."""

    def __init__(
        self,
        schema: T.StructType,
        mode: str = "PERMISSIVE",
        corrupt_column: str = CORRUPT_COLUMN,
        codec: str = "json",
    ) -> None:
        self.schema = schema
        self.mode = check_mode(mode)
        self.corrupt_column = corrupt_column
        self.codec = codec
        self._texts = Texts(codec)
        _check(schema, corrupt_column)
        self.arrow_schema = arrow_schema(schema)
        own = T.StructType([f for f in schema if f.name != corrupt_column])
        self._own = pa.schema([f for f in self.arrow_schema if f.name != corrupt_column])
        self._rows = RowParser(own)
        self._readable = _readable_schema(self._own)

    def __reduce__(self) -> tuple[object, ...]:
        return Typed, (self.schema, self.mode, self.corrupt_column, self.codec)

    def columns(
        self, values: Any, headers: Any, seqs: Any, path: str
    ) -> tuple[list[pa.Array], pa.BooleanArray | None]:
        """The columns for values, in the order of the schema, and which rows to keep; None is all.

        ``headers``, if given, are those of each event, which may name a codec of its own. ``seqs``
        and ``path`` are for messages. A null value is a row of nulls.
        """
        if not len(self.schema) and self.mode == "PERMISSIVE":
            return [], None  # the values are not needed
        values = one_array(values)
        if values.type != pa.binary():
            values = values.cast(pa.binary())
        texts, why = self._texts.of(values, headers)
        found, slow = self._at_once(texts, why)
        if not slow:
            return self._complete(found, texts, {}), None
        rows = {
            i: Row(None, why[i]) if i in why else self._rows.read(texts[i].as_py()) for i in slow
        }
        bad = {i: row.why for i, row in rows.items() if row.why is not None}
        if bad and self.mode == "FAILFAST":
            first = min(bad)
            seq = seqs[first].as_py()
            raise BadData(
                f"{path}: the value of seq {seq} does not fit the schema: {bad[first]}; the mode "
                "PERMISSIVE reads what does not fit as null, DROPMALFORMED leaves the row out",
                path=path,
                seq=seq,
            )
        merged = _merge(found, rows, len(values), self._own)
        keep = None
        if bad and self.mode == "DROPMALFORMED":
            keep = pa.array([i not in bad for i in range(len(values))], pa.bool_())
        return self._complete(merged, texts, bad), keep

    def _at_once(self, texts: Any, why: dict[int, str]) -> tuple[list[pa.Array] | None, list[int]]:
        """Columns by the vectorised parser, and the rows that it may read wrongly."""
        if self._readable is None:
            return None, [i for i, text in enumerate(texts) if text.is_valid or i in why]
        if not len(self._own):
            return [], [i for i, text in enumerate(texts) if text.is_valid or i in why]
        table, wrong = parse_json(texts, self._readable, self._readable, hasty=True)
        slow = {*wrong, *why, *_outsized(texts)}
        found = []
        for field, column in zip(self._own, table.columns, strict=True):
            array, bad = _finish(one_array(column), field.type)
            slow.update(bad)
            found.append(array)
        return found, sorted(slow)

    def _complete(
        self, found: list[pa.Array] | None, texts: Any, bad: Mapping[int, str | None]
    ) -> list[pa.Array]:
        """All columns of the schema, with the column of texts that do not fit."""
        if found is None:
            found = [pa.nulls(len(texts), field.type) for field in self._own]
        own = iter(found)
        columns = []
        for field in self.arrow_schema:
            if field.name != self.corrupt_column:
                columns.append(next(own))
                continue
            raw: list[str | None] = [None] * len(texts)
            for i in bad:
                raw[i] = texts[i].as_py().decode("utf-8", "replace")
            columns.append(pa.array(raw, field.type))
        return columns


def _check(schema: T.StructType, corrupt_column: str) -> None:
    names = schema.names
    for field in schema:
        if names.count(field.name) > 1:
            raise Usage(f"the schema must have each column once, got {field.name!r} twice")
        if field.name == corrupt_column and type(field.dataType) is not T.StringType:
            raise Usage(f"the column {field.name!r}, for text that does not fit, must be a string")
        _check_type(field.name, field.dataType, field.nullable)


def _check_type(name: str, kind: T.DataType, nullable: bool) -> None:
    """Refuse types that values cannot be guaranteed to have."""
    if not nullable:
        raise Usage(f"the column {name!r} must be nullable: a value may lack it or not fit")
    if isinstance(kind, T.StructType):
        if len(set(kind.names)) != len(kind):
            raise Usage(f"the column {name!r} must have each field once, got a name twice")
        for field in kind:
            _check_type(f"{name}.{field.name}", field.dataType, field.nullable)
    elif isinstance(kind, T.ArrayType):
        _check_type(f"{name}.element", kind.elementType, kind.containsNull)
    elif isinstance(kind, T.MapType):
        if type(kind.keyType) is not T.StringType:
            raise Usage(f"the column {name!r} must have strings as keys, as JSON has")
        _check_type(f"{name}.value", kind.valueType, kind.valueContainsNull)
    elif converter(kind) is None:
        kind_name = kind.simpleString()
        raise Usage(f"the column {name!r} has the type {kind_name}, which JSON is not read as")


def _readable_schema(schema: pa.Schema) -> pa.Schema | None:
    """The schema for pyarrow's parser; None if it cannot read it."""
    found = []
    for field in schema:
        kind = _readable_type(field.type)
        if kind is None:
            return None
        found.append(pa.field(field.name, kind))
    return pa.schema(found)


def _readable_type(kind: pa.DataType) -> pa.DataType | None:
    """Times, dates and bytes are read as text: Spark takes other forms than pyarrow."""
    if pa.types.is_temporal(kind) or pa.types.is_binary(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        inner = [(field.name, _readable_type(field.type)) for field in kind]
        return None if not inner or any(t is None for _, t in inner) else pa.struct(inner)
    if pa.types.is_list(kind):
        item = _readable_type(kind.value_type)
        return None if item is None else pa.list_(pa.field("element", item))
    return None if pa.types.is_map(kind) or pa.types.is_null(kind) else kind


def _outsized(texts: Any) -> Iterable[int]:
    """Rows that exceed limits of Spark that pyarrow does not have."""
    long = pc.greater(pc.binary_length(texts), min(DEPTH_MAX, NUMBER_DIGITS_MAX))
    if not pc.any(long).as_py():
        return
    for i in pc.indices_nonzero(pc.fill_null(long, False)).to_pylist():
        text = texts[i].as_py()
        if text.count(b"{") + text.count(b"[") > DEPTH_MAX or _LONG.search(text):
            yield i


def _finish(array: Any, kind: pa.DataType) -> tuple[Any, list[int]]:
    """A column with the type for Spark, and the rows that Spark might read differently."""
    if pa.types.is_struct(kind):
        parts = [_finish(array.field(i), field.type) for i, field in enumerate(kind)]
        found = pa.StructArray.from_arrays(
            [part for part, _ in parts], fields=list(kind), mask=pc.is_null(array)
        )
        return found, [i for _, bad in parts for i in bad]
    if pa.types.is_list(kind):
        inner, bad = _finish(array.values, kind.value_type)
        mask = pc.is_null(array) if array.null_count else None
        found = pa.ListArray.from_arrays(array.offsets, inner, type=kind, mask=mask)
        if bad:
            bad = pc.list_parent_indices(array).take(pa.array(bad, "int64")).to_pylist()
        return found, bad
    if pa.types.is_floating(kind):
        return array, _minus_zeros(array)
    if pa.types.is_decimal(kind):
        return array, _overlong(array)
    if pa.types.is_date(kind):
        return _moments(array, _DAY, _cast_days, moments.date, kind)
    if pa.types.is_timestamp(kind) and kind.tz is None:
        return _moments(array, f"{_LOCAL}$", _cast_local, moments.timestamp_ntz, kind)
    if pa.types.is_timestamp(kind):
        return _moments(array, f"{_LOCAL}{_ZONE[:-1]}?$", _cast_zoned, moments.timestamp, kind)
    if pa.types.is_binary(kind):
        return _bytes(array)
    return array, []


def _minus_zeros(array: Any) -> list[int]:
    """Where there is -0.0: for Spark that is 0.0 if it was written as a whole number."""
    zero = pc.equal(array, 0.0)
    if not pc.any(zero).as_py():
        return []
    minus = pc.less(pc.divide(pa.scalar(1.0, array.type), array), 0.0)
    return pc.indices_nonzero(pc.fill_null(pc.and_(zero, minus), False)).to_pylist()  # type: ignore[no-any-return]


def _overlong(array: Any) -> list[int]:
    """Where a decimal has more digits than its type, which pyarrow does not check."""
    kind = array.type
    largest = decimal.Decimal((0, (9,) * kind.precision, -kind.scale))
    over = pc.greater(pc.abs(array), pa.scalar(largest, kind))
    return pc.indices_nonzero(pc.fill_null(over, False)).to_pylist()  # type: ignore[no-any-return]


def _moments(
    array: Any,
    usual: str,
    cast: Callable[[Any], Any],
    read: Callable[[str], int | None],
    kind: pa.DataType,
) -> tuple[Any, list[int]]:
    """Times in text: those in the usual form at once, the others one by one."""
    there = pc.is_valid(array)
    plain = pc.fill_null(pc.match_substring_regex(array, usual), False)
    others = pc.and_not(there, plain)
    if not pc.any(others).as_py():
        try:
            return cast(array), []
        except pa.ArrowInvalid:  # such as 31 February
            others = there
    counts = pa.int32() if pa.types.is_date(kind) else pa.int64()
    try:
        found = cast(pc.if_else(others, None, array)).cast(counts)
    except pa.ArrowInvalid:
        others = there
        found = pa.nulls(len(array), counts)
    places = pc.indices_nonzero(others)
    single = [read(text) for text in array.take(places).to_pylist()]
    found = pc.replace_with_mask(found, others, pa.array(single, counts))
    bad = [i for i, value in zip(places.to_pylist(), single, strict=True) if value is None]
    return found.cast(kind), bad


def _cast_days(array: Any) -> Any:
    return array.cast(pa.date32())


def _cast_local(array: Any) -> Any:
    return array.cast(pa.timestamp("us"))


def _cast_zoned(array: Any) -> Any:
    zoned = pc.match_substring_regex(array, _ZONE)
    if not pc.all(zoned).as_py():
        array = pc.if_else(zoned, array, pc.binary_join_element_wise(array, "Z", ""))
    return array.cast(pa.timestamp("us", "UTC"))


def _bytes(array: Any) -> tuple[Any, list[int]]:
    found: list[bytes | None] = []
    bad = []
    for i, text in enumerate(array.to_pylist()):
        try:
            found.append(text and binascii.a2b_base64(text, strict_mode=True))
        except ValueError:
            found.append(None)
            bad.append(i)
    return pa.array(found, pa.binary()), bad


def _merge(
    found: list[pa.Array] | None, rows: Mapping[int, Row], count: int, schema: pa.Schema
) -> list[pa.Array]:
    """Both kinds of rows where they belong."""
    at = {i: count + k for k, i in enumerate(rows)}
    places = pa.array([at.get(i, i) for i in range(count)], "int64")
    merged = []
    for n, field in enumerate(schema):
        single = pa.array(
            [row.values and row.values[field.name] for row in rows.values()], field.type
        )
        others = pa.nulls(count, field.type) if found is None else found[n]
        merged.append(pa.concat_arrays([others, single]).take(places))
    return merged
