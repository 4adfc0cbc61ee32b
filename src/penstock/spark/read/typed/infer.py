"""Infer: the schema of values from a sample of them, as Spark's JSON source would infer it.

Each text has a type; for two types there is one that covers both. Names are sorted, all columns may
be null, and a field that is null everywhere is a string.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from pyspark.sql import types as T

from penstock.errors import BadData
from penstock.spark.read.typed import tokens as K
from penstock.spark.read.typed.texts import CORRUPT_COLUMN, Texts, check_mode
from penstock.spark.read.typed.tokens import Tokens, Wrong

Kind: TypeAlias = "str | tuple[int, int] | list[Kind] | dict[str, Kind]"
"""A word, the precision and scale of a decimal, an array's one element, or a struct's fields."""

DECIMAL_DIGITS_MAX = 38
_LONG_DIGITS = 20
_WORDS: dict[str, T.DataType] = {
    "null": T.StringType(),
    "string": T.StringType(),
    "boolean": T.BooleanType(),
    "long": T.LongType(),
    "double": T.DoubleType(),
}
_LEAVES = {K.NULL: "null", K.TRUE: "boolean", K.FALSE: "boolean", K.FLOAT: "double"}


def infer(
    values: Iterable[bytes | None],
    codec: str = "json",
    mode: str = "PERMISSIVE",
    corrupt_column: str = CORRUPT_COLUMN,
    *,
    names: Iterable[str] | None = None,
    path: str = "",
) -> T.StructType:
    """The schema of a sample of values.

    ``names`` has the codec of each value, if some have another than ``codec``. A value that is not
    an object adds the corrupt column in the mode PERMISSIVE, is skipped in DROPMALFORMED, and is
    `BadData` in FAILFAST. An array at the top is not an object: an event is one row.
    """
    mode = check_mode(mode)
    texts = Texts(codec)
    each = None if names is None else iter(names)
    found: Kind = {}
    corrupt = False
    for value in values:
        name = codec if each is None else next(each)
        if value is None:
            continue
        try:
            kind = _root(texts.text(value, name))
        except (Wrong, BadData) as error:
            if mode == "FAILFAST":
                raise BadData(
                    f"{path}: a value of the sample is malformed: {error}; the mode PERMISSIVE "
                    "or DROPMALFORMED goes on without it, or give a schema",
                    path=path or None,
                ) from None
            corrupt = mode == "PERMISSIVE" or corrupt
        else:
            found = merge(found, kind)
    if corrupt:
        assert isinstance(found, dict)
        found[corrupt_column] = merge(found.get(corrupt_column, "null"), "string")
    final = _final(found)
    return final if isinstance(final, T.StructType) else T.StructType([])


def _root(text: bytes) -> Kind:
    tokens = Tokens(text)
    token = tokens.next()
    if token is None or token == K.NULL:
        return "null"
    if token != K.OBJECT:
        raise Wrong("it is not an object")
    try:
        return _kind(tokens)
    except RecursionError:
        raise Wrong("it is nested too deep") from None


def _kind(tokens: Tokens) -> Kind:
    """The type of the value at the current token, or after it if that is a name."""
    token = tokens.next() if tokens.token == K.NAME else tokens.token
    if token == K.STRING:
        return "string" if tokens.string() else "null"
    if token == K.INT:
        digits = len(tokens.found.lstrip("-"))
        if -(1 << 63) <= int(tokens.found) < 1 << 63:
            return "long"
        return (digits, 0) if digits <= DECIMAL_DIGITS_MAX else "double"
    if token == K.OBJECT:
        fields: dict[str, Kind] = {}
        while tokens.next() not in (None, K.OBJECT_END):
            name = tokens.name or ""
            kind = _kind(tokens)
            fields[name] = merge(fields[name], kind) if name in fields else kind
        return fields
    if token == K.ARRAY:
        element: Kind = "null"
        while tokens.next() not in (None, K.ARRAY_END):
            element = merge(element, _kind(tokens))
        return [element]
    return _LEAVES[token]  # type: ignore[index]


def merge(one: Kind, other: Kind) -> Kind:
    """The type that covers both."""
    if other in (one, "null"):
        return one
    if one == "null":
        return other
    if isinstance(one, dict) and isinstance(other, dict):
        both = {**one, **other}
        for name in one.keys() & other.keys():
            both[name] = merge(one[name], other[name])
        return both
    if isinstance(one, list) and isinstance(other, list):
        return [merge(one[0], other[0])]
    decimals = [(_LONG_DIGITS, 0) if kind == "long" else kind for kind in (one, other)]
    if "double" in (one, other) and all(k == "double" or isinstance(k, tuple) for k in decimals):
        return "double"
    first, second = decimals
    if isinstance(first, tuple) and isinstance(second, tuple):
        return (max(first[0], second[0]), 0)
    return "string"


def _final(kind: Kind) -> T.DataType | None:
    """The type for Spark; None for objects that have no fields at all."""
    if isinstance(kind, str):
        return _WORDS[kind]
    if isinstance(kind, tuple):
        return T.DecimalType(*kind)
    if isinstance(kind, list):
        element = _final(kind[0])
        return None if element is None else T.ArrayType(element)
    fields = []
    for name in sorted(kind, key=lambda name: name.encode("utf-16-be", "surrogatepass")):
        inner = _final(kind[name])
        if name and inner is not None:
            fields.append(T.StructField(name, inner))
    return T.StructType(fields) if fields else None
