"""A reader can be closed, and holds nothing and nobody afterwards."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock


@pytest.fixture(params=["log", "ring"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> penstock.Log:
    """A log of each kind, with three events."""
    ring = "64KiB" if request.param == "ring" else None
    made = penstock.create(tmp_path / f"a.{request.param}", ring=ring)
    made.extend([b"a", b"b", b"c"])
    return made


@pytest.fixture
def ring(tmp_path: Path) -> penstock.Log:
    """A ring whose writers wait for readers that ask for it."""
    return penstock.create(tmp_path / "held.ring", ring="64KiB", when_full="block")


def is_held_up(ring: penstock.Log) -> bool:
    """Whether a writer that goes all the way around has to wait for somebody."""
    try:
        for _ in range(40):
            ring.extend([bytes(100)] * 20, timeout=0)
    except penstock.Full:
        return True
    return False


@pytest.mark.parametrize("reverse", [False, True])
def test_a_closed_reader_reads_no_more(log: penstock.Log, reverse: bool) -> None:
    """After close() everything that would read raises `Closed`; closing again is fine."""
    reader = log.read(reverse=reverse)
    event = next(reader)
    assert not reader.closed
    reader.close()
    reader.close()
    assert reader.closed
    assert "closed" in repr(reader)
    uses: list[Callable[[], object]] = [
        lambda: next(reader),
        lambda: list(reader),
        lambda: reader.take(1),
        lambda: reader.wait(0),
        reader.__enter__,
    ]
    for use in uses:
        with pytest.raises(penstock.Closed, match="reader was closed"):
            use()
    assert event.value in (b"a", b"c")
    assert len(list(log)) == 3


def test_a_reader_works_in_a_with_block(log: penstock.Log) -> None:
    """Leaving the block closes the reader, whether by its end or by an exception."""
    with log.read() as reader:
        assert [e.value for e in reader] == [b"a", b"b", b"c"]
    assert reader.closed
    with pytest.raises(RuntimeError), log.follow("start") as following:
        raise RuntimeError
    assert following.closed


def test_a_closed_reader_keeps_no_file_mapped(log: penstock.Log) -> None:
    """What a reader had mapped is unmapped when it is closed, though somebody still has it."""
    reader = log.read()
    next(reader)
    reader.close()
    log.close()
    assert log.path not in Path("/proc/self/maps").read_text()
    assert reader.position == 2


def test_close_ends_a_reader_that_another_thread_waits_in(log: penstock.Log) -> None:
    """A thread that waits for events gets `Closed` when another closes its reader."""
    reader = log.follow("end")
    ended: list[BaseException] = []
    begun = threading.Event()

    def wait() -> None:
        begun.set()
        try:
            next(reader)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    begun.wait()
    reader.close()
    thread.join()
    assert [type(error) for error in ended] == [penstock.Closed]


def test_close_beside_threads_that_read(log: penstock.Log) -> None:
    """Readers that are closed while other threads iterate over them end, or raise `Closed`."""
    for _ in range(200):
        log.append(bytes(100))
    for _ in range(30):
        readers = [log.read(topic=topic) for topic in (None, "t")]
        threads = [threading.Thread(target=_read_all, args=(reader,)) for reader in readers]
        for thread in threads:
            thread.start()
        for reader in readers:
            reader.close()
        for thread in threads:
            thread.join()


def _read_all(reader: penstock.Reader) -> None:
    try:
        for event in reader:
            assert event.value is not None
    except penstock.Closed:
        pass


def test_close_ends_the_hold_on_a_ring(ring: penstock.Log) -> None:
    """Writers that wait for a reader go on when it is closed, though somebody still has it."""
    ring.append(b"a")
    reader = ring.follow("start", hold=True)
    assert ring.stats().ring is not None
    assert is_held_up(ring)
    held = ring.stats().ring
    assert held is not None
    assert held.holds == 1
    reader.close()
    after = ring.stats().ring
    assert after is not None
    assert after.holds == 0
    assert not is_held_up(ring)


def test_a_waiting_writer_goes_on_when_the_reader_is_closed(ring: penstock.Log) -> None:
    """A writer that waits without end for a reader wakes up when that is closed."""
    reader = ring.follow("start", hold=True)
    assert is_held_up(ring)
    appended: list[int] = []
    thread = threading.Thread(target=lambda: appended.append(ring.append(bytes(5000))))
    thread.start()
    reader.close()
    thread.join()
    assert appended == [ring.last_seq]


def test_a_reader_in_a_cycle_or_a_traceback_ends_with_it(ring: penstock.Log) -> None:
    """A reader that only a cycle or an exception keeps alive blocks no process once that goes."""

    def leave_one() -> None:
        reader = ring.follow("start", hold=True)
        cycle: list[object] = [reader]
        cycle.append(cycle)
        raise RuntimeError("as in a session that went wrong")

    try:
        leave_one()
    except RuntimeError as error:
        last = error
    assert is_held_up(ring)
    del last
    sys.exc_info()
    gc.collect()
    assert not is_held_up(ring)


def test_whoever_is_held_up_is_told_by_what(ring: penstock.Log) -> None:
    """`Full` names the seq that a reader holds, and how many readers hold the ring."""
    ring.append(b"a")
    first, second = (ring.follow(seq, hold=True) for seq in (1, 2))
    assert is_held_up(ring)
    with pytest.raises(penstock.Full, match="2 readers hold it, the slowest from seq 1 on"):
        ring.append(bytes(5000), timeout=0)
    first.close()
    with pytest.raises(penstock.Full, match="1 reader holds it, the slowest from seq 2 on"):
        for _ in range(100):
            ring.append(bytes(5000), timeout=0)
    second.close()
    assert not is_held_up(ring)


def test_closing_the_log_ends_its_readers_holds(tmp_path: Path) -> None:
    """A reader that outlives its log blocks no process."""
    path = tmp_path / "held.ring"
    with penstock.create(path, ring="64KiB", when_full="block") as log:
        log.append(b"a")
        reader = log.follow("start", hold=True)
    with penstock.open(path) as again:
        assert not is_held_up(again)
    with pytest.raises(penstock.Closed):
        next(reader)


def test_a_reader_gives_up_its_own_hold_alone(ring: penstock.Log) -> None:
    """Closing a reader, twice or after another took its slot, leaves other readers' holds alone."""
    ring.append(b"a")
    one, other = (ring.follow("start", hold=True) for _ in range(2))
    one.close()
    assert is_held_up(ring)
    third = ring.follow("end", hold=True)  # takes the slot that is free
    one.close()
    del one
    gc.collect()
    other.close()
    state = ring.stats().ring
    assert state is not None
    assert state.holds == 1
    third.close()
