"""Filters that Spark pushes down: those that a log can answer narrow what is read.

Only filters with exactly Spark's answer are taken; Spark evaluates the others on the rows. Spark
pushes filters down only if ``spark.sql.python.filterPushdown.enabled`` is set, and only for tables.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from penstock.spark.read.logs import partition_of
from penstock.spark.read.rows import COLUMNS
from penstock.spark.read.splits import NS_MAX, Picks

SEQ_END = 1 << 63  # offsets are signed in Spark
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Limits:
    """What is left of a read after the filters."""

    start: int = 0
    stop: int = SEQ_END
    since_us: int = 0
    until_us: int | None = None  # exclusive
    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    logs: frozenset[str] | None = None

    def clip(self, log: str, start: int, stop: int) -> tuple[int, int]:
        """What is left of a range of one log."""
        if self.partitions is not None and partition_of(log) not in self.partitions:
            return stop, stop
        if self.logs is not None and log not in self.logs:
            return stop, stop
        stop = min(stop, self.stop)
        return min(max(start, self.start), stop), stop

    def narrow(self, picks: Picks) -> Picks:
        """What is left of what was picked."""
        topics = picks.topics if self.topics is None else picks.topics.only(self.topics)
        until = NS_MAX if self.until_us is None else max(0, self.until_us * 1000)
        return replace(
            picks,
            topics=topics,
            since_ns=max(picks.since_ns, self.since_us * 1000),
            until_ns=min(picks.until_ns, until),
        )

    def _among(self, column: str, values: frozenset[Any]) -> Limits:
        if column == "topic":
            return replace(self, topics=_both(self.topics, values))
        if column == "log":
            return replace(self, logs=_both(self.logs, values))
        return replace(self, partitions=_both(self.partitions, values))

    def take(self, one: Any) -> Limits | None:
        """These limits and a filter as well; None if the filter cannot be taken."""
        if len(one.attribute) != 1 or one.attribute[0] not in COLUMNS:
            return None
        column = one.attribute[0]
        if isinstance(one, IsNotNull):
            return None if COLUMNS[column][1] else self
        values = one.value if isinstance(one, In) else [one.value] if hasattr(one, "value") else []
        if not values or any(value is None for value in values):
            return None
        if column in ("topic", "log", "partition"):
            if not isinstance(one, EqualTo | EqualNullSafe | In):
                return None
            return self._among(column, frozenset(values))
        if column == "offset":
            low, high = _between(one, int(one.value)) if not isinstance(one, In) else _NO_RANGE
            return (
                None
                if high is None
                else replace(self, start=max(self.start, low), stop=min(self.stop, high))
            )
        if column == "timestamp" and isinstance(one.value, dt.datetime):
            low, high = _between(one, _micros(one.value))
            if high is None:
                return None
            until = high if self.until_us is None else min(self.until_us, high)
            return replace(self, since_us=max(self.since_us, low), until_us=until)
        return None


_NO_RANGE = (0, None)


def _both(some: frozenset[Any] | None, others: frozenset[Any]) -> frozenset[Any]:
    return others if some is None else some & others


def _micros(time: dt.datetime) -> int:
    aware = time if time.tzinfo is not None else time.astimezone()
    return (aware - _EPOCH) // dt.timedelta(microseconds=1)


def _between(one: Any, value: int) -> tuple[int, int | None]:
    """The whole numbers that a comparison allows: first, and end (exclusive); else no end."""
    if isinstance(one, EqualTo | EqualNullSafe):
        return value, value + 1
    if isinstance(one, GreaterThan):
        return value + 1, SEQ_END
    if isinstance(one, GreaterThanOrEqual):
        return value, SEQ_END
    if isinstance(one, LessThan):
        return 0, value
    if isinstance(one, LessThanOrEqual):
        return 0, value + 1
    return _NO_RANGE


def take_filters(filters: list[Any]) -> tuple[Limits, list[Any]]:
    """The limits that filters set, and the filters that are left to Spark."""
    limits, left = Limits(), []
    for one in filters:
        narrower = limits.take(one) if hasattr(one, "attribute") else None
        if narrower is None:
            left.append(one)
        else:
            limits = narrower
    return limits, left
