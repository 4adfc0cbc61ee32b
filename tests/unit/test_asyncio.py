"""asyncio: following, appending and waiting in tasks, with one thread for all of them."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

import penstock
from penstock import _core
from penstock.reading import aio
from tests.support.wait import wait_for

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, T]], T]


def own_threads() -> int:
    """How many threads of this process wait for logs on behalf of loops."""
    found = 0
    for thread in os.listdir("/proc/self/task"):
        try:
            found += Path(f"/proc/self/task/{thread}/comm").read_text() == "penstock-wait\n"
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended just now
    return found


def check_no_thread() -> None:
    """After the last loop: the thread has been told to end, and ends at once."""
    hub = aio._Hubs.now
    assert hub is None or hub._thread is None
    wait_for(lambda: own_threads() == 0, "the thread to end")


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Runs a coroutine in a loop of its own, after which no thread of ours is left."""
    if request.param == "uvloop":
        uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")

        def go(work: Coroutine[Any, Any, T]) -> T:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(asyncio.wait_for(work, 60))

    else:

        def go(work: Coroutine[Any, Any, T]) -> T:
            return asyncio.run(asyncio.wait_for(work, 60))

    yield go
    check_no_thread()


@pytest.fixture(params=["log", "ring"])
def some(request: pytest.FixtureRequest, path: Path) -> Iterator[penstock.Log[Any]]:
    """A log, or a ring, with three events."""
    options: Any = {"ring": "64KiB"} if request.param == "ring" else {"segment_size": "64KiB"}
    with penstock.create(path, **options) as log:
        log.extend([b"a", b"b", b"c"])
        yield log


def test_importing_penstock_does_not_import_asyncio() -> None:
    """asyncio is imported when somebody uses it, and not before."""
    code = (
        "import penstock, sys; assert 'asyncio' not in sys.modules; "
        "penstock.AsyncReader; assert 'asyncio' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_following(some: penstock.Log[Any], run: Run[None]) -> None:
    """afollow gives what follow would, in order, and what other threads append while it waits."""

    async def work() -> None:
        events = some.afollow("start")
        values = [(await anext(events)).value for _ in range(3)]
        assert values == [b"a", b"b", b"c"]
        for n in range(200):
            later = asyncio.get_running_loop().run_in_executor(None, some.append, b"%d" % n)
            assert (await anext(events)).value == b"%d" % n
            await later
        assert events.position == 204

    run(work())


def test_filters_and_timeouts(some: penstock.Log[Any], run: Run[None]) -> None:
    """Filters are those of follow; a timeout ends the loop, and the reader can be gone on with."""

    async def work() -> None:
        async with some.afollow("start", topic="t", key=b"k", timeout=0.01) as events:
            assert [event async for event in events] == []
            some.append(b"no", topic="t")
            some.append(b"yes", topic="t", key=b"k")
            assert [event.value async for event in events] == [b"yes"]
            assert [event async for event in events] == []
        assert [event.seq async for event in some.afollow("start", since="+1h", timeout=0)] == []
        with pytest.raises(penstock.Usage):
            some.afollow(-1)
        with pytest.raises(penstock.Usage, match="timeout"):
            some.afollow(timeout=-1)

    run(work())


def test_many_tasks_share_one_thread(tmp_path: Path, run: Run[None]) -> None:
    """However many tasks follow however many logs, more than one futex call takes: one thread."""
    with ExitStack() as stack:
        logs = [
            stack.enter_context(penstock.create(tmp_path / f"{n}", ring="32KiB"))
            for n in range(150)
        ]

        async def follow(log: penstock.Log[Any]) -> list[bytes]:
            found: list[bytes] = []
            async for event in log.afollow("start"):
                found.append(event.value)
                if event.value == b"last":
                    break
            return found

        async def work() -> None:
            tasks = [asyncio.create_task(follow(log)) for log in logs for _ in range(4)]
            await asyncio.sleep(0)
            for value in (b"first", b"last"):
                for log in reversed(logs):
                    log.append(value)
                    await asyncio.sleep(0)
                assert own_threads() <= 1  # it may not have said its name yet
            for found in await asyncio.gather(*tasks):
                assert found == [b"first", b"last"]

        run(work())


def test_cancelling(some: penstock.Log[Any], run: Run[None]) -> None:
    """A task that waits ends when it is cancelled, and the reader goes on where it was."""

    async def work() -> None:
        events = some.afollow("start")
        assert len(await events.take(10)) == 3
        waiting = asyncio.ensure_future(anext(events))
        for _ in range(10):
            await asyncio.sleep(0.001)
        waiting.cancel()
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert loop.time() - began < 1  # 50 ms, on a machine that has nothing else to do
        some.append(b"d")
        assert (await anext(events)).value == b"d"

    run(work())


def test_a_reader_that_never_waits_lets_others_run(some: penstock.Log[Any], run: Run[None]) -> None:
    """While events are there all the time, other tasks have their turn, and it can be cancelled."""
    some.extend([b"x"] * 300)

    async def work() -> None:
        seen = 0

        async def read() -> None:
            nonlocal seen
            async for _ in some.afollow("start"):
                seen += 1

        reading = asyncio.create_task(read())
        await asyncio.sleep(0)
        assert 0 < seen < 303
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert seen < 303

    run(work())


def test_take(some: penstock.Log[Any], run: Run[None]) -> None:
    """take returns what is there, waits for one event, and gives up in time."""

    async def work() -> None:
        events = some.afollow("start")
        assert [e.value for e in await events.take(2)] == [b"a", b"b"]
        assert events.position == 3
        assert [e.value for e in await events.take(9)] == [b"c"]
        assert await events.take(0) == []
        assert await events.take(5, timeout=0) == []
        assert await events.take(5, timeout=0.01) == []
        some.append(b"d")
        assert [e.value for e in await events.take(9)] == [b"d"]

    run(work())


def test_appending(some: penstock.Log[Any], run: Run[None]) -> None:
    """aappend takes what append takes, and returns the seq."""

    async def work() -> None:
        assert await some.aappend(b"d", key=b"k", topic="t", tags=["x"], time=5) == 4
        assert (some[4].key, some[4].topic, some[4].tags, some[4].time_ns) == (b"k", "t", ("x",), 5)
        assert await some.aappend(b"e", producer=("p", 1)) == 5
        assert await some.aappend(b"e", producer=("p", 1)) == 5
        with pytest.raises(penstock.Conflict):
            await some.aappend(b"f", expect=1)
        assert await some.aappend(b"f", expect=5, durable=True) == 6
        assert some.durable_seq == 6
        with pytest.raises(penstock.Usage, match="timeout"):
            await some.aappend(b"g", timeout=-1)

    run(work())


def test_an_appender_that_never_waits_lets_others_run(
    some: penstock.Log[Any], run: Run[None]
) -> None:
    """A task that appends without end can be cancelled, and others have their turn meanwhile."""

    async def append_on() -> None:
        while True:
            await some.aappend(b"x")
            if some.last_seq > 5000:
                raise AssertionError("nobody else had a turn")

    async def work() -> None:
        appending = asyncio.create_task(append_on())
        turns = 0
        while turns < 3:
            await asyncio.sleep(0)
            turns += 1
        appending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await appending

    run(work())


def test_long_values(log: penstock.Log[Any], path: Path, run: Run[None]) -> None:
    """A value that is too long to be copied in the loop's thread is appended elsewhere."""
    with penstock.create(path.with_name("large")) as large:

        async def work() -> None:
            assert await large.aappend(bytes(3 << 20)) == 1
            assert large[1].value == bytes(3 << 20)

        run(work())


def test_durable_appends_share_a_sync(
    log: penstock.Log[Any], run: Run[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks that append durably at the same time wait together: there are few syncs, and the loop
    goes on meanwhile."""
    go_on = threading.Event()
    storage = type(log._storage)
    sync = storage.sync

    def slow(self: Any, *args: Any) -> None:
        go_on.wait(60)
        sync(self, *args)

    monkeypatch.setattr(storage, "sync", slow)

    async def work() -> None:
        before = log.stats().syncs
        tasks = [asyncio.create_task(log.aappend(b"%d" % n, durable=True)) for n in range(100)]
        while log.last_seq < 100:
            await asyncio.sleep(0)
        assert log.durable_seq == 0 and not any(task.done() for task in tasks)
        go_on.set()
        assert await asyncio.gather(*tasks) == list(range(1, 101))
        assert log.durable_seq == 100
        assert log.stats().syncs - before <= 3

    run(work())


def test_a_failed_sync(
    log: penstock.Log[Any], run: Run[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a sync fails, each task that waits for it gets the error; none waits for ever."""

    def broken(self: Any, *args: Any) -> None:
        raise penstock.Io("no")

    monkeypatch.setattr(type(log._storage), "sync", broken)

    async def work() -> None:
        tasks = [asyncio.create_task(log.aappend(b"x", durable=True)) for _ in range(5)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, penstock.Io) for result in results), results
        monkeypatch.undo()
        if not log.stats().poisoned:
            assert await log.await_durable(5)

    run(work())


def test_an_append_that_has_to_wait(some: penstock.Log[Any], run: Run[None]) -> None:
    """While another handle holds the write lock, aappend waits and the loop goes on; in time it is
    Busy, and nothing was appended."""

    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        assert some._ctl is not None
        with some._ctl.locked():
            held.set()
            go_on.wait(60)

    async def work() -> None:
        for timeout in (0, 0.02):
            with pytest.raises(penstock.Busy):
                await other.aappend(b"x", timeout=timeout)
        waiting = asyncio.create_task(other.aappend(b"x"))
        for _ in range(5):
            await asyncio.sleep(0.001)
        assert not waiting.done()
        go_on.set()
        assert await waiting == 4

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(60)
    try:
        with penstock.open(some.path) as other:
            run(work())
    finally:
        go_on.set()
        holder.join()


def test_awaiting_an_event(some: penstock.Log[Any], run: Run[None]) -> None:
    """await_event is wait, await_durable is wait_durable, as coroutines."""

    async def work() -> None:
        assert await some.await_event(0) is False
        assert await some.await_event(0.01) is False
        assert await some.await_event(after=2) is True
        waiting = asyncio.create_task(some.await_event())
        await asyncio.sleep(0)
        some.append(b"d")
        assert await waiting is True
        assert await some.await_durable(4) is True
        assert some.durable_seq == 4
        with pytest.raises(penstock.NotFound):
            await some.await_durable(9)
        with pytest.raises(penstock.Usage):
            await some.await_event(after=-1)

    run(work())


def test_opening_and_closing(path: Path, run: Run[None]) -> None:
    """``async with`` closes a log, without holding up the loop, and a reader."""

    async def work() -> None:
        async with penstock.open(path) as log:
            await log.aappend(b"a")
            async with log.afollow("start") as events:
                assert (await anext(events)).value == b"a"
            assert events.closed
            with pytest.raises(penstock.Closed):
                await anext(events)
            with pytest.raises(penstock.Closed):
                async with events:
                    pass
        assert log.closed

    run(work())


def test_closing_ends_a_wait(some: penstock.Log[Any], run: Run[None]) -> None:
    """A task that waits for a log, or with a reader, that is closed is told."""

    async def work() -> None:
        other = penstock.open(some.path)
        by_log = asyncio.ensure_future(anext(other.afollow()))
        events = some.afollow()
        by_reader = asyncio.ensure_future(anext(events))
        for _ in range(5):
            await asyncio.sleep(0.001)
        other.close()
        events.close()
        some.append(b"d")
        for waiting in (by_log, by_reader):
            with pytest.raises(penstock.Closed):
                await waiting

    run(work())


def test_readers_in_tasks(some: penstock.Log[Any], run: Run[None]) -> None:
    """``async for`` and ``async with`` take what read and follow give, with their filters."""

    async def work() -> None:
        assert [event.seq async for event in some.read(2)] == [2, 3]
        assert [event.seq async for event in some.read(reverse=True)] == [3, 2, 1]
        async with some.follow("start", timeout=0.01) as reader:
            assert [event.seq async for event in reader] == [1, 2, 3]
            some.append(b"d")
            assert [event.seq async for event in reader] == [4]
        assert [event.seq async for event in some.afollow("start", limit=2)] == [1, 2]
        assert [event.seq async for event in some.follow("start", limit=2)] == [1, 2]
        assert len(await some.afollow("start", limit=2).take(10)) == 2
        assert reader.closed
        with pytest.raises(penstock.Closed):
            async for _ in reader:
                pass

    run(work())


def test_a_log_that_is_deleted(path: Path, run: Run[None]) -> None:
    """A task that follows a log that is deleted gets Gone, within about a second."""
    import shutil

    async def work() -> None:
        with penstock.create(path) as log:
            waiting = asyncio.ensure_future(anext(log.afollow()))
            await asyncio.sleep(0.01)
            shutil.rmtree(path)
            with pytest.raises(penstock.Gone):
                await waiting

    run(work())


def test_durable_following(some: penstock.Log[Any], run: Run[None]) -> None:
    """afollow(durable=True) hands out an event once it is on disk, and wakes for that."""

    async def work() -> None:
        some.sync()
        events = some.afollow("end", durable=True)
        some.append(b"d")
        waiting = asyncio.ensure_future(anext(events))
        for _ in range(5):
            await asyncio.sleep(0.001)
        assert not waiting.done()
        await asyncio.to_thread(some.sync)
        assert (await waiting).value == b"d"

    run(work())


def test_following_without_control(path: Path, run: Run[None]) -> None:
    """A reader that found no control follows a writer that comes later."""
    with penstock.create(path) as log:
        log.append(b"a")
    (path / "control").unlink()

    async def work() -> None:
        with penstock.open(path, "r") as reading:
            events = reading.afollow("start")
            assert (await anext(events)).value == b"a"
            waiting = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0.01)
            with penstock.open(path) as log:
                log.append(b"b")
                assert (await waiting).value == b"b"

    run(work())


def test_damage_comes_after_what_is_before_it(path: Path, run: Run[None]) -> None:
    """Events before a damaged one are handed out first, and then Corrupt, again and again."""
    with penstock.create(path) as log:
        log.extend([b"a", b"b", b"damaged!", b"d"])
        name = next(path.glob("*.seg"))
        at = name.read_bytes().index(b"damaged!")
        with name.open("r+b") as file:
            file.seek(at)
            file.write(b"!")

        async def work() -> None:
            events = log.afollow("start")
            assert [(await anext(events)).value for _ in range(2)] == [b"a", b"b"]
            for _ in range(2):
                with pytest.raises(penstock.Corrupt):
                    await anext(events)
            skipping = log.afollow("start", on_damage="skip", timeout=0)
            assert [event.seq async for event in skipping] == [1, 2, 4]
            assert skipping.skipped == 1

        run(work())


def test_a_hold_is_not_read_ahead(tmp_path: Path, run: Run[None]) -> None:
    """With hold=True nothing is read ahead, so that writers wait for what is being worked on."""
    with penstock.create(tmp_path / "r.ring", ring="32KiB", when_full="error") as ring:
        ring.extend([b"x" * 100] * 10)

        async def work() -> None:
            async with ring.afollow("start", hold=True) as events:
                assert (await anext(events)).seq == 1
                with pytest.raises(penstock.Full):
                    for _ in range(1000):
                        await ring.aappend(b"x" * 100, timeout=0)
                assert ring.first_seq == 1

        run(work())


def test_merged_logs(tmp_path: Path, run: Run[None]) -> None:
    """``async for`` over merged logs, bounded and following."""
    with penstock.create(tmp_path / "a") as a, penstock.create(tmp_path / "b") as b:
        a.extend([penstock.Entry(b"x", time=ns) for ns in range(0, 1000, 2)])
        b.extend([penstock.Entry(b"x", time=ns) for ns in range(1, 1000, 2)])

        async def work() -> None:
            assert [e.time_ns async for e in penstock.merge(a, b)] == list(range(1000))
            async with penstock.merge(a, b, follow=True, start="end", quiet=0) as merged:
                for n in range(50):
                    log = (a, b)[n % 2]
                    waiting = asyncio.ensure_future(anext(merged))
                    await asyncio.sleep(0)
                    log.append(b"%d" % n)
                    assert (await waiting).value == b"%d" % n
                    assert merged.source is log
            with pytest.raises(penstock.Closed):
                await anext(merged)

        run(work())


def test_a_source_of_another_kind(some: penstock.Log[Any], run: Run[None]) -> None:
    """aio.take waits for any reader: what apoll of a consumer is made of."""

    async def work() -> None:
        reader = some.follow("start")
        assert [e.seq for e in await aio.take(reader, 2)] == [1, 2]
        assert [e.seq for e in await aio.take(reader, 5)] == [3]
        assert await aio.take(reader, 5, timeout=0.01) == []
        waiting = asyncio.create_task(aio.take(reader, 5))
        await asyncio.sleep(0)
        some.append(b"d")
        assert [e.seq for e in await waiting] == [4]

    run(work())


def test_a_reader_outlives_its_loop(some: penstock.Log[Any]) -> None:
    """A reader can be gone on with in another loop, or in two at the same time in two threads."""
    events = some.afollow("start")

    async def one() -> int:
        return (await anext(events)).seq

    async def late() -> int:
        asyncio.get_running_loop().call_later(0.01, some.append, b"x")
        return (await anext(events)).seq

    assert [asyncio.run(one()) for _ in range(3)] == [1, 2, 3]
    assert [asyncio.run(late()) for _ in range(3)] == [4, 5, 6]
    check_no_thread()

    found: list[int] = []

    async def follow() -> None:
        async for event in some.afollow(on_gap="skip"):
            found.append(event.seq)
            return

    threads = [threading.Thread(target=asyncio.run, args=(follow(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        some.append(b"y")
    for thread in threads:
        thread.join()
    assert len(found) == 3
    check_no_thread()


def test_a_loop_that_nobody_shuts_down(some: penstock.Log[Any]) -> None:
    """The thread ends within about a second after a loop that was closed without a shutdown."""
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(some.await_event(0.01))
        wait_for(lambda: own_threads() == 1, "the thread to say its name")
    finally:
        loop.close()
    wait_for(lambda: own_threads() == 0, "the thread to end")


def test_nothing_is_left_behind(some: penstock.Log[Any], run: Run[None]) -> None:
    """Readers that are dropped without being closed are watched for no longer."""

    async def work() -> None:
        for _ in range(20):
            with pytest.raises(StopAsyncIteration):
                await anext(some.afollow(timeout=0.001))
        gc.collect()
        hub = aio._Hubs.now
        assert hub is not None and len(hub.waits) == 0

    run(work())


def test_a_reader_cannot_be_made_or_copied(some: penstock.Log[Any]) -> None:
    """An AsyncReader comes from afollow, and cannot be pickled."""
    import pickle

    wrong: Any = 5
    with pytest.raises(penstock.Usage, match=r"log\.afollow"):
        penstock.AsyncReader(wrong)
    with pytest.raises(penstock.WrongType, match="position 1"):
        pickle.dumps(some.afollow("start"))
    assert "at seq 1" in repr(some.afollow("start"))


def test_waits_refuse_what_they_do_not_know(some: penstock.Log[Any]) -> None:
    """Slots that are not watched are refused, not looked up."""
    waits = _core.Waits()
    slot = waits.watch(some)
    assert waits.sleep(0) == []
    seen = waits.look(slot)
    some.append(b"d")
    assert waits.arm(slot, seen) is False
    assert waits.arm(slot, waits.look(slot)) is True
    some.append(b"e")
    assert waits.sleep(60) == [slot]
    waits.forget(slot)
    for wrong in (slot, -1, 5):
        with pytest.raises(penstock.Internal):
            waits.look(wrong)
    assert len(waits) == 0
