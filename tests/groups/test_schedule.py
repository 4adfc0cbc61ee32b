"""Schedules: each tick appends once, however many processes run them."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

import pytest

from penstock import Log, Usage
from penstock.groups.schedule import Schedule, ticks_of
from tests.support.wait import wait_for

DAY = 86_400 * 10**9


def ns(text: str) -> int:
    """Nanoseconds of an ISO time."""
    return int(dt.datetime.fromisoformat(text).timestamp()) * 10**9


@pytest.mark.parametrize(
    ("when", "now", "last", "after"),
    [
        (60, "2026-01-01T00:00:30Z", "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"),
        ("5 minutes", "2026-01-01T00:05:00Z", "2026-01-01T00:05:00Z", "2026-01-01T00:10:00Z"),
        ("1 day", "2026-01-01T12:00:00Z", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"),
        ("hour", "2026-01-01T12:59:00Z", "2026-01-01T12:00:00Z", "2026-01-01T13:00:00Z"),
        ("*/15 * * * *", "2026-01-01T00:20:00Z", "2026-01-01T00:15:00Z", "2026-01-01T00:30:00Z"),
        ("0 9 * * 1-5", "2026-01-03T00:00:00Z", "2026-01-02T09:00:00Z", "2026-01-05T09:00:00Z"),
    ],
)
def test_ticks(when: Any, now: str, last: str, after: str) -> None:
    """Intervals count from 1970, cron is cron; a moment that is a tick is the last one."""
    ticks = ticks_of(when, "UTC")
    assert ticks.last(ns(now)) == ns(last)
    assert ticks.next(ns(now)) == ns(after)
    assert ticks.last(ticks.next(ns(now))) == ns(after)


def test_time_zones() -> None:
    """Cron runs in the zone that was given, through changes of its clock."""
    ticks = ticks_of("0 9 * * *", "Europe/Berlin")
    assert ticks.next(ns("2026-01-01T00:00:00Z")) == ns("2026-01-01T08:00:00Z")
    assert ticks.next(ns("2026-07-01T00:00:00Z")) == ns("2026-07-01T07:00:00Z")


@pytest.mark.parametrize(
    "when", [0, -1, True, None, "", "soon", "5 parsecs", "* * * *", "61 * * * *", "0 seconds", b"5"]
)
def test_odd_schedules(log: Log, when: Any) -> None:
    """What is no schedule is refused, and nothing is started."""
    group = log.group("mail")
    with pytest.raises(Usage, match="when"):
        group.every(when, "x")
    with pytest.raises(Usage, match="tz"):
        group.every("1 hour", "x", tz="Mars/Olympus")
    with pytest.raises(Usage, match="name"):
        group.every("1 hour", "a/b")


def tick(schedule: Schedule, at: int) -> None:
    """What its thread does at that time."""
    schedule._tick(at)


def test_once_per_tick(log: Log) -> None:
    """Two schedules of the same name append each tick once; a missed one is made up for, once."""
    group = log.group("reports")
    one = group.every("1 day", "daily", lambda at: at.isoformat().encode(), topic="t", key=b"k")
    two = group.every("1 day", "daily", lambda at: at.isoformat().encode(), topic="t", key=b"k")
    now = time.time_ns()
    assert len(log) == 0, "a new schedule begins with the next tick"
    for at in (now + DAY, now + DAY, now + 4 * DAY):
        tick(one, at)
        tick(two, at)
    tick(one, now + DAY)  # the clock goes back
    days = [event.time_ns // DAY for event in log]
    assert days == [now // DAY + 1, now // DAY + 4]
    assert [event.key for event in log] == [b"k", b"k"]
    one.close()
    two.close()
    assert one.closed


def test_a_schedule_goes_on_after_failures(log: Log) -> None:
    """What its function raises is shown, and does not end it."""
    group = log.group("reports")

    def fail(at: dt.datetime) -> bytes:
        raise ValueError("no data")

    with group.every(0.01, "often", fail) as schedule:
        wait_for(lambda: schedule.last_error == "ValueError: no data", "a failure")
    assert len(log) == 0


def test_it_ends_with_its_group(log: Log) -> None:
    """When the group is closed, the thread ends by itself."""
    group = log.group("reports")
    schedule = group.every(0.01, "often", b"x")
    wait_for(lambda: len(log) > 0, "a tick")
    group.close()
    schedule._thread.join()
