"""Rings: what creates one, what fits, what is dropped, and who finds out."""

from __future__ import annotations

import gc
import os
import signal
import stat
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pytest

import penstock
from penstock import Entry
from penstock.stats import Ring
from tests.support.wait import wait_for

HEADER = 40  # bytes of a frame without a value


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A path where no ring is yet."""
    return tmp_path / "log.ring"


@pytest.fixture
def ring(file: Path) -> Iterator[penstock.Log]:
    """A small ring."""
    with penstock.create(file, ring="32KiB") as log:
        yield log


def shape(log: penstock.Log) -> Ring:
    found = log.stats().ring
    assert found is not None
    return found


def fill(log: penstock.Log, laps: float = 1.0, size: int = 100) -> None:
    """Append events of one size until the head has gone so many laps on."""
    goal = shape(log).head + laps * shape(log).ring_bytes
    while shape(log).head < goal:
        log.append(b"f" * size)


def left_in_lap(log: penstock.Log) -> int:
    found = shape(log)
    return found.ring_bytes - found.head % found.ring_bytes


def values(events: Any) -> list[bytes | None]:
    return [e.value for e in events]


class TestCreating:
    """What makes a ring, and what does not."""

    @pytest.mark.parametrize("size", [32768, "32KiB", 32769, 40001, "100 KiB", 1 << 20])
    @pytest.mark.parametrize("index", [None, 0, 1, 3, 500])
    def test_the_file_has_the_size(self, file: Path, size: Any, index: int | None) -> None:
        """The file is as large as was asked for, to the byte, and stays so."""
        with penstock.create(file, ring=size, index=index) as log:
            want = penstock.settings.parse_size(size, "ring")
            found = shape(log)
            assert found.file_bytes == file.stat().st_size == want
            assert found.index_capacity == (want // 128 if index is None else index)
            assert (
                found.ring_offset + found.ring_bytes
                <= want
                < found.ring_offset + (found.ring_bytes + 8)
            )
            assert found.ring_bytes % 8 == 0
            fill(log, 2.5)
            assert file.stat().st_size == want
        assert file.stat().st_size == want
        assert [p.name for p in file.parent.iterdir()] == [file.name]

    @pytest.mark.parametrize("size", [0, -1, 32767, (2 << 30) + 1, "31KiB", "3GiB", "x", ""])
    def test_sizes_that_make_no_ring(self, file: Path, size: Any) -> None:
        """A size out of bounds, or that is none, is a Usage, and makes no file."""
        with pytest.raises(penstock.Usage):
            penstock.create(file, ring=size)
        assert not file.exists()

    @pytest.mark.parametrize(
        ("index", "error"),
        [(-1, penstock.Usage), (4000, penstock.Usage), (True, TypeError), (1.0, TypeError)],
    )
    def test_bad_indexes(self, file: Path, index: Any, error: type[Exception]) -> None:
        """An index that is no number, or leaves no room for events, makes no file."""
        with pytest.raises(error):
            penstock.create(file, ring="32KiB", index=index)
        with pytest.raises(TypeError):
            penstock.create(file, ring=32768.0)
        assert not file.exists()

    @pytest.mark.parametrize("options", [{"index": 5}, {"when_full": "block"}])
    def test_what_only_rings_have_needs_a_ring(self, file: Path, options: Any) -> None:
        """index and when_full without ring are a Usage that says what is missing."""
        with pytest.raises(penstock.Usage, match="ring="):
            penstock.open(file, **options)
        assert not file.exists()

    def test_when_full_is_one_of_three(self, file: Path) -> None:
        """Another word for when_full makes no ring."""
        with pytest.raises(penstock.Usage, match="when_full"):
            penstock.create(file, ring="32KiB", when_full="wait")
        assert not file.exists()

    def test_create_where_something_is(self, file: Path, tmp_path: Path) -> None:
        """create() over a ring, a file or a log is AlreadyExists and changes nothing."""
        penstock.create(file, ring="32KiB").close()
        text = tmp_path / "text"
        text.write_bytes(b"hello")
        before = file.read_bytes()
        for there in (file, text):
            with pytest.raises(penstock.AlreadyExists):
                penstock.create(there, ring="32KiB")
        assert file.read_bytes() == before
        assert text.read_bytes() == b"hello"

    def test_a_directory_is_no_place_for_a_ring(self, tmp_path: Path) -> None:
        """ring= on a directory, be it a log or not, is a Usage."""
        penstock.open(tmp_path / "log").close()
        (tmp_path / "empty").mkdir()
        for name in ("log", "empty"):
            with pytest.raises(penstock.Usage, match="directory"):
                penstock.open(tmp_path / name, ring="32KiB")

    @pytest.mark.parametrize("content", [b"", b"hello", b"PENSTOCK" + bytes(5000)])
    def test_a_file_that_is_no_ring(self, file: Path, content: bytes) -> None:
        """A file that does not begin as a ring does is no log, and is left alone."""
        file.write_bytes(content)
        for options in ({}, {"ring": "32KiB"}, {"mode": "r"}):
            with pytest.raises(penstock.Usage, match="not a log"):
                penstock.open(file, **options)  # type: ignore[arg-type]
        assert file.read_bytes() == content

    @pytest.mark.parametrize("length", [8, 4096, 20000, 32767])
    def test_a_ring_cut_short(self, file: Path, length: int) -> None:
        """A ring that is not all there is Corrupt, to writers and to readers."""
        penstock.create(file, ring="32KiB").close()
        os.truncate(file, length)
        for mode in ("rw", "r"):
            with pytest.raises(penstock.Corrupt):
                penstock.open(file, mode=mode)
        assert file.stat().st_size == length

    def test_open_keeps_the_size(self, file: Path) -> None:
        """ring=, index= and settings say how a ring is created, and change none that exists."""
        with penstock.open(file, ring="32KiB", index=7, when_full="block") as log:
            log.append(b"a")
        with penstock.open(file, ring="1MiB", index=9, when_full="error") as log:
            found = shape(log)
            assert (found.file_bytes, found.index_capacity) == (32768, 7)
            assert (found.when_full, log.settings.when_full) == ("block", "block")
            assert values(log) == [b"a"]

    def test_open_finds_out(self, file: Path, tmp_path: Path) -> None:
        """open() needs no word that it is a ring, not even behind a symbolic link."""
        penstock.create(file, ring="32KiB").close()
        link = tmp_path / "link"
        link.symlink_to(file.name)
        with penstock.open(link) as log, penstock.open(file) as other:
            log.append(b"a")
            other.append(b"b")
            assert values(log) == values(other) == [b"a", b"b"]
            assert log.path == other.path == str(file)
        assert link.is_symlink()
        with penstock.open(link, mode="r") as log:
            assert values(log) == [b"a", b"b"]

    def test_there_must_be_one_to_read(self, file: Path) -> None:
        """Neither mode='r' nor create=False makes a ring."""
        for options in ({"mode": "r"}, {"create": False}):
            with pytest.raises(penstock.NotFound):
                penstock.open(file, ring="32KiB", **options)
        assert list(file.parent.iterdir()) == []

    @pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
    def test_file_mode(self, file: Path, mode: int) -> None:
        """The file has the mode that was asked for, whatever the umask."""
        before = os.umask(0o077)
        try:
            penstock.create(file, ring="32KiB", file_mode=mode).close()
        finally:
            os.umask(before)
        assert stat.S_IMODE(file.stat().st_mode) == mode

    def test_leftovers_of_a_creation_are_swept(self, file: Path) -> None:
        """What a process left that died creating the ring is gone when one is created."""
        dead = file.with_name(f"{file.name}.0a0b0c0d.unfinished")
        dead.write_bytes(b"half a ring")
        penstock.create(file, ring="32KiB").close()
        assert not dead.exists()


class TestLimits:
    """What fits, to the byte."""

    def test_half_of_the_ring_at_once(self, ring: penstock.Log) -> None:
        """An append takes half of the ring and not a byte more, and TooLarge changes nothing."""
        most = shape(ring).ring_bytes // 2
        ring.append(b"before")
        before = ring.stats()
        with pytest.raises(penstock.TooLarge, match=str(most)):
            ring.append(b"x" * (most - HEADER + 1))
        with pytest.raises(penstock.TooLarge):
            ring.extend([b"x" * 1000] * 40)
        with pytest.raises(penstock.TooLarge):
            ring.append(b"x" * (most - HEADER), producer=("p", 1))
        assert ring.stats() == before
        for i in range(7):
            assert ring.append(bytes([i]) * (most - HEADER)) == 2 + i
        assert values(ring) == [bytes([i]) * (most - HEADER) for i in (5, 6)]

    @pytest.mark.parametrize("slack", [0, 8, 16, 32, 40, 48, 56])
    @pytest.mark.parametrize("index", [0, None])
    def test_the_end_of_a_lap(self, file: Path, slack: int, index: int | None) -> None:
        """A lap that is full to the last byte, or all but a few, reads as any other."""
        with penstock.create(file, ring="32KiB", index=index) as log:
            for _ in range(3):
                while left_in_lap(log) > 3000:
                    log.append(b"x" * 1000)
                log.append(b"end" + b"e" * (left_in_lap(log) - slack - HEADER - 3))
                assert left_in_lap(log) == (slack or shape(log).ring_bytes)
                log.extend([b"b" * 30, b"c"])
                seqs = list(range(log.first_seq, log.last_seq + 1))
                assert [e.seq for e in log] == seqs
                assert [e.seq for e in reversed(log)] == seqs[::-1]
                assert [log[s].seq for s in seqs] == seqs
                assert log.scan(columns=["seq"]).to_arrow()["seq"].to_pylist() == seqs
                assert values(log.read(log.last_seq - 1)) == [b"b" * 30, b"c"]
                assert log[log.last_seq - 2].value[:3] == b"end"  # type: ignore[index]
            follower = log.follow("start")
            assert [e.seq for e in follower.take(10_000)] == seqs
        with penstock.open(file, mode="r") as log:
            assert [e.seq for e in log] == seqs

    def test_an_exact_end_drops_nothing_early(self, file: Path) -> None:
        """A ring whose frames fill it exactly holds all of them."""
        with penstock.create(file, ring="32KiB", index=0) as log:
            room = shape(log).ring_bytes
            for _ in range(room // 128):
                log.append(b"x" * (128 - HEADER))
            assert (log.first_seq, log.last_seq) == (1, room // 128)
            assert shape(log).used_bytes == room
            log.append(b"")
            assert (log.first_seq, log.last_seq) == (2, room // 128 + 1)

    def test_values_of_every_length(self, ring: penstock.Log) -> None:
        """Whatever the padding, a value comes back as it was."""
        for i in range(600):
            seq = ring.append(bytes([i % 251]) * i)
            assert ring[seq].value == bytes([i % 251]) * i
        for event in ring:
            assert event.value == bytes([(event.seq - 1) % 251]) * (event.seq - 1)

    def test_an_empty_ring(self, ring: penstock.Log) -> None:
        """A ring without events reads as one."""
        assert (ring.first_seq, ring.last_seq, len(ring)) == (1, 0, 0)
        assert list(ring) == list(reversed(ring)) == []
        assert ring.topics() == set()
        assert ring.scan().to_arrow().num_rows == 0
        assert ring.extend([]) == range(1, 1)
        assert ring.follow("start").take(1) == []
        with pytest.raises(penstock.NotFound, match="empty"):
            ring[1]
        found = shape(ring)
        assert (found.used_bytes, found.head, found.tail) == (0, found.ring_bytes, found.ring_bytes)


class TestReading:
    """Reading what is there, and finding out about what is not."""

    def test_counts(self, ring: penstock.Log) -> None:
        """first_seq, last_seq and len() speak of what is still there."""
        for i in range(1, 500):
            ring.append(b"x" * 100)
            assert ring.last_seq == i
            assert len(ring) == i - ring.first_seq + 1 == len(list(ring))
        assert ring.first_seq > 300
        for gone in (1, ring.first_seq - 1, ring.last_seq + 1, 0, -1, 1 << 70):
            with pytest.raises(penstock.NotFound, match=f"{ring.first_seq} to 499|no event"):
                ring[gone]

    @pytest.mark.parametrize("index", [0, 1, 10, 100_000 // 128])
    def test_by_seq(self, file: Path, index: int) -> None:
        """log[seq] finds every event, whether the index knows of it or not."""
        with penstock.create(file, ring=100_000, index=index) as log:
            for i in range(1, 3000):
                log.append(b"%d" % i)
            for seq in range(log.first_seq, 3000, 7):
                assert log[seq].value == b"%d" % seq
                assert next(log.read(seq)).seq == seq

    @pytest.mark.parametrize("index", [0, None])
    @pytest.mark.parametrize("monotone", [True, False])
    def test_by_time(self, file: Path, index: int | None, monotone: bool) -> None:
        """since and until select by time, with an index or without, in order of time or not."""
        with penstock.create(file, ring="32KiB", index=index) as log:
            for i in range(1, 400):
                log.append(b"x" * 50, time=1000 * i + (0 if monotone else (i * 7919) % 100_000))
            assert shape(log).monotone is monotone
            events = list(log)
            lows = [0, events[0].time_ns, events[5].time_ns, events[-1].time_ns, 10**9]
            for since in lows:
                for until in lows:
                    want = [e.seq for e in events if since <= e.time_ns < until]
                    assert [e.seq for e in log.read(since=since, until=until)] == want
                    back = log.read(since=since, until=until, reverse=True)
                    assert [e.seq for e in back] == want[::-1]
                    table = log.scan(since=since, until=until).to_arrow()
                    assert table["seq"].to_pylist() == want

    def test_filters(self, ring: penstock.Log) -> None:
        """Topic, key and tags select in a ring as they do elsewhere."""
        for i in range(600):
            ring.append(
                b"%d" % i,
                topic="even" if i % 2 == 0 else "odd",
                key=b"%d" % (i % 5),
                tags=["third"] if i % 3 == 0 else None,
            )
        first = ring.first_seq
        assert first > 1
        assert ring.topics() == {"even", "odd"}

        def want(test: Callable[[int], bool]) -> list[int]:
            return [s for s in range(first, 601) if test(s - 1)]

        assert [e.seq for e in ring.read(topic="odd")] == want(lambda i: i % 2 == 1)
        assert [e.seq for e in ring.read(key=b"3")] == want(lambda i: i % 5 == 3)
        assert [e.seq for e in ring.read(tags=["third"])] == want(lambda i: i % 3 == 0)
        back = ring.read(topic="even", tags=["third"], reverse=True)
        assert [e.seq for e in back] == want(lambda i: i % 6 == 0)[::-1]

    def test_a_topic_is_forgotten(self, ring: penstock.Log) -> None:
        """topics() are those of the events that are still there."""
        ring.append(b"x", topic="old")
        fill(ring, 1.1)
        assert ring.topics() == {""}

    @pytest.mark.parametrize("on_gap", ["raise", "skip"])
    def test_a_gap(self, file: Path, on_gap: Literal["raise", "skip"]) -> None:
        """A read that is overtaken says so, or ends, once it has handed out what it had."""
        with penstock.create(file, ring="256KiB") as log:
            fill(log, 0.9)
            last = log.last_seq
            reader = log.read(on_gap=on_gap)
            got = [next(reader).seq]
            fill(log, 3)
            if on_gap == "raise":
                with pytest.raises(penstock.Gap) as caught:
                    got.extend(e.seq for e in reader)
                assert caught.value.first_seq == log.first_seq
                assert reader.skipped == 0
                assert reader.position == got[-1] + 1
            else:
                got.extend(e.seq for e in reader)
                assert reader.skipped == last - len(got) > 0
            assert got == list(range(1, len(got) + 1))
            assert 1 < len(got) < last

    def test_a_gap_that_is_passed_over(self, ring: penstock.Log) -> None:
        """on_gap='skip' goes on with the oldest event still there and counts what it missed."""
        follower = ring.follow(1, on_gap="skip")
        fill(ring, 0.3)
        taken = [e.seq for e in follower.take(3)]
        for _ in range(5):
            fill(ring, 7.3)
            taken += [e.seq for e in follower.take(5)]
        taken += [e.seq for e in follower.take(100_000)]
        assert taken == sorted(set(taken))
        assert taken[-1] == ring.last_seq
        assert follower.skipped == ring.last_seq - len(taken) > 0
        assert ring.follow("end").take(1) == []

    @pytest.mark.parametrize("on_gap", ["raise", "skip"])
    def test_following_from_a_seq_that_is_gone(
        self, ring: penstock.Log, on_gap: Literal["raise", "skip"]
    ) -> None:
        """follow(seq) of what is gone is a gap; read(seq) and "start" begin behind it."""
        fill(ring, 3)
        first = ring.first_seq
        follower = ring.follow(1, on_gap=on_gap)
        if on_gap == "raise":
            with pytest.raises(penstock.Gap) as caught:
                follower.take(1)
            assert caught.value.first_seq == first
        else:
            assert follower.take(1)[0].seq == first
            assert follower.skipped == first - 1
        assert next(ring.read(1)).seq == first
        late = ring.follow("start", on_gap=on_gap)
        fill(ring, 3)
        assert late.take(1)[0].seq == ring.first_seq > first
        assert late.skipped == 0

    @pytest.mark.parametrize("on_gap", ["raise", "skip"])
    def test_a_scan_with_a_gap(self, ring: penstock.Log, on_gap: Literal["raise", "skip"]) -> None:
        """A scan that is overtaken raises, or goes on with what is there."""
        fill(ring, 1, size=0)
        batches = ring.scan(batch_rows=1, on_gap=on_gap).to_batches()
        first = next(batches)["seq"].to_pylist()
        assert first == [ring.first_seq]
        last = ring.last_seq
        ring.extend([b""] * 100)
        more = [s for b in [next(batches) for _ in range(5)] for s in b["seq"].to_pylist()]
        assert more == [first[0] + i for i in range(1, 6)]
        fill(ring, 4, size=0)
        if on_gap == "raise":
            with pytest.raises(penstock.Gap) as caught:
                list(batches)
            assert caught.value.first_seq == ring.first_seq
        else:
            seqs = [s for b in batches for s in b["seq"].to_pylist()]
            assert all(s <= last for s in seqs)
            assert seqs == sorted(set(seqs))

    def test_reading_backwards_while_the_rest_is_dropped(self, ring: penstock.Log) -> None:
        """A reader that goes back ends where events are gone; what it read is whole."""
        fill(ring, 2)
        last = ring.last_seq
        reader = reversed(ring)
        seqs = [next(reader).seq for _ in range(3)]
        fill(ring, 3)
        seqs += [e.seq for e in reader]
        assert seqs == list(range(last, last - len(seqs), -1))

    def test_a_durable_read(self, ring: penstock.Log) -> None:
        """durable=True leaves out what was not synced, and comes to it after the sync."""
        ring.extend([b"a", b"b"])
        assert (ring.durable_seq, list(ring.read(durable=True))) == (0, [])
        follower = ring.follow("start", durable=True)
        assert follower.take(5) == []
        assert ring.sync() == 2
        ring.append(b"c")
        assert values(ring.read(durable=True)) == values(follower.take(5)) == [b"a", b"b"]
        ring.append(b"d", durable=True)
        assert ring.durable_seq == 4
        assert values(follower.take(5)) == [b"c", b"d"]
        fill(ring, 2)
        ring.wait_durable(ring.last_seq)
        assert [e.seq for e in ring.read(durable=True)] == [e.seq for e in ring]

    def test_waiting(self, ring: penstock.Log) -> None:
        """wait() and follow() wake up for an append, also one that begins a lap."""
        assert ring.wait(0) is False
        got: list[int] = []

        def follow() -> None:
            for event in ring.follow(1, timeout=60):
                got.append(event.seq)
                if event.value == b"stop":
                    return

        thread = threading.Thread(target=follow)
        thread.start()
        for _ in range(5):
            seen = len(got)
            ring.append(b"x" * (shape(ring).ring_bytes // 2 - HEADER))
            wait_for(lambda n=seen: len(got) > n, "the follower")  # type: ignore[misc]
        assert ring.wait(0, after=4) is True
        ring.append(b"stop")
        thread.join(60)
        assert got == [1, 2, 3, 4, 5, 6]


class TestEvents:
    """Events are the reader's own."""

    def test_events_outlive_what_is_overwritten(self, file: Path) -> None:
        """An event stays whole when it is overwritten, when the log closes, when the file goes."""
        with penstock.create(file, ring="32KiB") as log:
            log.append(b"v" * 1000, key=b"k", topic="t", headers={"a": b"1"})
            found = [log[1], next(iter(log)), next(reversed(log)), next(log.read(topic="t"))]
            view = found[0].view
            fill(log, 5)
        file.unlink()
        del log
        gc.collect()
        for event in found:
            assert event.value == b"v" * 1000 == bytes(view)
            assert (event.key, event.topic, event.headers) == (b"k", "t", (("a", b"1"),))

    def test_kept_events_keep_no_windows(self, file: Path) -> None:
        """Events that a filter picks keep their own bytes, not all that was read beside them."""
        with penstock.create(file, ring="8MiB") as log:
            for _ in range(60):
                log.append(b"r" * 100, topic="rare")
                log.extend([b"x" * 1000] * 100)
            before = anonymous_bytes()
            kept = list(log.read(topic="rare"))
            assert len(kept) == 60
            assert anonymous_bytes() - before < 60 * (64 << 10) // 4
            assert all(e.value == b"r" * 100 for e in kept)


def anonymous_bytes() -> int:
    """Memory of this process that is no file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(x.split()[1]) for x in lines if x.startswith("RssAnon:"))


class TestHolding:
    """Writers that wait for readers, or are told to."""

    def full(self, log: penstock.Log) -> int:
        """Append until there is no room; how often that was possible."""
        count = 0
        while True:
            try:
                log.append(b"h" * 500, timeout=0)
            except penstock.Full:
                return count
            count += 1

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
            count = self.full(log)
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
    def test_what_is_held_is_left_alone(self, file: Path, when_full: str) -> None:
        """Nothing from the reader's last event on is overwritten, until it asks for the next."""
        with penstock.create(file, ring="32KiB", when_full=when_full) as log:
            fill(log, 0.5)
            reader = log.follow(10, hold=True)
            self.full(log)
            assert log.first_seq <= 10
            for want in range(10, 200):
                assert next(reader).seq == want
                self.full(log)
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
            self.full(log)
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
        """A reader that nobody refers to any more, or whose log is closed, holds nobody up."""
        with penstock.create(file, ring="32KiB", when_full="block") as log:
            reader = log.follow("start", hold=True)
            self.full(log)
            gone = weakref.ref(reader) if hasattr(reader, "__weakref__") else None
            del reader
            gc.collect()
            assert gone is None or gone() is None
            log.append(b"h" * 500, timeout=0)
            with penstock.open(file) as other:
                held = other.follow("start", hold=True)
                self.full(log)
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
                self.full(log)
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
        """A child that outlives the reader's process, or the reader, holds nobody up."""
        with penstock.create(file, ring="32KiB", when_full="block") as log:
            reader = log.follow("start", hold=True)
            pid = os.fork()
            if pid == 0:
                signal.pause()
                os._exit(0)
            try:
                self.full(log)
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
            self.full(log)
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
            self.full(log)
            before = log.stats()
            for act in (
                lambda: log.append(b"h" * 500, timeout=0.02),
                lambda: log.extend([b"h" * 500] * 2, timeout=0.02),
                lambda: log.append(b"h" * 500, producer=("p", 2), timeout=0.02),
                lambda: log.load([b"h" * 500], timeout=0.02),
            ):
                with pytest.raises(penstock.Full):
                    act()
            assert log.stats() == before
            assert log.append(b"first", producer=("p", 1)) == 1
            del reader

    def test_a_held_reader_must_be_able_to_write(self, file: Path) -> None:
        """A filtered reader moves on by what it passes over, not only by what it hands out."""
        with penstock.create(file, ring="32KiB", when_full="block") as log:
            reader = log.follow("start", hold=True, topic="t")
            self.full(log)
            assert reader.take(1) == []
            assert reader.take(1) == []
            log.append(b"h" * 500, timeout=0)


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
            TestHolding().full(log)
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
            TestHolding().full(log)
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
        before = ring.stats()
        with pytest.raises(penstock.TooLarge, match=str(most)):
            ring.load(b"x" * 1000 for _ in range(count + 1))
        with pytest.raises(penstock.TooLarge):
            ring.load([b"x" * (most + 1)])
        assert ring.stats() == before
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


class TestTheRest:
    """What a ring says of itself, and what it does not do."""

    def test_stats(self, ring: penstock.Log) -> None:
        """stats() counts as everywhere; its ring has the positions."""
        fill(ring, 2.5)
        ring.sync()
        found = ring.stats()
        assert (found.segments, found.rolls, found.repairs, found.live) == (0, 0, 0, True)
        assert (found.first_seq, found.last_seq) == (ring.first_seq, ring.last_seq)
        assert found.durable_seq == ring.last_seq
        assert found.disk_bytes >= 32768
        assert found.ring is not None
        assert found.ring.head - found.ring.tail == found.ring.used_bytes <= found.ring.ring_bytes
        assert found.ring.head > 3 * found.ring.ring_bytes
        assert found.ring.head == found.ring.reserved
        assert (found.ring.lost_bytes, found.ring.holds) == (0, 0)
        ring.configure(when_full="block")
        reader = ring.follow("start", hold=True)
        found = ring.stats()
        assert found.ring is not None and found.ring.holds == 1
        del reader

    def test_nothing_to_roll(self, ring: penstock.Log) -> None:
        """A ring has no segments, so roll() is a Usage."""
        with pytest.raises(penstock.Usage, match="segments"):
            ring.steward.roll()

    def test_reading_without_a_writer(self, file: Path) -> None:
        """A reader alone reads all, changes no byte, and sees what a later writer appends."""
        with penstock.create(file, ring="32KiB") as log:
            fill(log, 2)
            seqs = [e.seq for e in log]
        before = file.read_bytes()
        with penstock.open(file, mode="r") as reading:
            assert not reading.stats().live
            assert [e.seq for e in reading] == seqs
            assert [e.seq for e in reversed(reading)] == seqs[::-1]
            assert reading.scan().to_arrow()["seq"].to_pylist() == seqs
            assert reading.durable_seq == seqs[-1]
            follower = reading.follow("end")
            assert file.read_bytes() == before
            with penstock.open(file) as log:
                log.append(b"new")
                assert reading[log.last_seq].value == b"new"
                assert reading.stats().live
                assert values(follower.take(2)) == [b"new"]
                fill(log, 3)
                assert [e.seq for e in reading] == [e.seq for e in log]
            assert [e.seq for e in reading][-1] == reading.last_seq
            with pytest.raises(penstock.Permission):
                reading.append(b"x")

    def test_a_child_goes_on(self, ring: penstock.Log) -> None:
        """A child of a fork appends and reads with the handle it inherited."""
        ring.append(b"parent")
        pid = os.fork()
        if pid == 0:
            try:
                ring.append(b"child")
                os._exit(0 if values(ring) == [b"parent", b"child"] else 1)
            finally:
                os._exit(2)
        assert os.waitpid(pid, 0)[1] == 0
        assert ring.append(b"parent again") == 3
        assert values(ring) == [b"parent", b"child", b"parent again"]

    def test_threads(self, file: Path) -> None:
        """Threads append and read at once: seqs are unique, and events what was appended."""
        with penstock.create(file, ring="64KiB") as log:
            failures: list[BaseException] = []
            got: list[int] = []
            lock = threading.Lock()

            def write(n: int) -> None:
                for i in range(400):
                    seqs = log.extend([b"%d" % n * (1 + i % 50)] * 3, producer=(f"w{n}", i))
                    with lock:
                        got.extend(seqs)

            def read() -> None:
                for event in log.follow("start", on_gap="skip", timeout=0.2):
                    value = event.value or b""
                    assert value == value[:1] * len(value)

            def run(work: Callable[[], None]) -> None:
                try:
                    work()
                except BaseException as error:
                    failures.append(error)

            works: list[Callable[[], None]] = [lambda n=n: write(n) for n in range(3)]  # type: ignore[misc]
            threads = [threading.Thread(target=run, args=(w,)) for w in [*works, read, read]]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert failures == []
            assert sorted(got) == list(range(1, 3601))
            assert [e.seq for e in log] == list(range(log.first_seq, 3601))
