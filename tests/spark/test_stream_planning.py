"""How far a stream reads next, without a Spark: a reader is made and asked as Spark does."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

import penstock
from penstock import errors
from penstock.spark import lag
from penstock.spark.read import stream
from penstock.spark.read.source import schema
from penstock.spark.read.stream import StreamReader
from tests.support.spark import plain_rows, read_all


@pytest.fixture(autouse=True)
def _look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """New logs are seen at the next call."""
    monkeypatch.setattr(stream, "LOOK_SECONDS", 0.0)


def reading(*paths: Path | str, **options: Any) -> StreamReader:
    """A reader of these logs, from their beginnings."""
    given = {name.lower(): str(value) for name, value in options.items()}
    given.setdefault("startingoffsets", "earliest")
    given["paths"] = json.dumps([str(path) for path in paths])
    return StreamReader(given, schema(given))


def fill(path: Path, count: int, nbytes: int = 10) -> Path:
    """A log with that many events more."""
    with penstock.open(path, segment_size="64KiB") as log:
        for i in range(count):
            log.append(b"%d " % i + bytes(nbytes))
    return path


def batches(reader: StreamReader, start: dict[str, int] | None = None) -> list[int]:
    """Rows of each batch that there would be, until nothing is new."""
    found = []
    start = reader.initialOffset() if start is None else start
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        found.append(len(read_all(reader, reader.partitions(start, end))))
        start = end
    return found


def test_everything_at_once(tmp_path: Path) -> None:
    """Without limits a batch takes all that is there; the next one what came since."""
    path = fill(tmp_path / "log", 1000)
    reader = reading(path)
    start = reader.initialOffset()
    assert start == {str(path): 1}
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == {str(path): 1001}
    rows = read_all(reader, reader.partitions(start, end))
    expected = plain_rows(path)
    assert [r["offset"] for r in rows] == [r["offset"] for r in expected]
    fill(path, 5)
    after = reader.latestOffset(end, ReadAllAvailable())
    assert [r["offset"] for r in read_all(reader, reader.partitions(end, after))] == list(
        range(1001, 1006)
    )
    reader.stop()


@pytest.mark.parametrize(
    ("starting", "first"), [("earliest", 1), ("latest", 101), ('{"log": 40}', 40)]
)
def test_where_it_starts(tmp_path: Path, starting: str, first: int) -> None:
    """At the end unless told otherwise."""
    path = fill(tmp_path / "log", 100)
    assert reading(path, startingOffsets=starting).initialOffset() == {str(path): first}


def test_it_starts_at_the_end_by_default(tmp_path: Path) -> None:
    """As Kafka's streams do."""
    path = fill(tmp_path / "log", 100)
    assert StreamReader({"path": str(path)}, schema({})).initialOffset() == {str(path): 101}


def test_rows_at_a_time(tmp_path: Path) -> None:
    """At most that many, shared out among logs by what each has, all of them in the end."""
    paths = [fill(tmp_path / "0", 1000), fill(tmp_path / "1", 100), fill(tmp_path / "2", 3)]
    reader = reading(*paths, maxOffsetsPerTrigger=250)
    assert reader.getDefaultReadLimit() == ReadMaxRows(250)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(250))
    assert end[str(paths[0])] in (227, 228)
    assert end[str(paths[1])] in (23, 24)
    assert batches(reader) == [250, 250, 250, 250, 103]
    assert batches(reading(*paths, maxOffsetsPerTrigger=1), {str(p): 990 for p in paths[:1]})[
        :3
    ] == [1, 1, 1]


def test_bytes_at_a_time(tmp_path: Path) -> None:
    """About that many by the index, and at least something."""
    paths = [fill(tmp_path / "0", 1500, 200), fill(tmp_path / "1", 300, 200)]
    reader = reading(*paths, maxBytesPerTrigger="60k")
    assert reader.getDefaultReadLimit() == ReadMaxBytes(60 << 10)
    found = batches(reader)
    assert sum(found) == 1800
    assert all(0 < n * 248 < 70_000 for n in found)
    assert len(found) < 15
    assert sum(batches(reading(paths[1], maxBytesPerTrigger=1))) == 300


def test_fewer_than_wanted_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch waits for so many rows, but only so long."""
    path = fill(tmp_path / "log", 100)
    clock = [1000.0]
    monkeypatch.setattr("penstock.spark.read.stream.time.monotonic", lambda: clock[0])
    reader = reading(path, minOffsetsPerTrigger=150, maxTriggerDelay="10s")
    assert reader.getDefaultReadLimit() == ReadMinRows(150)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadMinRows(150)) == start
    fill(path, 60)
    full = reader.latestOffset(start, ReadMinRows(150))
    assert full == {str(path): 161}
    fill(path, 1)
    assert reader.latestOffset(full, ReadMinRows(150)) == full
    clock[0] += 9
    assert reader.latestOffset(full, ReadMinRows(150)) == full
    clock[0] += 2
    assert reader.latestOffset(full, ReadMinRows(150)) == {str(path): 162}


def test_at_least_and_at_most(tmp_path: Path) -> None:
    """Both limits hold at once."""
    path = fill(tmp_path / "log", 1000)
    reader = reading(path, minOffsetsPerTrigger=100, maxOffsetsPerTrigger=300)
    assert batches(reader) == [300, 300, 300, 100]
    fill(path, 50)
    assert batches(reader, {str(path): 1001}) == []


def test_all_available_goes_past_limits(tmp_path: Path) -> None:
    """Trigger.Once wants all there is."""
    path = fill(tmp_path / "log", 100)
    reader = reading(path, maxOffsetsPerTrigger=10)
    assert reader.latestOffset({str(path): 1}, ReadAllAvailable()) == {str(path): 101}


def test_available_now(tmp_path: Path) -> None:
    """What comes after the beginning does not count: neither events nor logs, nor does it wait."""
    path = fill(tmp_path / "0", 100)
    reader = reading(tmp_path / "*", maxOffsetsPerTrigger=30, minOffsetsPerTrigger=30)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    fill(path, 100)
    fill(tmp_path / "1", 100)
    assert batches(reader, start) == [30, 30, 30, 10]
    assert reader.reportLatestOffset() == {str(path): 201, str(tmp_path / "1"): 101}


def test_new_logs(tmp_path: Path) -> None:
    """Logs that come later are read from their beginnings; offsets stay sorted."""
    reader = reading(tmp_path / "*", startingOffsets="latest")
    assert reader.initialOffset() == {}
    fill(tmp_path / "b", 10)
    first = reader.latestOffset({}, ReadAllAvailable())
    assert first == {str(tmp_path / "b"): 11}
    assert len(read_all(reader, reader.partitions({}, first))) == 10
    fill(tmp_path / "a", 5)
    second = reader.latestOffset(first, ReadAllAvailable())
    assert list(second) == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert len(read_all(reader, reader.partitions(first, second))) == 5


def test_a_path_must_be_there(tmp_path: Path) -> None:
    """Only a glob may stand for nothing yet: a misspelt path would wait for ever."""
    with pytest.raises(errors.NotFound, match="there is no log here"):
        reading(tmp_path / "nothing").initialOffset()


@pytest.mark.parametrize("fail", [True, False])
def test_a_log_that_goes(tmp_path: Path, fail: bool) -> None:
    """Obeys failOnDataLoss; the others go on."""
    paths = [fill(tmp_path / "0", 10), fill(tmp_path / "1", 10)]
    reader = reading(tmp_path / "*", failOnDataLoss=str(fail).lower())
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    shutil.rmtree(paths[0])
    fill(paths[1], 5)
    if fail:
        with pytest.raises(errors.Gap, match="is gone"):
            reader.latestOffset(end, ReadAllAvailable())
    else:
        after = reader.latestOffset(end, ReadAllAvailable())
        assert after == {str(paths[0]): 11, str(paths[1]): 16}
        assert len(read_all(reader, reader.partitions(end, after))) == 5
        before = dict.fromkeys(after, 1)
        assert len(read_all(reader, reader.partitions(before, after))) == 15


@pytest.mark.parametrize("count", [5, 20])
def test_a_log_that_is_replaced(tmp_path: Path, count: int) -> None:
    """Is not taken for the one that was read, be it shorter or longer."""
    path = fill(tmp_path / "log", 10)
    reader = reading(path)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    os.rename(path, tmp_path / "aside")
    fill(path, count)
    with pytest.raises(errors.Gap, match="was replaced"):
        reader.latestOffset(end, ReadAllAvailable())


def test_a_checkpoint_ahead_of_the_log(tmp_path: Path) -> None:
    """A position beyond the end of a log is data loss, also after a restart."""
    path = fill(tmp_path / "log", 10)
    with pytest.raises(errors.Gap, match="fewer events"):
        reading(path).latestOffset({str(path): 50}, ReadAllAvailable())
    lenient = reading(path, failOnDataLoss="false")
    assert lenient.latestOffset({str(path): 50}, ReadAllAvailable()) == {str(path): 50}


def test_events_that_retention_removed(tmp_path: Path) -> None:
    """A batch whose beginning is gone obeys failOnDataLoss."""
    path = fill(tmp_path / "log", 3000)
    files = sorted(path.glob("*.seg"))
    os.unlink(files[0])
    first = int(files[1].name[:20])
    with pytest.raises(errors.Gap, match="failOnDataLoss=false"):
        reading(path).partitions({str(path): 1}, {str(path): 3001})
    lenient = reading(path, failOnDataLoss="false", columns="offset")
    rows = read_all(lenient, lenient.partitions({str(path): 1}, {str(path): 3001}))
    assert [r["offset"] for r in rows] == list(range(first, 3001))


def test_durable_only(tmp_path: Path) -> None:
    """What is not on disk yet is not there yet."""
    with penstock.open(tmp_path / "log") as log:
        log.append(b"a")
        log.sync()
        log.append(b"b")
        reader = reading(tmp_path / "log", durable="true")
        end = reader.latestOffset({str(tmp_path / "log"): 1}, ReadAllAvailable())
        assert end == {str(tmp_path / "log"): 2}
        log.sync()
        assert reader.latestOffset(end, ReadAllAvailable()) == {str(tmp_path / "log"): 3}


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"endingOffsets": "latest"}, "a stream has no end"),
        ({"endingTimestamp": "5"}, "a stream has no end"),
        ({"maxOffsetsPerTrigger": "0"}, "must be 1 or more, got 0"),
        ({"maxBytesPerTrigger": "much"}, "number of bytes"),
        ({"maxTriggerDelay": "5m"}, "minOffsetsPerTrigger"),
        (
            {"minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"},
            "must be a duration",
        ),
        (
            {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            "at most maxOffsets",
        ),
    ],
)
def test_refused(tmp_path: Path, options: dict[str, Any], what: str) -> None:
    """What cannot be meant is refused, and the reason is given."""
    with pytest.raises(errors.Usage, match=what):
        reading(fill(tmp_path / "log", 1), **options)


def test_logs_stay_open_and_are_closed(tmp_path: Path) -> None:
    """Asking again opens nothing; stopping leaves nothing open."""

    def open_here() -> int:
        names = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        return sum(os.readlink(n).startswith(str(tmp_path)) for n in names if os.path.islink(n))

    path = fill(tmp_path / "log", 10)
    reader = reading(path)
    start = reader.initialOffset()
    held = open_here()
    for _ in range(20):
        reader.latestOffset(start, ReadAllAvailable())
    assert open_here() == held > 0
    reader.stop()
    assert open_here() == 0


def test_lag() -> None:
    """Events yet to be read, by log; sources of other kinds count nothing."""
    ours = {"endOffset": '{"/a": 5}', "latestOffset": '{"/a": 9, "/b": 4}'}
    rate = {"endOffset": 5, "latestOffset": 9}
    files = {"endOffset": {"logOffset": 3}, "latestOffset": {"logOffset": 5}}
    none = {"endOffset": None, "latestOffset": None}
    assert lag({"sources": [ours, rate, files, none]}) == {"/a": 4, "/b": 3}
