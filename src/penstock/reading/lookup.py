"""Events by their place: ``log[-1]``, slices, `Log.tail`, and the seq at a time."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from penstock._core import Event
from penstock.errors import NotFound, PenstockError, Usage, WrongType
from penstock.times import to_ns

if TYPE_CHECKING:
    from penstock.log import Log
    from penstock.times import Time


def item(log: Log[Any], given: Any, refused: PenstockError) -> Any:
    """What ``log[given]`` is if that is no seq: a slice, or a number that counts from the end."""
    if isinstance(given, slice):
        return _part(log, given)
    if isinstance(refused, WrongType):
        raise WrongType(f"{refused}; a range of seqs is log[10:20], or log.read(10, 20)")
    return _from_end(log, -operator.index(given))


def _from_end(log: Log[Any], back: int) -> Event[Any]:
    """The event whose seq is ``back`` below the next one."""
    last = log.last_seq
    seq = last + 1 - back
    if seq < log.first_seq:
        there = f"it has {len(log)} events" if len(log) else "it is empty"
        raise NotFound(f"{log.path}: there is no log[{-back}]; {there}")
    try:
        found: Event[Any] = log[seq]
    except NotFound:
        if back > 1:
            raise
        newest = log.read(reverse=True).take(1)  # a repair may have lost those after it
        if not newest:
            raise
        found = newest[0]
    return found


def _part(log: Log[Any], part: slice) -> list[Event[Any]]:
    """The events with seqs from ``part.start`` to before ``part.stop``, as far as they exist."""
    step = _bound(part.step, "step", 1)
    if step not in (1, -1):
        raise Usage(f"the step of a slice of a log must be 1 or -1, got {step}; use log.read()")
    first, after = log.first_seq, log.last_seq + 1
    if step == 1:
        low = _place(part.start, "start", first, after)
        high = _place(part.stop, "stop", after, after)
    else:
        low = _place(part.stop, "stop", first - 1, after) + 1
        high = _place(part.start, "start", after - 1, after) + 1
    low, high = max(low, first), min(high, after)
    if low >= high:
        return []
    return list(log.read(low, high, reverse=step == -1, on_gap="skip"))


def _bound(given: Any, what: str, none: int) -> int:
    if given is None:
        return none
    if isinstance(given, bool) or not hasattr(type(given), "__index__"):
        raise WrongType(f"the {what} of a slice must be a seq, got {type(given).__name__}")
    try:
        return operator.index(given)
    except TypeError:  # every array has the method, but it fails for most
        raise WrongType(
            f"the {what} of a slice must be a seq, got {type(given).__name__}"
        ) from None


def _place(given: Any, what: str, none: int, after: int) -> int:
    """The seq that a bound of a slice means; a negative one counts from the end."""
    number = _bound(given, what, none)
    return number if given is None or number >= 0 else max(0, after + number)


def tail(log: Log[Any], count: int, asked: dict[str, Any]) -> list[Event[Any]]:
    """The last ``count`` events that match, oldest first."""
    with log.read(reverse=True, on_gap="skip", **asked) as reader:
        return reader.take(count)[::-1]


def seq_at(log: Log[Any], time: Time) -> int:
    """Seq of the first event of that time or later; the next seq if there is none."""
    with log.read(since=to_ns(time), on_gap="skip") as reader:
        after = log.last_seq + 1
        found = reader.take(1)
    return found[0].seq if found else after
