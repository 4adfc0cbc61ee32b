"""Fields: values decoded into typed columns, for scans with a schema.

JSON goes through pyarrow's parser, many values at a time; other codecs object by object. Values
that do not fit the schema are found row by row, only where a batch has such a row.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from penstock import _core
from penstock import layout as L
from penstock.data import codecs
from penstock.errors import BadData, Usage, WrongType
from penstock.system.needs import pyarrow

PREFIX = "data."
HASTY_ROWS = 512  # rows of a run that contains wrong rows
HASTY_ROWS_MIN = 8  # searching for a wrong row among fewer does not pay
HASTY_WRONG_MIN = 64  # wrong rows before the share below is checked
HASTY_SHARE = 25  # with one wrong row in so many, reading all rows one by one is faster
_ROW_NAMED = re.compile(r"in row ([0-9]{1,9})$")
_CODEC = L.CODEC_NAME.decode()
_PLAIN: dict[Any, str] = {
    str: "string",
    int: "int64",
    float: "float64",
    bool: "bool_",
    bytes: "binary",
    dt.datetime: "timestamp_us",
    dt.date: "date32",
}


def arrow_schema(schema: Any) -> Any:
    """A pyarrow schema for a user's schema: pyarrow's, a mapping, a struct or a dataclass."""
    pa = pyarrow()
    if isinstance(schema, pa.Schema):
        found = schema
    elif isinstance(schema, Mapping):
        for name in schema:
            if not isinstance(name, str):
                raise WrongType(f"a field's name must be str, got {type(name).__name__}")
        found = pa.schema([(name, arrow_type(kind)) for name, kind in schema.items()])
    elif _has_fields(schema):
        found = pa.schema(list(arrow_type(schema)))
    else:
        raise WrongType(
            "schema must be a pyarrow schema, a mapping of names to types, a msgspec Struct or a "
            f"dataclass, got {schema!r}"
        )
    if not len(found) or len(set(found.names)) != len(found):
        raise Usage("schema must have fields, each with a different name")
    return found


def _has_fields(kind: Any) -> bool:
    return isinstance(kind, type) and (
        dataclasses.is_dataclass(kind) or hasattr(kind, "__struct_fields__")
    )


def arrow_type(kind: Any) -> Any:
    """The pyarrow type for a type of pyarrow or Python."""
    pa = pyarrow()
    if isinstance(kind, pa.DataType):
        return kind
    if isinstance(kind, str):
        try:
            return pa.type_for_alias(kind)
        except ValueError:
            raise Usage(f"{kind!r} has no Arrow type") from None
    if isinstance(kind, type) and kind in _PLAIN:
        name = _PLAIN[kind]
        return pa.timestamp("us", "UTC") if name == "timestamp_us" else getattr(pa, name)()
    if _has_fields(kind):
        hints = typing.get_type_hints(kind)
        return pa.struct([(name, arrow_type(hint)) for name, hint in hints.items()])
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        some = [a for a in args if a is not types.NoneType]
        if len(some) == 1:
            return arrow_type(some[0])
    if origin is typing.Annotated:
        return arrow_type(args[0])
    if origin in (list, Sequence, tuple, set, frozenset) and args:
        return pa.list_(arrow_type(args[0]))
    raise Usage(f"{kind!r} has no Arrow type; give a pyarrow type instead")


class Fields:
    """How the values of batches become columns."""

    def __init__(self, schema: Any, codec: str, on_malformed: str) -> None:
        self.schema = schema
        self.codec = codec
        self.on_malformed = on_malformed
        self._readable = _readable_schema(schema) if codec == "json" else schema
        self._decoders: dict[str, Callable[[bytes], Any]] = {}

    def parse(self, batch: Any, path: str) -> tuple[Any, Any]:
        """Columns for the rows of ``batch``, which has seq, value and headers; and which to keep.

        The second result is None if all rows are kept.
        """
        pa = pyarrow()
        values = batch.column("value")
        names = codecs_of(batch.column("headers"), self.codec)
        if self.codec == "json" and names is None:
            table, bad = parse_json(values, self.schema, self._readable)
        else:
            table, bad = self._objects(values, names)
        if not bad:
            return table, None
        if self.on_malformed == "raise":
            row = min(bad)
            raise BadData(
                f"{path}: the value of seq {batch.column('seq')[row].as_py()} does not fit the "
                f"schema of the scan: {bad[row]}; on_malformed='null' or 'skip' goes on without it",
                path=path,
                seq=batch.column("seq")[row].as_py(),
            )
        if self.on_malformed == "null":
            return table, None
        keep = [i not in bad for i in range(len(values))]
        return table, pa.array(keep, pa.bool_())

    def _objects(self, values: Any, names: list[str] | None) -> tuple[Any, dict[int, str]]:
        """Decode value by value, with the codec that each was written with."""
        pa = pyarrow()
        bad: dict[int, str] = {}
        rows: list[Mapping[str, Any]] = []
        for i, value in enumerate(values.to_pylist()):
            row: Any = {}
            if value is not None:
                try:
                    row = self._decode(names[i] if names is not None else self.codec, value)
                    for field in self.schema:
                        _check_exact(row.get(field.name), field.type)
                        pa.scalar(row.get(field.name), field.type)
                except Exception as error:
                    bad[i], row = str(error), {}
            rows.append(row)
        columns = [pa.array([r.get(f.name) for r in rows], f.type) for f in self.schema]
        return pa.table(columns, schema=self.schema), bad

    def _decode(self, name: str, value: bytes) -> Mapping[str, Any]:
        if name not in self._decoders:
            _, decode = codecs.find(name)
            if decode is None:
                raise BadData("the value is plain bytes, which have no fields")
            self._decoders[name] = decode
        found = self._decoders[name](value)
        found = found.to_python() if hasattr(found, "to_python") else found
        if not isinstance(found, Mapping):
            raise BadData(f"a value with fields must be an object, got {type(found).__name__}")
        return found


def _check_exact(value: Any, kind: Any) -> None:
    """Refuse what pyarrow would convert: a fraction to an integer, a number to a time."""
    types_of = pyarrow().types
    if isinstance(value, float) and types_of.is_integer(kind):
        raise BadData(f"{value!r} is not a whole number")
    if isinstance(value, int | float) and types_of.is_temporal(kind):
        raise BadData(f"{value!r} is not a {kind}")
    if isinstance(value, bool) and (types_of.is_floating(kind) or types_of.is_decimal(kind)):
        raise BadData(f"{value!r} is not a number")
    if types_of.is_struct(kind) and isinstance(value, Mapping):
        for field in kind:
            _check_exact(value.get(field.name), field.type)
    elif (types_of.is_list(kind) or types_of.is_large_list(kind)) and isinstance(
        value, list | tuple
    ):
        for item in value:
            _check_exact(item, kind.value_type)


def _readable_schema(schema: Any) -> Any:
    """The schema for pyarrow's parser, whose types can be cast to those of ``schema``."""
    pa = pyarrow()
    from pyarrow import json

    readable = pa.schema([field.with_type(_readable_type(field.type)) for field in schema])
    try:
        json.read_json(pa.py_buffer(b"{}"), parse_options=json.ParseOptions(readable))
    except NotImplementedError as error:
        raise Usage(f"a type of the schema cannot be read from JSON: {error}") from None
    return readable


def _readable_type(kind: Any) -> Any:
    """Dates are written as text, which the parser reads as times only."""
    pa = pyarrow()
    if pa.types.is_date(kind):
        return pa.timestamp("s")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_readable_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_readable_type(kind.value_type)))
    return kind


def parse_json(
    values: Any, schema: Any, readable: Any, *, hasty: bool = False
) -> tuple[Any, dict[int, str]]:
    """Parse all values as one text: a table, with nulls for those that do not fit, and the reasons.

    With ``hasty`` not each of them is searched for: some reported as not fitting may fit.
    """
    _, offsets, data = values.buffers()
    wrong = _core.not_objects(offsets, data or b"", values.offset, len(values))
    bad = {i: "the value is not the text of one JSON object" for i in wrong if values[i].is_valid}
    out = set(wrong)
    good = [i for i in range(len(values)) if i not in out] if out else range(len(values))
    chosen = values.take(pyarrow().array(good, "int64")) if out else values
    pieces: list[tuple[int, Any]] = []
    parse = _parse_hastily if hasty else _parse_run
    for start, table, why in parse(chosen, schema, readable):
        if isinstance(table, int):
            bad.update((good[start + i], why) for i in range(table))
        else:
            pieces.append((start, table))
    return _in_place(schema, len(values), good, pieces), bad


def _in_place(schema: Any, count: int, good: Sequence[int], pieces: list[tuple[int, Any]]) -> Any:
    """The parsed rows at their places, and nulls elsewhere."""
    pa = pyarrow()
    tables = [table for _, table in pieces]
    whole = pa.concat_tables(tables) if tables else schema.empty_table()
    if whole.num_rows == count:
        return whole
    place: list[int | None] = [None] * count
    at = 0
    for start, table in pieces:
        for i in range(table.num_rows):
            place[good[start + i]] = at
            at += 1
    return whole.take(pa.array(place, "int64"))


def _parse_run(
    values: Any, schema: Any, readable: Any, start: int = 0, rows_min: int = 1
) -> Iterator[tuple[int, Any, str]]:
    """Parse texts of objects; where one is wrong, in halves until few are left.

    Each part is a table, or a number of rows that cannot be parsed, and the reason.
    """
    if not len(values):
        return
    try:
        yield start, _cast_whole(_parse_text(values, readable), schema), ""
        return
    except (ValueError, OSError) as error:  # pyarrow's errors are subclasses
        why = str(error)
    if len(values) <= rows_min:
        yield start, len(values), why
        return
    half = len(values) // 2
    yield from _parse_run(values.slice(0, half), schema, readable, start, rows_min)
    yield from _parse_run(values.slice(half), schema, readable, start + half, rows_min)


def _parse_hastily(values: Any, schema: Any, readable: Any) -> Iterator[tuple[int, Any, str]]:
    """The same, with little work for each wrong row: pyarrow usually says which it is.

    Where too many are wrong, as when a column has another type throughout, the rest is not tried.
    """
    start, wrong, rows = 0, 0, len(values)
    while start < len(values):
        part = values.slice(start, rows)
        try:
            yield start, _cast_whole(_parse_text(part, readable), schema), ""
            start += len(part)
            continue
        except (ValueError, OSError) as error:
            why = str(error)
        if rows > HASTY_ROWS:
            rows = HASTY_ROWS
            continue
        wrong += 1
        if wrong > HASTY_WRONG_MIN and wrong * HASTY_SHARE > start:
            yield start, len(values) - start, why
            return
        named = _ROW_NAMED.search(why)
        good = int(named[1]) if named else len(part)
        yield from _parse_run(part.slice(0, good), schema, readable, start, HASTY_ROWS_MIN)
        if good < len(part):
            yield start + good, 1, why
        start += min(good + 1, len(part))


def _cast_whole(table: Any, schema: Any) -> Any:
    """The table cast to the requested types; a cast that loses data raises."""
    found = table.cast(schema)
    for column, there in zip(found.columns, table.columns, strict=True):
        if column.type != there.type and not column.cast(there.type).equals(there):
            raise ValueError("the value has a time of day, but the schema has a date")
    return found


def _parse_text(values: Any, schema: Any) -> Any:
    import pyarrow as pa
    from pyarrow import json

    _, offsets, data = values.buffers()
    at = memoryview(offsets).cast("i")
    first, last = at[values.offset], at[values.offset + len(values)]
    text = data.slice(first, last - first)
    table = json.read_json(
        pa.BufferReader(text),
        json.ReadOptions(use_threads=False, block_size=len(text) + 1),
        json.ParseOptions(
            explicit_schema=schema,
            newlines_in_values=True,
            unexpected_field_behavior="ignore",
        ),
    )
    if table.num_rows != len(values):
        raise ValueError("the value is not one JSON object")
    return table.select(schema.names)


def codecs_of(headers: Any, own: str) -> list[str] | None:
    """The codec of each row, if a row has another than the log's."""
    import pyarrow.compute as pc

    pairs = headers.flatten()
    marks = pc.equal(pairs.field("key"), _CODEC)
    if not len(pairs) or not pc.any(marks).as_py():
        return None
    found = []
    for row in headers.to_pylist():
        name = own
        for pair in row:
            if pair["key"] == _CODEC and pair["value"] is not None:
                name = pair["value"].decode("utf-8", "replace")
        found.append(name)
    return found if any(name != own for name in found) else None


def one_array(column: Any) -> Any:
    """A column in one piece."""
    pa = pyarrow()
    if isinstance(column, pa.ChunkedArray):
        return (
            column.chunk(0)
            if column.num_chunks == 1
            else pa.concat_arrays(column.chunks or [pa.array([], column.type)])
        )
    return column
