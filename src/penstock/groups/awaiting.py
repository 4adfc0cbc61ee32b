"""How tasks wait for jobs. Nothing is claimed while a task waits, so a cancelled one loses none."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from penstock.groups import letters
from penstock.groups.life import WATCH_S
from penstock.reading import aio

if TYPE_CHECKING:
    from penstock.groups.job import Job
    from penstock.groups.worker import Worker

_T = TypeVar("_T")


async def poll(
    worker: Worker[_T], want: int, timeout: float | None, ahead: int = 1
) -> list[Job[_T]]:
    """`Worker.apoll`."""
    await asyncio.sleep(0)  # other tasks, and a cancellation, have their turn
    desk = worker._desk
    found = worker._try(want, ahead, idle=False, buries=False)
    if found or timeout == 0:
        return found
    loop = asyncio.get_running_loop()
    deadline = math.inf if timeout is None else loop.time() + timeout
    listener = aio.Listener(loop)
    try:
        logs = [(log, listener.watch(log)) for log in (desk.log, desk.ledger.log)]
        while True:
            if desk.ledger.state.dying:  # a sync takes long
                await asyncio.to_thread(letters.bury, desk)
            seen = [listener.look(slot) for _, slot in logs]
            found = worker._try(want, ahead, idle=True, buries=False)
            if found:
                return found
            left = deadline - loop.time()
            if left <= 0:
                return found
            armed = [listener.arm(slot, look) for (_, slot), look in zip(logs, seen, strict=True)]
            if all(armed):
                await _sleep(listener, worker, min(left, worker._idle_seconds()))
                listener.changed()
                desk.log._storage.check_there(desk.log)
            else:
                await asyncio.sleep(0)
    finally:
        listener.close()


async def _sleep(listener: aio.Listener, worker: Worker[_T], timeout: float) -> None:
    """Sleep until there is news, somebody has died, or time is up."""
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout
    with worker._desk.watching(worker.number) as others:
        while (left := end - loop.time()) > 0:
            if await listener.sleep(min(left, WATCH_S) if others else left):
                return
            if others and others.has_death():
                return


class AwaitedJobs(Generic[_T]):
    """The jobs of a worker, for ``async for``."""

    def __init__(self, worker: Worker[_T]) -> None:
        worker._check_open()
        self._worker = worker

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Job[_T]:
        worker = self._worker
        found = await poll(worker, 1, worker.timeout, worker._prefetch)
        if not found:
            raise StopAsyncIteration
        return found[0]
