"""Times as users write them, turned into UTC nanoseconds since 1970. Knows nothing of logs."""

from __future__ import annotations

import datetime as dt
from typing import TypeAlias

from penstock.errors import Usage, WrongType

Time: TypeAlias = "int | str | dt.datetime | dt.date"

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_NS_MAX = (1 << 64) - 1


def to_ns(value: Time, what: str = "time") -> int:
    """Nanoseconds since 1970 of an int (already that), a datetime, a date or an ISO 8601 string.

    A datetime or string without a zone is UTC.

    >>> to_ns("1970-01-02")
    86400000000000
    >>> to_ns("1970-01-01T01:00:00+01:00")
    0
    """
    if isinstance(value, bool) or not isinstance(value, int | str | dt.date):
        raise WrongType(
            f"{what} is nanoseconds since 1970, a datetime or an ISO 8601 string, "
            f"not {type(value).__name__}"
        )
    if isinstance(value, int):
        ns = value
    else:
        ns = _datetime_ns(_parse(value, what) if isinstance(value, str) else value)
    if not 0 <= ns <= _NS_MAX:
        raise Usage(f"{what} {value!r} lies outside 1970-01-01 to 2554-07-21")
    return ns


def _parse(text: str, what: str) -> dt.datetime:
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError:
        raise Usage(
            f"{what} {text!r} is not an ISO 8601 date or time, such as 2026-11-01 "
            "or 2026-11-01T12:30:00+01:00"
        ) from None


def _datetime_ns(value: dt.date) -> int:
    if not isinstance(value, dt.datetime):
        value = dt.datetime(value.year, value.month, value.day)
    if value.tzinfo is None:
        value = value.replace(tzinfo=dt.UTC)
    span = value - _EPOCH
    return (span.days * 86_400 + span.seconds) * 1_000_000_000 + span.microseconds * 1000
