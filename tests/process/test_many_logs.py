"""Waiting for many logs at once, in tasks and in merged readers, beside other processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import _core
from tests.support.fixtures import STORM
from tests.support.jobs import in_child, report
from tests.support.scene import Scene
from tests.support.workers import Crew

pytestmark = pytest.mark.process

TRIPS = 500_000 if STORM else 10_000
SLICE = 1.0  # seconds after which a sleeper looks by itself: what a lost wake-up costs
KINDS: dict[str, dict[str, Any]] = {
    "segmented": {"segment_size": 256 << 10},
    "ring": {"ring": 256 << 10},
}


class Trips:
    """Counts round trips that took as long as a lost wake-up would."""

    def __init__(self) -> None:
        self.overslept = 0

    @contextlib.contextmanager
    def one(self) -> Any:
        """One of them."""
        began = time.monotonic()
        yield
        self.overslept += time.monotonic() - began > 0.9 * SLICE
        assert self.overslept <= 2


@pytest.mark.timeout(1800 if STORM else 300)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("others", [0, 150], ids=["alone", "among many"])
def test_no_wake_up_of_a_task_is_lost(crew: Crew, tmp_path: Path, kind: str, others: int) -> None:
    """Over many round trips between a task and another process, each wakes the task at once, also
    where more logs are followed than one futex call takes."""
    trips = TRIPS // (20 if _core.POLLING or others else 1)
    there, back = tmp_path / "there", tmp_path / "back"

    async def work(a: penstock.Log[Any], b: penstock.Log[Any], idle: list[Any]) -> None:
        waiting = [asyncio.ensure_future(anext(log.afollow())) for log in idle]
        replies = b.afollow(1)
        counted = Trips()
        for i in range(trips):
            with counted.one():
                a.append(b"%d" % i)
                assert (await anext(replies)).value == b"%d" % i
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()

    with ExitStack() as stack:
        a = stack.enter_context(penstock.open(there, **KINDS[kind]))
        b = stack.enter_context(penstock.open(back, **KINDS[kind]))
        idle = [
            stack.enter_context(penstock.open(tmp_path / f"{n}", ring="32KiB"))
            for n in range(others)
        ]
        worker = crew.start(tmp_path, "echo", there=there, back=back, trips=trips)
        worker.wait_report("ready")
        asyncio.run(work(a, b, idle))
        worker.done()


@pytest.mark.timeout(1800 if STORM else 300)
@pytest.mark.parametrize("kind", KINDS)
def test_no_wake_up_of_a_merged_reader_is_lost(crew: Crew, tmp_path: Path, kind: str) -> None:
    """Over many round trips, each event of another process wakes who merges its log with others."""
    trips = TRIPS // (20 if _core.POLLING else 1)
    there, back = tmp_path / "there", tmp_path / "back"
    with (
        penstock.open(there, **KINDS[kind]) as a,
        penstock.open(back, **KINDS[kind]) as b,
        penstock.open(tmp_path / "idle", **KINDS[kind]) as idle,
    ):
        worker = crew.start(tmp_path, "echo", there=there, back=back, trips=trips)
        worker.wait_report("ready")
        merged = penstock.merge(idle, b, follow=True, quiet=0, timeout=60)
        counted = Trips()
        for i in range(trips):
            with counted.one():
                a.append(b"%d" % i)
                assert next(merged).value == b"%d" % i
        worker.done()


@pytest.mark.parametrize("fail", ["publish.commit", "publish.head", "lock.given"])
def test_a_writer_that_dies(any_scene: Scene, fail: str) -> None:
    """A writer killed before, in or after the wake-up takes no event from tasks and merged readers:
    what was committed reaches them, and what the next writer appends wakes them."""
    any_scene.seed()
    go = any_scene.file("go")
    victim = any_scene.start(
        "write",
        "victim",
        warm=[[5]],
        operations=[[10]],
        go=go,
        fail=[fail, 1, signal.SIGKILL],
    )
    last = victim.wait_report("ready")

    async def work(log: penstock.Log[Any]) -> None:
        events = log.afollow(last + 1)
        merged = penstock.merge(log.follow(last + 1), follow=True)
        waiting = [asyncio.ensure_future(anext(events)), asyncio.ensure_future(anext(merged))]
        await asyncio.sleep(0)
        go.touch()
        await asyncio.to_thread(victim.died)
        seq = await asyncio.to_thread(log.append, b"next")
        readers: tuple[Any, ...] = (events, merged)
        for task, reader in zip(waiting, readers, strict=True):
            event = await task
            while event.seq < seq:
                event = await anext(reader)
            assert event.value == b"next"

    with penstock.open(any_scene.path) as log:
        asyncio.run(asyncio.wait_for(work(log), 60))


def fork_in_a_loop(path: str) -> None:
    """A process forks while a task of it waits; parent and child both go on following."""
    log = penstock.open(path, timeout=60)

    async def follow(events: Any, until: bytes) -> list[str]:
        found = []
        async for event in events:
            found.append(event.value.decode())
            if event.value == until:
                break
        return found

    async def parent() -> int:
        events, merged = log.afollow("start"), penstock.merge(log, follow=True)
        assert (await anext(events)).value == (await anext(merged)).value == b"first"
        other = asyncio.ensure_future(anext(log.afollow()))
        await asyncio.sleep(0.01)
        pid = os.fork()
        if pid == 0:

            def work() -> None:
                async def both() -> None:
                    report(started=True)
                    both = await asyncio.gather(follow(events, b"last"), follow(merged, b"last"))
                    report(child=both)

                asyncio.run(both())

            in_child(work)
        report(parent=[await follow(events, b"last"), await follow(merged, b"last")])
        await other
        return pid

    pid = asyncio.run(parent())
    log.close()
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def test_a_fork_with_a_running_loop(crew: Crew, tmp_path: Path) -> None:
    """After a fork inside a task, readers go on in both processes, each with a thread of its own,
    and both see every event that comes."""
    path = tmp_path / "log"
    with penstock.open(path) as log:
        log.append(b"first")
        worker = crew.start(
            tmp_path,
            "run_in_worker",
            module="tests.process.test_many_logs",
            function="fork_in_a_loop",
            args={"path": str(path)},
        )
        worker.wait_report("started")
        log.extend([b"second", b"third"])
        log.append(b"last")
        expected = [["second", "third", "last"]] * 2
        assert worker.wait_report("parent") == expected
        assert worker.wait_report("child") == expected
        worker.done()


def delete_and_die(path: str, fail: list[Any]) -> None:
    """Be killed while deleting a log."""
    _core.fail_arm(*fail)
    penstock.delete(path)


@pytest.mark.parametrize(
    ("kind", "fail", "there"),
    [
        ("segmented", "delete.locked", True),
        ("segmented", "delete.renamed", False),
        ("segmented", "delete.emptied", False),
        ("ring", "delete.ring", True),
    ],
)
def test_a_deletion_that_dies(
    crew: Crew, tmp_path: Path, kind: str, fail: str, there: bool
) -> None:
    """Whoever deletes a log and is killed leaves all of it, or none at its path; deleting it again,
    or making a new one and deleting that, leaves nothing at all."""
    place = tmp_path / "place"
    place.mkdir()
    path = place / "log"
    with penstock.create(path, **KINDS[kind]) as log:
        log.extend([b"x" * 100] * 100)
    worker = crew.start(
        tmp_path,
        "run_in_worker",
        module="tests.process.test_many_logs",
        function="delete_and_die",
        args={"path": str(path), "fail": [fail, 1, signal.SIGKILL]},
    )
    worker.died()
    assert penstock.exists(path) is there
    assert penstock.find(place) == ([str(path)] if there else [])
    if there:
        assert penstock.verify(path).ok
        with penstock.open(path, "r") as log:
            assert len(log) == 100
    else:
        with penstock.create(path) as log:
            assert log.append(b"new") == 1
    penstock.delete(path)
    assert list(place.iterdir()) == []
