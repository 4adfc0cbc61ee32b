"""Consumers as sources: merged, in tasks, and deleted with their log."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Busy, Closed, Consumer, Corrupt, Log, Usage, WrongType
from penstock.reading.sources import Source
from penstock.segments.storage import SegmentStorage
from tests.consumers import processes
from tests.consumers.conftest import KINDS
from tests.support.wait import wait_for
from tests.unit.test_asyncio import check_no_thread, own_threads


def values(events: list[penstock.Event]) -> list[bytes]:
    return [event.value for event in events]


@pytest.fixture
def pair(tmp_path: Path, kind: str) -> Iterator[tuple[Log, Log]]:
    """Two logs whose events alternate in time: b"1" to b"8"."""
    with ExitStack() as stack:
        logs = [
            stack.enter_context(penstock.create(tmp_path / name, **KINDS[kind])) for name in "ab"
        ]
        for ns in range(1, 9):
            logs[(ns + 1) % 2].append(b"%d" % ns, time=ns)
        yield logs[0], logs[1]


def run(work: Any) -> Any:
    """Run a coroutine; after that no thread of ours is left."""
    found = asyncio.run(asyncio.wait_for(work, 60))
    check_no_thread()
    return found


def test_take(log: Log) -> None:
    """take gives what is there, up to a count, and never waits; what it gave can be committed."""
    log.extend([b"a", b"b", b"c"])
    with log.consumer("c") as consumer:
        assert isinstance(consumer, Source)
        assert consumer.take(0) == [] and consumer.position == 1
        assert values(consumer.take(2)) == [b"a", b"b"]
        assert (consumer.position, consumer.committed) == (3, 1)
        consumer.commit()
        assert values(consumer.take(10)) == [b"c"]
        assert consumer.take(10) == []
        for wrong, error in ((-1, Usage), ("1", WrongType), (True, WrongType), (1.5, WrongType)):
            with pytest.raises(error, match="count"):
                consumer.take(wrong)  # type: ignore[arg-type]
    with pytest.raises(Closed):
        consumer.take(0)
    assert log.consumer("c").committed == 3


def test_take_gives_what_is_before_an_error(tmp_path: Path) -> None:
    """An error costs no event before it, and is raised each time it is met."""
    path = tmp_path / "log"
    with penstock.create(path) as log:
        log.extend([b"first", b"second", b"third"])
        log.steward.roll()
    segment = min(path.glob("*.seg"))
    raw = segment.read_bytes()
    segment.write_bytes(raw.replace(b"third", b"thirD"))
    with penstock.open(path) as log, log.consumer("c") as consumer:
        assert values(consumer.take(10)) == [b"first", b"second"]
        for _ in range(2):
            with pytest.raises(Corrupt):
                consumer.take(10)
        merged = penstock.merge(consumer)
        with pytest.raises(Corrupt):
            next(merged)


def test_an_interrupt_comes_after_the_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C during a take, a poll: what was found is handed out; then it is raised, once."""
    strike = [False]
    segment_at = SegmentStorage.segment_at

    def interrupted(*given: Any) -> Any:
        if strike[0]:
            strike[0] = False
            raise KeyboardInterrupt
        return segment_at(*given)

    monkeypatch.setattr(SegmentStorage, "segment_at", interrupted)
    with penstock.create(tmp_path / "log") as log:
        log.append(b"a")
        log.steward.roll()
        log.append(b"b")
        with log.consumer("c", timeout=0) as consumer:
            for ask in (consumer.take, consumer.poll, lambda n: [next(consumer)]):
                consumer.seek("start")
                strike[0] = True
                assert values(consumer.take(10)) == [b"a"]
                with pytest.raises(KeyboardInterrupt):
                    ask(10)
                assert values(ask(10)) == [b"b"]


def test_wait(log: Log) -> None:
    """wait says whether something is there behind the position; it raises once it is closed."""
    with log.consumer("c") as consumer:
        assert not consumer.wait(0)
        assert not consumer.wait(0.001)
        log.append(b"a")
        assert consumer.wait(0) and consumer.wait()
        consumer.take(1)
        child = processes.start(lambda: log.append(b"b"))
        assert consumer.wait(60)
        assert child.wait() == 0
        assert values(consumer.take(5)) == [b"b"]
        with pytest.raises(WrongType, match="timeout"):
            consumer.wait("1")  # type: ignore[arg-type]
    with pytest.raises(Closed, match="consumer 'c' is closed"):
        consumer.wait(0)


def test_merged_consumers_commit_what_was_handed_out(pair: tuple[Log, Log]) -> None:
    """merged.commit() commits each consumer up to what came out of it, though more was read."""
    a, b = pair
    with a.consumer("c") as one, b.consumer("c") as two:
        merged = penstock.merge(one, two)
        assert values(merged.take(3)) == [b"1", b"2", b"3"]
        assert merged.source is one
        assert (one.position, two.position) == (5, 5)  # read ahead
        assert (one.committed, two.committed) == (1, 1)
        merged.commit()
        assert (one.committed, two.committed) == (3, 2)
        assert merged.positions == (3, 2)
        merged.take(2)
    with a.consumer("c") as one, b.consumer("c") as two:
        merged = penstock.merge(one, two)
        assert values(list(merged)) == [b"4", b"5", b"6", b"7", b"8"]
        merged.commit(durable=True)
        assert (one.committed, two.committed) == (5, 5)


def test_a_merge_that_dies_hands_out_what_was_not_committed(pair: tuple[Log, Log]) -> None:
    """Killed at any moment, the next one goes on after the last commit: nothing is lost."""
    a, b = pair

    def work() -> None:
        with a.consumer("c") as one, b.consumer("c") as two:
            merged = penstock.merge(one, two, follow=True)
            for event in merged:
                merged.commit()
                if event.value == b"5":
                    next(merged)
                    os.kill(os.getpid(), 9)

    assert processes.run(work) == -9
    with a.consumer("c") as one, b.consumer("c") as two:
        assert values(list(penstock.merge(one, two))) == [b"6", b"7", b"8"]


def test_a_filter_is_committed_past_what_does_not_match(pair: tuple[Log, Log]) -> None:
    """A merged consumer that handed out all it has is committed behind what it passed over."""
    a, b = pair
    a.append(b"x", topic="rare", time=9)
    a.append(b"y", time=10)
    with a.consumer("c", topic="rare") as one, b.consumer("c") as two:
        merged = penstock.merge(one, two)
        assert values(list(merged)) == [b"2", b"4", b"6", b"8", b"x"]
        merged.commit()
        assert (one.committed, two.committed) == (7, 5)


def test_what_merge_refuses_of_consumers(pair: tuple[Log, Log]) -> None:
    """One that commits by itself, would go backward, is given twice or is closed."""
    a, b = pair
    with a.consumer("auto", auto_commit=1) as auto, a.consumer("c") as one:
        with pytest.raises(Usage, match="auto_commit would commit events that merge"):
            penstock.merge(auto, b)
        with pytest.raises(Usage, match="a consumer only goes forward"):
            penstock.merge(one, b, reverse=True)
        with pytest.raises(Usage, match="only once"):
            penstock.merge(one, one)
        with pytest.raises(Usage, match="topic is for logs"):
            penstock.merge(one, topic="x")
        mixed = penstock.merge(one, b)
        assert len(mixed.take(100)) == 8
        mixed.commit()
        assert (auto.committed, one.committed) == (1, 5)
    with pytest.raises(Closed):
        penstock.merge(one)


def test_tasks_poll(log: Log) -> None:
    """apoll waits for events that come, gives them as poll does, and ends when time is up."""

    async def work() -> None:
        async with log.consumer("c") as consumer:
            assert await consumer.apoll() == []
            assert await consumer.apoll(timeout=0.001) == []
            polling = asyncio.create_task(consumer.apoll(2, None))
            await asyncio.sleep(0)
            log.extend([b"a", b"b", b"c"])
            assert values(await polling) == [b"a", b"b"]
            consumer.commit()
            assert values(await consumer.apoll(2, timeout=5)) == [b"c"]
            for wrong, error in ((0, Usage), ("1", WrongType)):
                with pytest.raises(error, match="must be"):
                    await consumer.apoll(wrong)  # type: ignore[arg-type]
            with pytest.raises(WrongType, match="timeout"):
                await consumer.apoll(1, "soon")  # type: ignore[arg-type]
        assert consumer.closed

    run(work())
    assert log.consumer("c").committed == 3


def test_tasks_iterate(log: Log) -> None:
    """async for hands out one event at a time and reads none ahead; timeout ends it."""

    async def work() -> None:
        async with log.consumer("c", timeout=0) as consumer:
            found = []
            async for event in consumer:
                found.append(event.value)
                assert consumer.position == event.seq + 1
                consumer.commit()
                if event.value == b"b":
                    break
            assert found == [b"a", b"b"]
            assert [event.value async for event in consumer] == [b"c"]
            assert [event.value async for event in consumer] == []
            log.append(b"d")
            assert [event.value async for event in consumer] == [b"d"]

    log.extend([b"a", b"b", b"c"])
    run(work())
    assert log.consumer("c").committed == 3


def test_a_task_that_is_cancelled_loses_nothing(log: Log) -> None:
    """Cancelled while it waits, a consumer goes on where it was."""

    async def work() -> None:
        with log.consumer("c") as consumer:
            for wait in (consumer.apoll(10, None), anext(aiter(consumer))):
                task = asyncio.ensure_future(wait)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            log.append(b"a")
            assert values(await consumer.apoll(10, 5)) == [b"a"]

    run(work())


def test_many_consumers_wait_with_one_thread(log: Log) -> None:
    """However many tasks wait for consumers, one thread of the process does."""

    async def first(consumer: Consumer) -> bytes:
        async with consumer:
            async for event in consumer:
                return event.value
        raise AssertionError

    async def work() -> None:
        tasks = [asyncio.create_task(first(log.consumer(f"c{n}"))) for n in range(30)]
        await asyncio.sleep(0)
        while own_threads() == 0:
            await asyncio.sleep(0)
        assert own_threads() == 1
        log.append(b"a")
        assert await asyncio.gather(*tasks) == [b"a"] * 30

    run(work())


def test_a_task_that_waits_says_that_it_is_alive(log: Log) -> None:
    """While a task waits, the heartbeat goes on, and what was passed is committed in time."""
    log.append(b"a")

    async def work() -> None:
        async with log.consumer("c", auto_commit=0.01) as consumer:
            events = aiter(consumer)
            assert (await anext(events)).value == b"a"
            assert log.consumers()["c"].committed == 1  # it is being worked on
            waiting = asyncio.ensure_future(anext(events))
            while log.consumers()["c"].committed != 2:
                await asyncio.sleep(0.001)
            seen = log.consumers()["c"].last_seen
            while log.consumers()["c"].last_seen == seen:
                await asyncio.sleep(0.01)
            log.append(b"b")
            assert (await waiting).value == b"b"

    run(work())


def test_closing_ends_a_wait(log: Log) -> None:
    """A task that waits for a consumer, or polls it, gets Closed when that is closed."""

    async def work() -> None:
        for polls in (True, False):
            consumer = log.consumer("c", start="end")
            waits: Any = consumer.apoll(1, None) if polls else anext(aiter(consumer))
            task = asyncio.ensure_future(waits)
            await asyncio.sleep(0)
            consumer.close()
            log.append(b"a")
            with pytest.raises(Closed):
                await task
            log.consumers().delete("c")

    run(work())


def test_a_merge_in_a_task(pair: tuple[Log, Log]) -> None:
    """Consumers can be merged in a task, and committed from there."""
    a, b = pair

    async def work() -> None:
        async with a.consumer("c") as one, b.consumer("c") as two:
            merged = penstock.merge(one, two, follow=True)
            found = []
            async for event in merged:
                found.append(event.value)
                merged.commit()
                if len(found) == 7:
                    b.append(b"10", time=10)
                    a.append(b"9", time=9)
                    a.append(b"11", time=11)
                if len(found) == 10:
                    break
            assert found == [b"%d" % ns for ns in range(1, 11)]
            assert (one.committed, two.committed) == (6, 6)

    run(work())


def test_delete_takes_consumers_along(path: Path, kind: str, log: Log) -> None:
    """delete removes a log, and a ring's own directory, with consumers in any state."""
    log.extend([b"a", b"b"])
    log.consumer("new").close()
    with log.consumer("plain") as consumer:
        consumer.poll()
        consumer.commit()
    with log.consumer("durable") as consumer:
        consumer.poll()
        consumer.commit(durable=True)
    log.close()
    penstock.delete(path)
    assert os.listdir(path.parent) == []
    with penstock.create(path, **KINDS[kind]) as again:
        assert again.consumers().names() == []


def test_a_log_with_a_live_consumer_is_not_deleted(path: Path, log: Log) -> None:
    """delete is Busy while a consumer is live, even one whose log is open for reading only."""
    log.append(b"a")
    log.consumer("idle").close()
    log.close()
    with penstock.open(path, mode="r") as reading:
        with reading.consumer("live") as live:
            with pytest.raises(Busy, match="consumer 'live' has an owner"):
                penstock.delete(path)
            assert values(live.poll()) == [b"a"]
            live.commit()
        assert reading.consumers()["live"].committed == 2
        reading.consumer("idle").close()
    child = processes.start(lambda: penstock.open(path, mode="r").consumer("live").poll(2, None))
    with penstock.open(path, mode="r") as reading:
        wait_for(lambda: reading.consumers()["live"].live, "the child to own it")
    with pytest.raises(Busy):
        penstock.delete(path)
    child.kill()
    child.wait()
    penstock.delete(path)
    assert os.listdir(path.parent) == []
