"""Calls that are cut off, or meet another one: no event is committed unseen, and none is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import penstock
from penstock import Closed, Log, Usage
from penstock.reading import merging
from penstock.segments.storage import SegmentStorage


def values(events: list[penstock.Event]) -> list[bytes]:
    return [event.value for event in events]


@contextmanager
def each_step(act: Callable[[], object], file: str) -> Iterator[None]:
    """Call ``act`` around each call that code of a file makes."""

    def step(frame: FrameType, kind: str, _: object) -> None:
        if frame.f_code.co_filename == file and kind in ("call", "c_call", "c_return"):
            act()

    sys.setprofile(step)
    try:
        yield
    finally:
        sys.setprofile(None)


def test_a_commit_amid_a_poll(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a poll looks for events, commit() stores what was handed out before, and no more."""
    segment_at = SegmentStorage.segment_at
    committed: list[int] = []

    def meanwhile(*given: Any) -> Any:
        if consumer._busy:
            consumer.commit()
            committed.append(consumer.committed)
            with pytest.raises(Usage, match="the next one to be handed out is 2"):
                consumer.commit(2)
        return segment_at(*given)

    monkeypatch.setattr(SegmentStorage, "segment_at", meanwhile)
    with penstock.create(tmp_path / "log") as log:
        for value in (b"a", b"b", b"c", b"d"):
            log.append(value)
            log.steward.roll()
        with log.consumer("c") as consumer:
            assert values(consumer.take(1)) == [b"a"]
            assert values(consumer.poll(100)) == [b"b", b"c", b"d"]
            assert committed and set(committed) == {2}
            consumer.commit()
            assert consumer.committed == 5


@pytest.mark.parametrize("of", ["consumer", "merge"])
def test_a_signal_during_a_poll(tmp_path: Path, of: str) -> None:
    """A signal takes no events with it: it is raised before any was found, or by the next call."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    count, late = 10_000, 0
    before = signal.signal(signal.SIGALRM, stop)
    try:
        with penstock.create(tmp_path / "log") as log, log.consumer("c", timeout=0) as consumer:
            log.extend([b"x"] * count)
            for attempt in range(1, 101):
                consumer.seek("start")
                source: Any = consumer if of == "consumer" else penstock.merge(consumer)
                found: list[penstock.Event] = []
                try:
                    signal.setitimer(signal.ITIMER_REAL, attempt * 10e-6)
                    found = source.take(count)
                    late += 1
                    while signal.getitimer(signal.ITIMER_REAL)[0] > 0:
                        pass
                    source.take(1)
                except KeyboardInterrupt:
                    taken = consumer.position - 1 if of == "consumer" else source.positions[0] - 1
                    assert taken == len(found)
            assert late
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("follow", [False, True])
def test_a_merge_that_is_cut_off_anywhere(tmp_path: Path, follow: bool) -> None:
    """Ctrl-C between any two steps of a merge costs no event, and commits none unseen."""
    with ExitStack() as stack:
        logs = [stack.enter_context(penstock.create(tmp_path / name)) for name in "abc"]
        for ns in range(1, 10):
            logs[ns % 3].append(b"%d" % ns, time=ns)
        consumers = [stack.enter_context(log.consumer("c")) for log in logs]
        for strike in range(1000):
            for consumer in consumers:
                consumer.seek("start")
                consumer.commit()
            options: dict[str, Any] = {"follow": True, "quiet": 0} if follow else {}
            merged = penstock.merge(*consumers, **options)
            steps = 0

            def act(strike: int = strike) -> None:
                nonlocal steps
                steps += 1
                if steps == strike:
                    raise KeyboardInterrupt

            seen: list[bytes] = []
            with each_step(act, merging.__file__):
                while True:
                    try:
                        found = merged.take(4)
                    except KeyboardInterrupt:
                        merged.commit()
                        assert sum(c.committed - 1 for c in consumers) == len(seen)
                        continue
                    seen += values(found)
                    if not found:
                        break
            assert sorted(seen, key=int) == [b"%d" % ns for ns in range(1, 10)]
            if not follow:
                assert seen == sorted(seen, key=int)
            merged.commit()
            assert [c.committed for c in consumers] == [4, 4, 4]
            if strike > steps:
                break
        assert 10 < steps < 1000


def test_a_merge_within_itself(log: Log) -> None:
    """A call of a merged reader while another one is under way is refused, and loses nothing."""
    log.extend([b"a", b"b"])

    class Nosy:
        """A source that asks for events of the merge that it is part of."""

        def __init__(self) -> None:
            self.log, self.position = log, 1
            self.asked: list[str] = []

        def take(self, count: int, /) -> list[penstock.Event]:
            for ask in (lambda: merged.take(1), lambda: next(merged)):
                with pytest.raises(Usage, match="one thread at a time"):
                    ask()
                self.asked.append("refused")
            return []

        def wait(self, timeout: float | None = None, /) -> bool:
            return False

    nosy = Nosy()
    merged = penstock.merge(log, nosy)
    assert values(merged.take(10)) == [b"a", b"b"]
    assert nosy.asked == ["refused"] * 2


def test_readers_of_the_other_direction(log: Log) -> None:
    """A reader that would give its events in the wrong order is refused."""
    log.extend([b"a", b"b"])
    with pytest.raises(Usage, match="reverse=False, as it is, got one with reverse=True"):
        penstock.merge(log, log.read(reverse=True))
    with pytest.raises(Usage, match="reverse=True, as it is, got one with reverse=False"):
        penstock.merge(log, log.read(), reverse=True)
    with penstock.merge(log.read(reverse=True), reverse=True) as merged:
        assert values(merged.take(9)) == [b"b", b"a"]


@pytest.mark.parametrize("kind_of_reader", ["follow", "merge", "consumer"])
def test_tasks_that_share_a_reader(log: Log, kind_of_reader: str) -> None:
    """Each event goes to one of the tasks, none waits for ever, and closing wakes all of them."""

    async def work() -> None:
        events: Any
        if kind_of_reader == "follow":
            events = log.afollow()
        elif kind_of_reader == "merge":
            events = penstock.merge(log, follow=True, start="end")
        else:
            events = log.consumer("c", start="end")
        seen: list[tuple[int, bytes]] = []
        news = asyncio.Event()

        async def share(number: int) -> None:
            async for event in events:
                seen.append((number, event.value))
                news.set()
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(share(number)) for number in range(3)]
        await asyncio.sleep(0)
        for round in range(9):
            log.append(b"%d" % round)
            while len(seen) <= round:
                news.clear()
                await news.wait()
        assert [value for _, value in seen] == [b"%d" % round for round in range(9)]
        events.close()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            assert ended is None or isinstance(ended, Closed)

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_child_reads_on_for_itself(log: Log) -> None:
    """A merge of logs that a fork copies goes on in both processes."""
    log.extend([b"a", b"b", b"c"])
    merged = penstock.merge(log)
    assert values(merged.take(1)) == [b"a"]
    pid = os.fork()
    if pid == 0:
        os._exit(0 if values(merged.take(9)) == [b"b", b"c"] else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert values(merged.take(9)) == [b"b", b"c"]
