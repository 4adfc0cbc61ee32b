"""What is settled when a group is made: checked, and compared with what the group has."""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any

from penstock.arguments import check_choice
from penstock.consumers.file import Filter
from penstock.errors import TooLarge, Usage, WrongType
from penstock.groups import decisions as d
from penstock.reader import tag_bytes, topic_bytes
from penstock.times import Span, span_ns

BACKOFF = (1, 5, 30, 120, 600)
_BACKOFFS_MAX = 1000
_COUNT_MAX = (1 << 31) - 1


def whole(given: object, what: str, least: int, most: int = _COUNT_MAX) -> int:
    """A whole number from ``least`` to ``most``.

    >>> whole(3, "batch", 1)
    3
    """
    if isinstance(given, bool) or not hasattr(type(given), "__index__"):
        raise WrongType(f"{what} must be a whole number, got {type(given).__name__}")
    try:
        number = operator.index(given)  # type: ignore[arg-type]
    except TypeError:  # every array has the method, but it fails for most
        raise WrongType(f"{what} must be a whole number, got {type(given).__name__}") from None
    if not least <= number <= most:
        raise Usage(f"{what} must be from {least} to {most}, got {number}")
    return number


def delay_ns(given: object, what: str) -> int:
    """A span of time that may be 0."""
    if isinstance(given, int | float) and not isinstance(given, bool) and given == 0:
        return 0
    if isinstance(given, dt.timedelta) and not given:
        return 0
    return span_ns(given, what)  # type: ignore[arg-type]


class Wanted:
    """The terms that a call gave, by name; what is not there was left out."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = {what: _CHECKS[what](term, what) for what, term in given.items()}

    def new(self) -> d.GroupTerms:
        """The terms of a new group."""
        terms = {"backoff": _backoff(BACKOFF, "backoff")} | self.given
        wants = Filter(terms.get("topic"), None, terms.get("tags"))
        if len(str(wants)) > 4000:
            raise TooLarge("the topic and tags of a group must fit 4000 characters")
        return d.GroupTerms(**terms)

    def check(self, path: str, name: str, has: d.GroupTerms) -> None:
        """Refuse terms that the group does not have."""
        for what, value in self.given.items():
            there = getattr(has, what)
            if value != there:
                raise Usage(
                    f"{path}: the group {name!r} was made with {what}={_said(what, there)}, and "
                    f"got {_said(what, value)}; what is settled when a group is made stays: use "
                    "another name, or leave it out"
                )


def _order(given: object, what: str) -> str:
    if given is not None:
        check_choice(given, what, "key")
    return "" if given is None else "key"


def _tries(given: object, what: str) -> int:
    return whole(given, what, 1)


def _limit(given: object, what: str) -> int:
    return 0 if given is None else whole(given, what, 1)


def _lease(given: Span | None, what: str) -> int:
    return 0 if given is None else span_ns(given, what)


def _topic(given: str | None, _: str) -> bytes | None:
    return None if given is None else topic_bytes(given)


def _backoff(given: Iterable[Span], what: str) -> tuple[int, ...]:
    refused = (str, bytes, bytearray, memoryview, Mapping, Set)
    try:
        given_steps = None if isinstance(given, refused) else iter(given)
    except TypeError:
        given_steps = None
    if given_steps is None:
        raise WrongType(
            f"{what} must be some numbers of seconds, such as (1, 5, 30), got "
            f"{type(given).__name__}"
        )
    steps = []
    for step in given_steps:
        steps.append(delay_ns(step, "each step of backoff"))
        if len(steps) > _BACKOFFS_MAX:
            raise Usage(f"backoff must have {_BACKOFFS_MAX} steps or fewer")
    return tuple(steps)


def _tag_names(tags: Iterable[str] | None, _: str) -> tuple[str, ...] | None:
    if isinstance(tags, Iterator):
        tags = list(tags)  # it is gone through twice
    return tuple(sorted(set(tags))) if tags is not None and tag_bytes(tags) else None


_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "order": _order,
    "deliveries": _tries,
    "backoff": _backoff,
    "lease": _lease,
    "max_pending": _limit,
    "dead_per_minute": _limit,
    "topic": _topic,
    "tags": _tag_names,
}


def _said(what: str, value: Any) -> str:
    """A term in the words of the call."""
    if what == "backoff":
        return str(tuple(step / 1e9 for step in value))
    if what == "lease":
        return repr(value / 1e9 if value else None)
    if what == "topic" and value is not None:
        return repr(value.decode(errors="replace"))
    if what == "tags" and value is not None:
        return repr(list(value))
    return repr(value or None)
