"""Append any amount of events to a log as one atomic unit: `Log.load`.

What fits one batch is appended as one. More is first written separately, in a way that the log's
storage chooses, and becomes part of the log all at once, at the end.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, SupportsIndex

from penstock import _core
from penstock import layout as L
from penstock._core import Given
from penstock.errors import TooLarge, Usage
from penstock.event import ArrowData
from penstock.system.forks import Begun

if TYPE_CHECKING:
    from penstock.handle.handle import Handle

BATCH_BYTES_MAX = 4 << 20
BATCH_EVENTS_MAX = 20_000


class Ready:
    """Prepared rows, which are appended in parts."""

    def __init__(self, rows: Iterable[Given]) -> None:
        self.rows = rows


def begin(log: Handle, producer: tuple[str, int] | None) -> tuple[bytes, int, range | None]:
    """The producer and its number, and the seqs if this repeats what the log has."""
    log._check_writable()
    log._ensure_open()
    log._storage.check_there(log)
    if producer is None:
        return b"", 0, None
    who, n = _core.check_producer(producer)
    return who, n, log._produced(who, n)[0]


def load_into(
    log: Handle,
    values: Iterable[Any] | ArrowData | Ready,
    parts: dict[str, Any],
    *,
    value: str | None,
    expect: SupportsIndex | None,
    producer: tuple[str, int] | None,
    durable: bool,
    timeout: float | None,
    progress: Callable[[int], None] | None,
    codec: str | None,
) -> range:
    """Append all of ``values``; what fits one batch is appended as one."""
    last_seq = None if expect is None else _core.to_expected(expect)
    begun = Begun("load")
    who, n, done = begin(log, producer)
    if done is not None:
        return acknowledge(log, done, durable, timeout)
    storage = log._storage
    whole = not storage.loads_apart
    room = storage.room(log) if whole else min(BATCH_BYTES_MAX, storage.room(log) // 4)
    batches: Iterator[Given]
    if hasattr(values, "__arrow_c_stream__") or hasattr(values, "__arrow_c_array__"):
        intake = log._intake(values, value, **parts, codec=codec)
        batches = iter([intake.all()]) if whole else _given(intake, room)
    elif isinstance(values, Ready):
        batches = _given(values.rows, room)
    elif value is not None:
        raise Usage("value= names a column of Arrow data, but the values are not Arrow data")
    else:
        events_max = L.BATCH_EVENTS_MAX if whole else BATCH_EVENTS_MAX
        batches = log._gathering(values, room, events_max, **parts, codec=codec)
    first = next(batches, None)
    second = next(batches, None)
    begun.check()
    if not first and who:
        raise Usage(
            f"a load with producer= must have at least one event, got none for {producer!r}"
        )
    if second is None:
        try:
            seqs = log.extend(first or [], expect=last_seq, producer=producer, timeout=timeout)
        except TooLarge:
            if not first or len(first) == 1:
                raise
            second = first[len(first) :]  # it is more than a ring, or a segment, can take at once
        else:
            if progress is not None:
                progress(len(seqs))
            return acknowledge(log, seqs, durable, timeout)
    assert first is not None
    private = storage.load_apart(log, first[:1])
    try:
        for batch in itertools.chain((first[1:], second), batches):
            private.extend(batch)
            if progress is not None:
                progress(private.count)
                begun.check()
        private.finish()
        seqs = private.publish(last_seq, who, n, timeout)
    finally:
        private.remove()
    return acknowledge(log, seqs, durable, timeout)


def acknowledge(log: Handle, seqs: range, durable: bool, timeout: float | None) -> range:
    if durable and seqs:
        log._sync(L.C_DURABLE_SEQ, seqs[-1], timeout)
    return seqs


def _given(given: Iterable[Given], room: int) -> Iterator[Given]:
    """Arrow data in parts of which several fit a segment."""
    for rows in given:
        left = rows
        while len(left):
            n = left.fitting(room, BATCH_EVENTS_MAX)
            yield left[:n]
            left = left[n:]
