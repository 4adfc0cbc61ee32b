"""Merging small files of a lake, without Spark: what is merged, what stays, what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pytest
from pyarrow import parquet

from penstock.errors import Busy, Io, NotFound, Usage, WrongType
from penstock.spark.lake import Compaction, compact
from penstock.spark.lake.book import Book, Journal
from penstock.system import files


def make(lake: Path, sizes: list[int], where: str = "date=1") -> None:
    """A lake with files of so many rows, as if each were of a batch of its own."""
    book = Book(lake)
    book.make()
    files.replace_text(book.journal_path, Journal(("date",), batch=0, rows=1).to_json())
    (lake / where).mkdir(exist_ok=True)
    start = 0
    for n, size in enumerate(sizes):
        table = pa.table({"offset": pa.array(range(start, start + size), pa.int64())})
        parquet.write_table(table, lake / where / f"{n:09d}-0.parquet", compression="zstd")
        start += size


def sizes(lake: Path) -> list[int]:
    """Rows of each file, in the order of names."""
    return [parquet.read_metadata(path).num_rows for path in sorted(lake.rglob("*.parquet"))]


def offsets(lake: Path) -> list[int]:
    """The rows in the order in which they are read."""
    schema = pa.schema({"offset": pa.int64()})
    found: list[int] = pyarrow.dataset.dataset(lake, schema=schema).to_table()["offset"].to_pylist()
    return found


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([10, 10, 10], [30]),
        ([10, 60, 10, 100], [20, 60, 100]),
        ([40, 40, 40], [60, 60]),
        ([49] * 5, [82, 82, 81]),
        ([50, 50], [50, 50]),
        ([10], [10]),
        ([], []),
    ],
)
def test_small_files_are_merged(tmp_path: Path, before: list[int], after: list[int]) -> None:
    """Files of less than half the rows are merged into equal ones; to repeat it changes nothing."""
    lake = tmp_path / "lake"
    make(lake, before)
    done = compact(lake, rows_per_file=100)
    assert sizes(lake) == after
    assert sorted(offsets(lake)) == list(range(sum(before)))
    assert done.files_before == (len(before) if before != after else 0)
    assert compact(lake, rows_per_file=100) == Compaction()
    assert list((tmp_path / "_lake" / "staging").iterdir()) == []


def test_order_and_compression_stay(tmp_path: Path) -> None:
    """Merged rows keep the order of their batches, and the files their codec and mode."""
    lake = tmp_path / "lake"
    make(lake, [10] * 30)
    (lake / "date=1").chmod(0o750)
    compact(lake, rows_per_file=100)
    compact(lake, rows_per_file=1000)
    assert offsets(lake) == list(range(300))
    (path,) = lake.rglob("*.parquet")
    assert parquet.read_metadata(path).row_group(0).column(0).compression == "ZSTD"
    assert (lake / "date=1").stat().st_mode & 0o777 == 0o750


def test_other_files_stay(tmp_path: Path) -> None:
    """What else is in the directory is there afterwards."""
    lake = tmp_path / "lake"
    make(lake, [10, 10])
    (lake / "date=1" / "README").write_text("mine")
    compact(lake)
    assert (lake / "date=1" / "README").read_text() == "mine"
    assert sizes(lake) == [20]


def test_without_partitions(tmp_path: Path) -> None:
    """A lake that is one directory is compacted too."""
    lake = tmp_path / "lake"
    make(lake, [10, 10], where=".")
    compact(lake)
    assert sizes(lake) == [20]


def test_columns_that_came_later(tmp_path: Path) -> None:
    """Files with more columns are merged with those without; with other types they are not."""
    lake = tmp_path / "lake"
    make(lake, [2])
    spark_note = {b"org.apache.spark.sql.parquet.row.metadata": b"{}"}
    more = pa.table({"offset": [2], "colour": ["red"]}).replace_schema_metadata(spark_note)
    parquet.write_table(more, lake / "date=1" / "000000001-0.parquet")
    compact(lake)
    (path,) = lake.rglob("*.parquet")
    table = parquet.ParquetFile(path).read()
    assert table["colour"].to_pylist() == [None, None, "red"]
    assert b"org.apache.spark.sql.parquet.row.metadata" not in (table.schema.metadata or {})
    parquet.write_table(pa.table({"offset": ["three"]}), lake / "date=1" / "000000002-0.parquet")
    with pytest.raises(Usage, match="different types"):
        compact(lake)
    assert sizes(lake) == [3, 1]


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is changed where it cannot be done."""
    lake = tmp_path / "lake"
    with pytest.raises(NotFound, match="no lake"):
        compact(lake)
    make(lake, [1, 1])
    with pytest.raises(Usage, match="must be 2 or more"):
        compact(lake, rows_per_file=1)
    with pytest.raises(WrongType):
        compact(lake, rows_per_file=True)
    with pytest.raises(Usage, match="mounted"):
        compact("s3://bucket/lake")
    monkeypatch.setattr("penstock.spark.lake.compaction.HOLD_TIMEOUT", 0)
    hold = Book(lake).hold("compact", 0)
    with pytest.raises(Busy, match="compacts"):
        compact(lake)
    hold.release()

    def cannot(*_: str) -> None:
        error = Io("no")
        error.errno = 22
        raise error

    monkeypatch.setattr(files, "exchange", cannot)
    with pytest.raises(Io, match="cannot exchange"):
        compact(lake)
    assert sizes(lake) == [1, 1]


def test_exchange(tmp_path: Path) -> None:
    """Two directories change places; one that is not there is an error."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"from-{name}").touch()
    files.exchange(str(tmp_path / "a"), str(tmp_path / "b"))
    assert os.listdir(tmp_path / "a") == ["from-b"]
    with pytest.raises(NotFound):
        files.exchange(str(tmp_path / "a"), str(tmp_path / "c"))
