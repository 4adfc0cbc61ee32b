"""Limits of the system on a process: a typed error, no signal, and nothing lost for anybody."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock._core import rows_to_stage
from penstock.segments.staged import append_staged
from penstock.segments.staging import Staged, Writer
from tests.support.acks import Acks
from tests.support.attempts import Attempts
from tests.support.fixtures import STORM
from tests.support.jobs import report
from tests.support.scene import SEGMENT, Scene
from tests.support.workers import Worker

pytestmark = pytest.mark.process

KIB = 1 << 10
MIB = 1 << 20
SPARE_KIB = range(64, 24_000, 64) if STORM else (64, 256, 600, 1100, 2500, 5000, 9000, 20_000)
MIXED = [[10], [0, 300, 5000], [40_000], [1], [100_000], [20_000, 20_000], [7]]


def limit(what: int, soft: int) -> None:
    """Set the soft limit; it can be raised again."""
    resource.setrlimit(what, (soft, resource.getrlimit(what)[1]))


def few_descriptors(spare: int) -> int:
    """A limit on descriptors that lets ``spare`` be added to those in use."""
    free = (n for n in itertools.count() if not os.path.exists(f"/proc/self/fd/{n}"))
    return next(itertools.islice(free, spare, None))


def little_address_space(spare: int) -> int:
    """A limit on address space that lets ``spare`` bytes be added to those in use."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize() + spare


def here(scene: Scene, function: str, **args: Any) -> Worker:
    """Run a function of this module in a process of its own."""
    plain = {k: str(v) if isinstance(v, Path) else v for k, v in args.items()}
    return scene.run("run_in_worker", module=__name__, function=function, args=plain)


def witness_of(scene: Scene, go: Path) -> Worker:
    """Start a process without limits that has the log open, and appends when told."""
    worker = scene.start("write", "witness", warm=[[50]], operations=MIXED, go=go)
    worker.wait_report("ready")
    return worker


def try_all(log: penstock.Log, mine: Acks, attempt: Attempts) -> None:
    """Append things of every kind, roll, and read it all."""
    for sizes in MIXED:
        attempt("append", partial(mine.append, log, sizes))
    attempt("roll", log.steward.roll)
    attempt("append", partial(mine.append, log, [10]))
    attempt("sync", log.sync)
    attempt("durable", partial(mine.append, log, [20], durable=True))
    attempt("load", partial(mine.load, log, [3000] * 100))
    attempt("read", lambda: sum(1 for _ in log))
    attempt("read back", lambda: sum(1 for _ in reversed(log)))


def under_file_limit(path: str, acks: str, nbytes: int, opened: bool, dies: bool = False) -> None:
    """Work while no file may grow beyond ``nbytes``, then without that limit."""
    if dies:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    work_under_limit(resource.RLIMIT_FSIZE, lambda: nbytes, path, acks, opened, Attempts())


def under_descriptor_limit(path: str, acks: str, spare: int, opened: bool) -> None:
    """Work while only ``spare`` more descriptors can be had, then without that limit."""
    lowest = partial(few_descriptors, spare)
    work_under_limit(resource.RLIMIT_NOFILE, lowest, path, acks, opened, Attempts())


def under_memory_limit(path: str, acks: str, spare: int, opened: bool) -> None:
    """Work while only ``spare`` more bytes of address space can be had, then without that limit."""
    attempt = Attempts(MemoryError)
    most = partial(little_address_space, spare)
    work_under_limit(resource.RLIMIT_AS, most, path, acks, opened, attempt)


def work_under_limit(
    what: int,
    soft: Callable[[], int],
    path: str,
    acks: str,
    opened: bool,
    attempt: Attempts,
) -> None:
    """Open the log before or after setting a limit, work under it, lift it, and go on."""
    mine = Acks(acks, os.path.basename(acks).removesuffix(".acks"))
    log = penstock.open(path, segment_size=SEGMENT) if opened else None
    if log is not None:
        mine.append(log, [100])
    limit(what, soft())
    try:
        if log is None:
            log = attempt("open", lambda: penstock.open(path, segment_size=SEGMENT))
        if log is not None:
            for _ in range(3):
                try_all(log, mine, attempt)
    finally:
        limit(what, resource.getrlimit(what)[1])
    refused = list(attempt.refusals)
    attempt.refusals.clear()
    if log is None:
        log = penstock.open(path, segment_size=SEGMENT)
    try_all(log, mine, attempt)
    log.close()
    report(refused=refused, later=attempt.refusals)


def check_worker(scene: Scene, worker: Worker) -> set[tuple[str, int | None]]:
    """It ended in order and was refused nothing once the limit was lifted; what it was before."""
    worker.done()
    assert worker.wait_report("later") == []
    return {(kind, code) for _, kind, code in worker.wait_report("refused")}


@pytest.mark.parametrize("opened", [True, False], ids=["open", "not-open"])
@pytest.mark.parametrize("nbytes", [8 * KIB, 40 * KIB, 150 * KIB, SEGMENT - 1])
def test_file_size_limit(scene: Scene, nbytes: int, opened: bool) -> None:
    """A file that may not grow is Io with EFBIG, never a signal; others go on, and so does it."""
    scene.seed()
    go = scene.file("go")
    witness = witness_of(scene, go)
    worker = here(
        scene,
        "under_file_limit",
        path=scene.path,
        acks=scene.acks_of("limited"),
        nbytes=nbytes,
        opened=opened,
    )
    refusals = check_worker(scene, worker)
    if nbytes < SEGMENT - 4096:
        assert refusals == {("Io", errno.EFBIG)}
    else:
        assert not refusals, "the footer can wait"
    scene.check()
    go.touch()
    witness.done()
    scene.check_goes_on()


@pytest.mark.parametrize("nbytes", [0, 1000, 4096, 20 * KIB])
def test_file_size_limit_at_creation(scene: Scene, nbytes: int) -> None:
    """A log that cannot be made for a limit is Io with EFBIG, and can be made without it."""
    acks = scene.acks_of("limited")
    acks.touch()
    worker = here(
        scene, "under_file_limit", path=scene.path, acks=acks, nbytes=nbytes, opened=False
    )
    assert check_worker(scene, worker) == {("Io", errno.EFBIG)}
    scene.check_goes_on()


def test_file_size_limit_that_kills(scene: Scene) -> None:
    """Who asks to be killed for growing a file dies holding the lock; nothing is lost by it."""
    scene.seed()
    go = scene.file("go")
    witness = witness_of(scene, go)
    worker = here(
        scene,
        "under_file_limit",
        path=scene.path,
        acks=scene.acks_of("limited"),
        nbytes=150 * KIB,
        opened=True,
        dies=True,
    )
    assert worker.wait() == -signal.SIGXFSZ, worker.errors()
    scene.check()
    go.touch()
    witness.done()
    scene.check_goes_on()


def write_where_others_allocated(path: str, acks: str) -> None:
    """Append long values far beyond the limit."""
    log = penstock.open(path)
    mine = Acks(acks, "limited")
    limit(resource.RLIMIT_FSIZE, 8 * KIB)
    for sizes in [[100_000], [40_000, 40_000], [300]]:
        mine.append(log, sizes)
    limit(resource.RLIMIT_FSIZE, resource.RLIM_INFINITY)
    log.close()


def test_file_size_limit_where_blocks_are(scene: Scene) -> None:
    """A limit on a file's size does not refuse an append for which there are blocks already."""
    scene.seed(segment_size=MIB)
    scene.start("write", "first", operations=[[500_000], [100_000]]).done()
    segment = next(scene.path.glob("*.seg"))
    assert segment.stat().st_size == MIB - 4096, "all of it is allocated ahead of need"
    acks = scene.acks_of("limited")
    here(scene, "write_where_others_allocated", path=scene.path, acks=acks).done()
    scene.check_goes_on()


def read_under_limits(path: str, spare: int) -> None:
    """Read everything where not a byte may be written and hardly a descriptor be had."""
    limit(resource.RLIMIT_FSIZE, 0)
    limit(resource.RLIMIT_NOFILE, few_descriptors(spare))
    try:
        with penstock.open(path, mode="r") as log:
            count = sum(1 for _ in log)
            assert sum(1 for _ in reversed(log)) == count
    finally:
        limit(resource.RLIMIT_FSIZE, resource.RLIM_INFINITY)
    report(count=count)


@pytest.mark.parametrize("live", [True, False], ids=["beside-a-writer", "alone"])
def test_reading_takes_nothing(scene: Scene, live: bool) -> None:
    """Reading needs no right to write a byte, and six descriptors however long the log is."""
    scene.seed(more=[[60_000]] * 40)
    go = scene.file("go")
    witness = witness_of(scene, go) if live else None
    reader = here(scene, "read_under_limits", path=scene.path, spare=6)
    reader.done()
    assert reader.wait_report("count") == 44 + live
    go.touch()
    if witness is not None:
        witness.done()


@pytest.mark.parametrize("opened", [True, False], ids=["open", "not-open"])
@pytest.mark.parametrize("spare", range(6))
def test_descriptor_limit(scene: Scene, spare: int, opened: bool) -> None:
    """Without descriptors what needs one is Io with EMFILE; with some, everything goes on."""
    scene.seed()
    go = scene.file("go")
    witness = witness_of(scene, go)
    worker = here(
        scene,
        "under_descriptor_limit",
        path=scene.path,
        acks=scene.acks_of("limited"),
        spare=spare,
        opened=opened,
    )
    refusals = check_worker(scene, worker)
    if spare == 0:
        assert refusals == {("Io", errno.EMFILE)}
    else:
        assert refusals <= {("Io", errno.EMFILE)}
    scene.check()
    go.touch()
    witness.done()
    scene.check_goes_on()


@pytest.mark.parametrize("spare", range(5))
def test_descriptor_limit_at_creation(scene: Scene, spare: int) -> None:
    """A log that cannot be made for want of descriptors can be made when there are some."""
    acks = scene.acks_of("limited")
    worker = here(
        scene, "under_descriptor_limit", path=scene.path, acks=acks, spare=spare, opened=False
    )
    refusals = check_worker(scene, worker)
    assert refusals <= {("Io", errno.EMFILE)}
    assert refusals or spare
    scene.check_goes_on()


@pytest.mark.parametrize("opened", [True, False], ids=["open", "not-open"])
@pytest.mark.parametrize("spare", [0, *(k * KIB for k in SPARE_KIB)])
def test_memory_limit(scene: Scene, spare: int, opened: bool) -> None:
    """Without address space what needs some is MemoryError or Io with ENOMEM, and never a crash."""
    scene.seed()
    go = scene.file("go")
    witness = witness_of(scene, go)
    worker = here(
        scene,
        "under_memory_limit",
        path=scene.path,
        acks=scene.acks_of("limited"),
        spare=spare,
        opened=opened,
    )
    assert check_worker(scene, worker) <= {("Io", errno.ENOMEM), ("MemoryError", None)}
    scene.check()
    go.touch()
    witness.done()
    scene.check_goes_on()


def read_within(path: str, spare: int) -> None:
    """Read a log in every way with ``spare`` bytes of address space to spare."""
    with penstock.open(path, mode="r") as log:
        limit(resource.RLIMIT_AS, little_address_space(spare))
        last = log.last_seq
        assert sum(1 for _ in log) == last
        assert sum(1 for _ in reversed(log)) == last
        assert [log[seq].seq for seq in range(1, last + 1)] == list(range(1, last + 1))
        followers = [log.follow("start", timeout=0) for _ in range(3)]
        assert [sum(1 for _ in f) for f in followers] == [last] * 3


def test_readers_of_many_segments(scene: Scene) -> None:
    """However many segments there are, a reader has a bounded number of them in memory."""
    scene.seed(segment_size=MIB)
    with penstock.open(scene.path) as log:
        for _ in range(120):
            log.append(b"x")
            log.steward.roll()
    here(scene, "read_within", path=scene.path, spare=40 * MIB).done()


def test_readers_of_large_segments(scene: Scene) -> None:
    """A few segments' worth of address space is enough to read a log of many large ones."""
    with penstock.open(scene.path) as log:
        for _ in range(40):
            log.append(b"x")
            log.steward.roll()
    here(scene, "read_within", path=scene.path, spare=600 * MIB).done()


def take_in_and_read(path: str) -> None:
    """Take staged events in, and read all of a log as columns, where no thread can be started."""
    import pyarrow

    threading.stack_size(2048 * MIB)
    os.sched_getaffinity = lambda _: {0, 1}
    staging = Path(f"{path}-staged")
    staging.mkdir()
    with penstock.open(path, segment_size=4 * MIB) as log:
        # Not more: the memory pool of pyarrow takes a whole GiB of it if it can.
        limit(resource.RLIMIT_AS, little_address_space(512 * MIB))
        with pytest.raises(RuntimeError, match="can't start new thread"):
            threading.Thread(target=print).start()
        table = pyarrow.table({"value": [b"%d" % n for n in range(200_000)]})
        staged: list[Staged] = []
        for part in range(3):
            rows = rows_to_stage(table.to_batches()[0], path, "value", None, None, None, None, 0)
            staged += Writer(str(staging / str(part)), 4 * MIB, 0o600).write([rows])
        inodes = {os.stat(one.path).st_ino for one in staged}
        append_staged(log, staged, producer=None, durable=True)
        assert inodes <= {os.stat(one).st_ino for one in Path(path).glob("*.seg")}
        found = log.scan(columns=["seq", "value"]).to_arrow()
        assert found["seq"].to_pylist() == list(range(1, 600_001))
        assert found["value"].to_pylist() == table["value"].to_pylist() * 3


def test_no_threads(scene: Scene) -> None:
    """What several threads would do is done by one if there can be no other."""
    pytest.importorskip("pyarrow")
    here(scene, "take_in_and_read", path=scene.path).done()
