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
from tests.support.nested import NESTED, nested, plainly
from tests.support.texts import (
    COLUMNS,
    assert_same,
    by_penstock,
    made,
    of_column,
    schema_of,
    shown,
    whole_texts,
)

pytest.importorskip("pyspark")
moments = pytest.importorskip("penstock.spark.read.typed.moments")
typed = pytest.importorskip("penstock.spark.read.typed")
RowParser = pytest.importorskip("penstock.spark.read.typed.rows").RowParser

CORRUPT = "_corrupt_record string"


def test_both_ways_agree() -> None:
    """What the vectorised parser takes, alone or among others, is what the slow way makes of it."""
    for name, kind in COLUMNS.items():
        texts = of_column(name)
        ddl = f"`{name}` {kind}, z int, {CORRUPT}"
        reader = RowParser(schema_of(f"`{name}` {kind}, z int"))
        rows = [reader.read(text) for text in texts]
        schema = typed.Typed(schema_of(ddl)).arrow_schema
        cells = [
            *([row.values and row.values[column] for row in rows] for column in (name, "z")),
            [row.why and text.decode() for row, text in zip(rows, texts, strict=True)],
        ]
        kinds = [field.type for field in schema]
        slow = pa.table([pa.array(*c) for c in zip(cells, kinds, strict=True)], schema=schema)
        assert_same(texts, slow, by_penstock(texts, ddl))
        assert_same(texts, slow, pa.concat_tables(by_penstock([text], ddl) for text in texts))
        good = [t for t, r in zip(texts, rows, strict=True) if r.why is None]
        keep = slow.filter(pa.array([r.why is None for r in rows]))
        assert_same(good * 3, pa.concat_tables([keep] * 3), by_penstock(good * 3, ddl))


def test_whole_texts_both_ways() -> None:
    """Texts with a flaw around their values, or that are too large, are read alike both ways."""
    ddl = "i int, s string, d double, a array<int>"
    reader = RowParser(schema_of(ddl))
    for text in whole_texts():
        row = reader.read(text)
        found = by_penstock([text], f"{ddl}, {CORRUPT}").to_pylist()[0]
        corrupt = found.pop("_corrupt_record")
        assert repr(found) == repr(row.values or dict.fromkeys(found)), text
        assert corrupt == (row.why and text.decode("utf-8", "replace"))


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


@pytest.mark.parametrize("spoilt", [0, 0.0005, 0.02])
def test_nested_columns_both_ways(spoilt: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times, bytes and numbers inside of arrays and structs are read alike both ways."""
    schema = schema_of(NESTED)
    texts = nested(1500, spoilt)
    reader = RowParser(schema)
    rows = [reader.read(text) for text in texts]
    assert (spoilt > 0) == any(row.why for row in rows)
    wanted = typed.Typed(schema).arrow_schema
    slow = pa.table(
        [pa.array([(r.values or {}).get(f.name) for r in rows], f.type) for f in wanted],
        schema=wanted,
    )
    if not spoilt:
        monkeypatch.delattr(RowParser, "read")  # nothing here needs it
    assert plainly(by_penstock(texts, NESTED)) == plainly(slow)


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
        (of(T.DayTimeIntervalType()), r"column 'a\.b' has the type interval day"),
        (of(T.VariantType()), r"column 'a\.b' has the type variant"),
        (of(T.VarcharType(3)), r"column 'a\.b' has the type varchar"),
        (of(T.MapType(T.IntegerType(), T.StringType())), r"'a\.b' must have strings as keys"),
        (of(T.IntegerType(), False), r"column 'a\.b' must be nullable"),
        (of(T.ArrayType(T.StringType(), False)), r"column 'a\.b\.element' must be nullable"),
        (
            schema_of("_corrupt_record int"),
            "_corrupt_record', .* must be a string",
        ),
        (
            T.StructType([*schema_of("a int"), *schema_of("a int")]),
            "each column once, got 'a'",
        ),
    ):
        with pytest.raises(errors.Usage, match=words):
            typed.Typed(schema)
    with pytest.raises(errors.Usage, match="mode must be one of PERMISSIVE, DROPMALFORMED, F"):
        typed.Typed(schema_of("a int"), "lax")
    with pytest.raises(errors.Usage, match="needs a codec that decodes bytes to objects"):
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


def test_text_that_is_no_utf8() -> None:
    """Spark would guess UTF-16 and let bad UTF-8 pass; here all of it is malformed."""
    texts = ['{"s":"a"}'.encode("utf-16"), '{"s":"a"}'.encode("utf-32-be")]
    texts += [b'{"s":"%s"}' % odd for odd in (b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80")]
    texts.append(b'{"s":"a","unknown":"\xc0\x80"}')
    for row, text in zip(
        by_penstock(texts, f"s string, {CORRUPT}").to_pylist(), texts, strict=True
    ):
        assert row == {"s": None, "_corrupt_record": text.decode("utf-8", "replace")}


def test_arrays_are_no_rows() -> None:
    """A sample that is an array is malformed, as it is when it is read."""
    assert typed.infer([b'[{"a":1}]', b'{"b":1}']) == schema_of(f"{CORRUPT}, b bigint")


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
    """Digits after the scale are rounded away; digits before it do not fit."""
    texts = [b'{"c":1.005}', b'{"c":"-1,234.565"}', b'{"c":123456789}']
    found = by_penstock(texts, f"c decimal(10,2), {CORRUPT}").to_pylist()
    assert [row["c"] for row in found] == [Decimal("1.01"), Decimal("-1234.57"), None]
    assert [row["_corrupt_record"] for row in found] == [None, None, texts[2].decode()]
