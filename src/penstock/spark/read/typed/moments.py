"""Moments: dates and timestamps in text, as Spark reads them where no pattern is given.

Text without a zone is taken as UTC. Results are counts, as in Spark and Arrow: days or microseconds
since 1970. The result is None for text that is not a date or timestamp.
"""

from __future__ import annotations

import datetime as dt
import functools
import re
import zoneinfo

_TRIM = "".join(map(chr, [*range(0x21), 0x7F]))
_DATE = re.compile(r"([+-]?[0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_TIMESTAMP = re.compile(
    r"""(?: (?P<year>[+-]?[0-9]{4,6})
            (?: -(?P<month>[0-9]{1,2}) (?: -(?P<day>[0-9]{1,2}) (?: [ T] (?P<clock>[0-9].*) )? )? )?
          | T (?P<bare>[0-9].*) | (?P<only>[0-9]{1,2}:.*) )""",
    re.DOTALL | re.VERBOSE,
)
_CLOCK = re.compile(
    r"([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?([^0-9.].*)?)?)?", re.DOTALL
)
_OFFSET = re.compile(
    r"(?:UTC|GMT|UT)?([+-])(?:([0-9])|([0-9]{2})(?::?([0-9]{2})(?::?([0-9]{2}))?)?)"
)
_MIXED_COLONS = re.compile(r"[0-9]{2}(?::[0-9]{4}|[0-9]{2}:[0-9]{2})$")
_WHOLE = re.compile(r"[+-]?[0-9]{1,10}")
_SHORT_ZONES = {
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
    "EST": "-05:00",
    "MST": "-07:00",
    "HST": "-10:00",
}
_OFFSET_SECONDS_MAX = 18 * 3600
_GREGORIAN_FIRST = -141_427  # 1582-10-15, before which day counts were of the Julian calendar
_JULIAN_EPOCH = -719_164  # the Julian calendar's 1 January of the year 1


def date(text: str) -> int | None:
    """The day that a text names, or that it counts to, as Spark once wrote dates."""
    found = _days(text)
    if found is None and "GMT" in text:
        found = _days(text.replace("GMT", ""))
    if found is None and _WHOLE.fullmatch(text) and -(1 << 31) <= int(text) < 1 << 31:
        return _of_hybrid(int(text))
    return found


def timestamp(text: str) -> int | None:
    """The instant that a text names, in UTC where it names no zone."""
    found = _micros(text, zoned=True)
    if found is None and "GMT" in text:
        found = _micros(text.replace("GMT", ""), zoned=True)
    return found


def timestamp_ntz(text: str) -> int | None:
    """The local time that a text names; it must not name a zone."""
    return _micros(text, zoned=False)


def _days(text: str) -> int | None:
    found = _DATE.fullmatch(text.strip(_TRIM))
    if found is None:
        return None
    days = _civil_days(int(found[1]), int(found[2] or 1), int(found[3] or 1))
    return days if days is not None and -(1 << 31) <= days < 1 << 31 else None


def _micros(text: str, *, zoned: bool) -> int | None:
    found = _TIMESTAMP.fullmatch(text.strip(_TRIM))
    if found is None or (found["bare"] and not text.startswith("T")):
        return None
    clock = found["clock"] or found["bare"] or found["only"] or "0"
    parts = _CLOCK.fullmatch(clock)
    if parts is None:
        return None
    hour, minute, second = (int(part or 0) for part in parts.groups()[:3])
    if hour > 23 or minute > 59 or second > 59:
        return None
    micros = int((parts[4] or "")[:6].ljust(6, "0"))
    zone: dt.tzinfo | None = dt.UTC
    if parts[5] is not None:
        zone = _zone(parts[5].strip(_TRIM)) if zoned else None
        if zone is None:
            return None
    if found["year"] is not None:
        days = _civil_days(int(found["year"]), int(found["month"] or 1), int(found["day"] or 1))
    elif zoned:
        days = (dt.datetime.now(zone).date() - dt.date(1970, 1, 1)).days
    else:
        return None
    if days is None:
        return None
    seconds = days * 86_400 + hour * 3600 + minute * 60 + second
    total = (seconds - _offset_seconds(zone, seconds)) * 1_000_000 + micros
    return total if -(1 << 63) <= total < 1 << 63 else None


def _civil_days(year: int, month: int, day: int) -> int | None:
    """Days since 1970 in the Gregorian calendar, of any year; None if there is no such day."""
    try:
        alike = dt.date(2000 + year % 400, month, day)  # the calendar repeats every 400 years
    except ValueError:
        return None
    return (alike - dt.date(1970, 1, 1)).days + (year - alike.year) // 400 * 146_097


def _of_hybrid(days: int) -> int:
    """The day of the same name for a count that is of the Julian calendar before 1582."""
    if days >= _GREGORIAN_FIRST:
        return days
    cycles, rest = divmod(days - _JULIAN_EPOCH, 1461)
    years = min(rest // 365, 3)
    inside = rest - years * 365
    alike = dt.date(2004 if years == 3 else 2001, 1, 1) + dt.timedelta(inside)
    found = _civil_days(cycles * 4 + years + 1, alike.month, alike.day)
    return days if found is None else found


@functools.lru_cache(256)
def _zone(name: str) -> dt.tzinfo | None:
    """The zone of a name or an offset, as Java knows it; None if it knows none."""
    name = re.sub(r"([+-])([0-9]):", r"\g<1>0\2:", name, count=1)
    name = re.sub(r"([+-][0-9]{2}):([0-9])$", r"\1:0\2", name)
    name = _SHORT_ZONES.get(name, name)
    if name in ("Z", "UTC", "GMT", "UT"):
        return dt.UTC
    offset = _OFFSET.fullmatch(name)
    if offset is not None:
        if _MIXED_COLONS.search(name):
            return None
        hours, minutes, seconds = int(offset[2] or offset[3]), int(offset[4] or 0), offset[5] or 0
        total = hours * 3600 + minutes * 60 + int(seconds)
        if minutes > 59 or int(seconds) > 59 or total > _OFFSET_SECONDS_MAX:
            return None
        return dt.timezone(dt.timedelta(seconds=-total if offset[1] == "-" else total))
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return None


def _offset_seconds(zone: dt.tzinfo | None, local_seconds: int) -> int:
    """How far the zone is ahead of UTC when its clocks show that time."""
    if zone is None or zone is dt.UTC:
        return 0
    days, seconds = divmod(local_seconds, 86_400)
    first, last = dt.date.min.toordinal() + 1, dt.date.max.toordinal() - 1
    ordinal = days + dt.date(1970, 1, 1).toordinal()
    if ordinal > last:  # rules repeat as the calendar does
        ordinal = last - (last - ordinal) % 146_097
    day = dt.date.fromordinal(max(ordinal, first))
    local = dt.datetime.combine(day, dt.time()) + dt.timedelta(seconds=seconds)
    offset = zone.utcoffset(local.replace(tzinfo=zone))
    return 0 if offset is None else int(offset.total_seconds())
