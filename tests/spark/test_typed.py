"""Typed columns are what Spark's own JSON source makes of the same texts."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.errors import BadData
from tests.support.nested import NESTED, nested, plainly
from tests.support.texts import COLUMNS, assert_same, by_penstock, cases, fragments, made, shown

typed = pytest.importorskip("penstock.spark.read.typed")

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEPARATOR = "\x1e"  # between texts, so that a text may have lines
DDL = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items())
CORRUPT = "_corrupt_record string"


def by_spark(spark: SparkSession, path: Path, texts: Iterable[bytes], **options: str) -> DataFrame:
    """What Spark's JSON source reads; its schema is among the options."""
    path.write_bytes(SEPARATOR.encode().join(texts))
    reader = spark.read.option("lineSep", SEPARATOR)
    if "schema" in options:
        reader = reader.schema(options.pop("schema"))
    return reader.options(**options).json(str(path))


def test_reads_what_spark_reads(spark: SparkSession, tmp_path: Path) -> None:
    """Thousands of texts, good and bad, into columns of every type: the same cells, all of them."""
    texts = [*cases(), *made(4000, seed=20261116)]
    schema = f"{DDL}, {CORRUPT}"
    theirs = by_spark(spark, tmp_path / "texts", texts, schema=schema).toArrow()
    assert_same(texts, theirs, by_penstock(texts, schema))


def test_reads_nested_columns_as_spark_does(spark: SparkSession, tmp_path: Path) -> None:
    """Also by the vectorised parser, which takes nearly all of these."""
    texts = nested(1500, 0.0005)
    theirs = by_spark(spark, tmp_path / "texts", texts, schema=NESTED).toArrow()
    assert plainly(theirs) == plainly(by_penstock(texts, NESTED))


def test_modes(spark: SparkSession, tmp_path: Path) -> None:
    """DROPMALFORMED leaves out the rows that Spark leaves out, and FAILFAST takes none of those."""
    texts = cases()[::7]
    options = {"schema": DDL, "mode": "DROPMALFORMED"}
    theirs = by_spark(spark, tmp_path / "texts", texts, **options).toArrow()
    assert shown(theirs) == shown(by_penstock(texts, DDL, "DROPMALFORMED"))
    whole = shown(by_penstock(texts, f"{DDL}, {CORRUPT}"))
    good = [text for text, row in zip(texts, whole, strict=True) if "_corrupt_record" not in row]
    bad = [text for text, row in zip(texts, whole, strict=True) if "_corrupt_record" in row]
    assert len(good) > 100 and len(bad) > 100
    options["mode"] = "FAILFAST"
    theirs = by_spark(spark, tmp_path / "good", good, **options).toArrow()
    assert_same(good, theirs, by_penstock(good, DDL, "FAILFAST"))
    for text in bad:
        with pytest.raises(BadData, match="a log: the value of seq 2 does not fit"):
            by_penstock([b"{}", b"", text, b"{}"], DDL, "FAILFAST")


def test_one_event_is_one_row(spark: SparkSession) -> None:
    """Arrays and blank texts are read as from_json reads them, which makes one row of each."""
    from pyspark.sql import functions as F

    texts = ["[]", '[{"i":1}]', '[{"i":1},{"i":2}]', "", " ", "\n", "null", "1", '{"i":1}', "{"]
    schema = f"i int, s string, {CORRUPT}"
    frame = spark.createDataFrame([(text,) for text in texts], "text string").coalesce(1)
    theirs = frame.select(F.from_json("text", schema).alias("row")).select("row.*").toArrow()
    binary = [text.encode() for text in texts]
    assert_same(binary, theirs, by_penstock(binary, schema))


SAMPLES = [
    [b"{}"],
    [b""],
    [b" ", b"null"],
    [b'{"b":1,"a":"x","C":true,"_":1.5,"\xc3\xa9":1}'],
    [b'{"a":1}', b'{"a":1.5}'],
    [b'{"a":1}', b'{"a":"x"}'],
    [b'{"a":1}', b'{"a":true}'],
    [b'{"a":null}', b'{"a":""}'],
    [b'{"a":""}', b'{"a":1}'],
    [b'{"a":12345678901234567890}'],
    [b'{"a":12345678901234567890}', b'{"a":1}'],
    [b'{"a":1234567890123456789012345}', b'{"a":1}', b'{"a":12345678901234567890}'],
    [b'{"a":12345678901234567890}', b'{"a":1.5}'],
    [b'{"a":123456789012345678901234567890123456789}', b'{"a":1}'],
    [b'{"a":NaN}', b'{"a":1}'],
    [b'{"a":[]}'],
    [b'{"a":[]}', b'{"a":[1]}', b'{"a":[1.5,null]}'],
    [b'{"a":[1,"x"]}'],
    [b'{"a":[{}]}', b'{"b":1}'],
    [b'{"a":{}}', b'{"b":1}'],
    [b'{"a":{"c":1}}', b'{"a":{"b":"x"}}'],
    [b'{"a":{"c":1}}', b'{"a":5}'],
    [b'{"a":[{"c":1},{"b":null}]}'],
    [b'{"a":[[1],[],["x"]]}'],
    [b'{"a":{"":1},"":2,"b":3}'],
    [b'{"a":1}', b"{"],
    [b"{"],
    [b'{"a":1}', b"5"],
    [b'{"a":1}', b"null"],
    [b'{"_corrupt_record":1}', b"{"],
    [b'{"A":1}', b"{", b'{"b":1}'],
    [b'{"a":1} x', b"{'b':2}"],
    [b'{"a":"2020-01-02T03:04:05Z"}'],
]


def test_infers_what_spark_infers(spark: SparkSession, tmp_path: Path) -> None:
    """The schema of a sample is the one that Spark's source would have made of it."""
    for number, sample in enumerate(SAMPLES):
        theirs = by_spark(spark, tmp_path / str(number), sample).schema
        assert typed.infer(sample) == theirs, sample
        if "_corrupt_record" in theirs.names:
            options = {"mode": "DROPMALFORMED"}
            theirs = by_spark(spark, tmp_path / f"{number} good", sample, **options).schema
            assert typed.infer(sample, "json", "DROPMALFORMED") == theirs, sample


def test_types_merge_as_spark_merges_them(spark: SparkSession, tmp_path: Path) -> None:
    """Whichever values meet in a field, its type is the one that Spark finds for them."""
    rng = random.Random(20261116)
    whole = [f for f in fragments() if typed.infer([b'{"a":%s}' % f.encode()]).names == ["a"]]
    whole = [f for f in whole if "k" not in f and f.count('"i":') < 2]  # a name twice is an error
    sample = [
        ("{" + ",".join(f'"q{n}":{rng.choice(whole)}' for n in range(300)) + "}").encode()
        for _ in range(4)
    ]
    assert typed.infer(sample) == by_spark(spark, tmp_path / "texts", sample).schema


def test_inferring_can_fail(spark: SparkSession, tmp_path: Path) -> None:
    """In the mode FAILFAST a malformed sample is an error, to Spark as to us."""
    sample = [b'{"a":1}', b"{"]
    with pytest.raises(Exception, match="Malformed records are detected"):
        by_spark(spark, tmp_path / "texts", sample, mode="FAILFAST")
    with pytest.raises(BadData, match="a log: a value of the sample is malformed"):
        typed.infer(sample, "json", "FAILFAST", path="a log")
