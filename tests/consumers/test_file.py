"""The file of a consumer: what is torn, garbled, empty, foreign or of another kind."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Corrupt, Log, NotFound, Permission, UnsupportedVersion
from penstock import layout as L
from penstock._core import crc32c
from penstock.consumers import folder as folders
from penstock.consumers.file import new_file, parse

PLAIN = (0, L.PAGE)
DURABLE = (L.PLACE_DURABLE_BYTES, L.PAGE + L.PLACE_DURABLE_BYTES)


def stored(log: Log, count: int = 5) -> None:
    """Make the consumer c, which commits each of so many events, the third one durably."""
    log.extend([b"x"] * count)
    with log.consumer("c", topic="") as consumer:
        for event in consumer.poll(count):
            consumer.commit(event.seq, durable=event.seq == 3)


def committed(log: Log) -> int:
    with log.consumer("c") as consumer:
        return consumer.committed


def test_the_newest_slot_wins(log: Log, folder: Path) -> None:
    """Of the slots that are whole, the one stored last counts: tear one after the other."""
    stored(log)
    file = folder / "c"
    data = bytearray(file.read_bytes())
    for expected in (6, 5, 4, 1):
        place = parse(bytes(data), "c")
        assert place.slot.next == expected
        assert place.profile.wants.topic == b""
        file.write_bytes(data)
        assert log.consumers()["c"].committed == expected
        generation = place.slot.generation
        at = next(
            at
            for at in (*PLAIN, *DURABLE)
            if int.from_bytes(data[at + L.PLACE_GENERATION :][:8], "little") == generation
        )
        data[at + L.PLACE_NEXT] ^= 0x40  # torn: one field is of another store
    with pytest.raises(Corrupt, match="no slot with a valid checksum"):
        parse(bytes(data), "c")


def test_every_byte_of_a_slot_counts(log: Log, folder: Path) -> None:
    """No flipped bit gives another place, wherever it is in the file."""
    stored(log)
    good = (folder / "c").read_bytes()
    for at in (*range(L.PLACE_BYTES), *range(1024, 1024 + 32), *range(L.PAGE, L.PAGE + 96)):
        data = bytearray(good)
        data[at] ^= 1
        place = parse(bytes(data), "c")
        assert place.slot.next in (5, 6), at
        assert place.profile.wants.topic == b""


@pytest.mark.parametrize("data", [b"", b"x", bytes(8192), os.urandom(8192), b"PSKPLACE" * 1024])
def test_garbage(log: Log, folder: Path, data: bytes) -> None:
    """A file without a place raises, and says what to do; doing that helps; the log is unharmed."""
    stored(log)
    (folder / "c").write_bytes(data)
    with pytest.raises(Corrupt, match=r"delete it with log.consumers\(\).delete"):
        log.consumer("c")
    found = log.consumers()["c"]
    assert found.problem is not None and "is not known" in found.problem
    assert (found.committed, found.live, found.lag.events) == (0, False, 0)
    log.consumers().delete("c")
    with log.consumer("c") as consumer:
        assert len(consumer.poll()) == 5


def test_the_file_of_another_log(log: Log, folder: Path, tmp_path: Path) -> None:
    """A place in another log is no place in this one."""
    stored(log)
    with penstock.open(tmp_path / "other") as other:
        other.extend([b"y"] * 9)
        other.consumer("c").close()
        shutil.copy(folder / "c", tmp_path / "other" / "consumers" / "c")
        with pytest.raises(Corrupt, match="is of another log"):
            other.consumer("c")
        assert "another log" in str(other.consumers()["c"].problem)


def test_a_newer_version(log: Log, folder: Path) -> None:
    """A file that a newer Penstock wrote is left to that one."""
    stored(log)
    data = bytearray((folder / "c").read_bytes())
    for at in (*PLAIN, *DURABLE):
        data[at + L.PLACE_VERSION] = 9
        crc = crc32c(bytes(data[at : at + L.PLACE_CRC]))
        data[at + L.PLACE_CRC : at + L.PLACE_CRC + 4] = crc.to_bytes(4, "little")
    (folder / "c").write_bytes(data)
    with pytest.raises(UnsupportedVersion, match="newer Penstock"):
        log.consumer("c")
    assert (folder / "c").read_bytes() == data


def test_what_is_no_file(log: Log, folder: Path) -> None:
    """A directory or a link with a consumer's name is an error, and left alone."""
    log.consumer("other").close()
    (folder / "c").mkdir()
    (folder / "d").symlink_to(folder / "other")
    for name in "cd":
        with pytest.raises(penstock.PenstockError, match=f"consumers/{name}"):
            log.consumer(name)
    assert sorted(os.listdir(folder)) == ["c", "d", "other"]
    assert [info.name for info in log.consumers() if info.problem] == ["c", "d"]


def test_one_that_is_swept_while_it_is_made(
    log: Log, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two who make consumers at once, one may sweep the other: that one begins again."""
    lock = folders._lock
    swept: list[str] = []

    def beside_another(fd: int, path: Any) -> bool:
        if len(swept) < 3 and path.base.startswith(".new-"):
            swept.append(path.base)
            monkeypatch.setattr(folders, "_lock", lock)
            folders.sweep(path.directory)
            monkeypatch.setattr(folders, "_lock", beside_another)
        return lock(fd, path)

    monkeypatch.setattr(folders, "_lock", beside_another)
    with log.consumer("c") as consumer:
        consumer.commit()
    assert len(set(swept)) == 3
    assert os.listdir(folder) == ["c"]


def test_half_made_ones_are_swept(log: Log, folder: Path) -> None:
    """What a process left that died making a consumer goes away, and is never one."""
    log.consumer("a").close()
    (folder / ".new-0123456789abcdef").write_bytes(b"")
    assert log.consumers().names() == ["a"]
    log.consumer("b").close()
    assert sorted(os.listdir(folder)) == ["a", "b"]


def test_deleted_while_the_log_is_open(log: Log) -> None:
    """A consumer that is deleted is made again by the next opener."""
    stored(log)
    log.consumers().delete("c")
    with pytest.raises(NotFound):
        log.consumers()["c"]
    with log.consumer("c", start=2) as consumer:
        assert consumer.position == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_where_nothing_can_be_written(log: Log, folder: Path) -> None:
    """Without the permission to write there, opening says so, and reading goes on."""
    folder.parent.mkdir(exist_ok=True)
    folder.parent.chmod(0o500)
    try:
        with pytest.raises(Permission, match="keeps its place in a file"):
            log.consumer("c")
    finally:
        folder.parent.chmod(0o700)


def test_a_backup_takes_consumers_along(log: Log, path: Path, tmp_path: Path) -> None:
    """Each goes on in the copy where it was; one that was ahead of the copy does not skip."""
    stored(log)
    with log.consumer("amid") as consumer:
        consumer.poll(2)
        consumer.commit()
    target = tmp_path / "copy" if path.is_dir() else tmp_path / "copy.ring"
    log.backup(target)
    log.append(b"later")
    with log.consumer("c") as consumer:
        consumer.poll()
        consumer.commit()
    with penstock.open(target) as copy:
        assert committed(copy) == 6
        assert copy.consumers()["amid"].committed == 3
        assert copy.consumers()["c"].clamped == 0
        copy.append(b"other")
        with copy.consumer("c") as consumer:
            assert [event.value for event in consumer.poll()] == [b"other"]
    assert committed(log) == 7


def test_verify_and_repair_leave_consumers_alone(log: Log, path: Path) -> None:
    """They are part of the log: verify finds nothing odd, and a repair in place keeps them."""
    stored(log)
    assert log.verify().ok
    assert not any("consumers" in problem.path for problem in log.verify().problems)
    log.close()
    penstock.repair(path)
    with penstock.open(path) as again:
        assert committed(again) == 6


def test_resizing_a_ring_keeps_its_consumers(tmp_path: Path) -> None:
    """The ring is another file then; the consumers beside it are the same, open ones too."""
    with penstock.create(tmp_path / "r", ring="64KiB") as ring:
        stored(ring)
        with ring.consumer("live") as live:
            live.poll(2)
            live.commit()
            ring.resize("256KiB")
            ring.append(b"new")
            assert len(live.poll()) == 4
            live.commit()
        assert committed(ring) == 6
        assert ring.consumers()["live"].committed == 7


def test_a_place_beyond_the_end_is_clamped(
    log: Log, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An older copy of the log, or one cut short by power loss: no event to come is skipped."""
    log.extend([b"x"] * 3)
    older = path.parent / "older"
    log.backup(older)
    log.extend([b"x"] * 4)
    with log.consumer("c") as consumer:
        consumer.poll()
        consumer.commit()
    uuid = log._uuid()
    log.close()
    name = "older.d/consumers" if path.is_file() else "older/consumers"
    (path.parent / name).mkdir(parents=True)
    source = path / "consumers" if path.is_dir() else path.with_name("log.ring.d") / "consumers"
    shutil.copy(source / "c", path.parent / name / "c")
    with penstock.open(older) as opened:
        assert opened._uuid() == uuid
        assert "had come to seq 8, and the log ends before seq 4" in caplog.text
        found = opened.consumers()["c"]
        assert (found.committed, found.clamped) == (4, 8)
        opened.append(b"new")
        with opened.consumer("c") as consumer:
            assert consumer.clamped == 8
            assert [event.value for event in consumer.poll()] == [b"new"]
            consumer.commit()
            assert consumer.clamped == 0


def test_a_place_beyond_the_end_of_an_open_log(log: Log, folder: Path) -> None:
    """A file that was put back from elsewhere while the log is open is looked at as well."""
    stored(log)
    place = parse((folder / "c").read_bytes(), "c")
    (folder / "c").write_bytes(new_file(log._uuid(), 100, place.profile, 0))
    with log.consumer("c") as consumer:
        assert (consumer.position, consumer.clamped) == (6, 100)
    assert committed(log) == 6


def test_deleted_between_opening_and_locking(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock on a file that has no name any more owns nothing: a new one is made."""
    stored(log)
    lock = folders._lock

    def delete_first(fd: int, path: str) -> bool:
        monkeypatch.setattr(folders, "_lock", lock)
        log.consumers().delete("c")
        return lock(fd, path)

    monkeypatch.setattr(folders, "_lock", delete_first)
    with log.consumer("c") as consumer:
        assert consumer.position == 1
        assert log.consumers()["c"].live


def test_a_live_consumer_is_never_clamped(log: Log, path: Path) -> None:
    """The first writer of a log leaves a consumer alone whose owner lives, reading it."""
    log.extend([b"x"] * 3)
    log.close()
    with penstock.open(path, mode="r") as reading, reading.consumer("c") as consumer:
        consumer.poll()
        consumer.commit()
        with penstock.open(path) as writing:
            writing.append(b"new")
            assert writing.consumers()["c"].clamped == 0
        assert [event.value for event in consumer.poll(5, timeout=10)] == [b"new"]
