"""A fork inside a load, backup or repair leaves it to the process that began it.

The values of a load, its codec and its `progress` are code of the user's, which may fork. In the
child the load ends with `Usage`; in the parent it holds its own events, all of them and no others.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.segments import staged
from penstock.segments.staging import Writer
from tests.support import alone

COUNT = 300
WHO = ("job", 1)


def value(i: int) -> bytes:
    return b"%d " % i + b"x" * 1000


class Forker:
    """Forks once, when told to; in the child the work that goes on must be refused."""

    def __init__(self, tmp_path: Path) -> None:
        self.errors = tmp_path / "child-errors"
        self.child = -1  # 0 in the child

    def fork(self) -> None:
        if self.child == -1:
            self.child = os.fork()

    def expect(self, work: Callable[[], Any]) -> Any:
        """Do ``work``, in which ``fork`` is called. The child never comes back from here."""
        try:
            result = work()
            if self.child == 0:
                self.errors.write_text(f"the child went on, and got {result!r}")
                os._exit(1)
        except BaseException as error:
            if self.child != 0:
                raise
            if not isinstance(error, penstock.Usage) or "by the parent process" not in str(error):
                self.errors.write_text(repr(error))
                os._exit(1)
            os._exit(0)
        finally:
            if self.child == 0:
                os._exit(2)
        assert self.child > 0, "nobody forked"
        alone.finish(self.child, self.errors)
        return result


@pytest.fixture
def forker(tmp_path: Path) -> Forker:
    return Forker(tmp_path)


def check_whole(path: Path, before: list[bytes], count: int = COUNT) -> None:
    """The log holds what was there before, and the load; nothing is left of anything else."""
    with penstock.open(path) as log:
        assert [e.value for e in log] == [*before, *map(value, range(count))]
        assert log.load([], producer=WHO) == range(len(before) + 1, len(before) + 1 + count)
    assert penstock.verify(path).ok
    left = [n for n in os.listdir(path) if not n.endswith((".seg", ".lock")) and n != "control"]
    assert left == []


@pytest.mark.parametrize("at", [0, 1, 150, COUNT - 1, COUNT])
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "child first"])
def test_values_that_fork(path: Path, forker: Forker, at: int, waits: bool) -> None:
    """Whenever its values fork, a load is whole in the parent and refused in the child."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.append(b"before")

        def values() -> Iterator[bytes]:
            for i in range(COUNT + 1):
                if i == at:
                    forker.fork()
                    if forker.child > 0 and waits:
                        os.waitid(os.P_PID, forker.child, os.WEXITED | os.WNOWAIT)
                if i < COUNT:
                    yield value(i)

        seqs = forker.expect(lambda: log.load(values(), producer=WHO))
        assert seqs == range(2, COUNT + 2)
    check_whole(path, [b"before"])


def test_a_short_load(path: Path, forker: Forker) -> None:
    """A load that fits one batch is not done twice either."""
    with penstock.open(path) as log:

        def values() -> Iterator[bytes]:
            yield value(0)
            forker.fork()
            yield value(1)

        assert forker.expect(lambda: log.load(values(), producer=WHO)) == range(1, 3)
    check_whole(path, [], 2)


def test_progress_that_forks(path: Path, forker: Forker) -> None:
    """A load whose `progress` forks goes on in the parent only."""
    with penstock.open(path, segment_size="64KiB") as log:
        values = list(map(value, range(COUNT)))
        load = lambda: log.load(values, producer=WHO, progress=lambda n: forker.fork())  # noqa: E731
        assert forker.expect(load) == range(1, COUNT + 1)
    check_whole(path, [])


def test_a_codec_that_forks(path: Path, forker: Forker) -> None:
    """A load whose values fork while they are encoded goes on in the parent only."""

    class Item:
        def __init__(self, i: int) -> None:
            self.i = i

    def encode(item: Any) -> bytes:
        if item.i == 200:
            forker.fork()
        return value(item.i)

    penstock.register_codec("forking", encode, bytes)
    with penstock.open(path, segment_size="64KiB", codec="forking") as log:
        items = [Item(i) for i in range(COUNT)]
        assert forker.expect(lambda: log.load(items, producer=WHO)) == range(1, COUNT + 1)
        assert [bytes(e.value or b"") for e in log] == [value(i) for i in range(COUNT)]


def test_a_child_process_of_a_load_may_use_the_log(path: Path, tmp_path: Path) -> None:
    """A worker started inside a load, as multiprocessing does, appends and loads for itself."""
    with penstock.open(path, segment_size="64KiB") as log:

        def work() -> None:
            log.append(b"child")
            log.load(map(value, range(COUNT)), producer=("child", 1))

        def values() -> Iterator[bytes]:
            for i in range(COUNT):
                if i == 100:
                    worker = multiprocessing.get_context("fork").Process(target=work)
                    worker.start()
                    worker.join()
                    assert worker.exitcode == 0
                yield value(i)

        assert log.load(values(), producer=WHO) == range(COUNT + 2, 2 * COUNT + 2)
    check_whole(path, [b"child", *map(value, range(COUNT))])


def test_a_child_that_ends_in_the_middle(path: Path) -> None:
    """A child that leaves by an exception, or is killed, takes nothing of its parent's load."""
    with penstock.open(path, segment_size="64KiB") as log:

        def values() -> Iterator[bytes]:
            for i in range(COUNT):
                if i in (100, 200):
                    child = os.fork()
                    if child == 0:
                        if i == 200:
                            os.kill(os.getpid(), signal.SIGKILL)
                        raise KeyError("the child's own")
                    os.waitpid(child, 0)
                yield value(i)

        here = os.getpid()
        try:
            assert log.load(values(), producer=WHO) == range(1, COUNT + 1)
        except KeyError:
            assert os.getpid() != here
            os._exit(0)
    check_whole(path, [])


def test_extend_that_forks(path: Path, tmp_path: Path) -> None:
    """An extend whose values fork is a batch of its own in each process, whole in both."""
    with penstock.open(path) as log:
        pids: list[int] = []

        def values() -> Iterator[bytes]:
            yield b"a"
            pids.append(os.fork())
            yield b"b"

        seqs = log.extend(values())
        if pids == [0]:
            os._exit(0 if len(seqs) == 2 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1]) == 0
        assert [e.value for e in log] == [b"a", b"b"] * 2
    assert penstock.verify(path).ok


def test_backup_whose_progress_forks(path: Path, tmp_path: Path, forker: Forker) -> None:
    """A backup is made by the process that began it; the child leaves its files alone."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.load(map(value, range(COUNT)), producer=WHO)
        target = tmp_path / "copy"
        made = forker.expect(lambda: log.backup(target, progress=lambda done, all: forker.fork()))
        assert made == COUNT
    check_whole(target, [])
    assert [p.name for p in tmp_path.iterdir() if "partial" in p.name] == []


@pytest.mark.parametrize("kind", ["log", "ring"])
@pytest.mark.parametrize("how", ["in place", "to"])
def test_repair_whose_progress_forks(tmp_path: Path, forker: Forker, kind: str, how: str) -> None:
    """A repair is made by the process that began it, in place or to a copy."""
    path = tmp_path / "x"
    size: dict[str, Any] = {"ring": "64KiB"} if kind == "ring" else {"segment_size": "64KiB"}
    with penstock.open(path, **size) as log:
        log.extend([b"a" * 100, b"b" * 100, b"c" * 100])
    file = path / f"{1:020d}.seg" if kind == "log" else path
    data = bytearray(file.read_bytes())
    data[data.index(b"b" * 100) + 50] ^= 1
    file.write_bytes(data)
    to = tmp_path / "mended"
    where: dict[str, Any] = {"in_place": True} if how == "in place" else {"to": to}
    fork = lambda done, all: forker.fork()  # noqa: E731
    plan = forker.expect(lambda: penstock.repair(path, progress=fork, **where))
    assert plan.steps
    with penstock.open(path if how == "in place" else to) as log:
        assert [e.value for e in log] == [b"a" * 100, b"c" * 100]


def test_staging_that_forks(path: Path, tmp_path: Path, forker: Forker) -> None:
    """Rows that fork while they are staged are staged once, by the parent."""
    with penstock.open(path, segment_size="64KiB") as log:
        pyarrow = pytest.importorskip("pyarrow")
        tables = [pyarrow.table({"value": [value(i)]}) for i in range(40)]
        taken = [log._intake(t, "value", *[None] * 8) for t in tables]

        def rows() -> Iterator[Any]:
            for i, intake in enumerate(taken):
                if i == 20:
                    forker.fork()
                yield from intake

        writer = Writer(str(tmp_path / "rows"), 64 << 10, 0o600)
        files = forker.expect(lambda: writer.write(rows()))
        assert sum(f.rows for f in files) == 40
        assert staged.append_staged(log, files, producer=WHO, durable=False) == range(1, 41)
    check_whole(path, [], 40)


def test_a_child_is_told_in_words(path: Path, tmp_path: Path) -> None:
    """The error names what was begun and what to do instead."""
    errors = tmp_path / "told"
    with penstock.open(path, segment_size="64KiB") as log:

        def values() -> Iterator[bytes]:
            yield from map(value, range(COUNT))
            if os.fork() == 0:
                here.append(0)

        here: list[int] = []
        try:
            log.load(values())
        except penstock.Usage as error:
            errors.write_text(str(error))
        finally:
            if here:
                os._exit(0)
        os.wait()
    assert errors.read_text() == (
        "this load was begun by the parent process, which continues it; begin another one in "
        "this process"
    )
