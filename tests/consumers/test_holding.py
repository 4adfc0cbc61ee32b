"""A consumer that holds a ring: writers leave alone what it has not committed, while it lives."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock import Full, Gap, Log, Usage
from tests.consumers.processes import start


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Log]:
    """A small ring whose writers wait."""
    with penstock.create(tmp_path / "ring", ring="32KiB", when_full="block") as opened:
        yield opened


def fill(ring: Log, value: bytes = b"x" * 500) -> int:
    """Append until a writer would have to wait; the last seq."""
    for _ in range(1000):
        try:
            ring.append(value, timeout=0)
        except Full:
            return ring.last_seq
    raise AssertionError("nobody held the ring")


def test_what_is_not_committed_is_left_alone(ring: Log) -> None:
    """Handing out makes no room; a commit does, and just as much."""
    with ring.consumer("c", hold=True) as consumer:
        last = fill(ring)
        assert len(consumer.poll(1000)) == last
        with pytest.raises(Full):
            ring.append(b"x" * 500, timeout=0)
        consumer.commit(10)
        assert fill(ring) == last + 10
        assert ring.first_seq == 11
        consumer.commit()
        assert fill(ring) > last + 10
        first = ring.first_seq + 5
        consumer.seek(first)
        consumer.commit()
        fill(ring)
        assert ring.first_seq == first
        assert len(consumer.poll(1000)) == ring.last_seq + 1 - ring.first_seq


def test_a_writer_that_waits_goes_on_after_a_commit(ring: Log) -> None:
    """The commit wakes it."""
    with ring.consumer("c", hold=True) as consumer:
        last = fill(ring)
        waiting = threading.Thread(target=ring.append, args=(b"x" * 500,))
        waiting.start()
        consumer.poll(5)
        consumer.commit()
        waiting.join()
        assert ring.last_seq == last + 1


def test_what_matches_nothing_holds_nobody_up(ring: Log) -> None:
    """A filter that matches rarely moves on by itself, unless an event waits for its commit."""
    with ring.consumer("c", topic="rare", hold=True) as consumer:
        for _ in range(200):
            ring.append(b"x" * 500, timeout=0)
            assert consumer.poll() == []
        seq = ring.append(b"!", topic="rare", timeout=0)
        assert [event.seq for event in consumer.poll()] == [seq]
        fill(ring)
        assert consumer.poll() == []
        assert ring.first_seq <= seq
        consumer.commit()
        fill(ring)
        assert ring.first_seq > seq


def test_a_closed_consumer_holds_nobody_up(ring: Log) -> None:
    """Closing gives the hold up, and so does a death."""
    with ring.consumer("c", hold=True):
        fill(ring)
    for _ in range(200):
        ring.append(b"x" * 500, timeout=0)
    with ring.consumer("c") as consumer, pytest.raises(Gap):
        consumer.poll()


def test_a_dead_consumer_holds_nobody_up(ring: Log) -> None:
    """The kernel says that it died."""
    path = ring.path
    ring.close()
    ready, told = os.pipe()

    def own() -> None:
        with penstock.open(path) as log, log.consumer("c", hold=True):
            os.write(told, b"!")
            signal.pause()

    owner = start(own)
    os.read(ready, 1)
    with penstock.open(path) as again:
        fill(again)
        owner.kill()
        owner.wait()
        for _ in range(200):
            again.append(b"x" * 500, timeout=5)


def test_where_nobody_ever_waits(ring: Log, tmp_path: Path) -> None:
    """To hold a ring that drops, or a log of segments, is an error; nothing is made."""
    with penstock.create(tmp_path / "drops", ring="32KiB") as drops:
        with pytest.raises(Usage, match="when_full='block'"):
            drops.consumer("c", hold=True)
        assert len(drops.consumers()) == 0
    with penstock.open(tmp_path / "log") as log:
        with pytest.raises(Usage, match="hold=True is for a ring"):
            log.consumer("c", hold=True)
        assert len(log.consumers()) == 0


def test_a_hold_outlives_a_resize(ring: Log) -> None:
    """The ring is another file then; what is not committed is left alone there too."""
    with ring.consumer("c", hold=True) as consumer:
        fill(ring)
        consumer.poll(3)
        consumer.commit()
        ring.resize("64KiB")
        fill(ring)
        assert ring.first_seq <= 4
        assert next(consumer).seq == 4
        consumer.commit()
        fill(ring)
        assert ring.first_seq == 5


def test_a_seek_gives_up_nothing_that_is_not_committed(ring: Log) -> None:
    """Writers leave alone what was not committed, wherever the consumer looks meanwhile."""
    with ring.consumer("c", hold=True) as consumer:
        first = ring.append(b"x" * 1000)
        consumer.seek("end")
        fill(ring)
        assert ring.first_seq == first
        consumer.seek("start")
        assert next(consumer).seq == first
        consumer.commit()
        consumer.seek("end")
        fill(ring)
        assert ring.first_seq == first + 1
        consumer.commit()
        fill(ring)
        assert ring.first_seq > first + 1
