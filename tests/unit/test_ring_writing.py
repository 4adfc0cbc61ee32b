"""What goes into a ring beside plain events: settings, producers, batches, loads."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import penstock
from penstock import Entry
from penstock.stats import Disk
from tests.unit.ring_shape import fill, fill_up, shape, values


class TestSettings:
    """What a ring was told about itself outlasts its laps."""

    def test_configure(self, file: Path) -> None:
        """A change of when_full holds for every handle, after laps and after reopening."""
        with penstock.create(file, ring="32KiB") as log, penstock.open(file) as other:
            log.configure(when_full="block")
            assert other.settings.when_full == shape(other).when_full == "block"
            fill(other, 5)
            assert log.settings.when_full == "block"
            other.configure(when_full="error")
            with pytest.raises(penstock.Full):
                fill(log, 2)
            with penstock.open(file, mode="r") as reading:
                assert reading.settings.when_full == "error"
        with penstock.open(file, mode="r") as log:
            assert shape(log).when_full == log.settings.when_full == "error"
        with penstock.open(file) as log:
            assert log.settings.when_full == "error"

    def test_a_full_ring_can_be_told_to_drop(self, file: Path) -> None:
        """configure(when_full='drop') needs no room, and no reader that makes some."""
        with penstock.create(file, ring="32KiB", when_full="block") as log:
            held = log.follow(1, hold=True)
            fill_up(log)
            while shape(log).used_bytes + 200 < shape(log).ring_bytes:
                try:
                    log.append(b"", timeout=0)
                except penstock.Full:
                    break
            log.configure(when_full="drop")
            log.append(b"x" * 1000, timeout=0)
            assert log.first_seq > 1
            with pytest.raises(penstock.Gap):
                held.take(1)

    def test_a_writer_that_waits_hears_of_it(self, file: Path) -> None:
        """An append that waits for room goes on when the ring is told to drop."""
        with penstock.create(file, ring="32KiB", when_full="block") as log:
            held = log.follow("start", hold=True)
            fill_up(log)
            done: list[int] = []
            thread = threading.Thread(target=lambda: done.append(log.append(b"w" * 3000)))
            thread.start()
            log.configure(when_full="drop")
            thread.join(60)
            assert done == [log.last_seq]
            del held

    def test_the_codec_stays(self, file: Path) -> None:
        """A codec is the ring's for good, and a schema is checked as anywhere."""

        class Point(msgspec.Struct):
            x: int

        with penstock.create(file, ring="32KiB", codec="json") as log:
            for i in range(1000):
                log.append({"x": i})
            log.configure(when_full="block")
            for i in range(1000, 2000):
                log.append({"x": i})
            with pytest.raises(penstock.Usage):
                log.configure(codec="bytes")
        with penstock.open(file, schema=Point) as log:
            assert log.settings.codec == "json"
            assert log[log.last_seq].data == Point(1999)
            with pytest.raises(penstock.Usage):
                log.append({"x": "one"})
            table = log.scan(schema={"x": pa.int64()}, columns=["x"]).to_arrow()
            assert table["x"].to_pylist() == [s - 1 for s in range(log.first_seq, 2001)]


class TestProducers:
    """A repeat is a no-op, however much was appended since."""

    def test_repeats_after_laps(self, file: Path) -> None:
        """The first seqs come back, also when their events and several laps are gone."""
        with penstock.create(file, ring="32KiB") as log, penstock.open(file) as other:
            assert log.append(b"once", producer=("p", 7)) == 1
            assert other.extend([b"a", b"b"], producer=("q", 1)) == range(2, 4)
            for _ in range(4):
                fill(log, 1.3)
                last = log.last_seq
                assert other.append(b"once", producer=("p", 7)) == 1
                assert log.extend([b"a", b"b"], producer=("q", 1)) == range(2, 4)
                with pytest.raises(penstock.Conflict):
                    log.append(b"x", producer=("p", 6))
                assert log.last_seq == last
        for mode in ("rw", "rw"):
            with penstock.open(file, mode=mode) as log:
                assert log.append(b"once", producer=("p", 7)) == 1
        with penstock.open(file) as log:
            assert log.append(b"twice", producer=("p", 8)) == log.last_seq

    def test_many_producers(self, file: Path) -> None:
        """As many producers are remembered as an eighth of the ring holds; the latest ones."""
        with penstock.create(file, ring="32KiB") as log:
            for i in range(500):
                log.append(b"x", producer=(f"producer-{i}", 1))
            fill(log, 3)
            last = log.last_seq
            assert log.append(b"x", producer=("producer-499", 1)) == 500
            assert log.append(b"x", producer=("producer-490", 1)) == 491
            assert log.last_seq == last

    def test_expect(self, ring: penstock.Log) -> None:
        """expect= holds across laps."""
        for i in range(500):
            assert ring.append(b"x" * 100, expect=i) == i + 1
        with pytest.raises(penstock.Conflict):
            ring.append(b"x", expect=499)


class TestBulk:
    """Loads, tables and batches."""

    def test_load(self, ring: penstock.Log) -> None:
        """What fits half of the ring is loaded as one batch; more is TooLarge, and nothing."""
        most = shape(ring).ring_bytes // 2
        count = most // 1040
        told: list[int] = []
        assert ring.load(iter([b"x" * 1000] * count), progress=told.append) == range(1, count + 1)
        assert told == [count]
        before = replace(ring.stats(), disk=Disk())  # others use the disk, too
        with pytest.raises(penstock.TooLarge, match=str(most)):
            ring.load(b"x" * 1000 for _ in range(count + 1))
        with pytest.raises(penstock.TooLarge):
            ring.load([b"x" * (most + 1)])
        assert replace(ring.stats(), disk=Disk()) == before
        assert [p.name for p in Path(ring.path).parent.iterdir()] == [Path(ring.path).name]
        seqs = ring.load([b"a", Entry(b"b", topic="t")], producer=("p", 1))
        assert ring.load([], producer=("p", 1)) == seqs
        assert values(ring.read(seqs[0])) == [b"a", b"b"]

    def test_arrow(self, ring: penstock.Log) -> None:
        """Arrow data is appended as one batch, also when it comes in several."""
        table = pa.table({"value": [b"%d" % i for i in range(100)], "key": [b"k"] * 100})
        parts = pa.Table.from_batches(table.to_batches(max_chunksize=7))
        assert ring.extend(parts) == range(1, 101)
        assert ring.load(parts) == range(101, 201)
        assert values(ring.read(101)) == table["value"].to_pylist()
        assert {e.key for e in ring} == {b"k"}
        with pytest.raises(penstock.TooLarge):
            ring.extend(pa.table({"value": [b"x" * 1000] * 100}))

    def test_a_batch_is_dropped_event_by_event(self, ring: penstock.Log) -> None:
        """The events of a batch go one after the other, and the rest of it stays readable."""
        ring.extend([b"b" * 80] * 40)
        seen = set()
        while ring.first_seq <= 40:
            ring.append(b"x" * 80)
            seen.add(ring.first_seq)
            assert [e.seq for e in ring] == list(range(ring.first_seq, ring.last_seq + 1))
            assert next(reversed(ring)).seq == ring.last_seq
        assert len(seen) > 20
