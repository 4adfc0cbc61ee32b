"""How tasks wait for the events of a consumer.

No event is read ahead, so that what was not handed out is never committed. A task that waits is
woken by the one thread of `aio`, and now and then by its loop's clock, to say that it is alive.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Generic, Self, SupportsIndex, TypeVar

from penstock._core import Event
from penstock.arguments import seconds
from penstock.reading import aio

if TYPE_CHECKING:
    from penstock.consumers.consumer import Consumer

_T = TypeVar("_T")


async def poll(consumer: Consumer[_T], n: SupportsIndex, timeout: float | None) -> list[Event[_T]]:
    """`Consumer.apoll`."""
    until = _Until(seconds(timeout))
    await asyncio.sleep(0)  # other tasks, and a cancellation, have their turn
    found = consumer.poll(n)
    while not found and not until.is_over():
        found = await aio.take(consumer, n.__index__(), until.slice_of(consumer))
    return found


class Awaited(Generic[_T]):
    """The events of a consumer, for ``async for``."""

    def __init__(self, consumer: Consumer[_T]) -> None:
        consumer._open_file()
        self._consumer = consumer
        self._events = aio.AsyncReader(consumer, ahead=1)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event[_T]:
        until = _Until(seconds(self._consumer.timeout))
        while True:
            self._events.timeout = until.slice_of(self._consumer)
            try:
                return await anext(self._events)
            except StopAsyncIteration:
                if until.is_over():
                    raise


class _Until:
    """When a wait ends."""

    def __init__(self, timeout: float | None) -> None:
        self._at = None if timeout is None else time.monotonic() + timeout

    def is_over(self) -> bool:
        return self._at is not None and time.monotonic() >= self._at

    def slice_of(self, consumer: Consumer[Any]) -> float:
        """Seconds to wait now: until the end, or until the consumer has something to store."""
        idle: float = consumer._idle_seconds
        return idle if self._at is None else max(0.0, min(idle, self._at - time.monotonic()))
