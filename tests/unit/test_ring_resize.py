"""Rings that get another size, and copies of rings."""

from __future__ import annotations

import errno
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import _core
from penstock._core import RingFile
from penstock.system import files
from tests.unit import oracle

DEATH = """
import sys, penstock
from penstock import _core
path, point, size, times = sys.argv[1:]
ring = penstock.open(path)
ring.append(b"acknowledged")
print(ring.last_seq, flush=True)
_core.fail_arm(point, int(times))
ring.resize(size)
ring.append(b"alive")
"""


def filled(file: Path, size: Any = "64KiB", count: int = 3000, **options: Any) -> penstock.Log:
    """A ring that has gone round."""
    ring = penstock.create(file, ring=size, **options)
    for i in range(count):
        ring.append(b"%d" % i * (i % 30), topic=f"t{i % 3}")
    return ring


def events(log: penstock.Log) -> list[tuple[int, str, bytes | None, int]]:
    """All of it, as plain values."""
    return [(e.seq, e.topic, e.value, e.append_ns) for e in log]


@pytest.mark.parametrize("size", ["1MiB", "65KiB", "64KiB", "48KiB", 40_001, 32_768])
def test_the_newest_events_that_fit_are_kept(file: Path, size: Any) -> None:
    """Up, down, odd sizes: what is kept is the end of what was there, and goes on."""
    with filled(file) as ring:
        ring.append(b"once", producer=("p", 7))
        before, room = events(ring), ring.stats().ring
        ring.resize(size)
        after, now = events(ring), ring.stats().ring
        assert room is not None
        assert now is not None
        assert after == before[len(before) - len(after) :]
        assert (
            file.stat().st_size
            == now.file_bytes
            == (size if isinstance(size, int) else file.stat().st_size)
        )
        if now.ring_bytes >= room.ring_bytes:
            assert after == before
        else:
            dropped = (40 + len(before[-len(after) - 1][2] or b"") + 2 + 7) // 8 * 8
            assert now.used_bytes + dropped > now.ring_bytes
        last = ring.last_seq
        assert ring.append(b"once", producer=("p", 7)) == last  # the table went along
        assert ring.append(b"next") == last + 1
        for i in range(2000):
            ring.append(b"%d" % i)
        assert [e.seq for e in ring] == list(range(ring.first_seq, last + 2002))
        wanted = events(ring)
    assert [f.seq for f in oracle.read_ring(file)] == [e[0] for e in wanted]
    with penstock.open(file) as ring:
        assert events(ring) == wanted


def test_what_a_ring_says_of_itself_stays(file: Path) -> None:
    """Settings, uuid, codec and index go along; an index of the usual size grows with the ring."""
    with filled(file, codec="json", count=0, file_mode=0o640) as ring:
        ring.append([1])
        ring.configure(when_full="error")
        uuid, usual = ring.stats().uuid, ring.stats().ring
        ring.resize("256KiB")
        assert ring.settings.when_full == "error"
        assert (ring.stats().uuid, ring[1].data) == (uuid, [1])
        assert file.stat().st_mode & 0o777 == 0o640
        now = ring.stats().ring
        assert usual is not None
        assert now is not None
        assert now.index_capacity == 4 * usual.index_capacity
    for index in (0, 100):
        own = file.with_name(f"{index}.ring")
        with penstock.create(own, ring="64KiB", index=index) as ring:
            ring.resize("128KiB")
            found = ring.stats().ring
            assert found is not None
            assert found.index_capacity == index


@pytest.mark.parametrize("size", [0, 100, "3GiB", "lots", 1.5, None])
def test_sizes_that_make_no_ring(file: Path, size: Any) -> None:
    """They are refused, and nothing changes."""
    with filled(file) as ring:
        before = events(ring)
        with pytest.raises(penstock.Usage):
            ring.resize(size)
        assert events(ring) == before
        ring.append(b"on")


def test_only_rings(tmp_path: Path) -> None:
    """A segmented log has no size, and a reader may not change one."""
    with penstock.open(tmp_path / "log") as log, pytest.raises(penstock.Usage, match="ring"):
        log.resize("1MiB")
    filled(tmp_path / "r.ring").close()
    with penstock.open(tmp_path / "r.ring", "r") as ring, pytest.raises(penstock.Permission):
        ring.resize("1MiB")


@pytest.mark.parametrize("mode", ["rw", "r"])
def test_others_have_it_open(file: Path, mode: Any) -> None:
    """It is busy, for them nothing happens, and when they are gone it can be done."""
    with filled(file) as ring:
        other = penstock.open(file, mode)
        for _ in range(2):
            with pytest.raises(penstock.Busy, match="others"):
                ring.resize("1MiB")
            ring.append(b"on")
            assert other[ring.last_seq].value == b"on"
        if mode == "rw":
            assert ring[other.append(b"too")].value == b"too"
        other.close()
        ring.resize("1MiB")
        assert file.stat().st_size == 1 << 20


def test_readers_go_on(file: Path) -> None:
    """Forward, backward, filtered and following: each event once, across two resizes."""
    with filled(file, index=0) as ring:
        first, last = ring.first_seq, ring.last_seq
        forward, backward = ring.read(), ring.read(reverse=True)
        some, follower = ring.read(topic="t1"), ring.follow(first)
        seen: dict[str, list[int]] = {"f": [], "b": [], "t": [], "w": []}
        for size in ("256KiB", "128KiB", None):
            for name, reader in zip("fbtw", (forward, backward, some, follower), strict=True):
                seen[name] += [e.seq for e in reader.take(10**6 if size is None else 70)]
            if size is not None:
                ring.resize(size)
                ring.append(b"more")
        assert seen["f"] == list(range(first, last + 1))
        assert seen["b"] == list(range(last, first - 1, -1))
        assert seen["t"] == [s for s in range(first, last + 1) if (s - 1) % 3 == 1]
        assert seen["w"] == list(range(first, last + 3))


def test_a_reader_without_a_writer_finds_out(file: Path) -> None:
    """One that has the old file open, and nobody told, sees the new one when it looks again."""
    filled(file).close()
    with penstock.open(file, "r") as reader:
        last, start = reader.last_seq, next(reader.read())
        follower = reader.follow("end", timeout=10)
        with penstock.open(file) as ring:
            ring.resize("1MiB")
            ring.append(b"new")
            assert next(follower).value == b"new"
        assert reader.last_seq == last + 1
        assert reader[start.seq].value == start.value
        assert reader.stats().ring == reader._storage.take_stock(reader).ring


def test_threads_append_meanwhile(file: Path) -> None:
    """Appends of other threads of the handle wait, and none is lost."""
    with filled(file, "1MiB", 0) as ring:
        errors: list[BaseException] = []
        stop = threading.Event()

        def work(name: int) -> None:
            n = 0
            try:
                while not stop.is_set():
                    ring.append(b"%d %d" % (name, n))
                    n += 1
            except BaseException as error:
                errors.append(error)
            finally:
                counts[name] = n

        counts: dict[int, int] = {}
        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for i in range(8):
            ring.resize("2MiB" if i % 2 == 0 else "3MiB")
        stop.set()
        for thread in threads:
            thread.join()
        assert not errors
        assert ring.last_seq == sum(counts.values())
        assert [e.seq for e in ring] == list(range(ring.first_seq, ring.last_seq + 1))
        last = {0: -1, 1: -1}
        for event in ring:
            name, n = map(int, (event.value or b"").split())
            assert last[name] in (-1, n - 1)
            last[name] = n


@pytest.mark.parametrize("point", ["ring.copied", "ring.replaced"])
@pytest.mark.parametrize("size", ["32KiB", "1MiB"])
def test_death_while_it_is_resized(file: Path, point: str, size: str) -> None:
    """It has the old size or the new one, every event that fits, and the next one goes on."""
    filled(file).close()
    with penstock.open(file, "r") as ring:
        before = events(ring)
    done = subprocess.run(
        [sys.executable, "-c", DEATH, str(file), point, size, "1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    last = int(done.stdout)
    with penstock.open(file) as ring:
        assert ring.last_seq == last
        found = events(ring)
        assert found[:-1] == before[-len(found) + 1 :]
        assert found[-1][2] == b"acknowledged"
        assert len(found) > 100
        assert ring.append(b"next") == last + 1
    assert os.listdir(file.parent) == [file.name]


def test_a_disk_that_is_full(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says so, the ring is as it was and takes appends, and later it can be done."""
    with filled(file) as ring:
        before = events(ring)

        def full(fd: int, start: int, stop: int, path: str) -> None:
            raise penstock.errors.from_os(OSError(errno.ENOSPC, ""), "allocating space for", path)

        with monkeypatch.context() as patch:
            patch.setattr(files, "allocate", full)
            with pytest.raises(penstock.DiskFull):
                ring.resize("1MiB")
        assert events(ring) == before
        assert os.listdir(file.parent) == [file.name]
        ring.append(b"on")
        with penstock.open(file) as other:
            assert other[ring.last_seq].value == b"on"
        ring.resize("1MiB")
        assert events(ring)[:-1][-len(before) + 1 :] == before[1:]


def test_damaged_events_are_left_out(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A resize passes over them; seqs stay, and what is missing is a hole."""
    with filled(file) as ring:
        bad = ring.first_seq + 40
        finder = ring._storage.finder
        assert isinstance(finder, RingFile) and finder.map is not None
        position = finder.position_from(ring, bad)
        offset = finder.map.data_offset + position % finder.map.ring_bytes
    with open(file, "r+b") as raw:
        raw.seek(offset + 45)
        raw.write(b"\xff\xff")
    with penstock.open(file) as ring:
        wanted = [e.seq for e in ring.read(on_damage="skip")]
        ring.resize("128KiB")
        assert [e.seq for e in ring] == wanted
        assert bad not in wanted
        ring.append(b"on")
    with penstock.open(file) as ring:
        assert [e.seq for e in ring] == [*wanted, ring.last_seq]
        assert [e.seq for e in reversed(ring)] == [e.seq for e in ring][::-1]


def test_backup(file: Path, tmp_path: Path) -> None:
    """A copy is a ring of its own, with everything; never over something that is there."""
    with filled(file) as ring:
        ring.append(b"once", producer=("p", 7))
        copy = tmp_path / "copy.ring"
        assert ring.backup(copy) == ring.last_seq
        assert copy.stat().st_size == file.stat().st_size
        with penstock.open(copy) as other:
            assert events(other) == events(ring)
            assert other.append(b"once", producer=("p", 7)) == ring.last_seq
            other.append(b"own")
            assert ring.last_seq == other.last_seq - 1
        with pytest.raises(penstock.AlreadyExists):
            ring.backup(copy)
    with penstock.open(file, "r") as ring:
        ring.backup(tmp_path / "second.ring")
    assert [f.seq for f in oracle.read_ring(tmp_path / "second.ring")][-1] == 3001
    assert len(os.listdir(tmp_path)) == 3


def test_backup_beside_a_writer_that_laps_it(file: Path, tmp_path: Path) -> None:
    """A copy is a stretch of the log as it was at one moment, whole."""
    with filled(file) as ring:
        stop = threading.Event()

        def work() -> None:
            chance = random.Random(1)
            while not stop.is_set():
                ring.append(bytes([ring.last_seq % 256]) * chance.randrange(3000))

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for i in range(5):
                copy = tmp_path / f"{i}.ring"
                last = ring.backup(copy)
                with penstock.open(copy, "r") as other:
                    found = list(other)
                assert [e.seq for e in found] == list(range(found[0].seq, last + 1))
        finally:
            stop.set()
            thread.join()


def test_fail_points_are_passed(file: Path, tmp_path: Path) -> None:
    """The names above are those in the code: a resize that is not armed passes by them."""
    with filled(file) as ring:
        _core.fail_arm("ring.copied", 2)
        ring.resize("1MiB")
        assert ring.stats().ring is not None
        _core.fail_arm("", 0)


def broken(*what: Any) -> None:
    """A sync that fails."""
    raise penstock.errors.from_os(OSError(errno.EIO, ""), "syncing", str(what[-1]))


def test_not_behind_a_failed_sync(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring whose sync failed is not resized: it is not known what of it is on disk."""
    ring = filled(file, "64KiB")
    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_data", broken)
        with pytest.raises(penstock.Io):
            ring.sync()
    with pytest.raises(penstock.Poisoned):
        ring.resize("128KiB")
    ring.close()
    assert file.stat().st_size == 64 << 10


@pytest.mark.parametrize("lasts", [False, True])
def test_a_name_that_is_not_on_the_device(
    file: Path, monkeypatch: pytest.MonkeyPatch, lasts: bool
) -> None:
    """Nothing more is appended before somebody has synced the name; then everything is there."""
    ring = filled(file, "64KiB")
    before = events(ring)
    sync_dir, calls = files.sync_dir, itertools.count()

    def fail(fd: int, path: str) -> None:
        if next(calls) == 0 or lasts:
            broken(path)
        sync_dir(fd, path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_dir", fail)
        with pytest.raises(penstock.Io):
            ring.resize("128KiB")
    with pytest.raises(penstock.Closed if lasts else penstock.Poisoned):
        ring.append(b"into a file that may lose its name")
    ring.close()
    with penstock.open(file) as again:
        assert events(again) == before
        again.append(b"on", durable=True)
        assert file.stat().st_size == 128 << 10
