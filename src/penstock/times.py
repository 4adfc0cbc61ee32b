"""Convert times as users write them to UTC nanoseconds since 1970. Knows nothing of logs.

A time without a zone is local time, as everywhere in Python. A whole number is nanoseconds; one
that is more likely seconds, milliseconds or microseconds is refused, never guessed. A time that
counts from now says so by its sign.
"""

from __future__ import annotations

import datetime as dt
import operator
import re
from typing import Any, SupportsIndex, TypeAlias, cast

from penstock._core import Ns, now_ns
from penstock.errors import Usage, WrongType

__all__ = ["NS_MAX", "Due", "Ns", "Span", "Time", "due_ns", "is_time", "span_ns", "to_ns"]

Time: TypeAlias = "SupportsIndex | str | dt.datetime | dt.date | dt.timedelta"
Due: TypeAlias = Time  # a time to come; a timedelta counts forward from now
Span: TypeAlias = "float | dt.timedelta"  # seconds

NS_MAX = (1 << 63) - 1
_1970 = dt.datetime(1970, 1, 1)
_US = dt.timedelta(microseconds=1)
_RANGE = "1970-01-01 to 2262-04-11 (UTC)"
_FRACTION = re.compile(r"[.,]\d{6}(\d+)")
_LOOKS_LIKE = (  # upper bound, unit, how many nanoseconds: 1973 to 5138 in each of them
    (10**11, "seconds", 1_000_000_000),
    (10**14, "milliseconds", 1_000_000),
    (10**17, "microseconds", 1_000),
)
_RELATIVE = re.compile(r"([+-])((?:\d+(?:\.\d+)?(?:ns|us|ms|s|m|h|d|w))+)", re.ASCII)
_PART = re.compile(r"(\d+)(?:\.(\d+))?(ns|us|ms|s|m|h|d|w)", re.ASCII)
_UNIT_NS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60 * 1_000_000_000,
    "h": 3600 * 1_000_000_000,
    "d": 86_400 * 1_000_000_000,
    "w": 7 * 86_400 * 1_000_000_000,
}
_TEXT_CHARACTERS_MAX = 100  # of a time that counts from now
_LEAST_LIKELY = 10**8  # numbers below it are artificial, for tests and counters


def to_ns(value: Time, what: str = "time") -> Ns:
    """Nanoseconds since 1970 of a whole number, a datetime, a date or an ISO 8601 string.

    A value without a zone is local time, as for `datetime.timestamp`; a date is its first moment.
    "now", "-1h", "-1d12h" and "+30s" count from now, in w, d, h, m, s, ms, us and ns, and so does a
    `timedelta` that is not above zero. A day is 24 hours.

    >>> to_ns("1970-01-02T00:00:00Z")
    86400000000000
    >>> to_ns("1970-01-01T01:00:00.000000001+01:00")
    1
    >>> to_ns("now") - to_ns("-1h") >= 3_600_000_000_000 - 1_000_000_000
    True
    """
    if isinstance(value, Ns):
        return value
    if isinstance(value, str):
        ns = _text_ns(value, what)
    elif isinstance(value, dt.date):
        ns = _date_ns(value, what)
    elif isinstance(value, dt.timedelta):
        ns = _delta_ns(value, what)
    elif hasattr(type(value), "__index__") and not isinstance(value, bool):
        try:
            ns = operator.index(value)
        except TypeError:  # every array has the method, but it fails for most
            raise WrongType(f"{what} must be a time, got {type(value).__name__}") from None
        _check_unit(ns, what)
    else:
        raise WrongType(
            f"{what} must be nanoseconds since 1970, a datetime, a date, an ISO 8601 string or "
            f"text like '-1h', got {type(value).__name__}{_hint(value)}"
        )
    if not 0 <= ns <= NS_MAX:
        raise Usage(f"{what} must lie within {_RANGE}, got {value!r}")
    return Ns(ns)


def is_time(value: object) -> bool:
    """Whether a position is given as a time: a whole number is a seq, "start" and "end" are ends.

    >>> is_time("-1h"), is_time(7), is_time("end")
    (True, False, False)
    """
    if isinstance(value, Ns):
        return True
    if value is None or isinstance(value, bool):
        return False
    if isinstance(value, str):
        return value not in ("start", "end")
    try:
        operator.index(cast(SupportsIndex, value))
    except TypeError:
        return True
    return False


def due_ns(value: Due, what: str) -> Ns:
    """`to_ns` for a time to come: here a timedelta counts forward from now.

    >>> due_ns(dt.timedelta(minutes=10), "not_before") > to_ns("+9m59s")
    True
    """
    if not isinstance(value, dt.timedelta):
        return to_ns(value, what)
    ns = now_ns() + _whole_ns(value)
    if not 0 <= ns <= NS_MAX:
        raise Usage(f"{what} must lie within {_RANGE}, got {value!r} from now")
    return Ns(ns)


def span_ns(value: Span, what: str) -> int:
    """Nanoseconds of a span of time above zero: a number of seconds, or a timedelta.

    An `Ns` is nanoseconds already.

    >>> span_ns(1.5, "ttl")
    1500000000
    """
    if isinstance(value, Ns):
        ns = int(value)
    elif isinstance(value, dt.timedelta):
        ns = _whole_ns(value)
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongType(
            f"{what} must be a number of seconds or a timedelta, got {type(value).__name__}"
        )
    elif isinstance(value, float) and not -1e12 < value < 1e12:  # nor infinite, nor not a number
        ns = -1
    else:
        ns = value * 1_000_000_000 if isinstance(value, int) else round(value * 1e9)
    if not 0 < ns <= NS_MAX:
        raise Usage(
            f"{what} must be above 0 and at most {NS_MAX // 1_000_000_000} seconds, got {value!r}"
        )
    return ns


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
        return "; convert seconds with int(seconds * 1e9)"
    if type(value).__name__ == "datetime64":
        return " without a zone; if it is UTC, give value.astype('datetime64[ns]').astype(int)"
    return ""


def _delta_ns(value: dt.timedelta, what: str) -> int:
    """A timedelta counts from now; one above zero is more likely meant to count back."""
    if value > dt.timedelta(0):
        raise Usage(
            f"{what} counts from now, so a timedelta must not be above zero, got {value!r}; give "
            f"-timedelta(...) for the past, and text like '+1h' for what is to come"
        )
    return now_ns() + _whole_ns(value)


def _whole_ns(value: dt.timedelta) -> int:
    """The nanoseconds of a timedelta."""
    below_us = cast(int, getattr(value, "nanoseconds", 0))  # a pandas.Timedelta
    whole = (value.days * 86_400 + value.seconds) * 1_000_000_000 + value.microseconds * 1000
    return whole + below_us


def _relative_ns(text: str) -> int | None:
    """Text that counts from now; None if it does not."""
    if text == "now":
        return now_ns()
    found = _RELATIVE.fullmatch(text) if len(text) <= _TEXT_CHARACTERS_MAX else None
    if found is None:
        return None
    total = 0
    for whole, fraction, unit in _PART.findall(found[2]):
        total += int(whole) * _UNIT_NS[unit]
        if fraction:
            total += int(fraction) * _UNIT_NS[unit] // 10 ** len(fraction)
    return now_ns() + (total if found[1] == "+" else -total)


def _text_ns(text: str, what: str) -> int:
    relative = _relative_ns(text)
    if relative is not None:
        return relative
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        raise Usage(
            f"{what} must be an ISO 8601 date or time, such as 2026-11-01 "
            f"or 2026-11-01T12:30:00+01:00, or count from now, such as -1h, got {text[:60]!r}"
        ) from None
    below_us = _FRACTION.search(text)  # a datetime cannot hold this
    return _date_ns(found, what) + (int(below_us[1][:3].ljust(3, "0")) if below_us else 0)


def _date_ns(value: dt.date, what: str) -> int:
    below_us = 0
    if not isinstance(value, dt.datetime):
        moment = dt.datetime(value.year, value.month, value.day)
    elif value != value:  # noqa: PLR0124 (pandas.NaT is a datetime)
        raise Usage(f"{what} must be a time, got {value!r}")
    else:
        date, time = (value.year, value.month, value.day), (value.hour, value.minute, value.second)
        moment = dt.datetime(*date, *time, value.microsecond, value.tzinfo, fold=value.fold)
        below_us = cast(int, getattr(cast(Any, value), "nanosecond", 0))  # a pandas.Timestamp
    offset = moment.utcoffset()
    try:
        if offset is not None:
            return (moment.replace(tzinfo=None) - _1970 - offset) // _US * 1000 + below_us
        local = moment.replace(tzinfo=None)  # a zone without an offset does not count
        seconds = int(local.replace(microsecond=0).timestamp())
    except (OverflowError, ValueError, OSError):  # a naive one at either end of the calendar
        raise Usage(f"{what} must lie within {_RANGE}, got {value!r}") from None
    return seconds * 1_000_000_000 + moment.microsecond * 1000 + below_us
