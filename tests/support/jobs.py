"""What worker processes do. Each function is one job; the zygote calls it in a process of its own.

A job reports by lines of JSON on its stdout, written at once. It is told to go on by the appearance
of a file.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import json
import multiprocessing
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, Literal
from unittest import mock

import penstock
from penstock import Gap, Log, _core, layout
from penstock.handle import control
from penstock.segments.storage import SegmentStorage
from tests.support.acks import Acks
from tests.support.values import fingerprint, read_mark
from tests.support.wait import wait_for

Fail = list[Any]  # name, times, signal

_PR_SET_PDEATHSIG = 1
_CLONE_NEWNS = 0x00020000
_CLONE_NEWPID = 0x20000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18


def report(**fields: Any) -> None:
    """Tell the test something."""
    os.write(1, json.dumps(fields).encode() + b"\n")


def wait_file(path: str) -> None:
    """Wait until the test makes the file ``path``."""
    wait_for(lambda: os.path.exists(path), path)


def arm(fail: Fail | None) -> None:
    """Arm a fail-point, if the job was given one."""
    if fail is not None:
        _core.fail_arm(*fail)


def write_random(
    path: str,
    acks: str,
    writer: str,
    seed: int,
    fail: Fail | None = None,
    threads: int = 1,
    limit: int = 500_000,
    timeout: float | None = None,
) -> None:
    """Append things of random shape until killed, or until an append fails."""
    arm(fail)
    log = penstock.open(path, timeout=60)

    def run(name: str, number: int) -> None:
        rng = random.Random(number)
        mine = Acks(acks, name)
        try:
            while True:
                mine.append_random(log, rng, limit, timeout)
        except BaseException:
            os.write(2, traceback.format_exc().encode())
            os._exit(1)  # also if it happened in a thread

    others = [
        threading.Thread(target=run, args=(f"{writer}t{i}", seed + i), daemon=True)
        for i in range(1, threads)
    ]
    for thread in others:
        thread.start()
    run(writer, seed)


def write(
    path: str,
    acks: str,
    writer: str,
    operations: list[list[int]],
    go: str | None = None,
    warm: list[list[int]] | None = None,
    fail: Fail | None = None,
    fail_at_open: bool = False,
    threads: int = 1,
    handles: int = 1,
    timeout: float | None = None,
    rested: bool = False,
) -> None:
    """Append ``warm``, report ready, wait for ``go``, arm ``fail``, append ``operations``.

    ``rested``: be ready only when the keeper has nothing left that it put off, so that it does not
    do in the meantime what another process is watched doing.
    """
    if fail_at_open:
        arm(fail)
    logs = [penstock.open(path, timeout=60) for _ in range(handles)]
    writers = [Acks(acks, writer if i == 0 else f"{writer}t{i}") for i in range(threads)]
    for sizes in warm or []:
        writers[0].append(logs[0], sizes)
    first = logs[0]
    storage = first._storage
    ahead = storage.ahead if isinstance(storage, SegmentStorage) else None
    if rested and ahead is not None:
        base = first._live().get(layout.C_ACTIVE_BASE)
        wait_for(lambda: ahead._sealed_below == base, "the keeper to rest")
    report(ready=logs[0].last_seq)
    if go is not None:
        wait_file(go)
    if not fail_at_open:
        arm(fail)
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            for sizes in operations:
                writers[number].append(logs[number % handles], sizes, timeout)
        except BaseException as error:
            failures.append(error)

    others = [threading.Thread(target=run, args=(i,)) for i in range(1, threads)]
    for thread in others:
        thread.start()
    run(0)
    for thread in others:
        thread.join()
    for failure in failures:
        report(error=type(failure).__name__, text=str(failure))
    for log in logs:
        log.close()
    report(closed=True)
    if failures:
        raise failures[0]


def _begin(
    path: str, acks: str, writer: str, go: str | None, fail: Fail | None
) -> tuple[penstock.Log, Acks]:
    """Open, append once, say so, and arm the fail-point when told to go."""
    log = penstock.open(path, timeout=60)
    mine = Acks(acks, writer)
    mine.append(log, [100])
    report(ready=True)
    if go is not None:
        wait_file(go)
    arm(fail)
    return log, mine


def roll(
    path: str,
    acks: str,
    writer: str,
    go: str | None = None,
    fail: Fail | None = None,
    rolls: int = 1,
) -> None:
    """Append and roll by hand; then stay, so that the keeper seals what was rolled."""
    log, mine = _begin(path, acks, writer, go, fail)
    for _ in range(rolls):
        log.steward.roll()
        mine.append(log, [100])
    report(rolled=True)
    threading.Event().wait()


def fill(
    path: str, acks: str, writer: str, fail: Fail | None = None, go: str | None = None
) -> None:
    """Fill most of a segment, so that the keeper prepares the next one; then stay."""
    log, mine = _begin(path, acks, writer, go, fail)
    room = log.settings.segment_size
    for _ in range(9):
        mine.append(log, [room // 10])
    report(filled=True)
    threading.Event().wait()


def sync(
    path: str, acks: str, writer: str, go: str | None = None, fail: Fail | None = None
) -> None:
    """Append and sync, over a roll; then stay."""
    log, mine = _begin(path, acks, writer, go, fail)
    for _ in range(3):
        mine.append(log, [200])
        log.sync()
        log.steward.roll()
    report(synced=True)
    threading.Event().wait()


def sweep(
    path: str, acks: str, writer: str, go: str | None = None, fail: Fail | None = None
) -> None:
    """Append to a ring so that the last append drops all that is there; then stay."""
    log, mine = _begin(path, acks, writer, go, None)
    ring = log.stats().ring
    assert ring is not None
    room = ring.ring_bytes
    while log.stats().ring.head % room > room // 50:  # type: ignore[union-attr]
        mine.append(log, [room // 100])
    for share in (0.12, 0.45):
        mine.append(log, [int(room * share)])
    arm(fail)
    mine.append(log, [int(room * 0.47)])
    report(swept=log.first_seq == log.last_seq)
    threading.Event().wait()


def sync_ring(
    path: str, acks: str, writer: str, go: str | None = None, fail: Fail | None = None
) -> None:
    """Append to a ring and sync; then stay."""
    log, mine = _begin(path, acks, writer, go, fail)
    for _ in range(3):
        mine.append(log, [200])
        log.sync()
    report(synced=True)
    threading.Event().wait()


def produce(
    path: str, acks: str, writer: str, go: str | None = None, fail: Fail | None = None
) -> None:
    """Append to a ring as a producer, for more than a lap; then stay."""
    log, mine = _begin(path, acks, writer, go, fail)
    for n in range(12):
        mine.append(log, [20_000, 300], producer=(writer, n))
    report(produced=True)
    threading.Event().wait()


def outlast(path: str, fail: Fail | None) -> None:
    """Have settings and a producer in a ring, and append for more than a lap; dies on the way."""
    log = penstock.create(path, ring="32KiB")
    log.configure(file_mode=0o640)
    log.append(b"early", producer=("early", 7))
    room = log.stats().ring.ring_bytes  # type: ignore[union-attr]
    for n in range(30):
        log.append(b"%d" % n, producer=("late", n))
        log.append(bytes(900))
    arm(fail)
    for share in (0.08, 0.3, 0.49, 0.45, 0.1, 0.49, 0.3, 0.01, 0.49):
        log.append(bytes(int(room * share) - 40))
    report(outlasted=True)


def make_ring(
    path: str, acks: str, writer: str, ring: int, fail: Fail | None = None, go: str | None = None
) -> None:
    """Make a ring, and append to it."""
    arm(fail)
    log = penstock.open(path, ring=ring, timeout=60)
    Acks(acks, writer).append(log, [10])
    log.close()


def load(
    path: str, acks: str, writer: str, go: str | None = None, fail: Fail | None = None
) -> None:
    """Load more than a few segments take; then stay."""
    log, mine = _begin(path, acks, writer, go, fail)
    mine.load(log, [8000] * 150)
    report(loaded=True)
    threading.Event().wait()


def follow(path: str, out: str, mode: str = "r", start: int = 1, fail: Fail | None = None) -> None:
    """Follow the log and write down what comes, until the event of the writer "stop"."""
    arm(fail)
    fd = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    log: Log = penstock.open(path, mode="r" if mode == "r" else "rw", timeout=60)
    report(ready=True)
    for event in log.follow(start):
        os.write(fd, f"{event.seq} {fingerprint(event)}\n".encode())
        if event.key is not None and event.key.startswith(b"('stop',"):
            log.close()
            return


def follow_ring(
    path: str,
    out: str,
    mode: Literal["r", "rw"],
    start: int,
    on_gap: Literal["raise", "skip"],
    hold: bool = False,
) -> None:
    """Follow a ring, and write down what comes and what was missed, until the writer "stop"."""
    fd = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    log = penstock.open(path, mode=mode, timeout=60)
    while True:
        reader = log.follow(start, on_gap=on_gap, timeout=60, hold=hold)
        if hold:
            report(holds=True)
        skipped = 0
        try:
            for event in reader:
                mark = read_mark(event)
                words = (event.seq, reader.skipped - skipped, *mark[:3], fingerprint(event))
                os.write(fd, f"{' '.join(map(str, words))}\n".encode())
                skipped = reader.skipped
                if mark.writer == "stop":
                    log.close()
                    return
            raise AssertionError("nothing came for a minute")
        except Gap as gap:
            start = gap.first_seq
            os.write(fd, f"gap {reader.position} {start}\n".encode())


def hold_open(path: str, go: str, mode: str = "rw") -> None:
    """Have the log open, appending nothing, until told to end."""
    with penstock.open(path, mode="r" if mode == "r" else "rw", timeout=60) as log:
        report(ready=log.last_seq)
        wait_file(go)
        report(read=sum(1 for _ in log))


def interrupted_take_over(path: str, acks: str, writer: str, go: str, end: str) -> None:
    """Ctrl-C arrives in the moment in which the lock was taken over from a dead holder."""
    log = penstock.open(path, timeout=60)
    report(ready=True)
    wait_file(go)
    _core.fail_arm("lock.took_over", 1, signal.SIGINT)
    try:
        Acks(acks, writer).append(log, [10])
    except KeyboardInterrupt:
        report(interrupted=True)
    else:
        report(interrupted=False)
    wait_file(end)


def namespaced(inner: str, args: dict[str, Any]) -> None:
    """Run another job as process 2 of a PID namespace of its own; ends as that ends.

    Process 1 cannot be that process: the kernel keeps signals of its own namespace away from it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWPID) != 0:
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWPID)")
    first = os.fork()
    if first:
        _, status = os.waitpid(first, 0)
        raise SystemExit(os.waitstatus_to_exitcode(status))
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    second = os.fork()
    if second:
        while True:
            _, status = os.waitpid(second, os.WUNTRACED)
            if os.WIFSTOPPED(status):
                report(stopped=True)
            else:
                code = os.waitstatus_to_exitcode(status)
                os._exit(code if code >= 0 else 128 - code)
    report(pid=os.getpid())
    code = 1
    try:
        globals()[inner](**args)
        code = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def read_only_mount(path: str, inner: str, args: dict[str, Any]) -> None:
    """Run another job with ``path`` mounted read-only, in a mount namespace of its own."""
    libc = ctypes.CDLL(None, use_errno=True)

    def mount(flags: int) -> None:
        if libc.mount(path.encode(), path.encode(), None, flags, None) != 0:
            raise OSError(ctypes.get_errno(), "mount")

    if libc.unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWNS)")
    if libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) != 0:
        raise OSError(ctypes.get_errno(), "mount --make-rprivate")
    mount(_MS_BIND)
    mount(_MS_BIND | _MS_REMOUNT | _MS_RDONLY)
    globals()[inner](**args)


def read_all(path: str) -> None:
    """Open the log for reading only and report every event."""
    with penstock.open(path, mode="r") as log:
        report(events=[[e.seq, fingerprint(e)] for e in log], live=log.stats().live)


def fork_amid_appends(path: str, acks: str, writer: str, children: int, count: int) -> None:
    """Threads append while the process forks; each child appends on the handle it inherited."""
    log = penstock.open(path, timeout=60)
    going = threading.Event()
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            mine = Acks(acks, f"{writer}t{number}")
            rng = random.Random(number)
            while not going.is_set():
                mine.append_random(log, rng, 50_000)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    pids = []
    for number in range(children):
        pid = os.fork()
        if pid == 0:
            in_child(partial(append_many, log, acks, f"{writer}c{number}", count))
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    going.set()
    for thread in threads:
        thread.join()
    log.close()
    report(codes=codes, failures=[repr(f) for f in failures])


def in_child(work: Callable[[], None]) -> None:
    """Run ``work`` in the child of a fork and end it there."""
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def append_many(log: Log, acks: str, writer: str, count: int) -> None:
    """Append ``count`` operations of random shape."""
    mine = Acks(acks, writer)
    rng = random.Random(writer)
    for _ in range(count):
        mine.append_random(log, rng, 20_000)


def parent_dies(path: str, acks: str, writer: str, go: str, fail: Fail) -> None:
    """Fork, then die at a fail-point; the child lives on and appends when told."""
    log = penstock.open(path, timeout=60)
    append_many(log, acks, f"{writer}p", 3)
    if os.fork() == 0:
        report(child=os.getpid())

        def later() -> None:
            wait_file(go)
            append_many(log, acks, f"{writer}c", 5)
            log.close()
            report(appended=True)

        in_child(later)
    mine = Acks(acks, f"{writer}q")
    arm(fail)
    mine.append(log, [10, 20, 30])


def fork_while_opening(path: str) -> None:
    """A thread forks while another opens the log; the opener dies, the child lives on."""

    def build(*_: Any) -> None:
        if os.fork() == 0:
            report(child=os.getpid())
            threading.Event().wait()
        os.kill(os.getpid(), signal.SIGKILL)

    with (
        mock.patch.object(control, "build", build),
        mock.patch.object(control, "build_in_place", build),
    ):
        penstock.open(path)


def closes_inherited(path: str, acks: str, go: str) -> None:
    """A child opens the log for itself and then closes the handle that it inherited."""
    inherited = penstock.open(path, timeout=60)
    inherited.append(b"", key=b"('first', 1, 0, 1, 0)")
    pid = os.fork()
    if pid == 0:

        def work() -> None:
            own = penstock.open(path, timeout=60)
            inherited.close()
            append_many(own, acks, "own", 3)
            report(own=True)
            wait_file(go)
            append_many(own, acks, "own-later", 3)
            own.close()

        in_child(work)
    inherited.close()
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def threads_in_child(path: str, acks: str, writer: str, threads: int) -> None:
    """A child's threads all use the inherited handle for the first time at once."""
    log = penstock.open(path, timeout=60)
    append_many(log, acks, writer, 2)
    pid = os.fork()
    if pid == 0:
        in_child(lambda: _together(threads, lambda n: append_many(log, acks, f"{writer}t{n}", 5)))
    log.close()
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _together(threads: int, work: Callable[[int], None]) -> None:
    barrier = threading.Barrier(threads)
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            barrier.wait()
            work(number)
        except BaseException as error:
            failures.append(error)

    all_of_them = [threading.Thread(target=run, args=(n,)) for n in range(threads)]
    for thread in all_of_them:
        thread.start()
    for thread in all_of_them:
        thread.join()
    if failures:
        raise failures[0]


def multiprocess(path: str, acks: str, writer: str, children: int) -> None:
    """Children of multiprocessing's fork method append on the inherited handle."""
    log = penstock.open(path, timeout=60)
    append_many(log, acks, writer, 3)
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=append_many, args=(log, acks, f"{writer}m{n}", 20))
        for n in range(children)
    ]
    for process in processes:
        process.start()
    append_many(log, acks, f"{writer}p", 20)
    for process in processes:
        process.join()
    report(codes=[p.exitcode for p in processes])
    log.close()


def inherited_reader(path: str, out: str) -> None:
    """A reader that stands half-way goes on in a child, and there follows what is appended."""
    log = penstock.open(path, timeout=60)
    reader = log.follow("start")
    first = next(reader).seq
    pid = os.fork()
    if pid == 0:

        def work() -> None:
            report(first=first)
            for event in reader:
                os.write(1, json.dumps({"seq": event.seq}).encode() + b"\n")
                if event.key is not None and event.key.startswith(b"('stop',"):
                    return

        in_child(work)
    log.close()
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def echo(there: str, back: str, trips: int) -> None:
    """Answer each event of one log with an event in the other."""
    with penstock.open(there, timeout=60) as a, penstock.open(back, timeout=60) as b:
        report(ready=True)
        follower = a.follow(1)
        for _ in range(trips):
            b.append(next(follower).value)


def note_arrivals(path: str, mode: Literal["r", "rw"], count: int) -> None:
    """Report how long after its append each of ``count`` events came, whose values say when."""
    seconds = []
    with penstock.open(path, mode=mode, timeout=60) as log:
        follower = log.follow(1, timeout=60)
        report(ready=True)
        for event in itertools.islice(follower, count):
            seconds.append((time.monotonic_ns() - int(event.value or b"")) / 1e9)
    report(seconds=seconds)


def wait_once(path: str) -> None:
    """Wait for one event; report it, or how the waiting ended."""
    log = penstock.open(path, mode="r", timeout=60)
    report(ready=True)
    try:
        for event in log.follow("end"):
            report(seq=event.seq)
            return
    except KeyboardInterrupt:
        report(interrupted=True)


def run_in_worker(module: str, function: str, args: dict[str, Any]) -> None:
    """Run a function of a test module in a process that has nothing else in it."""
    getattr(importlib.import_module(module), function)(**args)


def append_after_short_open(path: str, go: str) -> None:
    """Open with a short time-out, then append without one."""
    with penstock.open(path, timeout=0.1) as log:
        report(appending=True)
        log.append(b"")
