"""Reading: by seq, in both directions, by bounds and filters, against a plain list."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import penstock
from tests.unit import oracle


class Row(NamedTuple):
    seq: int
    time_ns: int
    topic: str
    key: bytes | None


def rows(reader: Any) -> list[Row]:
    return [Row(e.seq, e.time_ns, e.topic, e.key) for e in reader]


def build(log: penstock.Log, times: str, count: int = 300) -> list[Row]:
    """Events over several segments, with times of the wanted kind; returns what was appended."""
    chance = random.Random(times)
    made = []
    for seq in range(1, count + 1):
        given: int | None = {
            "rising": seq * 10,
            "falling": (count - seq) * 10,
            "shuffled": chance.randrange(count) * 10,
            "equal": 50,
            "late": 10 if seq == count else seq * 10,
            "stamped": None,
        }[times]
        topic = chance.choice(["", "a", "b", "rare" if chance.random() < 0.02 else "a"])
        key = chance.choice([None, b"", b"k1", b"k2"])
        log.append(b"x" * chance.randrange(1200), time=given, topic=topic, key=key)
        made.append(Row(seq, log[seq].time_ns if given is None else given, topic, key))
    return made


TIMES = ["rising", "falling", "shuffled", "equal", "late", "stamped"]


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("mode", ["rw", "r", "frames alone"])
def test_reads_equal_a_list(path: Path, times: str, mode: str) -> None:
    """Every combination of bounds, filters and direction gives what a list comprehension gives."""
    log = penstock.open(path, segment_size="64KiB")
    model = build(log, times)
    assert len(oracle.read_log(path)) > 3
    if mode != "rw":
        log.close()
        if mode == "frames alone":
            path.joinpath("control").unlink()
        log = penstock.open(path, mode="r")
    edges = [s.base_seq for s in oracle.read_log(path)]
    moments = sorted({r.time_ns for r in model})
    starts = [None, 0, 1, edges[1] - 1, edges[1], edges[2] + 7, 300, 301, 999]
    stops = [None, 0, 1, 2, edges[1], edges[2], edges[3] + 1, 300, 301, 999]
    sinces = [None, 0, moments[0], moments[len(moments) // 3], moments[-1], moments[-1] + 1]
    untils = [None, 0, moments[0], moments[0] + 1, moments[len(moments) // 2], moments[-1] + 1]
    chance = random.Random(7)
    everything = list(
        itertools.product(
            starts,
            stops,
            sinces,
            untils,
            [None, "", "rare", "none", ["rare", "b"], ["none", "rare"], ("", "a", "b", "aa")],
            [None, b"", b"k1", b"k9"],
            [0, 1],
        )
    )
    for start, stop, since, until, topic, key, reverse in chance.sample(everything, 500):
        expected = [
            r
            for r in model
            if (start is None or r.seq >= start)
            and (stop is None or r.seq < stop)
            and (since is None or r.time_ns >= since)
            and (until is None or r.time_ns < until)
            and (topic is None or r.topic in ([topic] if isinstance(topic, str) else topic))
            and (key is None or r.key == key)
        ]
        if reverse:
            expected.reverse()
        reader = log.read(
            start, stop, since=since, until=until, topic=topic, key=key, reverse=bool(reverse)
        )
        assert rows(reader) == expected, (start, stop, since, until, topic, key, reverse)
        assert list(reader) == []
    log.close()


@pytest.mark.parametrize("times", TIMES)
def test_time_bounds_find_all_and_only(path: Path, times: str) -> None:
    """since and until at every distinct time, and beside it, leave out nothing."""
    with penstock.open(path, segment_size="64KiB") as log:
        model = build(log, times)
        for moment in sorted({r.time_ns for r in model})[::17]:
            for bound in (max(0, moment - 1), moment, moment + 1):
                assert rows(log.read(since=bound)) == [r for r in model if r.time_ns >= bound]
                assert rows(log.read(until=bound)) == [r for r in model if r.time_ns < bound]


def test_an_earlier_time_in_the_newest_segment(log: penstock.Log) -> None:
    """until finds an event of the active segment whose time lies before all that came earlier."""
    log.append(b"a", time=100)
    log.steward.roll()
    log.append(b"b", time=50)
    assert [e.value for e in log.read(until=60)] == [b"b"]
    assert [e.value for e in log.read(until=60, reverse=True)] == [b"b"]


def test_a_time_reader_while_the_log_grows(log: penstock.Log) -> None:
    """A read by time that began before many appends goes on to its end, undisturbed."""
    for i in range(40):
        log.append(b"x" * 500, time=2000 if i % 10 == 0 else 1)
    reader = log.read(since=1500)
    seen = [e.seq for e in reader.take(1)]
    for _ in range(300):
        log.append(b"x" * 500, time=1)
    seen += [e.seq for e in reader]
    assert seen == [1, 11, 21, 31]


def test_bounds_may_be_text_and_dates(log: penstock.Log) -> None:
    """since and until take what users write."""
    for i in range(1, 5):
        log.append(b"", time=dt.datetime(2026, 1, i))
    assert [e.seq for e in log.read(since="2026-01-02", until=dt.date(2026, 1, 4))] == [2, 3]
    moment = dt.datetime(2026, 1, 3).astimezone(dt.UTC)
    assert [e.seq for e in log.read(since=moment, reverse=True)] == [4, 3]


def test_by_seq(log: penstock.Log) -> None:
    """log[seq] finds the first, the last and each between, over many segments, in any order."""
    for i in range(300):
        log.append(b"%d" % i + b"x" * 700)
    order = list(range(1, 301))
    random.Random(1).shuffle(order)
    for seq in order:
        assert log[seq].seq == seq
        assert (log[seq].value or b"").startswith(b"%dx" % (seq - 1))


@pytest.mark.parametrize("seq", [0, 3, 1000, 1 << 63, 1 << 64])
def test_by_seq_where_there_is_none(log: penstock.Log, seq: int) -> None:
    """A seq without event is NotFound, a KeyError, and the message says what there is."""
    log.extend([b"a", b"b"])
    with pytest.raises(penstock.NotFound, match="seq 1 to 2") as caught:
        log[seq]
    assert isinstance(caught.value, KeyError)


def test_by_seq_in_an_empty_log(log: penstock.Log) -> None:
    """An empty log says that it is empty."""
    with pytest.raises(penstock.NotFound, match="empty"):
        log[1]


def test_counts(log: penstock.Log) -> None:
    """len, first_seq and last_seq agree, also while the log is empty and where a roll just was."""
    assert (len(log), log.first_seq, log.last_seq) == (0, 1, 0)
    log.append(b"a")
    assert (len(log), log.first_seq, log.last_seq) == (1, 1, 1)
    log.steward.roll()
    assert (len(log), log.first_seq, log.last_seq) == (1, 1, 1)
    log.extend([b"b", b"c"])
    assert (len(log), log.first_seq, log.last_seq) == (3, 1, 3)


def test_settings_frames_count_for_nothing(log: penstock.Log) -> None:
    """A log with only settings frames is empty in every respect."""
    log.configure(segment_size="128KiB")
    assert (len(log), log.first_seq, log.last_seq) == (0, 1, 0)
    assert list(log) == list(reversed(log)) == list(log.read(since=0)) == []
    assert log.topics() == set()


def test_topics(log: penstock.Log) -> None:
    """topics() is the set over all segments, sealed and active; no topic is the empty one."""
    assert log.topics() == set()
    log.append(b"", topic="one")
    log.append(b"", topic="two")
    log.steward.roll()
    log.append(b"", topic="one")
    log.append(b"")
    log.steward.roll()
    assert log.topics() == {"one", "two", ""}
    log.append(b"", topic="drei")
    assert log.topics() == {"one", "two", "", "drei"}
    with penstock.open(log.path, mode="r") as reading:
        assert reading.topics() == {"one", "two", "", "drei"}


def test_a_read_ends_where_the_log_stood(log: penstock.Log) -> None:
    """Events appended after read() was called are not part of it; nor in reverse."""
    log.extend([b"a", b"b"])
    forward, backward = log.read(), log.read(reverse=True)
    next(forward)
    log.append(b"c")
    assert [e.seq for e in forward] == [2]
    assert [e.seq for e in backward] == [2, 1]
    assert list(forward) == []


def test_take(log: penstock.Log) -> None:
    """take(n) gives at most n, fewer at the end, and an empty list after it."""
    log.extend([b"%d" % i for i in range(10)])
    reader = log.read()
    assert [len(reader.take(n)) for n in (0, 4, 4, 4, 4)] == [0, 4, 4, 2, 0]
    with pytest.raises(penstock.Usage, match="0 or more"):
        log.read().take(-1)
    assert [e.seq for e in log.read(reverse=True).take(3)] == [10, 9, 8]
    assert [e.seq for e in log.read(topic="none").take(3)] == []


def test_position(log: penstock.Log) -> None:
    """position is the seq that comes next; in reverse, one above it."""
    for i in range(100):
        log.append(b"x" * 1500, topic="odd" if i % 2 == 0 else "even")
    reader = log.read(5)
    seen = []
    for event in reader:
        seen.append((event.seq, reader.position))
    assert seen == [(i, i + 1) for i in range(5, 101)]
    backward = log.read(reverse=True)
    assert backward.position == 101
    assert [(e.seq, backward.position) for e in backward] == [(i, i) for i in range(100, 0, -1)]
    again = log.read(reader.position)
    assert list(again) == []


def test_position_lets_a_reader_go_on(log: penstock.Log) -> None:
    """A new reader from the position of an old one continues it without gap or repeat."""
    log.extend([b"%d" % i for i in range(50)])
    seen, position = [], 1
    while batch := log.read(position).take(7):
        seen += [e.seq for e in batch]
        position = batch[-1].seq + 1
    assert seen == list(range(1, 51))


def test_a_reader_names_its_log(log: penstock.Log) -> None:
    """repr() of a reader tells the log and the position; an iterator is its own iterator."""
    log.append(b"a")
    reader = log.read()
    assert repr(reader) == f"<penstock.Reader of {log.path!r} at seq 1>"
    assert iter(reader) is reader
    assert reader.log is log


def test_unchecked_reads(path: Path) -> None:
    """check=False hands out a frame whose checksum is wrong; the default never does."""
    with penstock.open(path) as log:
        log.extend([b"one", b"two"])
        segment = oracle.read_log(path)[0]
        with segment.path.open("r+b") as file:
            file.seek(segment.frames[0].at + 40)
            file.write(b"ONE")
        assert [e.value for e in log.read(check=False)] == [b"ONE", b"two"]
        with pytest.raises(penstock.Corrupt):
            list(log)
        with pytest.raises(penstock.Corrupt):
            list(reversed(log))
        with pytest.raises(penstock.Corrupt):
            log[1]
        assert log[2].value == b"two"
        assert [e.value for e in log.read(2)] == [b"two"]
