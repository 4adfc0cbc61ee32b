"""Values become typed columns, by the vectorised parser or one by one, with the same result.

That the result is what Spark's JSON source gives is for tests/spark.
"""

from __future__ import annotations

import datetime as dt
import itertools
import pickle
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import penstock
from penstock import errors
from tests.support.texts import (
    COLUMNS,
    assert_same,
    by_penstock,
    fragments,
    made,
    of_column,
    schema_of,
    shown,
)

pytest.importorskip("pyspark")
moments = pytest.importorskip("penstock.spark.moments")
typed = pytest.importorskip("penstock.spark.typed")
RowReader = pytest.importorskip("penstock.spark.rows").RowReader

CORRUPT = "_corrupt_record string"


def test_both_ways_agree() -> None:
    """What the vectorised parser takes, alone or among others, is what the slow way makes of it."""
    for name, kind in COLUMNS.items():
        texts = of_column(name)
        ddl = f"`{name}` {kind}, z int, {CORRUPT}"
        reader = RowReader(schema_of(f"`{name}` {kind}, z int"))
        rows = [reader.read(text) for text in texts]
        schema = typed.Typed(schema_of(ddl)).arrow_schema
        cells = [
            *([row.values and row.values[column] for row in rows] for column in (name, "z")),
            [row.why and text.decode() for row, text in zip(rows, texts, strict=True)],
        ]
        kinds = [field.type for field in schema]
        slow = pa.table([pa.array(*c) for c in zip(cells, kinds, strict=True)], schema=schema)
        assert_same(texts, slow, by_penstock(texts, ddl))
        some = range(len(name), len(texts), 3)
        alone = pa.concat_tables(by_penstock([texts[i]], ddl) for i in some)
        assert_same([texts[i] for i in some], slow.take(list(some)), alone)
        good = [t for t, r in zip(texts, rows, strict=True) if r.why is None]
        keep = slow.filter(pa.array([r.why is None for r in rows]))
        assert_same(good * 3, pa.concat_tables([keep] * 3), by_penstock(good * 3, ddl))


def test_a_few_bad_rows_among_many() -> None:
    """Wherever bad rows stand in a long batch, they and only they are bad."""
    rng = random.Random(5)
    for share in (0.0005, 0.01, 0.2, 1.0):
        texts, wanted = [], []
        for n in range(1, 3000):
            bad = rng.random() < share
            shape = rng.choice([b'{"n":"%d","s":"x"}', b'{"n":%d', b'{"n":%d99999999999,"s":"x"}'])
            texts.append((shape if bad else b'{"n":%d,"s":"x"}') % n)
            row = {"n": n, "s": "x", "_corrupt_record": None}
            if bad:
                row |= {"n": None, "_corrupt_record": texts[-1].decode()}
                row |= {"s": None} if shape == b'{"n":%d' else {}
            wanted.append(row)
        assert by_penstock(texts, f"n int, s string, {CORRUPT}").to_pylist() == wanted


def test_random_texts_both_ways() -> None:
    """A batch, its rows alone and its rows in other company are read alike."""
    ddl = f"i int, s string, d double, t timestamp, o struct<i:int,s:string>, {CORRUPT}"
    texts = made(1500, seed=7)
    whole = shown(by_penstock(texts, ddl))
    assert whole == list(itertools.chain.from_iterable(shown(by_penstock([t], ddl)) for t in texts))
    assert whole[::-1] == shown(by_penstock(texts[::-1], ddl))


NESTED = (
    "at array<timestamp>, ay array<array<date>>, ad array<double>, ac array<decimal(10,2)>, "
    "o struct<t:timestamp,n:timestamp_ntz,y:date,x:binary,d:double,f:float,c:decimal(38,0)>, "
    "ao array<struct<t:timestamp,ay:array<date>,o:struct<d:double,s:string>>>, x binary, s string"
)


PLAIN = {
    "timestamp": [
        '"2020-01-02T03:04:05Z"',
        '"1969-12-31 23:59:59.5"',
        '"2020-02-29T00:00:00.123456+05:30"',
        '"0001-01-01T00:00:00-17:59"',
        '"9999-12-31T23:59:59.999999Z"',
        '"2020-01-02"',
        '"2020-1-2 3:4"',
        '"2020-07-02T03:04:05 Europe/Berlin"',
    ],
    "timestamp_ntz": ['"2020-01-02T03:04:05"', '"1969-12-31 23:59:59.123"', '"2020"'],
    "date": ['"2020-01-02"', '"0001-01-01"', '"9999-12-31"', '"2020-1"', '"-0044-03-15"'],
    "binary": ['"YWJj"', '"YQ=="', '""', '"+/+/"', '"YWI="'],
    "double": ["1.5", "0", "0.0", "-1e-7", "12345678901234567890", "0.1", "1e308", "5e-324"],
    "float": ["1.5", "16777217", "0.1", "3.4028234e38", "1e-45", "1.00000017881393432617187499"],
    "decimal(10,2)": ["1", "1.25", "-12345678.99", '"7.5"', "1e3", "0"],
    "decimal(38,0)": ["1", "9" * 38, "-" + "9" * 38, '"5"'],
    "string": ['"x"', '""', '"\\u00e9"', '"\\ud83d\\ude00"', '"a\\nb"', '"{[,"', '"é"'],
}


class Maker:
    """Makes texts of a type: such as the vectorised parser takes, but for a few."""

    def __init__(self, seed: int, spoilt: float) -> None:
        self.rng = random.Random(seed)
        self.spoilt = spoilt

    def text(self, kind: Any) -> str:
        """The text of a value."""
        if self.rng.random() < 0.08:
            return "null"
        if self.rng.random() < self.spoilt:
            return self.rng.choice(fragments())
        if hasattr(kind, "elementType"):
            parts = (self.text(kind.elementType) for _ in range(self.rng.randint(0, 3)))
            return f"[{','.join(parts)}]"
        if hasattr(kind, "fields"):
            fields = [field for field in kind if self.rng.random() < 0.8]
            self.rng.shuffle(fields)
            return "{" + ",".join(f'"{f.name}":{self.text(f.dataType)}' for f in fields) + "}"
        return self.rng.choice(PLAIN[kind.simpleString()])


@pytest.mark.parametrize("spoilt", [0, 0.0005, 0.02])
def test_nested_columns_both_ways(spoilt: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times, bytes and numbers inside of arrays and structs are read alike both ways."""
    schema = schema_of(NESTED)
    maker = Maker(20261116, spoilt)
    whole = [maker.text(schema).encode() for _ in range(1500)]
    texts = [text for text in whole if text != b"null"]
    reader = RowReader(schema)
    rows = [reader.read(text) for text in texts]
    assert (spoilt > 0) == any(row.why for row in rows)
    wanted = typed.Typed(schema).arrow_schema
    slow = pa.table(
        [pa.array([(r.values or {}).get(f.name) for r in rows], f.type) for f in wanted],
        schema=wanted,
    )
    if not spoilt:
        monkeypatch.delattr(RowReader, "read")  # nothing here needs it
    assert plainly(by_penstock(texts, NESTED)) == plainly(slow)


def plainly(table: Any) -> list[str]:
    """Rows as text, in which times are numbers: Python has none that are as far away."""
    plain = pa.schema([(field.name, plain_type(field.type)) for field in table.schema])
    return [repr(row) for row in table.cast(plain).to_pylist()]


def plain_type(kind: Any) -> Any:
    """The type with numbers for times."""
    if pa.types.is_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, plain_type(field.type)) for field in kind])
    if pa.types.is_temporal(kind):
        return pa.int32() if pa.types.is_date(kind) else pa.int64()
    return kind


def test_arrow_types_are_those_that_spark_asks_for() -> None:
    """The columns have the schema's types to the letter, whichever way they came about."""
    from pyspark.sql.pandas.types import to_arrow_schema

    ddl = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items() if "map" not in kind)
    schema = schema_of(f"{ddl}, {CORRUPT}")
    reader = typed.Typed(schema)
    assert reader.arrow_schema == to_arrow_schema(schema, timezone="UTC")
    for texts in ([b"{}"], [b"{"], [], [None], [b"{}", None, b"{"], [b'{"a":[],"o":{}}']):
        columns, keep = reader.columns(pa.array(texts, pa.binary()), None, None, "")
        assert [column.type for column in columns] == [f.type for f in reader.arrow_schema]
        assert keep is None and all(len(column) == len(texts) for column in columns)


def test_deletions_are_rows_of_nulls() -> None:
    """An event without a value is a row in every mode, and so is one with a blank value."""
    values = pa.array([b'{"n":1}', None, b"", b"  "], pa.binary())
    for mode in typed.MODES:
        reader = typed.Typed(schema_of(f"n int, {CORRUPT}"), mode)
        (n, corrupt), keep = reader.columns(values, None, None, "")
        assert n.to_pylist() == [1, None, None, None] and keep is None
        assert corrupt.null_count == 4


def test_slices_and_pieces() -> None:
    """A part of an array, or an array in pieces, is read as what it shows."""
    values = pa.array([b"{", b'{"n":1}', b'{"n":"x"}', b'{"n":3}', b"{"], pa.binary())
    reader = typed.Typed(schema_of("n int, a array<string>"), "DROPMALFORMED")
    columns, keep = reader.columns(values.slice(1, 3), None, None, "")
    assert columns[0].to_pylist() == [1, None, 3] and keep.to_pylist() == [True, False, True]
    pieces = pa.chunked_array([values.slice(1, 1), values.slice(3, 1)])
    assert reader.columns(pieces, None, None, "")[0][0].to_pylist() == [1, 3]


def test_travels_to_executors() -> None:
    """A pickled reader reads as the first does."""
    reader = pickle.loads(pickle.dumps(typed.Typed(schema_of(f"n int, {CORRUPT}"), "permissive")))
    assert reader.mode == "PERMISSIVE" and reader.corrupt_column == "_corrupt_record"
    found, _ = reader.columns(pa.array([b'{"n":1}', b"{"], pa.binary()), None, None, "")
    assert [column.to_pylist() for column in found] == [[1, None], [None, "{"]]


def test_what_is_refused() -> None:
    """A schema that values cannot be read into is an error that names the column."""
    from pyspark.sql import types as T

    def of(kind: Any, nullable: bool = True) -> Any:
        return T.StructType(
            [T.StructField("a", T.StructType([T.StructField("b", kind, nullable)]))]
        )

    for schema, words in (
        (of(T.DayTimeIntervalType()), r"column 'a\.b' cannot be a interval day"),
        (of(T.VariantType()), r"column 'a\.b' cannot be a variant"),
        (of(T.VarcharType(3)), r"column 'a\.b' cannot be a varchar"),
        (of(T.MapType(T.IntegerType(), T.StringType())), r"'a\.b' must have keys that are strings"),
        (of(T.IntegerType(), False), r"column 'a\.b' must be nullable"),
        (of(T.ArrayType(T.StringType(), False)), r"column 'a\.b\.element' must be nullable"),
        (schema_of("_corrupt_record int"), "'_corrupt_record' is for text"),
        (T.StructType([*schema_of("a int"), *schema_of("a int")]), "the column 'a' twice"),
    ):
        with pytest.raises(errors.Usage, match=words):
            typed.Typed(schema)
    with pytest.raises(errors.Usage, match="mode is one of PERMISSIVE, DROPMALFORMED, FAILFAST"):
        typed.Typed(schema_of("a int"), "lax")
    with pytest.raises(errors.Usage, match="need a codec that makes objects"):
        typed.Typed(schema_of("a int"), codec="bytes")
    with pytest.raises(errors.NoCodec):
        typed.Typed(schema_of("a int"), codec="nope")


def test_other_codecs(path: Path) -> None:
    """Objects of any codec are read by the same rules, each event by its own codec."""
    at = dt.datetime(2026, 11, 16, 9, 0, tzinfo=dt.UTC)
    with penstock.open(path, codec="msgpack") as log:
        log.append({"n": 1, "x": b"ab", "d": float("nan"), "t": at, "o": {"i": 5}})
        log.append({"n": 2, "o": 7}, codec="json")
        log.append({"n": 3}, codec="lite3")
        log.append(b"plain", codec="bytes")
        log.append({"n": "x", "x": b"ab"})
        log.append(None, key=b"k")
        table = log.scan(columns=["seq", "value", "headers"]).to_arrow()
    ddl = f"n int, x binary, d double, t timestamp, o struct<i:int>, {CORRUPT}"
    columns = [table[name] for name in ("value", "headers", "seq")]
    reader = typed.Typed(schema_of(ddl), codec="msgpack")
    found, keep = reader.columns(*columns, "a log")
    rows = pa.table(found, schema=reader.arrow_schema).to_pylist()
    assert keep is None
    assert [row["n"] for row in rows] == [1, 2, 3, None, None, None]
    assert [row["x"] for row in rows] == [b"ab", None, None, None, b"ab", None]
    assert rows[0]["d"] != rows[0]["d"] and rows[0]["t"] == at and rows[0]["o"] == {"i": 5}
    corrupt = [row["_corrupt_record"] for row in rows]
    assert corrupt == [None, '{"n":2,"o":7}', None, "plain", '{"n":"x","x":"YWI="}', None]
    strict = typed.Typed(schema_of(ddl), "FAILFAST", codec="msgpack")
    with pytest.raises(errors.BadData, match="the value of seq 2 does not fit") as caught:
        strict.columns(*columns, "a log")
    assert (caught.value.path, caught.value.seq) == ("a log", 2)


def test_values_that_their_codec_cannot_read() -> None:
    """Damaged values, and those of a codec that nobody has here, are malformed and no more."""
    values = pa.array([msgspec.msgpack.encode({"n": 1}), b"\xc1", b"secret"], pa.binary())
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    marks = [[], [], [{"key": "penstock.codec", "value": b"nobody's"}]]
    reader = typed.Typed(schema_of(f"n int, {CORRUPT}"), codec="msgpack")
    found, _ = reader.columns(values, pa.array(marks, kind), None, "")
    assert found[0].to_pylist() == [1, None, None]
    assert found[1].to_pylist() == [None, "\ufffd", "secret"]


def test_inferring_from_other_codecs() -> None:
    """Objects have the schema that their JSON would have."""
    sample = [msgspec.msgpack.encode({"b": 1, "x": b"ab"}), b'{"a":[1.5]}', None, b"\xc1"]
    names = ["msgpack", "json", "json", "msgpack"]
    wanted = schema_of("_corrupt_record string, a array<double>, b bigint, x string")
    assert typed.infer(sample, "msgpack", names=names) == wanted
    assert typed.infer(sample[:1], "msgpack") == schema_of("b bigint, x string")


def test_names_twice_have_one_type() -> None:
    """Where Spark would refuse to load, a field that is there twice has the type of both."""
    assert typed.infer([b'{"a":1,"a":1.5}']) == schema_of("a double")


def test_deep_samples() -> None:
    """A sample may be nested as deep as anybody likes."""
    deep = b'{"a":' + b"[" * 999 + b"]" * 999 + b"}"
    assert typed.infer([deep, b'{"b":1}']).names[-1] == "b"


def test_times_of_today() -> None:
    """A time without a date is one of today, as for Spark."""
    before = dt.datetime.now(dt.UTC).date()
    found = moments.timestamp("T12:30")
    day = dt.datetime.fromtimestamp(found / 1e6, dt.UTC)
    assert before <= day.date() <= dt.datetime.now(dt.UTC).date()
    assert (day.hour, day.minute) == (12, 30)
    assert moments.timestamp("12:30:15Z") is not None
    assert moments.timestamp_ntz("12:30") is None


def test_decimals_are_rounded_half_up() -> None:
    """Digits behind the scale are rounded away; digits before it do not fit."""
    texts = [b'{"c":1.005}', b'{"c":"-1,234.565"}', b'{"c":123456789}']
    found = by_penstock(texts, f"c decimal(10,2), {CORRUPT}").to_pylist()
    assert [row["c"] for row in found] == [Decimal("1.01"), Decimal("-1234.57"), None]
    assert [row["_corrupt_record"] for row in found] == [None, None, texts[2].decode()]
