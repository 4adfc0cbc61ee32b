"""Times as users give them, the two clocks of an event, and a clock that goes back."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import _core, headers
from penstock.segments import segment
from penstock.times import to_ns
from tests.unit import oracle

DAY = 86_400_000_000_000
UTC = dt.UTC


@pytest.mark.parametrize(
    ("given", "ns"),
    [
        (0, 0),
        (1, 1),
        ((1 << 63) - 1, (1 << 63) - 1),
        (dt.datetime(1970, 1, 2, tzinfo=UTC), DAY),
        (dt.datetime(1970, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=-5))), DAY + 5 * DAY // 24),
        (dt.datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC), 1000),
        ("1970-01-02T00:00Z", DAY),
        ("1970-01-01T00:00:00.000001Z", 1000),
        ("1970-01-02T00:00:00Z", DAY),
        ("1970-01-01T01:00:00+01:00", 0),
        (dt.datetime(2262, 4, 11, 23, 47, 16, 854775, tzinfo=UTC), (1 << 63) // 1000 * 1000),
    ],
)
def test_accepted_times(given: Any, ns: int) -> None:
    """Whole numbers, datetimes, dates and ISO text become nanoseconds since 1970."""
    assert to_ns(given) == ns


@pytest.mark.parametrize(
    "given",
    [
        -1,
        1 << 63,
        1 << 64,
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        dt.datetime.max,
        dt.datetime.min,
        dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=23))),
        dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-23))),
        dt.date(1969, 12, 30),
        dt.date.max,
        "1970-01-01T00:00:00+00:01",
        "yesterday",
        "",
        "2026-13-01",
    ],
)
def test_times_out_of_range(log: penstock.Log, given: Any) -> None:
    """A time that 63 bits of nanoseconds cannot hold, or no time, is Usage and writes nothing."""
    for call in (
        lambda: to_ns(given),
        lambda: log.append(b"", time=given),
        lambda: log.extend([b"a"], time=given),
        lambda: log.extend([penstock.Entry(b"a", time=given)]),
        lambda: log.read(since=given),
        lambda: log.read(until=given),
    ):
        with pytest.raises(penstock.Usage):
            call()
    assert len(log) == 0


@pytest.mark.parametrize("given", [True, 1.5, b"2026-01-01", dt.time(1), object()])
def test_times_of_a_wrong_type(log: penstock.Log, given: Any) -> None:
    """What is no time is WrongType; a bool and a float of seconds are among that."""
    for call in (
        lambda: to_ns(given),
        lambda: log.append(b"", time=given),
        lambda: log.read(since=given),
        lambda: log.read(until=given),
    ):
        with pytest.raises(penstock.WrongType):
            call()
    assert len(log) == 0


def test_the_message_names_the_argument(log: penstock.Log) -> None:
    """The error says which argument was wrong."""
    for name in ("since", "until"):
        bad: dict[str, Any] = {name: 1.5}
        with pytest.raises(penstock.WrongType, match=name):
            log.read(**bad)


def test_two_clocks(log: penstock.Log) -> None:
    """A given time is the event's time; without one it is the time of the append."""
    before = _core.now_ns()
    log.append(b"given", time=5)
    log.append(b"not given")
    after = _core.now_ns()
    given, stamped = log[1], log[2]
    assert given.time_ns == 5
    assert stamped.time_ns == stamped.append_ns
    assert before <= given.append_ns <= stamped.append_ns <= after


def test_time_zero_is_a_time(log: penstock.Log, path: Path) -> None:
    """The first nanosecond of 1970 is a given time, not a missing one."""
    log.append(b"", time=0)
    assert log[1].time_ns == 0
    assert oracle.read_log(path)[0].frames[0].given_ns == 0


def test_time_as_a_datetime(log: penstock.Log) -> None:
    """event.time is time_ns as an aware datetime, rounded down to microseconds, to the last one."""
    times = [0, 999, 1000, 1_700_000_000_123_456_789, (1 << 63) - 1]
    for ns in times:
        log.append(b"", time=ns)
    for event, ns in zip(log, times, strict=True):
        assert event.time.tzinfo is UTC
        assert to_ns(event.time) == ns // 1000 * 1000


def test_bounds_are_half_open(log: penstock.Log) -> None:
    """since <= time < until."""
    for ns in (10, 20, 30):
        log.append(b"", time=ns)
    assert [e.time_ns for e in log.read(since=20)] == [20, 30]
    assert [e.time_ns for e in log.read(until=20)] == [10]
    assert [e.time_ns for e in log.read(since=20, until=30)] == [20]
    assert [e.time_ns for e in log.read(since=11, until=20)] == []
    assert [e.time_ns for e in log.read(since=30, until=10)] == []


def test_the_greatest_time_is_found(log: penstock.Log) -> None:
    """An open upper bound leaves no time out, not even the greatest."""
    log.append(b"", time=(1 << 63) - 1)
    assert [e.seq for e in log.read(since=1)] == [1]
    assert [e.seq for e in log.read(until=(1 << 63) - 1)] == []


def with_clock_ahead(path: Path, ns: int) -> None:
    """Make the log believe that its last append was at ``ns``."""
    (name,) = oracle.segment_paths(path)
    header = segment.Header.unpack(name.read_bytes()[:4096], str(name))
    with name.open("r+b") as file:
        headers.put(file.fileno(), replace(header, prior_append_ns=ns).pack(), str(name))
    path.joinpath("control").unlink()


def test_append_time_never_goes_back(path: Path) -> None:
    """While the clock stands before the log's last append, append_ns stays at that, over rolls."""
    penstock.open(path, segment_size="64KiB").close()
    future = _core.now_ns() + DAY
    with_clock_ahead(path, future)
    with penstock.open(path) as log:
        log.append(b"a")
        log.extend([b"b", b"c"])
        log.steward.roll()
        log.append(b"d")
        assert [e.append_ns for e in log] == [future] * 4
    with penstock.open(path) as log:
        log.append(b"e")
        assert log[5].append_ns == future
    path.joinpath("control").unlink()
    with penstock.open(path) as log:
        log.append(b"f")
        assert log[6].append_ns == future
