"""Rows: texts of JSON, one by one, as rows of a schema, as Spark's JSON source reads them.

This is slow and exact, for the texts that the vectorised parser does not take. A value that does
not fit its column is null and makes the row a bad one, whose other columns are kept; text that is
not JSON has no columns.
"""

from __future__ import annotations

import decimal
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.sql import types as T

from penstock.spark.read.typed import moments
from penstock.spark.read.typed import tokens as K
from penstock.spark.read.typed.tokens import Tokens, Wrong

Convert: TypeAlias = Callable[[Tokens], Any]

_EXACT = decimal.Context(prec=5000, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,10})?")
_DIGITS_MAX = 4000  # beyond any precision
_WORDS = {
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "+Infinity": float("inf"),
    "+INF": float("inf"),
    "-Infinity": float("-inf"),
    "-INF": float("-inf"),
}
_RANGES: dict[type[T.DataType], tuple[int, int]] = {
    T.ByteType: (-(1 << 7), (1 << 8) - 1),  # Jackson takes bytes with and without a sign
    T.ShortType: (-(1 << 15), (1 << 15) - 1),
    T.IntegerType: (-(1 << 31), (1 << 31) - 1),
    T.LongType: (-(1 << 63), (1 << 63) - 1),
}


class Row(NamedTuple):
    """The result of one text. ``why`` says what is wrong with it; None if nothing is."""

    values: dict[str, Any] | None
    why: str | None


class _Partial(Exception):
    """A value of which only a part is right."""

    def __init__(self, value: Any, why: str) -> None:
        super().__init__(why)
        self.value = value


class RowParser:
    """Texts as rows of a schema."""

    def __init__(self, schema: T.StructType) -> None:
        self._convert = _struct(schema)

    def read(self, data: bytes) -> Row:
        """The row of a text. A blank text is a row of nulls, with nothing wrong."""
        tokens = Tokens(data)
        try:
            first = tokens.next()
            if first is None:
                return Row(None, None)
            if first == K.NULL:
                return Row(None, "it is null, and not an object")
            if first != K.OBJECT:
                return Row(None, "it is not an object")
            return Row(self._convert(tokens), None)
        except _Partial as partial:
            return Row(partial.value, str(partial))
        except Wrong as error:
            return Row(None, str(error))


def converter(kind: T.DataType) -> Convert | None:
    """The function that reads values of a type from tokens; None if JSON has no such values."""
    if isinstance(kind, T.StructType):
        inner = [converter(field.dataType) for field in kind]
        return _unless_null(K.OBJECT, _struct(kind), kind) if all(inner) else None
    if isinstance(kind, T.ArrayType):
        item = converter(kind.elementType)
        return None if item is None else _unless_null(K.ARRAY, _array(item), kind)
    if isinstance(kind, T.MapType):
        item = converter(kind.valueType)
        plain = type(kind.keyType) is T.StringType
        return _unless_null(K.OBJECT, _map(item), kind) if item is not None and plain else None
    if type(kind) in _RANGES:
        return _whole(kind)
    if isinstance(kind, T.DecimalType):
        return _decimal(kind)
    return _LEAVES.get(type(kind))


def _begin(tokens: Tokens) -> int | None:
    """The token of the value that comes, which may have a name before it."""
    token = tokens.token
    while token == K.NAME:
        token = tokens.next()
    return token


def _misfit(tokens: Tokens, kind: T.DataType) -> Wrong:
    """What is wrong with the current token. A string is read first: it may be malformed itself."""
    if tokens.token == K.STRING:
        tokens.string()
    where = f"the field {tokens.name!r}" if tokens.name is not None else "an element"
    return Wrong(f"{where} must be {kind.simpleString()}")


def _unless_null(first: int, inner: Convert, kind: T.DataType) -> Convert:
    def convert(tokens: Tokens) -> Any:
        token = _begin(tokens)
        if token == K.NULL or token is None:
            return None
        if token != first:
            raise _misfit(tokens, kind)
        return inner(tokens)

    return convert


def _struct(kind: T.StructType) -> Convert:
    """An object; what is wrong in one of its fields leaves the others as they are."""
    fields: dict[str | None, Convert] = {}
    for field in kind:
        inner = converter(field.dataType)
        assert inner is not None
        fields[field.name] = inner
    empty: dict[str, Any] = dict.fromkeys(kind.names)

    def convert(tokens: Tokens) -> dict[str, Any]:
        row: dict[Any, Any] = empty.copy()
        why = None
        while (token := tokens.next()) != K.OBJECT_END and token is not None:
            name = tokens.key if token == K.NAME else tokens.name
            inner = fields.get(name)
            if inner is None:
                tokens.skip()
                continue
            try:
                row[name] = inner(tokens)
            except _Partial as partial:
                why = why or str(partial)
                row[name] = partial.value
            except Wrong as error:
                why = why or str(error)
                tokens.skip()
        if why is not None:
            raise _Partial(row, why)
        return row

    return convert


def _array(inner: Convert) -> Convert:
    """An array; one wrong element makes the whole of it wrong, unless a part of that is right."""

    def convert(tokens: Tokens) -> list[Any]:
        items: list[Any] = []
        why = None
        while tokens.next() not in (None, K.ARRAY_END):
            try:
                items.append(inner(tokens))
            except _Partial as partial:
                why = why or str(partial)
                items.append(partial.value)
        if why is not None:
            raise _Partial(items, why)
        return items

    return convert


def _map(inner: Convert) -> Convert:
    """An object as keys and values, in which a key may be there twice.

    One wrong value makes the whole object wrong, but not what follows it.
    """

    def convert(tokens: Tokens) -> list[tuple[str, Any]]:
        items: list[tuple[str, Any]] = []
        why = None
        wrong: Wrong | None = None
        while tokens.next() not in (None, K.OBJECT_END):
            name = tokens.name or ""
            try:
                items.append((name, inner(tokens)))
            except _Partial as partial:
                why = why or str(partial)
                items.append((name, partial.value))
            except Wrong as error:
                wrong = wrong or error
                tokens.skip()
        if wrong is not None:
            raise wrong
        if why is not None:
            raise _Partial(items, why)
        return items

    return convert


def _whole(kind: T.DataType) -> Convert:
    low, high = _RANGES[type(kind)]

    def convert(tokens: Tokens) -> int | None:
        token = _begin(tokens)
        if token == K.INT:
            value = int(tokens.found)
            if low <= value <= high:
                return value if high != 255 else (value + 128) % 256 - 128
        elif token == K.NULL:
            return None
        raise _misfit(tokens, kind)

    return convert


def _decimal(kind: T.DecimalType) -> Convert:
    unit = decimal.Decimal(1).scaleb(-kind.scale)
    limit = decimal.Decimal(10) ** (kind.precision - kind.scale)

    def convert(tokens: Tokens) -> decimal.Decimal | None:
        token = _begin(tokens)
        if token == K.NULL:
            return None
        text = ""
        if token in (K.INT, K.FLOAT):
            text = tokens.found
        elif token == K.STRING:
            text = tokens.string().replace(",", "")
        if not _DECIMAL.fullmatch(text):
            raise _misfit(tokens, kind)
        value = _EXACT.create_decimal(text)
        if value and value.adjusted() > kind.precision:
            raise _misfit(tokens, kind)
        if not value or value.adjusted() < -_DIGITS_MAX:
            return decimal.Decimal(0).quantize(unit)
        value = value.quantize(unit, decimal.ROUND_HALF_UP, _EXACT)
        if value.copy_abs() >= limit:
            raise _misfit(tokens, kind)
        return value

    return convert


def _float(tokens: Tokens) -> float | None:
    """A double. A whole number has no sign of its zero."""
    token = _begin(tokens)
    if token == K.INT:
        try:
            return float(int(tokens.found))
        except OverflowError:
            return _WORDS["-INF" if tokens.found.startswith("-") else "+INF"]
    if token == K.FLOAT:
        return float(_WORDS.get(tokens.found, tokens.found))
    if token == K.STRING and tokens.string() in _WORDS:
        return _WORDS[tokens.string()]
    if token == K.NULL:
        return None
    raise _misfit(tokens, T.DoubleType())


def _float32(tokens: Tokens) -> float | None:
    """A float, rounded once: from the digits, and not from the double that is next to them."""
    value = _float(tokens)
    if not value or not math.isfinite(value):
        return value
    try:
        return float(pa.scalar(tokens.found).cast(pa.float32()).as_py())
    except pa.ArrowInvalid:
        return float(pa.scalar(value).cast(pa.float32()).as_py())


def _bool(tokens: Tokens) -> bool | None:
    token = _begin(tokens)
    if token in (K.TRUE, K.FALSE):
        return token == K.TRUE
    if token == K.NULL:
        return None
    raise _misfit(tokens, T.BooleanType())


def _string(tokens: Tokens) -> str | None:
    """A string; anything else as it is in the text."""
    token = _begin(tokens)
    if token == K.STRING:
        return tokens.string()
    if token == K.NULL:
        return None
    start = tokens.start
    tokens.skip()
    return tokens.text[start : tokens.at]


def _binary(tokens: Tokens) -> bytes | None:
    token = _begin(tokens)
    if token == K.STRING:
        return tokens.binary()
    if token == K.NULL:
        return None
    raise _misfit(tokens, T.BinaryType())


def _moment(read: Callable[[str], int | None], kind: T.DataType) -> Convert:
    def convert(tokens: Tokens) -> int | None:
        token = _begin(tokens)
        if token == K.STRING:
            found = read(tokens.string()) if tokens.string() else None
            if found is not None:
                return found
        elif token == K.NULL:
            return None
        raise _misfit(tokens, kind)

    return convert


_instant = _moment(moments.timestamp, T.TimestampType())


def _timestamp(tokens: Tokens) -> int | None:
    """A timestamp; a whole number counts seconds, and wraps around as Spark's does."""
    if _begin(tokens) != K.INT:
        found: int | None = _instant(tokens)
        return found
    seconds = int(tokens.found)
    if not -(1 << 63) <= seconds < 1 << 63:
        raise _misfit(tokens, T.TimestampType())
    return (seconds * 1_000_000 + (1 << 63)) % (1 << 64) - (1 << 63)


def _nothing(tokens: Tokens) -> None:
    _begin(tokens)


_LEAVES: dict[type[T.DataType], Convert] = {
    T.BooleanType: _bool,
    T.FloatType: _float32,
    T.DoubleType: _float,
    T.StringType: _string,
    T.BinaryType: _binary,
    T.DateType: _moment(moments.date, T.DateType()),
    T.TimestampType: _timestamp,
    T.TimestampNTZType: _moment(moments.timestamp_ntz, T.TimestampNTZType()),
    T.NullType: _nothing,
}
