"""Erasing a key: no byte of it is left in any file of the log, and everything else stays."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Busy, Entry, TooLarge, WrongType
from penstock import layout as L
from penstock.segments import segment
from penstock.steward import overwrite
from penstock.system import files
from tests.steward import plain
from tests.steward.plain import Plain
from tests.support.workers import Crew

KEY = b"person 4711 of this test"
VALUE = b"the address of person 4711"


@pytest.fixture
def log(path: Path) -> Iterator[penstock.Log]:
    """A log of small segments."""
    with penstock.open(path, segment_size="64KiB") as log:
        yield log


def fill(log: penstock.Log, segments: int = 4) -> list[Plain]:
    """Segments with events of the key among others, the last of them active; the model."""
    model: list[Plain] = []

    def add(key: bytes | None, value: bytes | None, **more: Any) -> None:
        model.append(Plain(log.append(value, key=key, **more), key, value))

    for number in range(segments):
        if number:
            log.steward.roll()
        add(b"other", b"o%d" % number)
        add(KEY, VALUE + b"%d" % number, headers={"of": KEY}, topic=f"topic of {number}")
        log.extend([Entry(VALUE, key=KEY), Entry(b"in a batch", key=b"b"), Entry(None, key=KEY)])
        for key, value in ((KEY, VALUE), (b"b", b"in a batch"), (KEY, None)):
            model.append(Plain(len(model) + 1, key, value))
        if number != 1:
            add(None, b"without a key")
    return model


def erase(model: list[Plain]) -> None:
    for event in model:
        event.gone |= event.key == KEY


def traces(path: Path) -> list[str]:
    """Files below a directory with bytes of the key or of its values."""
    return [
        str(file)
        for file in path.rglob("*")
        if file.is_file() and (KEY in (raw := file.read_bytes()) or VALUE in raw)
    ]


def test_no_byte_is_left(log: penstock.Log, path: Path) -> None:
    """Not in sealed segments nor in the active one, whichever way the log is read or searched."""
    model = fill(log)
    assert len(traces(path)) == 4
    plan = log.steward.erase(KEY, dry_run=True)
    assert (plan.events, plan.rolled, plan.complete, plan.dry_run) == (12, True, False, True)
    plain.check(log, model)
    done = log.steward.erase(KEY)
    erase(model)
    assert done.complete, str(done)
    assert (done.events, done.rolled, len(done.segments)) == (12, True, 4)
    assert done.overwritten > 0
    assert "erased 12 events" in str(done)
    assert traces(path) == []
    plain.check(log, model)
    again = log.steward.erase(KEY)
    assert (again.events, again.segments, again.rolled, again.complete) == (0, (), False, True)
    assert log.steward.erase(KEY, dry_run=True).complete
    assert log.append(b"new", key=KEY) == len(model) + 1  # a key is not forbidden
    assert log.latest(KEY).value == b"new"  # type: ignore[union-attr]


def test_expired_and_trimmed_events_are_erased_too(log: penstock.Log, path: Path) -> None:
    """So are those that no reader returns any more."""
    log.append(VALUE, key=KEY, ttl=1e-9)
    log.append(b"stays")
    log.append(VALUE, key=KEY)
    log.append(b"last")
    log.steward.trim(before=4)
    assert [e.seq for e in log] == [4]
    done = log.steward.erase(KEY)
    assert (done.events, done.complete) == (2, True)
    assert traces(path) == []
    assert [e.seq for e in log] == [4]


def test_only_segments_with_the_key_are_touched(log: penstock.Log, path: Path) -> None:
    """Others stay byte for byte, by their key filters without being read."""
    log.append(b"a", key=b"a")
    log.steward.roll()
    log.append(VALUE, key=KEY)
    log.steward.roll()
    log.append(b"c", key=b"c")
    log.steward.compact(dry_run=True)  # seals
    first = sorted(path.glob("*.seg"))[0]
    before = first.stat().st_ino
    assert log.steward.erase(KEY).segments == (2,)
    assert first.stat().st_ino == before
    assert segment.map_segment(str(first))[1].generation == 0
    assert segment.map_segment(str(path / segment.file_name(2)))[1].generation == 1


def test_a_reader_that_has_it_mapped(log: penstock.Log, path: Path) -> None:
    """It never sees an overwritten byte; until it lets go, the old file is in `remaining`."""
    model = fill(log)
    with penstock.open(path, mode="r") as other:
        reader = other.read()
        events = reader.take(3)
        view = events[1].view
        done = log.steward.erase(KEY, timeout=0.6)
        assert not done.complete
        assert [Path(r.path).name for r in done.remaining] == ["erase.00000000000000000001-0.tmp"]
        assert "mapped" in str(done)
        assert (events[1].key, bytes(view)) == (KEY, VALUE + b"0")
        rest = [e.seq for e in reader]
        assert [s for s in rest if s > 6] == [e.seq for e in model if e.key != KEY and e.seq > 6]
        assert (events[1].key, bytes(view)) == (KEY, VALUE + b"0")
        assert log.verify().ok
        del events, view, reader
    done = log.steward.erase(KEY)
    assert done.complete, str(done)
    assert done.overwritten > 0
    assert traces(path) == []
    erase(model)
    plain.check(log, model)


def test_where_no_lease_is_granted(
    log: penstock.Log, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the kernel cannot tell who has a file mapped, the old file stays and is named."""
    fill(log)

    def refuse(*args: object) -> None:
        raise PermissionError(1, "not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "fcntl", refuse)
        done = log.steward.erase(KEY)
    assert len(done.remaining) == 4
    assert "cannot tell" in str(done)
    assert log.steward.erase(KEY).complete
    assert traces(path) == []


def test_what_is_beside_the_segments(log: penstock.Log, path: Path) -> None:
    """Staged rows, kept bytes and consumers that have the key are named, never changed."""
    model = fill(log)
    log.consumer("of the key", key=KEY).close()
    log.consumer("of another", key=b"b").close()
    (path / "staging").mkdir()
    (path / "staging" / "rows").write_bytes(b"..." + KEY)
    (path / "staging" / "deeper").mkdir()
    (path / "staging" / "deeper" / "rows").write_bytes(KEY)
    (path / "staging" / "others").write_bytes(b"nothing of it")
    (path / "lost-00000000000000000001-4096.bin").write_bytes(bytes(9) + KEY)
    (path / "damaged-00000000000000000001-5.bin").write_bytes(bytes(9) + KEY)
    done = log.steward.erase(KEY)
    assert {Path(r.path).name for r in done.remaining} == {
        *("of the key", "rows", "lost-00000000000000000001-4096.bin"),
        "damaged-00000000000000000001-5.bin",
    }
    assert len(done.remaining) == 5
    assert not done.complete
    erase(model)
    assert [e.seq for e in log] == [e.seq for e in model if e.read]
    log.consumers().delete("of the key")
    for kept in path.glob("*.bin"):
        kept.unlink()
    shutil.rmtree(path / "staging")
    assert log.steward.erase(KEY).complete
    assert traces(path) == []


def test_the_empty_key_is_a_key(log: penstock.Log) -> None:
    """Only events with the empty key go, not those without one."""
    log.extend([Entry(b"a", key=b""), Entry(b"b"), Entry(b"c", key=b"k")])
    assert log.steward.erase(b"").events == 1
    assert [e.value for e in log] == [b"b", b"c"]


def test_beside_compaction(log: penstock.Log, path: Path) -> None:
    """A compacted log is erased, and an erased one compacted; merged segments too."""
    model = fill(log)
    log.steward.roll()
    base = plain.active_base(path)
    log.steward.compact()
    plain.compact(model, base)
    plain.check(log, model)
    assert log.steward.erase(KEY).complete
    erase(model)
    plain.check(log, model)
    assert traces(path) == []
    log.steward.compact(grace=0, keyless="drop")
    plain.compact(model, base, 1, True, True)
    plain.check(log, model)


@pytest.mark.parametrize(
    ("key", "kind", "said"),
    [
        (None, WrongType, "key must be bytes, got None"),
        ("text", WrongType, "key must be"),
        (5, WrongType, "key must be"),
        (b"x" * 1025, TooLarge, "key must be at most 1024 bytes, got 1025"),
    ],
)
def test_bad_keys(log: penstock.Log, key: Any, kind: type[Exception], said: str) -> None:
    """Each is refused with a message that says what it must be."""
    with pytest.raises(kind, match=said):
        log.steward.erase(key)
    with pytest.raises(WrongType, match="dry_run must be True or False"):
        log.steward.erase(b"k", dry_run=1)  # type: ignore[arg-type]


def test_any_bytes_are_a_key(log: penstock.Log) -> None:
    """A bytearray and a memoryview mean the same key."""
    log.append(b"a", key=KEY)
    assert log.steward.erase(bytearray(KEY), dry_run=True).events == 1
    assert log.steward.erase(memoryview(KEY)).events == 1


@pytest.mark.process
def test_while_writers_go_on(crew: Crew, tmp_path: Path) -> None:
    """Writers and a follower go on beside erasures and compactions: each other event, once."""
    path = tmp_path / "log"
    with penstock.open(path, segment_size="64KiB") as log:
        log.append(b"first")
    worker = crew.start(
        tmp_path,
        "run_in_worker",
        module="tests.steward.beside",
        function="write",
        args={"path": str(path), "count": 3000},
    )
    follower = crew.start(
        tmp_path,
        "run_in_worker",
        module="tests.steward.beside",
        function="follow",
        args={"path": str(path), "count": 3000},
    )
    with penstock.open(path) as log:
        while log.last_seq < 3001:
            log.wait(5, after=log.last_seq)
            log.append(VALUE, key=KEY)
            log.steward.erase(KEY, timeout=0)
            try:
                log.steward.compact(grace=0)
            except Busy:
                raise AssertionError("nobody else compacts") from None
        assert worker.wait(60) == 0, worker.errors()
        log.append(b"end", topic="end")
        assert follower.wait(60) == 0, follower.errors()
        (found,) = follower.reports()
        assert found["keyless"] == 3000
        assert found["in_order"]
        assert log.verify().ok
        assert log.steward.erase(KEY).complete
        assert traces(path) == []
        numbers = [int(e.value) for e in log if e.topic == "numbers"]
        assert numbers == list(range(3000))


needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mkfs.ext4") is None or shutil.which("mount") is None,
    reason="a loop device and a mount need root, and mkfs.ext4",
)


@pytest.mark.process
@needs_root
def test_the_block_device(crew: Crew, tmp_path: Path) -> None:
    """On the image of a whole file system nothing of the key is found afterwards."""
    worker = crew.start(
        tmp_path,
        "run_in_worker",
        module="tests.steward.beside",
        function="on_a_device",
        args={"directory": str(tmp_path)},
    )
    assert worker.wait(120) == 0, worker.errors()
    (result,) = worker.reports()
    if "unable" in result:
        pytest.skip(result["unable"])
    assert result["before"] > 0, "nothing was there, so nothing was proved"
    assert result["after"] == 0
    assert result["complete"]


def test_the_names_of_old_files(path: Path) -> None:
    """They are told from foreign files by content; one that is the segment itself just goes."""
    with penstock.open(path) as log:
        log.append(b"x", key=KEY)
        log.steward.roll()
        log.steward.compact(dry_run=True)
        directory = files.hold_dir(str(path))
        foreign = path / "erase.00000000000000000001-7.tmp"
        foreign.write_bytes(b"mine, not yours")
        assert overwrite.leftover(directory) == []
        os.link(path / segment.file_name(1), path / "erase.00000000000000000001-0.tmp")
        assert overwrite.leftover(directory) == []
        assert not (path / "erase.00000000000000000001-0.tmp").exists()
        assert foreign.read_bytes() == b"mine, not yours"
        assert L.SEGMENT_MAGIC in (path / segment.file_name(1)).read_bytes()[:8]
        assert log.steward.erase(KEY).complete
