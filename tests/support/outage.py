"""Cycles of power cuts: a writer on a real ext4 is cut off, and what the log then holds is checked.

The writer tells of each append over a pipe, before and after it, so that what it was promised is
known outside the file system that loses its power.
"""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import penstock
from penstock import Log
from tests.support.ext4 import LOGFLUSH, NOLOGFLUSH, Ext4, write_back
from tests.support.jobs import report
from tests.support.values import Mark, make, read_mark

SEGMENT = 64 << 10
LUCK = 6  # times as many cuts may pass without a loss
CYCLES_PER_LOG = 25  # then a new one, so that a cycle stays cheap


def write(path: str, writer: str, seed: int, out: int) -> None:
    """Open the log and append this and that for ever."""
    rng = random.Random(seed)
    log = penstock.open(path, segment_size=SEGMENT)
    counter = 0

    def tell(kind: str, number: int) -> None:
        os.write(out, f"{kind} {counter} {number}\n".encode())

    tell("o", log.last_seq)
    while True:
        counter += 1
        few = rng.choice((1, 1, 1, 2, 6))
        sizes = [rng.choice((0, 30, 300, 4000, 6000)) for _ in range(few)]
        if rng.random() < 0.05:
            sizes = [rng.randrange(33_000, 36_000)]
        count = len(sizes)
        items = [make(Mark(writer, counter, i, count, size)) for i, size in enumerate(sizes)]
        durable = rng.random() < 0.3
        tell("i", count)
        seqs = log.extend(items, durable=durable)
        tell("d" if durable else "a", seqs[0])
        if rng.random() < 0.05:
            log.sync()
            tell("d", seqs[0])
        if rng.random() < 0.1:
            log.steward.roll()


@dataclass
class Promises:
    """What one writer said: what it began, what it got, and what of that is durable."""

    begun: dict[int, int] = field(default_factory=dict)  # operation -> events in it
    acked: dict[int, int] = field(default_factory=dict)  # operation -> its first seq
    durable: int = 0  # the last operation that was told to be on disk
    opened_at: int | None = None  # the last seq when it had opened the log

    def take(self, heard: bytes, *, before_cut: int) -> None:
        """Take in what came over the pipe; so many bytes of it before the power was cut.

        A sync that was under way then may be told that all went well although it did not. Nobody
        who loses the power lives to hear that, so it is no promise.
        """
        at = 0
        for line in heard.splitlines(keepends=True):
            at += len(line)
            if not line.endswith(b"\n"):
                break  # the writer was killed in the middle
            kind, counter, number = line.decode().split()
            if kind == "o":
                self.opened_at = int(number)
            elif kind == "i":
                self.begun[int(counter)] = int(number)
            else:
                self.acked[int(counter)] = int(number)
                if kind == "d" and at <= before_cut:
                    self.durable = int(counter)


class Outage:
    """One file system, the log in it, and what its writers were promised."""

    def __init__(self, directory: Path, seed: int, block_bytes: int) -> None:
        self.rng = random.Random(seed)
        self.disk = Ext4(directory, block_bytes)
        self.path = self.disk.root / "log"
        self.promises: dict[str, Promises] = {}
        self.kept: dict[str, int] = {}  # writer -> its last operation that is there for good
        self.cycles = 0
        self.lost = 0  # acknowledged, not durable, and gone
        self.disk.mount()

    def run(self, cycles: int) -> None:
        """Cut the power so many times, and on until something was lost: else nothing is proved."""
        while self.cycles < cycles or (not self.lost and self.cycles < LUCK * cycles):
            self.cycles += 1
            writer = f"w{self.cycles}"
            self.promises[writer] = self._write_until_cut(writer)
            self.disk.unmount()
            self.disk.mount()
            self._check(writer)
            if self.cycles % CYCLES_PER_LOG == 0:
                shutil.rmtree(self.path)
                self.disk.sync()
                self.promises.clear()
                self.kept.clear()
        self.disk.unmount()

    def _write_until_cut(self, writer: str) -> Promises:
        """Have a process write until the power is cut; what it was promised."""
        seed, goal = self.rng.randrange(1 << 30), self.rng.choice((0, 1, 20, 200, 2000))
        there, back = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(there)
            try:
                write(str(self.path), writer, seed, back)
            except BaseException:
                os.write(2, traceback.format_exc().encode())
            os._exit(1)
        os.close(back)
        heard = bytearray()
        deadline = time.monotonic() + (60 if goal else self.rng.random() * 0.01)
        while len(heard) < goal or (goal == 0 and time.monotonic() < deadline):
            assert time.monotonic() < deadline, "the writer does not get on"
            if select.select([there], [], [], 0.001)[0]:
                heard += self._listen(there)
            else:
                self._write_back()
        while select.select([there], [], [], 0)[0]:
            heard += self._listen(there)
        before_cut = len(heard)
        self.disk.cut(self.rng.choice((LOGFLUSH, NOLOGFLUSH)))
        os.kill(pid, signal.SIGKILL)
        while data := os.read(there, 65536):
            heard += data
        os.close(there)
        os.waitpid(pid, 0)
        promises = Promises()
        promises.take(bytes(heard), before_cut=before_cut)
        return promises

    @staticmethod
    def _listen(fd: int) -> bytes:
        data = os.read(fd, 4096)
        assert data, "the writer has died"
        return data

    def _write_back(self) -> None:
        """Have some pages of some segment written, as the kernel may at any time."""
        segments = sorted(self.path.glob("*.seg"))
        if segments:
            page = self.rng.randrange(SEGMENT // 4096)
            nbytes = self.rng.choice((1, 4)) * 4096
            with suppress(FileNotFoundError):  # recovery has put it aside
                write_back(self.rng.choice(segments[-3:]), page * 4096, nbytes)

    def _check(self, writer: str) -> None:
        """The log holds what was promised; who only reads leaves the repair to the next writer."""
        if not self.path.exists() or not list(self.path.glob("*.seg")):
            assert not any(p.durable for p in self.promises.values()), "the whole log is gone"
            self.kept.update(dict.fromkeys(self.promises, 0))
            return
        (self.path / "control").unlink(missing_ok=True)  # it would be from another boot
        with penstock.open(self.path, mode=self.rng.choice(("r", "rw")), timeout=60) as log:
            found = last_operations(log, self.promises)
        for name, promises in self.promises.items():
            last = found.get(name, 0)
            assert last >= promises.durable, (
                f"operation {promises.durable} of {name} was durable; the last there is {last}"
            )
            assert last == self.kept.setdefault(name, last), f"{name}: what was there is gone"
        self.lost += sum(operation > self.kept[writer] for operation in self.promises[writer].acked)


def last_operations(log: Log, promises: dict[str, Promises]) -> dict[str, int]:
    """Check that the log is made of whole operations in order; the last one of each writer."""
    found: dict[str, int] = {}
    left = 0
    for place, event in enumerate(log, start=1):
        assert event.seq == place
        mark = read_mark(event)
        said = promises[mark.writer]
        if left == 0:
            assert mark.place == 0, f"seq {place}: the first events of its batch are missing"
            assert mark.counter == found.get(mark.writer, 0) + 1, f"seq {place}: {mark} is early"
            assert list(found)[-1:] in ([], [mark.writer]) or mark.counter == 1
            assert said.begun[mark.counter] == mark.batch
            assert said.acked.get(mark.counter, place) == place, f"{mark} has another seq"
            found[mark.writer] = mark.counter
        else:
            assert (mark.counter, mark.batch - mark.place) == (found[mark.writer], left)
        left = mark.batch - mark.place - 1
    assert left == 0, "the log ends inside a batch"
    return found


def outages(directory: str, seed: int, block_bytes: int, cycles: int) -> None:
    """Cut the power so many times, in a process that has nothing else to do."""
    try:
        outage = Outage(Path(directory), seed, block_bytes)
    except OSError as error:
        report(unable=f"no file system of its own: {error}")
        return
    outage.run(cycles)
    report(cycles=outage.cycles, lost=outage.lost)
