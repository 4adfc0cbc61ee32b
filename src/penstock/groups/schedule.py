"""Schedules: an event at each tick of a clock, once however many processes append it.

The log knows the last tick of each schedule as that of a producer, so that a race appends once; the
group's decisions remember it for good.
"""

from __future__ import annotations

import datetime as dt
import re
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, Self

from penstock import _core
from penstock.errors import Conflict, Usage, WrongType
from penstock.event import Buffer, Headers
from penstock.groups import decisions as d
from penstock.groups.folder import check_name
from penstock.system.background import Background
from penstock.system.messages import logger
from penstock.system.needs import needed
from penstock.times import span_ns

if TYPE_CHECKING:
    from penstock.groups.desk import Desk

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_AGAIN_S = 5.0  # after a failure
_LONG_S = 3600.0  # the clock may be set while a thread sleeps; it looks at least so often
_INTERVAL = re.compile(
    r"(?:every\s+)?(\d+(?:\.\d+)?)?\s*(second|sec|s|minute|min|m|hour|h|day|d|week|w)s?"
)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


class Ticks(Protocol):
    """When a schedule is due, in nanoseconds since 1970."""

    def last(self, now: int) -> int:
        """The last tick up to that time."""

    def next(self, now: int) -> int:
        """The first tick after it."""


class Interval:
    """Ticks at whole multiples of a span since 1970, so that all processes agree.

    >>> Interval(60_000_000_000).last(90_000_000_000)
    60000000000
    """

    def __init__(self, span: int) -> None:
        self._span = span

    def last(self, now: int) -> int:
        """The last tick up to that time."""
        return now - now % self._span

    def next(self, now: int) -> int:
        """The first tick after it."""
        return self.last(now) + self._span


class Cron:
    """Ticks of five fields of cron, in a time zone."""

    def __init__(self, text: str, tz: dt.tzinfo) -> None:
        self._croniter = needed("croniter", "'penstock[schedule]'").croniter
        if not self._croniter.is_valid(text):
            raise Usage(f"when must be an interval or five fields of cron, got {text[:60]!r}")
        self._text, self._tz = text, tz

    def last(self, now: int) -> int:
        """The last tick up to that time."""
        moment = (_EPOCH + dt.timedelta(seconds=now // 10**9 + 1)).astimezone(self._tz)
        return self._ns(self._croniter(self._text, moment).get_prev(dt.datetime))

    def next(self, now: int) -> int:
        """The first tick after it."""
        moment = (_EPOCH + dt.timedelta(seconds=now // 10**9)).astimezone(self._tz)
        return self._ns(self._croniter(self._text, moment).get_next(dt.datetime))

    @staticmethod
    def _ns(moment: dt.datetime) -> int:
        return int(moment.timestamp()) * 10**9


def ticks_of(when: object, tz: str) -> Ticks:
    """The ticks that a user means.

    >>> ticks_of("5 minutes", "UTC").next(0)
    300000000000
    """
    if isinstance(when, dt.timedelta) or (
        isinstance(when, int | float) and not isinstance(when, bool)
    ):
        return Interval(span_ns(when, "when"))
    if not isinstance(when, str):
        raise WrongType(
            f"when must be a number of seconds, text such as '5 minutes', or five fields of cron, "
            f"got {type(when).__name__}"
        )
    zone = _zone(tz)
    found = _INTERVAL.fullmatch(when.strip().lower())
    if found is not None:
        return Interval(span_ns(float(found[1] or 1) * _UNITS[found[2][0]], "when"))
    if len(when.split()) != 5:
        raise Usage(
            "when must be an interval such as '30 seconds', '5 minutes', '1 hour' or '1 day', or "
            f"five fields of cron, got {when[:60]!r}"
        )
    return Cron(when, zone)


def _zone(tz: object) -> dt.tzinfo:
    if not isinstance(tz, str):
        raise WrongType(f"tz must be the name of a time zone, got {type(tz).__name__}")
    if tz == "UTC":
        return dt.UTC
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(tz)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        raise Usage(
            f"tz must be the name of a time zone, such as 'Europe/Berlin', got {tz[:60]!r}"
        ) from None


class Schedule:
    """A thread that appends an event at each tick. It comes from `Group.every`.

    ``last_error`` is why the last try failed, or None; it is tried again.
    """

    def __init__(
        self,
        desk: Desk,
        when: object,
        name: str,
        value: Any,
        topic: str | None,
        key: Buffer | None,
        headers: Headers | None,
        tz: str,
    ) -> None:
        self._ticks = ticks_of(when, tz)
        self.name = check_name(name)
        self._desk = desk
        self._value = value
        self._parts: dict[str, Any] = {"topic": topic, "key": key, "headers": headers}
        self.last_error: str | None = None
        self._stop = threading.Event()
        self._generation = _core.fork_generation()
        with desk.guard:
            state = desk.state()
            self._producer = f"{state.uuid.hex()}:{self.name}"
            if self.name not in state.ticks:  # it begins now, not with a tick of the past
                desk.ledger.record(d.Ticked(self.name, self._ticks.last(_core.now_ns())))
        self._thread = Background("penstock-ticks", self._step)

    @property
    def closed(self) -> bool:
        """Whether it was closed, or belongs to the process that forked."""
        return self._stop.is_set() or self._generation != _core.fork_generation()

    def close(self) -> None:
        """End the thread. Closing twice is fine."""
        if not self.closed:
            self._stop.set()
            self._thread.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<penstock.Schedule {self.name!r} of {self._desk.path!r}>"

    def _step(self) -> bool:
        if self._desk.closed or self._desk.log.closed:
            return False
        try:
            self._tick(_core.now_ns())
            now = _core.now_ns()
            wait = min(_LONG_S, max(0.0, (self._ticks.next(now) - now) / 1e9))
            self.last_error = None
        except Exception as error:  # the user's function may raise anything
            if self._stop.is_set() or self._desk.closed or self._desk.log.closed:
                return False
            self.last_error = f"{type(error).__name__}: {error}"
            logger.warning("%s: the schedule %r failed: %s", self._desk.path, self.name, error)
            wait = _AGAIN_S
        while wait > 0 and not self._stop.wait(min(wait, 0.5)):
            if self._desk.closed or self._desk.log.closed:
                return False
            wait -= 0.5
        return not self._stop.is_set()

    def _tick(self, now: int) -> None:
        """Append what is due, unless somebody has."""
        due = self._ticks.last(now)
        with self._desk.guard:
            if self._desk.state().ticks.get(self.name, 0) >= due:
                return
        value = self._value
        if callable(value):
            value = value(_EPOCH + dt.timedelta(microseconds=due // 1000))
        with suppress(Conflict):  # another process is at a later tick
            self._desk.log.append(
                value, time=_core.Ns(due), producer=(self._producer, due), **self._parts
            )
        _core.fail_point("group.ticked")
        with self._desk.guard:
            self._desk.state()
            self._desk.ledger.record(d.Ticked(self.name, due))
