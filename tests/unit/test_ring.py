"""Rings: what creates one, what fits, what it tells of itself, and who may use it."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.layout import RING_MAGIC
from penstock.stats import Disk
from tests.unit.ring_shape import HEADER, fill, left_in_lap, shape, values


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
            penstock.create(file, ring=32768.0)  # type: ignore[arg-type]
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
            penstock.create(file, ring="32KiB", when_full="wait")  # type: ignore[arg-type]
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
        others: list[dict[str, Any]] = [{"ring": "1MiB"}, {"index": 9}, {"when_full": "error"}]
        for other in others:
            with pytest.raises(penstock.Usage):
                penstock.open(file, **other)
        with penstock.open(file, ring="32KiB", index=7, when_full="block") as log:
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
        dead.write_bytes(RING_MAGIC + b"half a ring")
        penstock.create(file, ring="32KiB").close()
        assert not dead.exists()


class TestLimits:
    """What fits, to the byte."""

    def test_half_of_the_ring_at_once(self, ring: penstock.Log) -> None:
        """An append takes half of the ring and not a byte more, and TooLarge changes nothing."""
        most = shape(ring).ring_bytes // 2
        ring.append(b"before")
        before = replace(ring.stats(), disk=Disk())  # others use the disk, too
        with pytest.raises(penstock.TooLarge, match=str(most)):
            ring.append(b"x" * (most - HEADER + 1))
        with pytest.raises(penstock.TooLarge):
            ring.extend([b"x" * 1000] * 40)
        with pytest.raises(penstock.TooLarge):
            ring.append(b"x" * (most - HEADER), producer=("p", 1))
        assert replace(ring.stats(), disk=Disk()) == before
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
                assert log[log.last_seq - 2].value[:3] == b"end"
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
