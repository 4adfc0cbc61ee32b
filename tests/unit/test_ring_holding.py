"""Rings that do not drop: readers that writers wait for."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from dataclasses import replace
from pathlib import Path

import pytest

import penstock
from penstock.settings import WhenFull
from penstock.stats import Disk
from tests.unit.ring_shape import fill, fill_up


class TestHolding:
    """Writers that wait for readers, or are told to."""

    def test_drop_knows_no_holders(self, ring: penstock.Log) -> None:
        """hold=True on a ring that drops is a Usage that says what to do."""
        with pytest.raises(penstock.Usage, match="configure"):
            ring.follow("start", hold=True)

    def test_block_without_a_holder_drops(self, file: Path) -> None:
        """A ring that blocks drops its oldest events as long as nobody holds them."""
        with penstock.create(file, ring="32KiB", when_full="block") as log:
            fill(log, 3)
            assert log.first_seq > 1

    def test_error_without_a_holder_is_full(self, file: Path) -> None:
        """A ring that raises never drops what nobody has read, and says so."""
        with penstock.create(file, ring="32KiB", when_full="error") as log:
            count = fill_up(log)
            for _ in range(2):
                with pytest.raises(penstock.Full):
                    log.append(b"h" * 500)
            assert (log.first_seq, log.last_seq) == (1, count)
            reader = log.follow("start", hold=True)
            assert len(reader.take(5)) == 5
            with pytest.raises(penstock.Full):
                log.append(b"h" * 500 * 5)
            reader.take(1)
            log.append(b"h" * 500)
            assert log.first_seq > 1

    @pytest.mark.parametrize("when_full", ["block", "error"])
    def test_what_is_held_is_left_alone(self, file: Path, when_full: WhenFull) -> None:
        """Nothing from the reader's last event on is overwritten, until it asks for the next."""
        with penstock.create(file, ring="32KiB", when_full=when_full) as log:
            fill(log, 0.5)
            reader = log.follow(10, hold=True)
            fill_up(log)
            assert log.first_seq <= 10
            for want in range(10, 200):
                assert next(reader).seq == want
                fill_up(log)
                assert log.first_seq <= want
            assert log.first_seq > 100
            assert reader.skipped == 0

    def test_a_blocked_append_goes_on(self, file: Path) -> None:
        """An append that waits goes on as soon as the reader does, with nothing lost between."""
        with penstock.create(file, ring="32KiB", when_full="block") as log:
            reader = log.follow("start", hold=True, timeout=60)

            def write() -> None:
                for i in range(2000):
                    log.append(b"%d" % i + b"x" * 100)
                log.append(b"stop")

            thread = threading.Thread(target=write)
            thread.start()
            got = []
            for event in reader:
                got.append(event.seq)
                if event.value == b"stop":
                    break
            thread.join(60)
            assert got == list(range(1, 2002))

    def test_several_holders(self, file: Path) -> None:
        """The slowest of the readers counts; when it is gone, the next one."""
        log = penstock.create(file, ring="32KiB", when_full="block")
        with log, penstock.open(file) as other:
            slow, fast = other.follow("start", hold=True), log.follow("start", hold=True)
            fill_up(log)
            last = log.last_seq
            assert len(fast.take(1000)) == last
            with pytest.raises(penstock.Full):
                log.append(b"h" * 500, timeout=0.01)
            slow.take(10)
            with pytest.raises(penstock.Full):
                log.append(b"h" * 500 * 12, timeout=0.01)
            del slow
            log.append(b"h" * 500 * 10, timeout=0)
            assert log.last_seq == last + 1

    def test_a_holder_lets_go(self, file: Path) -> None:
        """A reader that nobody refers to any more, or whose log is closed, blocks no process."""
        with penstock.create(file, ring="32KiB", when_full="block") as log:
            reader = log.follow("start", hold=True)
            fill_up(log)
            gone = weakref.ref(reader) if hasattr(reader, "__weakref__") else None
            del reader
            gc.collect()
            assert gone is None or gone() is None
            log.append(b"h" * 500, timeout=0)
            with penstock.open(file) as other:
                held = other.follow("start", hold=True)
                fill_up(log)
            log.append(b"h" * 500, timeout=0)
            with pytest.raises(penstock.Closed):
                next(held)

    def test_a_killed_holder_lets_go(self, file: Path) -> None:
        """SIGKILL of the process that holds a ring sets its writers free."""
        with penstock.create(file, ring="32KiB", when_full="block") as log:
            log.append(b"a")
            ready, told = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    reader = penstock.open(file).follow("start", hold=True)
                    reader.take(1)
                    os.write(told, b"x")
                    signal.pause()
                finally:
                    os._exit(1)
            try:
                assert os.read(ready, 1) == b"x"
                fill_up(log)
                with pytest.raises(penstock.Full):
                    log.append(b"h" * 500, timeout=0.05)
                done: list[int] = []
                thread = threading.Thread(target=lambda: done.append(log.append(b"h" * 5000)))
                thread.start()
                assert log.first_seq == 1
            finally:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                os.close(ready)
                os.close(told)
            thread.join(60)
            assert done == [log.last_seq]
            assert log.first_seq > 1

    def test_a_fork_does_not_keep_a_hold(self, file: Path) -> None:
        """A child that outlives the reader's process, or the reader, blocks no process."""
        with penstock.create(file, ring="32KiB", when_full="block") as log:
            reader = log.follow("start", hold=True)
            pid = os.fork()
            if pid == 0:
                signal.pause()
                os._exit(0)
            try:
                fill_up(log)
                del reader
                log.append(b"h" * 500, timeout=0)
            finally:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def test_there_are_only_so_many(self, file: Path) -> None:
        """The 65th holder is Busy; when one is gone, there is room for it."""
        with penstock.create(file, ring="32KiB", when_full="block") as log:
            holders = [log.follow("start", hold=True) for _ in range(64)]
            with pytest.raises(penstock.Busy):
                log.follow("start", hold=True)
            holders.pop()
            holders.append(log.follow("start", hold=True))
            fill_up(log)
            while len(holders) > 1:
                holders.pop()
                with pytest.raises(penstock.Full):
                    log.append(b"h" * 500, timeout=0)
            holders.pop()
            log.append(b"h" * 500, timeout=0)

    def test_a_timeout(self, file: Path) -> None:
        """timeout= bounds the wait for room, for append, extend and a producer; then it is Full."""
        with penstock.create(file, ring="32KiB", when_full="block") as log:
            log.append(b"first", producer=("p", 1))
            reader = log.follow("start", hold=True)
            fill_up(log)
            before = replace(log.stats(), disk=Disk())  # others use the disk, too
            for act in (
                lambda: log.append(b"h" * 500, timeout=0.02),
                lambda: log.extend([b"h" * 500] * 2, timeout=0.02),
                lambda: log.append(b"h" * 500, producer=("p", 2), timeout=0.02),
                lambda: log.load([b"h" * 500], timeout=0.02),
            ):
                with pytest.raises(penstock.Full):
                    act()
            assert replace(log.stats(), disk=Disk()) == before
            assert log.append(b"first", producer=("p", 1)) == 1
            del reader

    def test_a_held_reader_must_be_able_to_write(self, file: Path) -> None:
        """A filtered reader moves on by what it passes over, not only by what it hands out."""
        with penstock.create(file, ring="32KiB", when_full="block") as log:
            reader = log.follow("start", hold=True, topic="t")
            fill_up(log)
            assert reader.take(1) == []
            assert reader.take(1) == []
            log.append(b"h" * 500, timeout=0)
