"""Workers in asyncio: waiting tasks, cancelled ones, many at once."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import pytest

from penstock import Backpressure, Log


def test_a_task_waits(log: Log) -> None:
    """A task that waits gets what is appended, and other tasks run meanwhile."""

    async def main() -> list[bytes | None]:
        found = []
        async with log.group("mail").worker() as worker:
            asyncio.get_running_loop().call_later(0.05, log.append, b"a")
            async for job in worker:
                async with job:
                    found.append(job.event.value)
                if len(found) == 1:
                    log.append(b"b")
                else:
                    return found
        return found

    assert asyncio.run(main()) == [b"a", b"b"]


def test_a_cancelled_task_loses_nothing(log: Log) -> None:
    """Cancelled while it waits, a task has claimed nothing."""

    async def main() -> None:
        async with log.group("mail").worker() as worker:
            for i in range(20):
                task = asyncio.create_task(worker.apoll(5, timeout=None))
                await asyncio.sleep(0.001 * (i % 3))
                log.append(b"%d" % i)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    worker.ack(await task)
            worker.ack(await worker.apoll(100))
            assert worker.group.stats().acked == 20

    asyncio.run(main())


def test_delays_and_ends(log: Log) -> None:
    """A delayed event wakes the task when it is due; iteration ends after the timeout."""

    async def main() -> list[bytes | None]:
        log.append(b"bad")
        log.append(b"late", not_before="+100ms")
        group = log.group("mail", dead_per_minute=1)
        found = []
        async with group.worker(timeout=0.3) as worker:
            async for job in worker:
                found.append(job.event.value)
                if job.event.value == b"bad":
                    job.reject("bad")
                else:
                    job.ack()
        assert len(group.dead) == 1
        assert await group.worker().apoll() == []
        return found

    assert asyncio.run(main()) == [b"bad", b"late"]


def test_the_breaker_in_a_task(log: Log) -> None:
    """A stopped group raises in tasks as well."""

    async def main() -> None:
        log.extend([b"a", b"b", b"c"])
        async with log.group("mail", dead_per_minute=1).worker() as worker:
            for job in await worker.apoll(2):
                job.reject()
            with pytest.raises(Backpressure):
                await worker.apoll(1, timeout=5)

    asyncio.run(main())


def test_many_tasks(log: Log) -> None:
    """Workers of many tasks share what comes."""
    seen: list[int] = []

    async def one(name: str) -> None:
        async with log.group("mail").worker(timeout=0.3) as worker:
            async for job in worker:
                async with job:
                    seen.append(job.seq)
                    await asyncio.sleep(0.001)

    async def main() -> None:
        log.extend([b"x"] * 60)
        await asyncio.gather(*(one(str(i)) for i in range(5)))

    began = time.monotonic()
    asyncio.run(main())
    assert sorted(seen) == list(range(1, 61))
    assert time.monotonic() >= began
