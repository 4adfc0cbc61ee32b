"""What is told durable is on disk; a sync that fails is final, for every handle."""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import errors
from penstock import layout as L
from penstock.segments import segment
from penstock.system import files
from tests.unit import oracle


class Syncs:
    """Counts the syncs of files, and makes them fail, wait or do something first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        self.fails = False
        self.before: Callable[[str], None] = lambda path: None
        self._real = files.sync_data
        monkeypatch.setattr(files, "sync_data", self._sync)

    def _sync(self, fd: int, path: str) -> None:
        self.paths.append(os.path.basename(path))
        self.before(path)
        if self.fails:
            raise errors.from_os(OSError(errno.EIO, ""), "syncing", path)
        self._real(fd, path)


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    return Syncs(monkeypatch)


def slots(name: Path) -> list[segment.Slot]:
    """The valid checkpoints of a segment."""
    raw = name.read_bytes()
    header = segment.Header.unpack(raw[: L.PAGE], str(name))
    found = [segment.Slot.unpack(raw[at : at + L.SLOT_BYTES], header) for at in (4096, 8192)]
    return [s for s in found if s is not None]


def test_nothing_is_durable_until_a_sync(log: penstock.Log) -> None:
    """durable_seq moves by sync alone, and to exactly what was appended before it."""
    assert log.durable_seq == 0
    log.extend([b"a", b"b"])
    assert log.durable_seq == 0
    assert log.sync() == 2
    assert log.durable_seq == 2
    log.append(b"c")
    assert log.durable_seq == 2
    assert log.append(b"d", durable=True) == 4
    assert log.durable_seq == 4
    assert log.extend([b"e", b"f"], durable=True) == range(5, 7)
    assert log.durable_seq == 6
    log.wait_durable(3)
    with pytest.raises(penstock.NotFound):
        log.wait_durable(7)


def test_a_sync_with_nothing_to_do_does_nothing(log: penstock.Log, syncs: Syncs) -> None:
    """What is durable already is not synced again."""
    log.append(b"a", durable=True)
    syncs.paths.clear()
    assert log.sync() == 1
    log.wait_durable(1)
    assert syncs.paths == []


def test_a_sync_covers_every_segment_since_the_last(path: Path, syncs: Syncs) -> None:
    """Segments that rolled since the last sync are synced too, the active one last."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.append(b"1", durable=True)
        log._storage.ask_keeper = lambda handle: None  # type: ignore[method-assign]  # so that none is sealed
        log.append(b"2")
        log.steward.roll()
        log.append(b"3")
        log.steward.roll()
        log.append(b"4")
        syncs.paths.clear()
        log.sync()
        wanted = [segment.file_name(base) for base in (1, 3, 4)]
        assert syncs.paths == wanted
        log.append(b"5", durable=True)
        assert syncs.paths == [*wanted, wanted[-1]]


def test_checkpoints_alternate(path: Path) -> None:
    """Each sync writes its checkpoint over the older slot; the newest speaks of all frames."""
    with penstock.open(path) as log:
        for i in range(1, 6):
            log.append(b"x" * i, durable=True)
            (seg,) = oracle.read_log(path)
            newest = max(slots(seg.path), key=lambda s: s.generation)
            assert newest.generation == i + 1
            assert (newest.last_seq, newest.offset) == (i, seg.end)
            assert newest.last_frame == seg.frames[-1].at
            if i > 1:
                assert {s.generation for s in slots(seg.path)} == {i, i + 1}


def test_a_checkpoint_comes_behind_its_sync(path: Path, syncs: Syncs) -> None:
    """While a sync is under way no slot speaks of it yet."""
    seen: list[int] = []
    syncs.before = lambda name: seen.append(max(s.last_seq for s in slots(Path(name))))
    with penstock.open(path) as log:
        seen.clear()
        log.append(b"a", durable=True)
        log.append(b"b", durable=True)
        assert seen == [0, 1]


def test_the_last_to_close_syncs(path: Path, syncs: Syncs) -> None:
    """Closing the last writing handle leaves a checkpoint of all; closing others does not."""
    log = penstock.open(path)
    other = penstock.open(path)
    reader = penstock.open(path, mode="r")
    log.append(b"a")
    syncs.paths.clear()
    log.close()
    assert syncs.paths == []
    other.close()
    assert syncs.paths == [segment.file_name(1)]
    reader.close()
    with penstock.open(path, mode="r") as again:
        assert again.durable_seq == 1
    with penstock.open(path) as again:
        assert again.durable_seq == 1
        assert syncs.paths == [segment.file_name(1)]


def test_a_forgotten_handle_syncs_nothing(path: Path, syncs: Syncs) -> None:
    """Garbage collection releases a log without waiting for the device."""
    log = penstock.open(path)
    log.append(b"a")
    syncs.paths.clear()
    del log
    assert syncs.paths == []
    with penstock.open(path) as log:
        assert log.durable_seq == 0
        assert [e.value for e in log] == [b"a"]


def test_durable_reading(log: penstock.Log) -> None:
    """A reader that asks for durable events gets no others, and goes on when more become so."""
    log.extend([b"a", b"b"], durable=True)
    log.append(b"c")
    assert [e.seq for e in log.read(durable=True)] == [1, 2]
    assert [e.seq for e in log.read(durable=True, reverse=True)] == [2, 1]
    assert [e.seq for e in log.read(3, durable=True)] == []
    with penstock.open(log.path, mode="r") as other:
        for handle in (log, other):
            follower = handle.follow("start", durable=True, timeout=0)
            assert [e.seq for e in follower] == [1, 2]
            assert [e.seq for e in follower] == []
        log.sync()
        assert [e.seq for e in other.read(durable=True)] == [1, 2, 3]


def test_a_durable_follower_wakes(log: penstock.Log) -> None:
    """A follower of durable events sleeps through appends and wakes for a sync."""
    got: list[int] = []
    ready = threading.Event()

    def follow() -> None:
        with penstock.open(log.path, mode="r") as other:
            reader = other.follow("start", durable=True, timeout=20)
            ready.set()
            for event in reader:
                got.append(event.seq)
                if event.seq == 3:
                    return

    thread = threading.Thread(target=follow)
    thread.start()
    ready.wait()
    log.extend([b"a", b"b", b"c"])
    time.sleep(0.05)
    assert got == []
    log.sync()
    thread.join()
    assert got == [1, 2, 3]


def test_a_durable_follower_learns_of_a_failed_sync(path: Path, syncs: Syncs) -> None:
    """Where nothing more can become durable, a follower of durable events is told so."""
    with penstock.open(path) as log, penstock.open(path, mode="r") as other:
        log.append(b"a", durable=True)
        log.append(b"b")
        syncs.fails = True
        with pytest.raises(penstock.Io):
            log.sync()
        for handle in (log, other):
            follower = handle.follow("start", durable=True)
            assert next(follower).value == b"a"
            with pytest.raises(penstock.Poisoned):
                next(follower)


def test_one_sync_serves_many(log: penstock.Log, syncs: Syncs) -> None:
    """Appends that wait while a sync is under way share the next one."""
    release, entered = threading.Event(), threading.Event()

    def hold(path: str) -> None:
        entered.set()
        release.wait(20)

    syncs.before = hold
    threads = [threading.Thread(target=log.append, args=(b"first",), kwargs={"durable": True})]
    threads[0].start()
    entered.wait()
    with penstock.open(log.path) as other:
        for handle in (log, other) * 10:
            thread = threading.Thread(target=handle.append, args=(b"x",), kwargs={"durable": True})
            thread.start()
            threads.append(thread)
        while log.last_seq < 21:
            time.sleep(0.001)
        assert log.durable_seq == 0
        syncs.before = lambda path: None
        release.set()
        for thread in threads:
            thread.join()
        assert log.durable_seq == 21
        assert len(syncs.paths) == 2


def test_a_sync_that_takes_long_is_busy(log: penstock.Log, syncs: Syncs) -> None:
    """Who waits for another's sync gives up after its timeout; its event is committed."""
    release, entered = threading.Event(), threading.Event()

    def hold(path: str) -> None:
        entered.set()
        release.wait(20)

    syncs.before = hold
    thread = threading.Thread(target=log.sync)
    log.append(b"a")
    thread.start()
    entered.wait()
    with penstock.open(log.path) as other:
        with pytest.raises(penstock.Busy, match="the events are committed"):
            other.append(b"b", durable=True, timeout=0.05)
        assert other.last_seq == 2
        release.set()
        thread.join()
        other.wait_durable(2)


def test_a_failed_sync_is_final(path: Path, syncs: Syncs) -> None:
    """Behind a failed sync no handle appends or syncs; reading goes on; nothing is told durable."""
    log, other = penstock.open(path), penstock.open(path)
    reader = penstock.open(path, mode="r")
    log.append(b"a", durable=True)
    log.append(b"b")
    syncs.fails = True
    with pytest.raises(penstock.Io) as caught:
        log.append(b"c", durable=True)
    assert caught.value.errno == errno.EIO
    syncs.fails = False
    attempts: list[Callable[[penstock.Log], object]] = [
        lambda h: h.append(b"x"),
        lambda h: h.append(b"x" * 100_000),
        lambda h: h.extend([b"x"]),
        lambda h: h.append(b"x", durable=True),
        lambda h: h.sync(),
        lambda h: h.sync(wait=False),
        lambda h: h.wait_durable(2),
        lambda h: h.append(b"x", producer=("p", 1)),
        lambda h: h.load([b"x"] * 300_000),
    ]
    for handle in (log, other, log):
        for attempt in attempts:
            with pytest.raises(penstock.Poisoned, match="open it again"):
                attempt(handle)
        handle.wait_durable(1)
    for handle in (log, other, reader):
        assert handle.durable_seq == 1
        assert [e.value for e in handle] == [b"a", b"b", b"c"]
        assert [e.value for e in handle.read(durable=True)] == [b"a"]
    before = len(syncs.paths)
    with penstock.open(path) as late, pytest.raises(penstock.Poisoned):
        late.append(b"x")
    log.close()
    other.close()
    reader.close()
    assert len(syncs.paths) == before, "a poisoned log was synced"


def dirty_bytes(name: str) -> int:
    """How much of a file this process has mapped and changed since the last sync."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = line.endswith(name)
        elif inside and line.startswith(("Shared_Dirty:", "Private_Dirty:")):
            total += int(line.split()[1]) << 10
    return total


def test_marking_pages_as_changed(path: Path) -> None:
    """redirty makes the kernel take every page of a range for changed, without changing a byte."""
    with penstock.open(path, segment_size="256KiB") as log:
        log.extend([b"x" * 1000] * 100)
    m, header = segment.map_segment(str(path / segment.file_name(1)), write=True)
    before = m.bytes_at(0, m.file_bytes)
    files.sync_data(m.fd, m.path)
    if dirty_bytes(m.path):
        pytest.skip("this file system has no clean pages")
    m.redirty(header.data_offset + 5, header.data_offset + 100_000)
    assert dirty_bytes(m.path) >= 25 * 4096
    assert m.bytes_at(0, m.file_bytes) == before


def test_the_next_opener_writes_it_again(path: Path, syncs: Syncs) -> None:
    """Once all have closed a poisoned log, the next opener syncs all after the checkpoint again."""
    with penstock.open(path, segment_size="256KiB") as log:
        log.append(b"a", durable=True)
        log.extend([b"b" * 1000] * 100)
        syncs.fails = True
        with pytest.raises(penstock.Io):
            log.sync()
    with pytest.raises(penstock.Io):
        penstock.open(path)
    with penstock.open(path, mode="r") as reader:
        assert (reader.durable_seq, len(reader)) == (1, 101)
    syncs.fails = False
    syncs.paths.clear()
    dirty: list[int] = []
    syncs.before = lambda name: dirty.append(dirty_bytes(name))
    log = penstock.open(path)
    assert set(syncs.paths) == {segment.file_name(1)}
    assert max(dirty) >= 100_000
    assert log.durable_seq == 101
    assert log.append(b"c", durable=True) == 102
    log.close()


def test_an_opener_after_a_boot_trusts_nothing(path: Path, syncs: Syncs) -> None:
    """Without a control of this boot, what lies after the checkpoint is synced first."""
    log = penstock.open(path)
    log.append(b"a", durable=True)
    log.append(b"b")
    log._release()
    syncs.paths.clear()
    with penstock.open(path) as log:
        assert syncs.paths == []
        assert log.durable_seq == 1
        log._release()
    path.joinpath("control").unlink()
    with penstock.open(path) as log:
        assert set(syncs.paths) == {segment.file_name(1)}
        assert log.durable_seq == 2


def test_a_footer_vouches_for_the_device(path: Path, syncs: Syncs) -> None:
    """A segment is synced before it is sealed, and not sealed if that failed."""
    footers: list[bool] = []

    def look(name: str) -> None:
        raw = Path(name).read_bytes()
        footers.append(raw[-4096:-4088] == L.FOOTER_MAGIC)

    syncs.before = look
    with penstock.open(path, segment_size="64KiB") as log:
        for i in range(5):
            log.append(b"%d" % i)
            log.steward.roll()
        log.append(b"last")
    assert footers and not any(footers)
    assert all(s.raw[-4096:-4088] == L.FOOTER_MAGIC for s in oracle.read_log(path)[:-1])


def test_the_way_to_a_new_log_is_synced(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that is created has the names on disk that lead to it; one that is there has."""
    synced: list[str] = []
    real = os.fsync

    def note(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", note)
    deep = path / "a" / "b"
    penstock.open(deep).close()
    wanted = [str(deep.parent), str(path), str(path.parent)]
    assert synced[: len(wanted)] == wanted
    assert str(deep) in synced
    synced.clear()
    penstock.open(deep).close()
    assert synced == []


def test_a_poisoned_log_is_not_sealed(path: Path, syncs: Syncs) -> None:
    """The thread that seals stops when its sync fails, and appends stop with it."""
    log = penstock.open(path, segment_size="64KiB")
    log.append(b"a")
    syncs.fails = True
    with pytest.raises(penstock.Io):
        log.sync()
    syncs.fails = False
    with pytest.raises(penstock.Poisoned):
        log.append(b"b")
    log.close()
    (seg,) = oracle.read_log(path)
    assert not seg.rolled


def test_sync_without_waiting(log: penstock.Log) -> None:
    """sync(wait=False) returns at once, and the sync happens."""
    log.append(b"a")
    assert log.sync(wait=False) == 1
    deadline = time.monotonic() + 20
    while log.durable_seq < 1 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert log.durable_seq == 1


def wait_durable(log: penstock.Log, seq: int) -> None:
    """Wait for a sync that somebody else makes."""
    deadline = time.monotonic() + 20
    while log.durable_seq < seq:
        assert time.monotonic() < deadline, f"seq {seq} is not durable, {log.durable_seq} is"
        time.sleep(0.001)


def test_sync_after_a_while(path: Path) -> None:
    """With sync_seconds every append becomes durable by itself, again and again."""
    with penstock.open(path, sync_seconds=0.01) as log:
        for seq in range(1, 6):
            assert log.append(b"x") == seq
            wait_durable(log, seq)


def test_sync_after_some_events(path: Path) -> None:
    """With sync_events a sync comes with every so many appends and not before."""
    with penstock.open(path, sync_events=3) as log:
        for last in (3, 6, 9):
            log.append(b"x")
            log.append(b"x")
            time.sleep(0.02)
            assert log.durable_seq == last - 3
            log.append(b"x")
            wait_durable(log, last)
        log.extend([b"x"] * 7)
        wait_durable(log, 16)


@pytest.mark.parametrize("period", [{"sync_seconds": 0.01}, {"sync_events": 3}], ids=str)
def test_a_child_syncs_too(path: Path, period: dict[str, Any]) -> None:
    """In a child of a fork the handle goes on syncing by itself."""
    with penstock.open(path, **period) as log:
        log.extend([b"x"] * 4)
        wait_durable(log, 4)
        child = os.fork()
        if child == 0:
            try:
                log.extend([b"y"] * 4)
                wait_durable(log, 8)
                os._exit(0)
            except BaseException:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert log.durable_seq == 8


def test_sync_by_whichever_comes_first(path: Path) -> None:
    """With both, many events do not wait for the time, and few do not wait for more events."""
    with penstock.open(path, sync_seconds=0.05, sync_events=10) as log:
        log.append(b"x")
        wait_durable(log, 1)
    with penstock.open(path, sync_seconds=1000, sync_events=10) as log:
        for _ in range(10):
            log.append(b"x")
        wait_durable(log, 11)


@pytest.mark.parametrize(
    "given",
    [
        {"sync_seconds": 0},
        {"sync_seconds": -1},
        {"sync_seconds": float("nan")},
        {"sync_seconds": "1"},
        {"sync_seconds": True},
        {"sync_events": 0},
        {"sync_events": 1.5},
        {"sync_events": True},
    ],
    ids=str,
)
def test_periods_are_checked(path: Path, given: dict[str, Any]) -> None:
    """A period that makes no sense is Usage, and nothing is created."""
    with pytest.raises(penstock.Usage):
        penstock.open(path, **given)
    assert not path.exists()


def test_reading_handles_do_not_sync(path: Path) -> None:
    """A handle opened for reading may look at durable_seq and nothing more."""
    with penstock.open(path) as log:
        log.append(b"a", durable=True)
        with penstock.open(path, mode="r") as reader:
            assert reader.durable_seq == 1
            for attempt in (reader.sync, lambda: reader.wait_durable(1)):
                with pytest.raises(penstock.Permission):
                    attempt()
