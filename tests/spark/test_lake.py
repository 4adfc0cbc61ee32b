"""Logs into a lake: each event once, whatever dies, as any tool reads it."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset
import pytest

import penstock
from penstock.errors import Busy, Corrupt, Io, NotFound, Usage, WrongType
from penstock.spark import lake
from penstock.spark.lake import __main__ as command
from penstock.spark.lake.book import Book
from penstock.system import files
from tests.support.fixtures import STORM
from tests.support.spark import QUICK_JAVA
from tests.support.wait import wait_for
from tests.support.workers import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST_NS = 1_700_000_000_000_000_000  # 2023-11-14T22:13:20Z
MINUTE_NS = 60_000_000_000
SCHEMA = "user string, total double"
BAD = {
    b"{oops": "not JSON",
    b'{"user": "u"} and more': "not JSON",
    b'{"user": "u"}{"user": "v"}': "not JSON",
    b'{"user": "u"}}': "not JSON",
    b'{"user": "u"}, "w": {}': "not JSON",
    b'{"user": "u"}, {}': "not JSON",
    b'{"user": "u"}], [1': "not JSON",
    b"": "not a JSON object",
    b"null": "not a JSON object",
    b'["user"]': "not a JSON object",
    b'{"total": "much"}': "a field does not fit the schema",
    b'{"user": "\xff"}': "not UTF-8",
    None: "there is no value",
}


def fill(path: Path, events: int, *, bad_every: int = 0) -> None:
    """Append events of which each is another, a minute apart; some of them bad."""
    values = list(BAD)
    with penstock.open(path, segment_size="64KiB") as log:
        start = log.last_seq
        entries = []
        for n in range(start, start + events):
            value: bytes | None = json.dumps({"user": f"u{n % 7}", "total": n / 2}).encode()
            if bad_every and n % bad_every == 0:
                value = values[n // bad_every % len(values)]
            key = b"k%d" % n if n % 3 or value is None else None
            when = FIRST_NS + n * MINUTE_NS
            entries.append(penstock.Entry(value, key=key, topic=f"t{n % 2}", time=when))
        for at in range(0, events, 100):
            log.extend(entries[at : at + 100])


def expected(*logs: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """What the logs hold, by log and offset, read with Penstock alone."""
    found = {}
    for path in logs:
        with penstock.open(path, mode="r") as log:
            for event in log:
                when = datetime.fromtimestamp(event.time_ns // 10**9, UTC)
                found[str(path), event.seq] = {
                    "timestamp": when,
                    "topic": event.topic,
                    "key": event.key,
                    "value": event.value,
                    "date": when.date().isoformat(),
                }
    return found


def rows(target: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """The rows of a lake by log and offset, read with pyarrow alone; each must be there once."""
    table = read(target)
    found = {(row.pop("log"), row.pop("offset")): row for row in table.to_pylist()}
    assert len(found) == table.num_rows, "an event is there twice"
    return found


def read(path: Path) -> pa.Table:
    """A directory of Parquet files."""
    return pyarrow.dataset.dataset(path, format="parquet", partitioning="hive").to_table()


def book_of(target: Path) -> Path:
    """The lake's book."""
    return target.parent / f"_{target.name}"


def parquet_names(path: Path) -> list[str]:
    """Names of the Parquet files below a directory."""
    return sorted(str(found.relative_to(path)) for found in path.rglob("*.parquet"))


def assert_same(target: Path, *logs: Path) -> None:
    """The lake, which has values as they are, holds what the logs hold, and staging is empty."""
    assert rows(target) == expected(*logs)
    assert list((book_of(target) / "staging").iterdir()) == []


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    """Two logs with 4000 events in all."""
    paths = [tmp_path / "logs" / "0", tmp_path / "logs" / "1"]
    for path in paths:
        fill(path, 2000)
    return paths


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Where a lake will be."""
    return tmp_path / "lake" / "events"


def test_events_become_rows(spark: SparkSession, logs: list[Path], target: Path) -> None:
    """Every event is one row with all its columns, for pyarrow, polars, DuckDB and pandas."""
    import duckdb
    import pandas as pd
    import polars as pl

    seen: list[lake.Batch] = []
    done = lake.run(spark, logs, target, rows_per_batch=1500, progress=seen.append)
    assert_same(target, *logs)
    assert (done.rows, done.bad_rows, done.rows_total) == (4000, 0, 4000)
    assert done.files == len(parquet_names(target)) == sum(batch.files for batch in seen)
    assert [batch.rows for batch in seen if batch.rows] == [1500, 1500, 1000]

    days = {"2023-11-14": 214, "2023-11-15": 2880, "2023-11-16": 906}
    polars = pl.scan_parquet(target, hive_partitioning=True).group_by("date").len().collect()
    assert {str(day): count for day, count in polars.iter_rows()} == days
    query = f"select date, count(*) from '{target}/**/*.parquet' group by all"
    found = duckdb.execute(query).fetchall()
    assert {str(day): count for day, count in found} == days
    frame = pd.read_parquet(target)
    assert {str(day): count for day, count in frame["date"].value_counts().items()} == days

    again = lake.run(spark, logs, target)
    assert (again.rows, again.rows_total) == (0, 4000)
    fill(logs[1], 10)
    more = lake.run(spark, logs, target)
    assert (more.rows, more.rows_total) == (10, 4010)
    assert_same(target, *logs)


def test_fields_and_bad_records(spark: SparkSession, tmp_path: Path, target: Path) -> None:
    """With a schema, what parses is a row and what does not is put aside; they add up."""
    log = tmp_path / "log"
    fill(log, 1000, bad_every=10)
    held = expected(log)
    bad = tmp_path / "aside"
    done = lake.run(
        spark,
        log,
        target,
        schema=SCHEMA,
        keep={"log": "log", "offset": "offset", "timestamp": "at", "topic": "kind"},
        partition_by=("kind", "hour"),
        bad=bad,
        rows_per_batch=400,
    )
    assert (done.rows, done.bad_rows) == (900, 100)
    found = rows(target)
    aside = {(row["log"], row["offset"]): row for row in read(bad).to_pylist()}
    assert len(aside) == 100
    assert found.keys() | aside.keys() == held.keys()
    assert not found.keys() & aside.keys()
    for at, row in found.items():
        value = json.loads(held[at]["value"])
        when = held[at]["timestamp"]
        kind = held[at]["topic"]
        assert row == {**value, "at": when, "kind": kind, "hour": when.hour}
    for at, row in aside.items():
        assert row["value"] == held[at]["value"]
        assert row["timestamp"] == held[at]["timestamp"]
        assert row["reason"] == BAD[row["value"]], row


def test_a_batch_comes_again(
    spark: SparkSession, logs: list[Path], target: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch that was published and that Spark does not know to be done is not published again."""
    lake.run(spark, logs, target, rows_per_batch=1500)
    before = parquet_names(target)
    commits = book_of(target) / "checkpoint" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for name in (str(last), f".{last}.crc"):
        (commits / name).unlink(missing_ok=True)
    fill(logs[0], 5)
    with caplog.at_level(logging.INFO, "penstock.lake"):
        assert lake.run(spark, logs, target, rows_per_batch=1500).rows == 5
    assert re.search(r"has batch \d+ already", caplog.text)
    assert_same(target, *logs)
    assert set(before) < set(parquet_names(target))


def test_failures_while_publishing(
    spark: SparkSession, logs: list[Path], target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that could not be published whole is so by the next run, whatever failed."""
    real = {name: getattr(files, name) for name in ("rename", "replace_text")}
    for name, nth in (("rename", 2), ("replace_text", 1)):
        calls = 0

        def fails(*arguments: str, name: str = name, nth: int = nth) -> None:
            nonlocal calls
            calls += 1
            if calls == nth:
                raise Io(f"{arguments[0]}: no, says the test")
            real[name](*arguments)

        monkeypatch.setattr(files, name, fails)
        with pytest.raises(Io, match="says the test"):
            lake.run(spark, logs, target, rows_per_batch=1500)
        monkeypatch.undo()
    lake.run(spark, logs, target, rows_per_batch=1500)
    assert_same(target, *logs)


def test_the_checkpoint_may_be_lost(spark: SparkSession, logs: list[Path], target: Path) -> None:
    """Without its checkpoint the lake goes on where its journal says, and finds new logs."""
    lake.run(spark, logs[0].parent, target, rows_per_batch=1500)
    shutil.rmtree(book_of(target) / "checkpoint")
    fill(logs[0], 20)
    new = logs[0].parent / "2"
    fill(new, 30)
    assert lake.run(spark, logs[0].parent, target).rows == 50
    assert_same(target, *logs, new)


def test_beside_a_stream(spark: SparkSession, logs: list[Path], target: Path) -> None:
    """Logs that come later are found; compaction and reading go on beside the stream."""
    query = lake.start(spark, logs[0].parent, target, rows_per_batch=1000, name="beside")
    try:
        journal = Book(target).journal
        wait_for(lambda: (now := journal()) and now.rows >= 1000, "the first rows")
        with pytest.raises(Busy, match="fills"):
            Book(target).hold("stream", 0)
        lake.compact(target)
        new = logs[0].parent / "2"
        fill(new, 100)
        wait_for(lambda: (now := journal()) and now.rows >= 3000, "more rows")
        lake.compact(target)
        wait_for(lambda: (now := journal()) and now.rows == 4100, "the rows of the new log")
        query.processAllAvailable()  # files come in after the journal that decides on them
        before = len(parquet_names(target))
        done = lake.compact(target)
        assert before - done.files_before + done.files_after == len(parquet_names(target)) == 3
        assert lake.compact(target) == lake.Compaction()
    finally:
        query.stop()
    assert_same(target, *logs, new)
    fill(new, 10)
    assert lake.run(spark, logs[0].parent, target).rows == 10  # the lock was let go
    assert_same(target, *logs, new)


def lives(moments: list[str], logs: Path, target: Path) -> Iterator[subprocess.Popen[str]]:
    """Run the command again and again, each time to die at another moment."""
    for moment in moments:
        words = [sys.executable, "-m", "tests.support.driver", moment, str(logs), str(target)]
        words += ["--rows-per-batch", "500", "--partition-by", "date,topic"]
        scratch = target.parent.parent / "scratch"
        scratch.mkdir(exist_ok=True)
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "TMPDIR": str(scratch)}
        environment["SPARK_LOCAL_DIRS"] = str(scratch)
        environment["PYSPARK_SUBMIT_ARGS"] = (
            "--master local[2] --conf spark.ui.enabled=false --conf spark.driver.host=127.0.0.1 "
            f"--driver-java-options '{QUICK_JAVA}' pyspark-shell"
        )
        process = subprocess.Popen(
            words,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        yield process
        process.kill()
        process.communicate()


@pytest.mark.crash
@pytest.mark.process
def test_killed_drivers(spark: SparkSession, logs: list[Path], target: Path) -> None:
    """The driver dies before, in the middle of and after publishing; each event is there once."""
    moments = ["staged", "half", "published"] if STORM else ["half"]
    held = expected(*logs)
    for process in lives(moments, logs[0].parent, target):
        out, err = process.communicate()
        assert process.returncode == -signal.SIGKILL, out + err
        there = rows(target)
        assert all(held[at] == row for at, row in there.items())
    done = lake.run(spark, logs[0].parent, target, partition_by=("date", "topic"))
    assert 0 < done.rows < 4000
    assert rows(target) == expected(*logs)
    assert list((book_of(target) / "staging").iterdir()) == []


@pytest.mark.crash
@pytest.mark.process
@pytest.mark.skipif(not STORM, reason="takes minutes; PENSTOCK_STORM=1")
def test_drivers_killed_at_random(spark: SparkSession, tmp_path: Path, target: Path) -> None:
    """Drivers that are killed at any moment, over and over, lose nothing and repeat nothing."""
    paths = [tmp_path / "logs" / "0", tmp_path / "logs" / "1"]
    for path in paths:
        fill(path, 6000)
    held = expected(*paths)
    chance = random.Random(20_261_116)
    for process in lives(["never"] * 12, tmp_path / "logs", target):
        wait_until_staging(process, target)
        time.sleep(chance.random() * 3)
        process.kill()
        process.communicate()
        assert all(held[at] == row for at, row in rows(target).items())
    lake.run(spark, tmp_path / "logs", target, partition_by=("date", "topic"))
    assert rows(target) == held


def wait_until_staging(process: subprocess.Popen[str], target: Path) -> None:
    """Wait for a driver to stage a batch, or to end."""
    staging = book_of(target) / "staging"
    wait_for(lambda: [*staging.glob("batch-*")] or process.poll() is not None, "a batch", 120)


@pytest.mark.process
def test_killed_workers(spark: SparkSession, logs: list[Path], target: Path) -> None:
    """Spark's own workers are killed in the middle of a batch; the next run has each event once."""
    killed = 0

    def kill(batch: lake.Batch) -> None:
        nonlocal killed
        if batch.rows and not killed:
            killed += kill_workers()

    for _ in range(5):
        try:
            lake.run(spark, logs, target, rows_per_batch=700, progress=kill)
            break
        except Exception as error:
            assert "penstock.errors" not in str(error), error
    assert killed
    assert_same(target, *logs)


def kill_workers() -> int:
    """Kill the Python processes of this process's Spark; returns how many there were."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    count = 0
    ancestors = {gateway.proc.pid}
    for _ in range(3):
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) not in ancestors and _parent(int(name)) in ancestors:
                ancestors.add(int(name))
    for pid in ancestors - {gateway.proc.pid}:
        command_line = _command(pid)
        if "pyspark" in command_line and "java" not in command_line.split("\0")[0]:
            os.kill(pid, signal.SIGKILL)
            count += 1
    return count


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"partition_by": ("colour",)}, "must name columns of the lake .*got 'colour'"),
        ({"partition_by": ("date", "DATE")}, "twice"),
        ({"keep": {"log": "_log", "offset": "o"}, "partition_by": ("_log",)}, "without '_'"),
        ({"keep": ("log", "timestamp")}, "must have 'offset'"),
        ({"keep": ("log", "offset", "size")}, "must name columns of the event .*got 'size'"),
        ({"schema": "offset int"}, "would have the name 'offset'"),
        ({"schema": "a b c d"}, "such as 'name string, total double'"),
        ({"schema": 3}, "schema must be DDL text"),
        ({"partition_by": "date"}, "partition_by must be a list of names, got str"),
        ({"rows_per_batch": 0}, "must be 1 or more"),
        ({"rows_per_file": "9"}, "whole number"),
        ({"options": {"codec": "json"}}, "is set by the lake"),
        ({"bad": "s3://bucket/bad"}, "mounted"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_usage(
    spark: SparkSession, tmp_path: Path, target: Path, settings: dict[str, Any], message: str
) -> None:
    """What cannot be right is refused before anything is made, with what to do."""
    with pytest.raises(Usage, match=message):
        lake.run(spark, tmp_path / "log", target, **settings)
    assert not target.parent.exists()


def test_what_is_there_is_respected(spark: SparkSession, tmp_path: Path, target: Path) -> None:
    """Another's rows, another way to partition, and another's checkpoint are refused."""
    log = tmp_path / "log"
    fill(log, 10)
    with pytest.raises(WrongType, match="SparkSession"):
        lake.run("spark", log, target)  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="there is no lake"):
        lake.compact(target)
    with pytest.raises(NotFound, match="there is no log"):
        lake.run(spark, tmp_path / "nolog", target)
    assert not target.exists()
    lake.run(spark, log, target)
    with pytest.raises(Usage, match="partitioned by date"):
        lake.run(spark, log, target, partition_by=("hour",))
    other = target.parent / "other"
    lake.run(spark, log, other)
    fill(log, 10)
    with pytest.raises(Corrupt, match="is the checkpoint of the query"):
        lake.run(spark, log, other, checkpoint=book_of(target) / "checkpoint")
    shutil.rmtree(book_of(other))
    with pytest.raises(Usage, match="rows already"):
        lake.run(spark, log, other)
    shutil.rmtree(target)
    with pytest.raises(Usage, match="rows are gone"):
        lake.run(spark, log, target)
    (book_of(target) / "journal.json").write_text("{}")
    with pytest.raises(Corrupt, match=r"journal\.json"):
        lake.run(spark, log, target)


def test_command_line(
    spark: SparkSession,
    logs: list[Path],
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command fills a lake, says how far it is, compacts, and has exit codes of its errors."""
    monkeypatch.setattr(command, "session", lambda: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    words = [str(logs[0].parent), str(target), "--schema", SCHEMA, "--partition-by", "date,user"]
    words += ["--keep", "log,offset,timestamp:at", "--rows-per-batch", "2500"]
    assert command.main([*words, "--compact", "--option", "failOnDataLoss=false"]) == 0
    out = capsys.readouterr().out
    assert "4,000 rows; 0 bad records" in out
    assert "compacted" in out
    assert len(rows(target)) == 4000
    assert read(target).schema.names == ["log", "offset", "at", "total", "date", "user"]
    assert command.main(["--compact", str(target)]) == 0
    assert "nothing to compact" in capsys.readouterr().out
    assert command.main([str(logs[0]), str(target), "--partition-by", "hour"]) == 2
    assert "partitioned by" in capsys.readouterr().err
    for wrong in ([str(target)], [*words, "--every", "1 second"], []):
        with pytest.raises(SystemExit):
            command.main(wrong)
