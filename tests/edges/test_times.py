"""Times: what has no zone is local time, and a number in another unit is refused, not taken."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import penstock
from penstock.times import to_ns

NOW_S = 1_763_000_000

LOCAL = """
import datetime as dt, sys, time
import pandas as pd
import penstock
time.tzset()
S = 1_000_000_000
log = penstock.open(sys.argv[1])
naive = [
    dt.datetime(2026, 1, 15, 12, 30, 0, 123456),
    dt.datetime(2026, 7, 15, 12, 30),
    dt.datetime(2026, 10, 25, 2, 30),  # happens twice in Berlin
    dt.datetime(2026, 10, 25, 2, 30, fold=1),
    dt.datetime(2026, 3, 29, 2, 30),  # never happens there
    dt.datetime(2026, 11, 1, 1, 30, fold=1),  # twice in New York
    dt.datetime(1972, 6, 30, 23, 59, 59),
]
for moment in naive:
    want = int(moment.replace(microsecond=0).timestamp()) * S + moment.microsecond * 1000
    for given in (moment, moment.isoformat(), moment.isoformat(" "), pd.Timestamp(moment)):
        if moment.fold and given is not moment:
            continue  # neither text nor pandas has a fold
        seq = log.append(b"", time=given)
        assert log[seq].time_ns == want, (given, log[seq].time_ns, want)
        assert log[seq].time.timestamp() == moment.timestamp()
    assert seq in [e.seq for e in log.read(since=moment)]
    assert seq not in [e.seq for e in log.read(until=moment)]
for day in (dt.date(2026, 1, 15), dt.date(2026, 7, 15)):
    want = int(dt.datetime(day.year, day.month, day.day).timestamp()) * S
    for given in (day, day.isoformat()):
        assert log[log.append(b"", time=given)].time_ns == want
aware = "2026-07-15T12:30:00+05:30"
assert log[log.append(b"", time=aware)].time_ns == 1784098800 * S
print(log[1].time_ns)
"""


@pytest.mark.parametrize("kind", ["log", "ring"])
def test_times_without_a_zone_are_local(tmp_path: Path, kind: str) -> None:
    """Naive datetimes, dates and text mean local time, as for datetime.timestamp(), with fold."""
    seen = []
    for zone in ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"):
        path = tmp_path / zone.replace("/", "-")
        if kind == "ring":
            penstock.create(path, ring="256KiB").close()
        done = subprocess.run(
            [sys.executable, "-c", LOCAL, str(path)],
            env={**os.environ, "TZ": zone},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        seen.append(int(done.stdout))
    hours = [(ns - seen[0]) / 3600e9 for ns in seen]
    assert hours == [0, -1, 5, -5.5]


CALLS: dict[str, Callable[[penstock.Log, Any], object]] = {
    "append": lambda log, t: log.append(b"x", time=t),
    "extend": lambda log, t: log.extend([b"x"], time=t),
    "Entry": lambda log, t: log.extend([penstock.Entry(b"x", time=t)]),
    "load": lambda log, t: log.load([b"x"], time=t),
    "read since": lambda log, t: log.read(since=t),
    "read until": lambda log, t: log.read(until=t),
    "scan since": lambda log, t: log.scan(since=t),
    "scan until": lambda log, t: log.scan(until=t),
}
calls = pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))


@calls
@pytest.mark.parametrize(
    ("number", "unit", "factor"),
    [
        (10**8, "seconds", "1_000_000_000"),
        (NOW_S, "seconds", "1_000_000_000"),
        (10**11 - 1, "seconds", "1_000_000_000"),
        (NOW_S * 10**3, "milliseconds", "1_000_000"),
        (NOW_S * 10**6, "microseconds", "1_000"),
        (10**17 - 1, "microseconds", "1_000"),
        (np.int64(NOW_S), "seconds", "1_000_000_000"),
    ],
)
def test_numbers_in_another_unit_are_refused(
    log: penstock.Log,
    call: Callable[[penstock.Log, Any], object],
    number: int,
    unit: str,
    factor: str,
) -> None:
    """A number that looks like seconds, milli- or microseconds is Usage that says which of them."""
    with pytest.raises(penstock.Usage, match=f"looks like {unit}: multiply it by {factor},"):
        call(log, number)
    assert log.last_seq == 0


@calls
@pytest.mark.parametrize(
    "given", [-1, 1 << 63, (1 << 64) - 1, 1 << 64, 1 << 200, "2300-01-01", dt.datetime.max, pd.NaT]
)
def test_times_that_do_not_fit_are_refused(
    log: penstock.Log, call: Callable[[penstock.Log, Any], object], given: Any
) -> None:
    """What 63 bits of nanoseconds cannot hold is Usage: one such event would break every scan."""
    with pytest.raises(penstock.Usage):
        call(log, given)
    assert log.last_seq == 0


def test_numbers_that_can_be_nanoseconds_are_taken(log: penstock.Log) -> None:
    """Numbers from 1973 on, and small ones that are made up, are nanoseconds, of any type."""
    given: list[Any] = [
        0,
        1,
        10**8 - 1,
        10**17,
        NOW_S * 10**9,
        np.int64(NOW_S * 10**9),
        (1 << 63) - 1,
    ]
    for ns in given:
        log.append(b"x", time=ns)
    assert [e.time_ns for e in log] == [int(ns) for ns in given]
    assert log.scan(columns=["time"]).to_arrow()["time"].cast("int64").to_pylist() == given


class Nowhere(dt.tzinfo):
    """A zone that does not say how far it is from UTC."""

    def _unknown(self, _: dt.datetime | None) -> None:
        """None as the offset makes a datetime a naive one, by Python's own definition."""

    utcoffset = tzname = dst = _unknown


def test_a_zone_without_an_offset_is_none() -> None:
    """A datetime whose zone gives no offset is naive, as Python defines it, and so local time."""
    for naive in (dt.datetime(2026, 1, 15, 12), dt.datetime(2026, 7, 15, 12, 0, 0, 1)):
        assert to_ns(naive.replace(tzinfo=Nowhere())) == to_ns(naive)


def test_no_nanosecond_is_lost() -> None:
    """Nanoseconds in ISO text and in a pandas.Timestamp are kept, and a zone's fraction too."""
    assert to_ns("2026-01-01T00:00:00-23:59:59.5") == 1767311999_500000000
    odd = dt.timezone(dt.timedelta(seconds=-3, microseconds=7))
    assert to_ns(dt.datetime(2026, 1, 1, tzinfo=odd)) == 1767225602_999993000
    assert to_ns("2026-11-01T00:00:00.123456789Z") == 1793491200_123456789
    assert to_ns("2026-11-01T00:00:00,1234567+00:00") == 1793491200_123456700
    assert to_ns(pd.Timestamp("2026-11-01T00:00:00.123456789Z")) == 1793491200_123456789
    assert to_ns(pd.Timestamp(1793491200_123456789, tz="Asia/Kolkata")) == 1793491200_123456789


@calls
@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (np.datetime64("2026-11-01"), "astype"),
        (1763e6, "seconds \\* 1e9"),
        (True, "bool"),
        (dt.time(1), "time"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_what_is_no_time_is_refused(
    log: penstock.Log, call: Callable[[penstock.Log, Any], object], given: Any, hint: str
) -> None:
    """Floats, bools and numpy's datetime64, which has no zone, are WrongType with what to write."""
    with pytest.raises(penstock.WrongType, match=hint):
        call(log, given)
    assert log.last_seq == 0


def test_a_time_of_1970_can_be_asked_for_by_a_scan(log: penstock.Log) -> None:
    """A moment just after 1970, given as a datetime, is not mistaken for another unit later on."""
    log.extend([penstock.Entry(b"a", time="1970-01-02T00:00Z"), b"b"])
    day = dt.datetime(1970, 1, 2, tzinfo=dt.UTC)
    assert [e.seq for e in log.read(since=day, until="1970-01-03T00:00Z")] == [1]
    assert log.scan(since=day, until="1970-01-03T00:00Z").to_arrow()["seq"].to_pylist() == [1]
