"""Times as users write them, turned into UTC nanoseconds since 1970. Knows nothing of logs.

A time without a zone is local time, as everywhere in Python. A whole number is nanoseconds; one
that is more likely seconds, milliseconds or microseconds is refused, never guessed.
"""

from __future__ import annotations

import datetime as dt
import operator
import re
from typing import Any, SupportsIndex, TypeAlias, cast

from penstock._core import Ns
from penstock.errors import Usage, WrongType

__all__ = ["NS_MAX", "Ns", "Time", "to_ns"]

Time: TypeAlias = "SupportsIndex | str | dt.datetime | dt.date"

NS_MAX = (1 << 63) - 1
_RANGE = "1970-01-01 to 2262-04-11 (UTC)"
_FRACTION = re.compile(r"[.,]\d{6}(\d+)")
_LOOKS_LIKE = (  # upper bound, unit, how many nanoseconds: 1973 to 5138 in each of them
    (10**11, "seconds", 1_000_000_000),
    (10**14, "milliseconds", 1_000_000),
    (10**17, "microseconds", 1_000),
)
_LEAST_LIKELY = 10**8  # numbers below it are made up, for tests and counters


def to_ns(value: Time, what: str = "time") -> Ns:
    """Nanoseconds since 1970 of a whole number, a datetime, a date or an ISO 8601 string.

    What has no zone is local time, as for `datetime.timestamp`; a date is its first moment.

    >>> to_ns("1970-01-02T00:00:00Z")
    86400000000000
    >>> to_ns("1970-01-01T01:00:00.000000001+01:00")
    1
    """
    if isinstance(value, Ns):
        return value
    if isinstance(value, str):
        ns = _text_ns(value, what)
    elif isinstance(value, dt.date):
        ns = _date_ns(value, what)
    elif hasattr(type(value), "__index__") and not isinstance(value, bool):
        try:
            ns = operator.index(value)
        except TypeError:  # an array has the method, and only some have an answer
            raise WrongType(f"{what} must be a time, got {type(value).__name__}") from None
        _check_unit(ns, what)
    else:
        raise WrongType(
            f"{what} must be nanoseconds since 1970, a datetime, a date or an ISO 8601 string, "
            f"got {type(value).__name__}{_hint(value)}"
        )
    if not 0 <= ns <= NS_MAX:
        raise Usage(f"{what} must lie within {_RANGE}, got {value!r}")
    return Ns(ns)


def _check_unit(number: int, what: str) -> None:
    """Refuse a number that is more likely a time in another unit."""
    if number < _LEAST_LIKELY:
        return
    for limit, unit, factor in _LOOKS_LIKE:
        if number < limit:
            raise Usage(
                f"{what} must be nanoseconds since 1970, got {number}, which looks like {unit}: "
                f"multiply it by {factor:_}, or give a datetime"
            )


def _hint(value: object) -> str:
    if isinstance(value, float):
        return "; of seconds, make int(seconds * 1e9)"
    if type(value).__name__ == "datetime64":
        return " without a zone; if it is UTC, give value.astype('datetime64[ns]').astype(int)"
    return ""


def _text_ns(text: str, what: str) -> int:
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        raise Usage(
            f"{what} must be an ISO 8601 date or time, such as 2026-11-01 "
            f"or 2026-11-01T12:30:00+01:00, got {text[:60]!r}"
        ) from None
    below_us = _FRACTION.search(text)  # which a datetime cannot hold
    return _date_ns(found, what) + (int(below_us[1][:3].ljust(3, "0")) if below_us else 0)


def _date_ns(value: dt.date, what: str) -> int:
    if not isinstance(value, dt.datetime):
        moment = dt.datetime(value.year, value.month, value.day)
        below_us = 0
    elif value != value:  # noqa: PLR0124 (pandas.NaT is a datetime)
        raise Usage(f"{what} must be a time, got {value!r}")
    else:
        date, time = (value.year, value.month, value.day), (value.hour, value.minute, value.second)
        moment = dt.datetime(*date, *time, value.microsecond, value.tzinfo, fold=value.fold)
        below_us = cast(int, getattr(cast(Any, value), "nanosecond", 0))  # a pandas.Timestamp
    try:
        seconds = int(moment.replace(microsecond=0).timestamp())
    except (OverflowError, ValueError, OSError):  # a naive one at either end of the calendar
        raise Usage(f"{what} must lie within {_RANGE}, got {value!r}") from None
    return seconds * 1_000_000_000 + moment.microsecond * 1000 + below_us
