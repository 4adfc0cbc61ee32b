"""A scan gives the same events as reading them one by one, as columns, whoever takes them over."""

from __future__ import annotations

import datetime as dt
import gc
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import Entry, errors
from penstock import layout as L
from penstock.data import scan
from penstock.segments import writing as segmented
from penstock.segments.check.examine import look
from penstock.steward import ahead
from penstock.system.parallel import in_order
from penstock.times import Ns
from tests.support.mapped import mapped_bytes
from tests.support.wait import wait_for
from tests.unit import broken, oracle

HEADERS = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field("key", pa.string(), False), pa.field("value", pa.binary())]),
        False,
    )
)
SCHEMA = pa.schema(
    [
        pa.field("seq", pa.int64(), False),
        pa.field("time", pa.timestamp("ns", "UTC"), False),
        pa.field("append_time", pa.timestamp("ns", "UTC"), False),
        pa.field("topic", pa.string(), False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS, False),
    ]
)


def expected(events: Any) -> pa.Table:
    """The table that one event after the other makes."""
    rows = [
        {
            "seq": e.seq,
            "time": e.time_ns,
            "append_time": e.append_ns,
            "topic": e.topic,
            "key": e.key,
            "value": e.value,
            "headers": [{"key": k, "value": v} for k, v in e.headers],
        }
        for e in events
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def scanned(log: penstock.Log, *args: Any, **options: Any) -> pa.Table:
    """A scan of all columns, checked in every way that Arrow knows."""
    table = log.scan(*args, columns=SCHEMA.names, **options).to_arrow()
    table.validate(full=True)
    assert table.schema == SCHEMA
    return table


entries = st.builds(
    lambda value, key, topic, headers, time: Entry(
        b"" if value is None and key is None else value, key, topic, headers, time
    ),
    st.none() | st.binary(max_size=300),
    st.none() | st.binary(max_size=40),
    st.none() | st.text(max_size=20),
    st.none() | st.lists(st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=20))),
    st.none() | st.integers(0, (1 << 63) - 1).map(Ns),
)


@settings(deadline=None, max_examples=60)
@given(
    batches=st.lists(st.lists(entries, min_size=1, max_size=30), max_size=12),
    rows=st.integers(1, 40),
    rolls=st.sets(st.integers(0, 11)),
    data=st.data(),
)
def test_equals_reading_one_by_one(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[Entry]],
    rows: int,
    rolls: set[int],
    data: st.DataObject,
) -> None:
    """Whatever the events, however they lie in segments, and whichever are asked for."""
    path = tmp_path_factory.mktemp("scan") / "log"
    with penstock.open(path, segment_size="64KiB") as log:
        for i, batch in enumerate(batches):
            log.extend(batch)
            if i in rolls:
                log.steward.roll()
        assert scanned(log, batch_rows=rows).equals(expected(log))
        events = list(log)
        bound = st.none() | st.integers(0, len(events) + 2)
        times = st.none() | st.sampled_from([Ns(e.time_ns) for e in events] or [Ns(0)])
        which: dict[str, Any] = {
            "start": data.draw(bound),
            "stop": data.draw(bound),
            "since": data.draw(times),
            "until": data.draw(times),
            "topic": data.draw(
                st.none()
                | st.sampled_from([e.topic for e in events] or ["x"])
                | st.lists(st.sampled_from([*(e.topic for e in events), "x"]), min_size=1)
            ),
            "limit": data.draw(st.none() | st.integers(0, len(events) + 1)),
            "key": data.draw(st.none() | st.sampled_from([e.key for e in events] or [b"x"])),
        }
        assert scanned(log, batch_rows=rows, **which).equals(expected(log.read(**which)))
        together = pa.table(log.scan(batch_rows=rows, columns=SCHEMA.names))
        assert together.equals(expected(events))


@pytest.fixture
def log(path: Path) -> Any:
    """A log over several segments with all that events can have."""
    with penstock.open(path, segment_size="64KiB") as log:
        for i in range(2000):
            log.append(
                (b"v%d" % i) * (i % 9) if i % 11 else None,
                key=b"k%d" % i if i % 11 == 0 or i % 3 else (b"" if i % 2 else None),
                topic=["", "plain", "über", "日本"][i % 4],
                headers=[("a", b"1"), ("a", None), ("ß", b"")][: i % 4],
                time=40_000 * i if i % 5 else None,
            )
        yield log


def test_every_column_in_any_order(log: penstock.Log) -> None:
    """Columns come as asked for; none at all still counts rows."""
    whole = expected(log)
    for names in (["value"], ["headers", "seq"], ["time", "topic", "append_time"], []):
        table = log.scan(columns=names).to_arrow()
        assert table.column_names == names and table.num_rows == 2000
        assert table.equals(whole.select(names))
    assert log.scan().to_arrow().column_names == [n for n in SCHEMA.names if n != "append_time"]


@pytest.mark.parametrize("seqs", [1, 7, 300, 1999, 2000])
def test_parts_by_several_threads(
    log: penstock.Log, seqs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However a table is shared out among threads, its rows are all there and in order."""
    monkeypatch.setattr(scan, "PART_SEQS", seqs)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4))
    assert scanned(log).equals(expected(log))
    assert scanned(log, 100, 1500, key=b"k77").equals(expected(log.read(100, 1500, key=b"k77")))
    hurt = oracle.read_log(Path(log.path))[1]
    broken.flip(hurt.path, hurt.events[3].at + L.FRAME_SEQ, 0)
    with pytest.raises(errors.Corrupt):
        log.scan().to_arrow()
    run = log.scan(on_damage="skip")
    assert run.to_arrow().num_rows == 1999 and run.skipped == 1


def test_tags(path: Path) -> None:
    """Events that have all the tags asked for, and no others."""
    tags = [["a"], ["a", "b"], [], ["b"], ["b", "a", "c"]]
    with penstock.open(path) as log:
        for own in tags:
            log.append(b"v", tags=own, headers={"penstock": b"a"})
        for asked in (["a"], ["b", "a"], ["c"], ["none"], []):
            found = log.scan(tags=asked, columns=["seq"]).to_arrow()["seq"].to_pylist()
            assert found == [i for i, own in enumerate(tags, 1) if set(asked) <= set(own)]
        with pytest.raises(errors.WrongType, match="tags must be a list"):
            log.scan(tags="a")


def test_microseconds(log: penstock.Log) -> None:
    """time_unit="us" rounds down to what Spark and Python hold."""
    table = log.scan(columns=["time", "append_time"], time_unit="us").to_arrow()
    assert table.schema.field("time").type == pa.timestamp("us", "UTC")
    assert table["time"].to_pylist() == [e.time for e in log]
    assert table["append_time"].cast(pa.int64()).to_pylist() == [e.append_ns // 1000 for e in log]


def test_times_beyond_63_bits(path: Path) -> None:
    """A time after 2262 does not fit nanoseconds: an error that says so, and microseconds do."""
    far = Ns((1 << 63) + 5)  # refused today; an older release took it
    with penstock.open(path) as log:
        log.extend([Entry(b"a"), Entry(b"b", time=1)])
    (segment,) = oracle.read_log(path)
    frame = segment.frames[1]
    broken.put(
        segment.path, frame.at + 40, far.to_bytes(8, "little")
    )  # as older versions stored it
    broken.resum(segment.path, frame.at)
    with penstock.open(path) as log:
        with pytest.raises(errors.Usage, match=r"seq 2 has a time after 2262.*time_unit='us'"):
            log.scan().to_arrow()
        assert log.scan(columns=["value"]).to_arrow().num_rows == 2
        times = log.scan(columns=["time"], time_unit="us").to_arrow()["time"]
        assert times.cast(pa.int64())[1].as_py() == far // 1000


def test_to_batches(log: penstock.Log) -> None:
    """Batches are as long as asked for, and together they are the table."""
    batches = list(log.scan(batch_rows=300).to_batches())
    assert [b.num_rows for b in batches] == [300] * 6 + [200]
    assert pa.Table.from_batches(batches).equals(log.scan().to_arrow())


def test_batches_are_bounded_in_bytes_too(path: Path) -> None:
    """Long values end a batch before its rows do; one that is longer than the bound is alone."""
    with penstock.open(path) as log:
        for _ in range(9):
            log.append(bytes(5 << 19))
        log.append(bytes(20 << 20))
        log.append(b"")
        assert [b.num_rows for b in log.scan().to_batches()] == [3, 3, 3, 1, 1]
        assert log.scan().to_arrow().num_rows == 11


def test_whoever_speaks_arrow(log: penstock.Log) -> None:
    """pyarrow, polars, pandas and DuckDB take a scan as it is, and give the same rows."""
    whole = log.scan().to_arrow()
    assert pa.table(log.scan()).equals(whole)
    assert pa.RecordBatchReader.from_stream(log.scan()).read_all().equals(whole)
    frame = pl.DataFrame(log.scan())
    assert frame.shape == (2000, 6) and frame["value"].to_list() == whole["value"].to_pylist()
    assert pl.from_arrow(log.scan()).struct.unnest().equals(frame)  # type: ignore[union-attr]
    assert log.scan().to_polars().equals(frame)
    assert frame["headers"].to_list() == whole["headers"].to_pylist()
    pandas = log.scan().to_pandas()
    assert list(pandas["key"]) == whole["key"].to_pylist()
    assert pandas["time"].dt.tz is not None
    assert pandas["time"].astype("int64").tolist() == [e.time_ns for e in log]
    everything = log.scan()  # DuckDB finds the variable by its name
    sql = "select topic, count(*), sum(octet_length(value)) from everything group by 1 order by 1"
    found = duckdb.execute(sql).fetchall()
    topics = sorted({e.topic for e in log})
    assert everything is not None and found == [
        (t, sum(e.topic == t for e in log), sum(len(e.value or b"") for e in log if e.topic == t))
        for t in topics
    ]
    assert isinstance(pandas, pd.DataFrame)


def test_a_scan_can_be_run_again(log: penstock.Log) -> None:
    """It reads when asked, not when made, and the log as it then stands."""
    scan = log.scan(columns=["seq"])
    assert scan.to_arrow().num_rows == 2000
    log.append(b"more")
    assert scan.to_arrow().num_rows == 2001
    assert scan.schema.names == ["seq"] and "penstock.Scan" in repr(scan)


def test_only_durable_events(path: Path) -> None:
    """durable=True leaves out what is not on disk yet."""
    with penstock.open(path) as log:
        log.append(b"a", durable=True)
        log.append(b"b")
        assert log.scan(durable=True).to_arrow().num_rows == 1
        log.sync()
        assert log.scan(durable=True).to_arrow().num_rows == 2


def test_arrays_outlive_the_log(path: Path) -> None:
    """What was scanned is a copy: closing the log and deleting it leaves it whole."""
    log = penstock.open(path)
    log.extend([b"%d" % i for i in range(1000)])
    batch = next(log.scan(columns=["value"]).to_batches())
    log.close()
    for file in path.iterdir():
        file.unlink()
    del log
    gc.collect()
    assert batch.column(0).to_pylist() == [b"%d" % i for i in range(1000)]


def test_a_closed_log(path: Path) -> None:
    """A scan of a closed log says so."""
    log = penstock.open(path)
    log.append(b"a")
    scan = log.scan()
    batches = log.scan().to_batches()
    log.close()
    for take in (scan.to_arrow, lambda: next(batches), log.scan):
        with pytest.raises(errors.Closed):
            take()


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"columns": "seq"}, errors.WrongType, "list of names"),
        (
            {"columns": ["seq", "nope"]},
            errors.Usage,
            "a column must be one of seq, time, .*, got 'nope'",
        ),
        ({"columns": ["seq", "seq"]}, errors.Usage, "column 'seq' is named twice"),
        ({"columns": [3]}, errors.WrongType, "list of names, got int"),
        ({"columns": 3}, errors.WrongType, "list of names, got int"),
        ({"batch_rows": 0}, errors.Usage, "batch_rows must be from 1"),
        ({"batch_rows": "9"}, errors.WrongType, "batch_rows must be a whole number"),
        ({"time_unit": "ms"}, errors.Usage, "'ns' or 'us'"),
        ({"on_damage": "ignore"}, errors.Usage, "'raise' or 'skip'"),
        ({"topic": b"t"}, errors.WrongType, "topic must be str or a list of str, got bytes"),
        ({"topic": 3}, errors.WrongType, "topic must be str or a list of str, got int"),
        ({"topic": ["t", b"t"]}, errors.WrongType, "list of str, got bytes in it"),
        ({"topic": []}, errors.Usage, "at least one topic, got an empty list"),
        ({"topic": ["t", "\udc80"]}, errors.Usage, "must be text that UTF-8 can encode"),
        ({"topic": ["t", "t" * 70000]}, errors.TooLarge, "must be at most 1024 bytes, got 70000"),
        ({"limit": -1}, errors.Usage, "limit"),
        ({"limit": "3"}, errors.WrongType, "limit"),
        ({"key": "k"}, errors.WrongType, "key must be bytes"),
        ({"since": "soon"}, errors.Usage, "ISO 8601"),
        ({"start": "1"}, errors.WrongType, "start must be a seq"),
    ],
)
def test_wrong_arguments(
    path: Path, options: dict[str, Any], kind: type[Exception], words: str
) -> None:
    """They are refused when the scan is made, not when it is run."""
    with penstock.open(path) as log, pytest.raises(kind, match=words):
        log.scan(**options)


def test_damage_is_an_error_or_is_counted(path: Path) -> None:
    """A flipped bit raises Corrupt with its place; told to skip, it costs that event alone."""
    with penstock.open(path, segment_size="64KiB") as log:
        for i in range(1500):
            log.append(b"%0100d" % i, topic="t")
    frames = [(s.path, f) for s in oracle.read_log(path) for f in s.events]
    hurt = [frames[i] for i in (0, 70, 71, 700, 1499)]
    for file, frame in hurt:
        broken.flip(file, frame.at + L.FRAME_HEADER_BYTES + 30, 3)
    with penstock.open(path, mode="r") as log:
        with pytest.raises(errors.Corrupt) as caught:
            log.scan().to_arrow()
        assert caught.value.offset == hurt[0][1].at
        with pytest.raises(OSError, match="Corrupt"):
            pa.table(log.scan())
        scan = log.scan(on_damage="skip")
        table = scan.to_arrow()
        lost = {f.seq for _, f in hurt}
        assert table["seq"].to_pylist() == [s for s in range(1, 1501) if s not in lost]
        assert scan.skipped == 5
        assert table.equals(expected(log.read(on_damage="skip")).select(table.column_names))


def test_text_that_is_none(path: Path) -> None:
    """A topic that is not UTF-8, under a right checksum, is damage and not a bad string."""
    with penstock.open(path) as log:
        for topic in ("fine", "topic", "fine"):
            log.append(b"v", topic=topic, headers={"name": b"x"})
    (seg,) = oracle.read_log(path)
    frame = seg.events[1].at
    at = frame + L.FRAME_HEADER_BYTES
    broken.put(seg.path, at, b"\xff")
    broken.resum(seg.path, frame)
    with penstock.open(path, mode="r") as log:
        with pytest.raises(errors.Corrupt, match=r"seq 2 .*not text"):
            log.scan(columns=["topic"]).to_arrow()
        assert log.scan(columns=["value"]).to_arrow().num_rows == 3
        scan = log.scan(on_damage="skip")
        assert scan.to_arrow()["seq"].to_pylist() == [1, 3] and scan.skipped == 1
    broken.put(seg.path, at, b"t")
    broken.put(seg.path, at + 5 + 4, b"\xff")
    broken.resum(seg.path, frame)
    with penstock.open(path, mode="r") as log, pytest.raises(errors.Corrupt, match="headers"):
        log.scan().to_arrow()


def test_beside_writers_that_roll(path: Path) -> None:
    """While others append and roll, each scan is a prefix of the log without a hole."""
    with penstock.open(path, segment_size="64KiB") as log:
        stop = threading.Event()

        def write(name: bytes) -> None:
            i = 0
            while not stop.is_set():
                log.extend([name + b"%d" % (i + k) for k in range(50)])
                i += 50

        writers = [threading.Thread(target=write, args=(n,)) for n in (b"a", b"b")]
        for writer in writers:
            writer.start()
        try:
            with penstock.open(path, mode="r") as other:
                seen = 0
                while seen < 20_000:
                    for reader in (log, other):
                        table = reader.scan(columns=["seq", "value"]).to_arrow()
                        assert table["seq"].to_pylist() == list(range(1, table.num_rows + 1))
                        assert table.num_rows >= seen and table.num_rows % 50 == 0
                        seen = table.num_rows
        finally:
            stop.set()
            for writer in writers:
                writer.join()
        for name in (b"a", b"b"):
            own = [v for v in log.scan().to_arrow()["value"].to_pylist() if v.startswith(name)]
            assert own == [name + b"%d" % i for i in range(len(own))]


def test_threads_have_scans_of_their_own(log: penstock.Log) -> None:
    """Scans in several threads at once do not disturb one another."""
    whole = log.scan().to_arrow()
    wrong: list[int] = []

    def scan() -> None:
        wrong.extend(i for i in range(20) if not log.scan(batch_rows=99).to_arrow().equals(whole))

    threads = [threading.Thread(target=scan) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_without_pyarrow(path: Path) -> None:
    """Without pyarrow the core works, and a scan says what to install."""
    code = f"""
import sys
sys.modules["pyarrow"] = None
import penstock
log = penstock.open({str(path)!r})
log.append(b"a")
assert log[1].value == b"a"
scan = log.scan()
assert type(scan.__arrow_c_stream__()).__name__ == "PyCapsule"
try:
    scan.to_arrow()
except penstock.NotInstalled as error:
    assert isinstance(error, ImportError)
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'penstock[arrow]'" in done.stdout


def test_a_time_is_the_events_own(path: Path) -> None:
    """The time that came with the event, else the one that the log gave it."""
    when = dt.datetime(2026, 11, 1, tzinfo=dt.UTC)
    with penstock.open(path) as log:
        log.append(b"a", time=when)
        log.append(b"b")
        table = log.scan(columns=["time", "append_time"]).to_arrow()
    assert table["time"][0].as_py() == when
    assert table["time"][1] == table["append_time"][1]


def is_sealed(path: Path) -> bool:
    """Whether the first segment of a log has its footer."""
    first = look(str(oracle.segment_paths(path)[0]), 1)
    return first is not None and first.footer is not None


@pytest.mark.parametrize("sealed", [True, False])
def test_blocks_of_other_topics_are_not_looked_at(path: Path, sealed: bool) -> None:
    """The index tells which topics a block has, so damage in others is not even met."""
    with penstock.open(path, segment_size="1MiB") as log:
        for i in range(3000):
            log.append(b"%0100d" % i, topic="rare" if 1500 <= i < 1530 else "common")
        if sealed:
            log.steward.roll()
            wait_for(lambda: is_sealed(path), "the segment to be sealed, and its index to count")
        seg = oracle.read_log(path)[0]
        for i in (200, 1000, 2500):
            broken.flip(seg.path, seg.events[i].at + L.FRAME_HEADER_BYTES + 50, 1)
        for reader in (log, penstock.open(path, mode="r")):
            for topic in ("rare", ["rare", "none"]):
                table = reader.scan(topic=topic, columns=["seq"]).to_arrow()
                assert table["seq"].to_pylist() == list(range(1501, 1531))
                assert [e.seq for e in reader.read(topic=topic)] == list(range(1501, 1531))
            for topic in ("common", ["rare", "common"]):
                with pytest.raises(errors.Corrupt):
                    reader.scan(topic=topic).to_arrow()
        reader.close()


def test_what_is_not_asked_for_may_be_damaged(path: Path) -> None:
    """A scan that stops before a damaged event, or before a lost segment, knows nothing of it."""
    with penstock.open(path, segment_size="64KiB") as log:
        for i in range(1500):
            log.append(b"%0100d" % i)
        segments = oracle.read_log(path)
        hurt = segments[0].events[40]
        broken.flip(segments[0].path, hurt.at + L.FRAME_HEADER_BYTES, 0)
        assert scanned(log, stop=hurt.seq).equals(expected(log.read(stop=hurt.seq)))
        with pytest.raises(errors.Corrupt):
            log.scan(stop=hurt.seq + 1).to_arrow()
    first, lost = segments[1].events[0].seq, segments[2].events[0].seq
    segments[2].path.unlink()
    with penstock.open(path, mode="r") as log:
        assert log.scan(first, lost).to_arrow().num_rows == lost - first


def test_what_comes_before_damage(path: Path) -> None:
    """It is handed out before the error is raised, which then stays."""
    with penstock.open(path) as log:
        for i in range(100):
            log.append(b"%d" % i)
        (seg,) = oracle.read_log(path)
        broken.flip(seg.path, seg.events[49].at + L.FRAME_HEADER_BYTES, 0)
        batches = log.scan(batch_rows=30).to_batches()
        assert [next(batches).num_rows for _ in range(2)] == [30, 19]
        with pytest.raises(errors.Corrupt):
            next(batches)
        stream = pa.RecordBatchReader.from_stream(log.scan(batch_rows=49))
        assert stream.read_next_batch().num_rows == 49
        for _ in range(2):
            with pytest.raises(OSError, match="Corrupt"):
                stream.read_next_batch()


def test_batches_that_are_kept_take_little(path: Path) -> None:
    """A batch of few events takes memory for these, not for what there might have been."""

    def resident_mib() -> int:
        return (
            int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20
        )

    with penstock.open(path) as log:
        log.extend([b"x" * 100] * 20_000)
        before = resident_mib()
        kept = list(log.scan(batch_rows=40).to_batches())
        assert len(kept) == 500 and resident_mib() - before < 200


def test_threads_stop_when_one_fails(log: penstock.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that cannot be finished keeps no thread reading what nobody will get."""
    monkeypatch.setattr(scan, "PART_SEQS", 1000)
    monkeypatch.setattr(scan, "TABLE_SIZE", (10, 1 << 20))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(2))
    begun = threading.Event()
    late: list[int] = []
    record_batches = scan.Scan._record_batches

    def watched_too(work: Any, *rest: Any) -> Any:
        def reading(part: Any, unwanted: Any) -> Any:
            of_this_thread.unwanted = unwanted
            return work(part, unwanted)

        return in_order(reading, *rest)

    def watched(self: penstock.Scan, reader: Any) -> Any:
        for batch in record_batches(self, reader):
            if batch["seq"][0].as_py() <= 1000:
                assert begun.wait(60)
                raise RuntimeError("the first part fails")
            begun.set()
            wait_for(of_this_thread.unwanted, "word that nobody wants it")
            late.append(batch.num_rows)
            yield batch

    of_this_thread = threading.local()
    monkeypatch.setattr(scan, "in_order", watched_too)
    monkeypatch.setattr(scan.Scan, "_record_batches", watched)
    with pytest.raises(RuntimeError, match="the first part fails"):
        log.scan().to_arrow()
    assert late == [10]


def test_to_polars_fails_as_the_others_do(path: Path) -> None:
    """Our own error comes out of it, not the one of polars that stands for it."""
    with penstock.open(path, codec="json") as log:
        for i in range(9):
            log.append({"n": i})
        log.append({"n": "text"})
        assert log.scan(stop=9, schema={"n": int}).to_polars()["n"].to_list() == list(range(8))
        with pytest.raises(errors.BadData, match="seq 10"):
            log.scan(schema={"n": int}).to_polars()
        (seg,) = oracle.read_log(path)
        broken.flip(seg.path, seg.events[4].at + L.FRAME_HEADER_BYTES, 0)
        with pytest.raises(errors.Corrupt):
            log.scan().to_polars()


def test_no_block_behind_the_stop_is_looked_at(path: Path) -> None:
    """Passing over blocks may lead after the stop; what stands there is nobody's business."""
    with penstock.open(path, segment_size="1MiB") as log:
        for i in range(3000):
            log.append(b"%0100d" % i, topic="rare" if 1500 <= i < 1530 else "common")
        seg = oracle.read_log(path)[0]
        blocks = [at for at, *_ in oracle.index_entries(seg) if at <= seg.events[1500].at]
        broken.flip(seg.path, blocks[-1] + L.FRAME_SEQ, 1)
        assert list(log.read(topic="rare", stop=1000)) == []
        assert log.scan(topic="rare", stop=1000).to_arrow().num_rows == 0
        with pytest.raises(errors.Corrupt):
            list(log.read(topic="rare"))


def test_memory_that_is_used_again_is_nobody_elses(path: Path) -> None:
    """Tables that are kept stay what they were while the memory of others is used again."""
    rows = 40_000
    with penstock.open(path) as log:
        for part in range(4):
            log.extend([b"%05d" % (part * rows + i) * 20 for i in range(rows)])
        want = log.scan(columns=["seq", "value"]).to_arrow().to_pydict()
        kept = []
        for i in range(12):
            table = log.scan(i * 10_000 + 1, i * 10_000 + rows, columns=["value", "seq"]).to_arrow()
            assert max(
                len(b) for c in table.columns for k in c.chunks for b in k.buffers() if b
            ) > (1 << 20)
            if i % 3 == 0:
                kept.append((i * 10_000, table))
        for start, table in kept:
            assert table["value"].to_pylist() == want["value"][start : start + rows - 1]
            assert table["seq"].to_pylist() == want["seq"][start : start + rows - 1]


@pytest.mark.skipif(
    "libasan" in os.environ.get("LD_PRELOAD", ""), reason="under it, memory comes from malloc"
)
def test_kept_memory_is_released(path: Path) -> None:
    """What dropped tables leave is given back to the system on request, but not what is in use."""
    with penstock.open(path) as log:
        log.extend([b"%06d" % i * 30 for i in range(30_000)])
        penstock.release_memory()
        table = log.scan(columns=["value"]).to_arrow()
        taken = table.nbytes
        assert penstock.release_memory() < taken, "it is in use"
        assert table["value"][29_999].as_py() == b"029999" * 30
        del table
        gc.collect()
        before = mapped_in_all()
        assert penstock.release_memory() >= taken
        assert mapped_in_all() <= before - taken // 2
        assert penstock.release_memory() == 0


def mapped_in_all() -> int:
    """Bytes of address space that this process has."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(x.split()[1]) for x in lines if x.startswith("VmSize:"))


def test_memory_is_shared_by_threads(path: Path) -> None:
    """Threads that scan at once, and drop what they get at once, get the right rows."""
    with penstock.open(path) as log:
        values = [b"%06d" % i * 30 for i in range(30_000)]
        log.extend(values)

        def run(which: int) -> bool:
            for _ in range(10):
                table = log.scan(which + 1, columns=["value"]).to_arrow()
                if table["value"].to_pylist() != values[which:]:
                    return False
            return True

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(run, range(4)))


@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "not-sealed"])
def test_a_scan_holds_few_pages(path: Path, sealed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long segments are, and sealed or not, a scan has a few megabytes of them."""
    if not sealed:
        monkeypatch.setattr(ahead, "seal_finished", lambda *_: None)
        monkeypatch.setattr(segmented, "seal_finished", lambda *_: None)
    with penstock.open(path, segment_size="16MiB") as log:
        for _ in range(60):
            log.extend([bytes(10_000)] * 100)
    with penstock.open(path, mode="r") as log:
        batches = log.scan(batch_rows=100).to_batches()
        most = max(mapped_bytes(path) for _ in batches)
        assert 0 < most < 6 << 20
        assert mapped_bytes(path) < 1 << 20, "nothing of what was read is left"
    first = look(str(oracle.segment_paths(path)[0]), 1)
    assert first is not None
    assert (first.footer is not None) == sealed
