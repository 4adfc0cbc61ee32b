"""Pages that are written leave the process's map, and nothing else does, whoever looks at them."""

from __future__ import annotations

import mmap
import os
import threading
from pathlib import Path

import pytest

import penstock
from penstock import tunables
from penstock.handle.handle import Handle
from tests.support.mapped import mapped_bytes
from tests.support.scene import Scene
from tests.support.wait import wait_for

pytestmark = pytest.mark.process

MIB = 1 << 20


def in_worker(scene: Scene, function: str) -> None:
    """Run a function of this module in a process of its own: a crash would end it."""
    scene.run(
        "run_in_worker",
        module="tests.process.test_letting_go",
        function=function,
        args={"path": str(scene.path)},
    ).done()


@pytest.mark.parametrize("size", [100, 5000, 200_000])
def test_what_is_written_is_let_go(tmp_path: Path, size: int) -> None:
    """A writer holds some pages before its head, not all of them, and fewer after a sync."""
    ahead = tunables.POPULATE_AHEAD_BYTES + 2 * tunables.KEEP_MAPPED_BYTES
    window = ahead + tunables.LET_GO_BYTES
    with penstock.open(tmp_path / "log") as log:
        for _ in range(30 * MIB // size):
            log.append(bytes(size))
        wait_for(lambda: mapped_bytes(tmp_path) < window, "the pages to be let go")
        log.sync()
        assert mapped_bytes(tmp_path) < ahead
        log.steward.roll()
        log.append(b"x")
        # Who seals the segment reads all of it, and then has no more need of it.
        wait_for(lambda: mapped_bytes(tmp_path) < window, "the segment to be left")


def test_a_sync_leaves_the_rest_to_readers(tmp_path: Path) -> None:
    """A sync lets go of what it writes; what readers look at, on disk already, stays."""
    with penstock.open(tmp_path / "log") as log:
        for _ in range(20):
            log.extend([bytes(1000)] * 1000)
        log.sync()
        before = mapped_bytes(tmp_path)
        assert len(list(log)) == 20_000
        read = mapped_bytes(tmp_path)
        assert read > before + 10 * MIB
        log.append(b"x", durable=True)
        assert mapped_bytes(tmp_path) > read - MIB


def roll_beside_the_end_of_an_append(path: str) -> None:
    """Have the log roll while an append asks for maintenance, and the next map lie higher up."""
    room = mmap.mmap(-1, 160 * MIB)
    between = mmap.mmap(-1, 64 << 10, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    between.write(b"x" * len(between))
    log = penstock.open(path)
    ask = log._storage.ask_keeper
    rolls = 0

    def roll_instead(handle: Handle) -> None:
        nonlocal rolls
        if rolls:
            ask(handle)
            return
        rolls += 1
        room.close()
        log.steward.roll()  # as any other thread may

    log._storage.ask_keeper = roll_instead  # type: ignore[method-assign]
    for _ in range(8 * MIB // 1000):
        log.append(bytes(1000))
    assert rolls == 1
    assert between[:] == b"x" * len(between)
    log.close()


def test_roll_beside_the_end_of_an_append(scene: Scene) -> None:
    """What lies in memory between two segments stays if one thread rolls while another does."""
    in_worker(scene, "roll_beside_the_end_of_an_append")


def close_beside_rolls(path: str) -> None:
    """Take the thread that lets go away while another thread waits for it."""
    for number in range(40):
        log = penstock.open(f"{path}{number}")
        log.extend([bytes(1000)] * 100)
        ended = threading.Event()

        def change(log: penstock.Log = log, ended: threading.Event = ended) -> None:
            while not ended.is_set():
                log._active_map = log._active_map

        threads = [threading.Thread(target=change) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(100):
            log.append(bytes(20_000))
        log.close()
        ended.set()
        for thread in threads:
            thread.join()


def test_close_beside_rolls(scene: Scene) -> None:
    """A handle closes while others of its threads go on to another segment."""
    in_worker(scene, "close_beside_rolls")


def read_beside_a_writer(path: str) -> None:
    """Append and sync, roll now and then, and have threads read what is being let go."""
    values = [bytes([i]) * size for i, size in enumerate([10, 300, 5000, 40_000, 300_000])]
    log = penstock.open(path, segment_size=16 * MIB)
    log.append(values[1])  # seq n holds values[n % 5]
    ended = threading.Event()
    wrong: list[object] = []

    def read(stride: int) -> None:
        held: list[penstock.Event] = []
        try:
            while not ended.is_set():
                last = log.last_seq
                for seq in range(max(1, last - 50 * stride), last + 1, stride):
                    event = log[seq]
                    if event.value != values[seq % 5]:
                        wrong.append(seq)
                    held.append(event)
                del held[:-200]
            wrong.extend(e.seq for e in held if bytes(e.view) != values[e.seq % 5])
        except BaseException as error:
            wrong.append(error)

    def sync() -> None:
        while not ended.is_set():
            log.sync()

    threads = [threading.Thread(target=read, args=[stride]) for stride in (1, 7)]
    threads.append(threading.Thread(target=sync))
    for thread in threads:
        thread.start()
    for _ in range(20):
        for seq in range(log.last_seq + 1, log.last_seq + 71):
            log.append(values[seq % 5])
        log.extend([values[(log.last_seq + i) % 5] for i in range(1, 6)])
    ended.set()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:5]
    log.close()


def test_read_beside_a_writer(scene: Scene) -> None:
    """Threads that read pages as they are let go, and views held for long, see what was written."""
    in_worker(scene, "read_beside_a_writer")


def test_fork_amid_letting_go(tmp_path: Path) -> None:
    """A child reads what its parent had let go of, and appends after it; so does the parent."""
    with penstock.open(tmp_path / "log", segment_size=8 * MIB) as log:
        views = []
        for i in range(6000):
            seq = log.append(b"%d" % i * 300)
            if i % 500 == 0:
                views.append((i, log[seq].view))
        child = os.fork()
        if child == 0:
            right = all(bytes(view) == b"%d" % i * 300 for i, view in views)
            for i in range(6000, 9000):
                log.append(b"%d" % i * 300)
            right = right and all(e.value == b"%d" % i * 300 for i, e in enumerate(log))
            os._exit(0 if right else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        for i in range(9000, 12_000):
            log.append(b"%d" % i * 300)
        assert [e.value for e in log] == [b"%d" % i * 300 for i in range(12_000)]
        assert all(bytes(view) == b"%d" % i * 300 for i, view in views)
