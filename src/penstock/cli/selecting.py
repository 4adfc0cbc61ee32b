"""Reading what the options select, in lists, with bounded memory."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

from penstock.cli import options
from penstock.cli.outcome import TimedOut

LIST_EVENTS = 1000
RING_BYTES = 8 << 20  # events of a ring are copies


def read_lists(
    log: Any, given: argparse.Namespace, *, reverse: bool = False, limit: int | None = None
) -> tuple[Any, Iterator[list[Any]]]:
    """The reader of what is selected, and its events in lists."""
    test = options.wanted(given)
    if limit is None:
        limit = options.limit_of(given)
    reader = log.read(
        **options.seq_range(given, log),
        **options.time_options(given),
        **options.read_options(given),
        reverse=reverse,
        limit=limit if test is None else None,
    )
    return reader, lists_of(reader, test, limit, list_events(log))


def list_events(log: Any) -> int:
    """How many events to read at once: those of a log of segments are only looked at."""
    if log.kind != "ring" or not len(log):
        return LIST_EVENTS
    used: int = log.stats().ring.used_bytes
    return max(1, min(LIST_EVENTS, RING_BYTES * len(log) // (used + 1)))


def lists_of(
    reader: Any,
    test: Callable[[Any], bool] | None,
    limit: int | None,
    size: int = LIST_EVENTS,
) -> Iterator[list[Any]]:
    """Events of a reader that pass the test, at most ``limit`` of them."""
    left = limit
    while left is None or left > 0:
        events = reader.take(size)
        if not events:
            return
        if test is not None:
            events = list(filter(test, events))
        if left is not None:
            events = events[:left]
            left -= len(events)
        if events:
            yield events


def followed_lists(
    reader: Any,
    test: Callable[[Any], bool] | None,
    limit: int | None,
    timeout: float | None,
) -> Iterator[list[Any]]:
    """The same of a reader, or a consumer, that waits for more; `TimedOut` if nothing comes."""
    left = limit
    end = None if timeout is None else time.monotonic() + timeout
    while left is None or left > 0:
        if end is not None:
            reader.timeout = max(0.0, end - time.monotonic())
        event = next(reader, None)
        if event is None:
            raise TimedOut
        events = [
            event,
            *reader.take(LIST_EVENTS - 1 if left is None else min(LIST_EVENTS, left) - 1),
        ]
        if test is not None:
            events = list(filter(test, events))
        if not events:
            continue
        if left is not None:
            events = events[:left]
            left -= len(events)
        yield events
        if end is not None and timeout is not None:
            end = time.monotonic() + timeout
