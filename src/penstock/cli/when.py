"""Times, spans and sizes as the command line takes them."""

from __future__ import annotations

import datetime as dt
import re

from penstock.errors import Usage
from penstock.times import NS_MAX, Ns, to_ns

_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1}


def moment(text: str, what: str) -> Ns:
    """A time: ISO 8601, -1h, now, today, yesterday, or @ with seconds since 1970.

    >>> moment("@1.5", "since")
    1500000000
    """
    if text in _DAYS:
        return to_ns(dt.date.today() + dt.timedelta(days=_DAYS[text]), what)
    if text.startswith("@"):
        whole, _, part = text[1:].partition(".")
        if (
            whole.isascii()
            and whole.isdigit()
            and (not part or (part.isascii() and part.isdigit()))
        ):
            ns = int(whole) * 1_000_000_000 + int(part[:9].ljust(9, "0"))
            if ns <= NS_MAX:
                return Ns(ns)
    try:
        return to_ns(text, what)
    except Usage as error:
        raise Usage(f"{error}; also today, yesterday, and @SECONDS since 1970") from None


def span(text: str, what: str) -> float:
    """A time span in seconds: 90, 1.5s, 10m, 2h, 7d.

    >>> span("2m", "ttl"), span("0.5", "timeout")
    (120.0, 0.5)
    """
    found = _SPAN.fullmatch(text)
    if found is None:
        raise Usage(f"{what} must be a time span like 90, 500ms, 10m, 2h or 7d, got {text[:40]!r}")
    return float(found[1]) * _SECONDS[found[2] or "s"]


def iso(ns: int) -> str:
    """A moment in UTC with all of its nanoseconds, as commands print it.

    >>> iso(1)
    '1970-01-01T00:00:00.000000001Z'
    """
    whole = dt.datetime(1970, 1, 1) + dt.timedelta(seconds=ns // 1_000_000_000)
    return f"{whole.isoformat()}.{ns % 1_000_000_000:09d}Z"


def whole(text: str, what: str, least: int = 0) -> int:
    """A whole number from ``least`` on."""
    try:
        number = int(text)
    except ValueError:
        raise Usage(f"{what} must be a whole number, got {text[:40]!r}") from None
    if number < least:
        raise Usage(f"{what} must be {least} or more, got {number}")
    return number
