"""Directories that are not as a writer left them: foreign, missing, mixed and unsealed segments."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import _core
from penstock import layout as L
from penstock.segments import segment, writing
from penstock.segments.storage import SegmentStorage
from penstock.steward import ahead
from tests.unit import oracle

MODES = ["r", "rw"]


def make(path: Path, counts: list[int], **options: Any) -> None:
    """A log with that many events in its segments, one after the other."""
    with penstock.open(path, segment_size="64KiB", **options) as log:
        for i, count in enumerate(counts):
            if i:
                log.steward.roll()
            for _ in range(count):
                log.append(b"%d" % (log.last_seq + 1), time=(log.last_seq + 1) * 100)


def name_of(path: Path, base: int) -> Path:
    return path / f"{base:020d}.seg"


def unseal(name: Path) -> None:
    """Take the footer page off a sealed segment, as if nobody had come to seal it."""
    os.truncate(name, name.stat().st_size - 4096)


def values(log: penstock.Log, *args: Any, **bounds: Any) -> list[int]:
    return [int(e.value or b"0") for e in log.read(*args, **bounds)]


def diverged(path: Path, at: int) -> Path:
    """A log of 30 events, and a segment with base seq ``at`` of a copy that went its own way."""
    copy = path.with_name("copy")
    with penstock.open(path, segment_size="64KiB") as log:
        for seq in range(1, 31):
            if seq in (11, 21):
                log.steward.roll()
            if seq == at:
                log.backup(copy)
            log.append(b"%d" % seq, time=seq * 100)
    with penstock.open(copy) as log:
        assert log.steward.roll() == at
        log.extend([b"666"] * 3)
    shutil.copy(name_of(copy, at), path)
    return name_of(path, at)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("control", [True, False])
@pytest.mark.parametrize("at", [5, 13, 25, 1000])
def test_a_segment_of_another_log(path: Path, mode: Any, control: bool, at: int) -> None:
    """A segment of another log is reported, never read, never deleted; nobody waits for it."""
    make(path, [10, 10, 10])
    other = path.with_name("other")
    make(other, [3])
    foreign = name_of(path, at)
    shutil.copy(name_of(other, 1), foreign)
    before = foreign.read_bytes()
    if not control:
        path.joinpath("control").unlink()
    with penstock.open(path, mode=mode) as log:
        assert list(log.stats().spurious) == [foreign.name]
        assert log.stats().segments == 3
        assert (log.first_seq, log.last_seq, len(log)) == (1, 30, 30)
        assert values(log) == list(range(1, 31))
        assert values(log, reverse=True) == list(range(30, 0, -1))
        assert [log[i].seq for i in range(1, 31)] == list(range(1, 31))
        for limit in range(0, 32):
            assert values(log, until=limit * 100) == list(range(1, min(limit, 31)))
            assert values(log, since=limit * 100) == list(range(max(1, limit), 31))
        if mode == "rw":
            assert log.append(b"31", time=1) == 31
            log.steward.roll()
            assert log.append(b"32") == 32
            assert values(log, since=0) == list(range(1, 33))
        assert list(log.stats().spurious) == [foreign.name]
    assert foreign.read_bytes() == before


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("at", [5, 15, 1000])
def test_a_segment_under_another_name(path: Path, mode: Any, at: int) -> None:
    """A segment of this very log under a wrong name is reported and not read."""
    make(path, [10, 10, 10])
    shutil.copy(name_of(path, 11), name_of(path, at))
    with penstock.open(path, mode=mode) as log:
        assert list(log.stats().spurious) == [name_of(path, at).name]
        assert values(log) == list(range(1, 31))
        assert values(log, reverse=True) == list(range(30, 0, -1))
        assert [log[i].seq for i in range(1, 31)] == list(range(1, 31))
    assert name_of(path, at).exists()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("control", [True, False])
@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("at", [5, 15, 25])
def test_a_base_inside_a_range(path: Path, mode: Any, control: bool, sealed: bool, at: int) -> None:
    """A segment of this log's uuid that begins inside another's range is reported, not read."""
    foreign = diverged(path, at)
    before = foreign.read_bytes()
    if not sealed:
        unseal(name_of(path, 1))
        unseal(name_of(path, 11))
    if not control:
        path.joinpath("control").unlink()
    with penstock.open(path, mode=mode) as log:
        assert log.last_seq == 30
        assert [log[i].value for i in range(1, 31)] == [b"%d" % i for i in range(1, 31)]
        assert values(log) == list(range(1, 31))
        assert values(log, reverse=True) == list(range(30, 0, -1))
        assert values(log, since=300, until=2700) == list(range(3, 27))
        assert list(log.stats().spurious) == [foreign.name]
        if mode == "rw":
            assert log.append(b"31") == 31
            assert values(log) == list(range(1, 32))
    assert foreign.read_bytes() == before


def test_two_logs_of_which_neither_is_linked(path: Path) -> None:
    """Segments of two logs, none of which leads to another, are Corrupt: both uuids are named."""
    make(path, [10, 10, 10])
    other = path.with_name("other")
    make(other, [10, 10, 10, 10])
    for base in (11, 31):
        shutil.copy(name_of(other, base), path)
    path.joinpath("control").unlink()
    for mode in ("r", "rw"):
        with pytest.raises(penstock.Corrupt, match="several logs") as caught:
            penstock.open(path, mode=mode)
        for log in (path, other):
            assert oracle.read_segment(name_of(log, 1)).uuid.hex() in str(caught.value)


def test_roll_frames_tell_whose_log_it_is(path: Path) -> None:
    """A newest segment of another log, to which nothing leads, is spurious."""
    make(path, [10, 10, 10])
    other = path.with_name("other")
    make(other, [30, 5, 5])
    shutil.copy(name_of(other, 36), path)
    path.joinpath("control").unlink()
    with penstock.open(path) as log:
        assert values(log) == list(range(1, 31))
        assert list(log.stats().spurious) == [name_of(path, 36).name]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sealed", [True, False])
def test_a_missing_middle_segment(path: Path, mode: Any, sealed: bool) -> None:
    """A lost segment is Corrupt where a read comes to it, with the range, and hides no other."""
    make(path, [10, 10, 10, 10])
    name_of(path, 11).unlink()
    if not sealed:
        unseal(name_of(path, 1))
    with penstock.open(path, mode=mode) as log:
        reader = log.read()
        assert [e.seq for e in reader.take(10)] == list(range(1, 11))
        for _ in range(2):
            with pytest.raises(penstock.Corrupt, match="seq 11 to 20") as caught:
                next(reader)
        assert caught.value.seq == 11
        backwards = log.read(reverse=True)
        assert [e.seq for e in backwards.take(20)] == list(range(40, 20, -1))
        with pytest.raises(penstock.Corrupt, match="seq 11 to 20"):
            next(backwards)
        assert values(log, 21) == list(range(21, 41))
        assert values(log, 1, 11) == list(range(1, 11))
        assert values(log, 1, 11, reverse=True) == list(range(10, 0, -1))
        assert values(log, 21, reverse=True) == list(range(40, 20, -1))
        assert [log[i].seq for i in (1, 10, 21, 40)] == [1, 10, 21, 40]
        for seq in (11, 15, 20):
            with pytest.raises(penstock.Corrupt, match="seq 11 to 20"):
                log[seq]
        if mode == "rw":
            assert log.append(b"41") == 41


@pytest.mark.parametrize("mode", MODES)
def test_missing_oldest_segments(path: Path, mode: Any) -> None:
    """Without its oldest segments a log begins later; what is there reads in every way."""
    make(path, [10, 10, 10])
    name_of(path, 1).unlink()
    with penstock.open(path, mode=mode) as log:
        assert (log.first_seq, log.last_seq, len(log)) == (11, 30, 20)
        assert values(log) == list(range(11, 31))
        assert values(log, since=0) == list(range(11, 31))
        assert values(log, reverse=True) == list(range(30, 10, -1))
        assert values(log, 11) == list(range(11, 31))
        assert [e.seq for e in log.follow("start", timeout=0)] == list(range(11, 31))
        with pytest.raises(penstock.NotFound):
            log[10]


def test_a_missing_newest_segment(path: Path) -> None:
    """Without its newest segment a log can be read but not written: its seqs were given out."""
    make(path, [10, 10, 10])
    name_of(path, 21).unlink()
    path.joinpath("control").unlink()
    with penstock.open(path, mode="r") as log:
        assert values(log) == list(range(1, 21))
        assert values(log, reverse=True) == list(range(20, 0, -1))
        assert [e.seq for e in log.follow("start", timeout=0)] == list(range(1, 21))
    with pytest.raises(penstock.Corrupt, match="seq 21"):
        penstock.open(path)


def test_a_roll_that_nobody_finished(path: Path) -> None:
    """A roll frame without successor, from a death in between: readable, and then finished."""
    make(path, [10])
    with penstock.open(path) as log:
        storage, attached = log._storage, log._live()
        assert isinstance(storage, SegmentStorage)
        m, _ = writing.map_active(log, storage, attached)
        head = attached.get(L.C_HEAD) & 0xFFFFFFFF
        last = attached.get(L.C_LAST_FRAME)
        m.write_frame(head, L.KIND_ROLL, b"", 11, _core.now_ns(), last)
    path.joinpath("control").unlink()
    with penstock.open(path, mode="r") as log:
        assert values(log) == list(range(1, 11))
        assert values(log, reverse=True) == list(range(10, 0, -1))
        assert [e.seq for e in log.follow("start", timeout=0)] == list(range(1, 11))
        assert log.last_seq == 10
    with penstock.open(path) as log:
        assert log.append(b"11") == 11
        assert values(log) == list(range(1, 12))
    assert [s.base_seq for s in oracle.read_log(path)] == [1, 11]


@pytest.mark.parametrize("mode", MODES)
def test_unsealed_closed_segments_read_alike(path: Path, mode: Any) -> None:
    """A closed segment without footer gives the same answers as a sealed one, slower."""
    make(path, [10, 10, 10])
    unseal(name_of(path, 1))
    unseal(name_of(path, 11))
    with penstock.open(path, mode=mode) as log:
        assert values(log) == list(range(1, 31))
        assert values(log, reverse=True) == list(range(30, 0, -1))
        assert [log[i].seq for i in range(1, 31)] == list(range(1, 31))
        assert values(log, since=500, until=2500) == list(range(5, 25))
        assert log.topics() == {""}


def test_a_handle_follows_a_log_that_nobody_seals(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reading handle finds events after rolls whose segments are not sealed yet."""
    monkeypatch.setattr(ahead, "seal_finished", lambda *_: 0)
    with penstock.open(path, segment_size="64KiB") as log, penstock.open(path, mode="r") as reading:
        follower = reading.follow("start", timeout=0)
        for i in range(1, 6):
            log.append(b"%d" % i)
            assert reading[i].seq == i
            assert [e.seq for e in follower] == [i]
            log.steward.roll()
        assert values(reading) == list(range(1, 6))
        assert [reading[i].seq for i in range(1, 6)] == list(range(1, 6))


def test_a_torn_settings_frame_is_not_believed(path: Path) -> None:
    """A writer that died in the middle of configure leaves the old settings in force."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.append(b"a")
        attached = log._live()
        head = attached.get(L.C_HEAD)
        attached.put(L.C_SETTINGS_POS, head)
        attached.put(L.C_RESERVED, head + 100)
        assert log.append(b"b") == 2
        assert log.settings.segment_size == 64 << 10
        log.steward.roll()
    with penstock.open(path) as log:
        assert [e.value for e in log] == [b"a", b"b"]


def forget_checkpoints(name: Path) -> None:
    """Leave a segment as a process that died would: with no checkpoint but its first."""
    with name.open("r+b") as file:
        header = segment.Header.unpack(file.read(L.PAGE), str(name))
        file.seek(L.SLOT_A_OFFSET)
        file.write(segment.first_slot(header).pack())
        file.seek(L.SLOT_B_OFFSET)
        file.write(bytes(L.SLOT_BYTES))


def flip_fourth(path: Path) -> tuple[Path, bytes, oracle.Frame]:
    """Flip a bit in the fourth frame of ten; the file, its bytes and the frame."""
    make(path, [10])
    name = name_of(path, 1)
    raw = bytearray(name.read_bytes())
    fourth = oracle.read_segment(name).frames[3]
    raw[fourth.at + 40 + 8] ^= 1
    name.write_bytes(raw)
    return name, bytes(raw), fourth


@pytest.mark.parametrize("mode", MODES)
def test_a_bad_frame_below_head_is_damage(path: Path, mode: Any) -> None:
    """A bad frame below a head that control knows of is Corrupt, and not one byte is changed."""
    name, raw, fourth = flip_fourth(path)
    with pytest.raises(penstock.Corrupt) as caught, penstock.open(path, mode=mode) as log:
        list(log)
    assert caught.value.offset == fourth.at
    assert name.read_bytes() == raw


def test_events_behind_a_bad_frame_are_kept(path: Path) -> None:
    """Without a known head the log ends before a bad frame, and what lay after it is put aside."""
    name, _, fourth = flip_fourth(path)
    path.joinpath("control").unlink()
    forget_checkpoints(name)
    raw = name.read_bytes()
    with penstock.open(path) as log:
        assert values(log) == [1, 2, 3]
        assert log.append(b"4") == 4
    known = ("control", "writers.lock", name_of(path, 1).name)
    (lost,) = [p for p in path.iterdir() if p.name not in known]
    assert lost.read_bytes() == raw[fourth.at :]
    with penstock.open(path) as log:
        assert values(log) == [1, 2, 3, 4]


def checkpoint(name: Path, **changes: Any) -> segment.Slot:
    """Give a segment a checkpoint of all its frames, as a sync or a clean close would."""
    seg = oracle.read_segment(name)
    slot = segment.Slot(
        generation=2,
        offset=seg.end,
        last_frame=seg.frames[-1].at,
        last_seq=seg.events[-1].seq,
        last_append_ns=seg.frames[-1].append_ns,
        settings_offset=0,
        index_count=len(oracle.index_entries(seg)) - 1,
        event_max_ns=max(f.time_ns for f in seg.events),
        producer_offset=0,
        monotone=True,
    )
    with name.open("r+b") as file:
        file.seek(L.SLOT_B_OFFSET)
        file.write(replace(slot, **changes).pack())
    return slot


def filled(path: Path) -> Path:
    """A log of one segment with a few index blocks, without control."""
    with penstock.open(path, segment_size="64KiB") as log:
        for i in range(60):
            log.append(b"x" * 500, time=i + 1)
    path.joinpath("control").unlink()
    return name_of(path, 1)


@pytest.mark.parametrize("mode", MODES)
def test_recovery_begins_at_a_checkpoint(path: Path, mode: Any) -> None:
    """With a valid checkpoint the log opens to the same events, and goes on after them."""
    checkpoint(filled(path))
    with penstock.open(path, mode=mode) as log:
        assert len(log) == len(list(log)) == 60
        if mode == "rw":
            assert log.append(b"more") == 61


BAD_ENTRIES: dict[str, Callable[[segment.Slot], bytes]] = {
    "ones": lambda _: b"\xff" * 40,
    "behind the frames": lambda slot: struct.pack("<QQQQQ", slot.offset + 800, 1000, 1, 1, 1),
    "another seq": lambda slot: struct.pack("<QQQQQ", slot.last_frame, 2, 1, 1, 1),
}


@pytest.mark.parametrize("entry", BAD_ENTRIES.values(), ids=BAD_ENTRIES)
@pytest.mark.parametrize("mode", MODES)
def test_a_bad_index_costs_nothing(
    path: Path, mode: Any, entry: Callable[[segment.Slot], bytes]
) -> None:
    """Index entries are no truth: a damaged one below a checkpoint does not keep the log shut."""
    name = filled(path)
    slot = checkpoint(name)
    count = slot.index_count
    assert count > 3
    with name.open("r+b") as file:
        file.seek(L.INDEX_OFFSET)
        file.write(entry(slot) * count)
    with penstock.open(path, mode=mode) as log:
        assert [e.time_ns for e in log] == list(range(1, 61))
        assert [e.time_ns for e in log.read(since=20, until=50)] == list(range(20, 50))
        assert log[33].time_ns == 33


def test_frames_missing_below_a_checkpoint_are_damage(path: Path) -> None:
    """A checkpoint that speaks of more frames than are there is Corrupt, not a shorter log.

    Nobody may write; who reads gets what is there, and the error where it is not.
    """
    name = filled(path)
    checkpoint(name)
    last = oracle.read_segment(name).frames[-1]
    with name.open("r+b") as file:
        file.seek(last.at)
        file.write(bytes(last.length))
    with pytest.raises(penstock.Corrupt):
        penstock.open(path)
    with penstock.open(path, mode="r") as log:
        assert log.last_seq == 60
        reader = log.read()
        assert len(reader.take(59)) == 59
        with pytest.raises(penstock.Corrupt):
            next(reader)
        with pytest.raises(penstock.Corrupt):
            log[60]
        assert log[59].seq == 59


def test_a_bad_index_of_a_sealed_segment_costs_nothing(path: Path) -> None:
    """A sealed segment whose index does not match its checksum is read by its frames."""
    with penstock.open(path, segment_size="64KiB") as log:
        for i in range(60):
            log.append(b"x" * 500, time=i + 1)
        log.steward.roll()
    with name_of(path, 1).open("r+b") as file:
        file.seek(L.INDEX_OFFSET + 40)
        file.write(struct.pack("<QQ", 1 << 63, 77))
    with penstock.open(path) as log:
        assert [log[i].time_ns for i in range(1, 61)] == list(range(1, 61))
        assert [e.time_ns for e in log.read(since=20, until=50)] == list(range(20, 50))
        assert [e.time_ns for e in reversed(log)] == list(range(60, 0, -1))


@pytest.mark.parametrize("live", [True, False])
def test_a_dead_batch_does_not_come_back(path: Path, live: bool) -> None:
    """Frames 2 and 3 of a batch that was never published stay dead after the next append.

    The next event is as long as the dead batch's first frame, so that seq and back of what follows
    would fit: only zeroing keeps it away.
    """
    ahead = path.with_name("ahead")
    make(path, [3])
    shutil.copytree(path, ahead)
    with penstock.open(ahead) as log:
        log.extend([b"dead"] * 3)
    before, after = oracle.read_log(path)[0], oracle.read_log(ahead)[0]
    batch = bytearray(after.raw[before.end : after.end])
    batch[:4] = bytes(4)

    def tear() -> None:
        with name_of(path, 1).open("r+b") as file:
            file.seek(before.end)
            file.write(batch)

    if live:
        log = penstock.open(path)
        log.wait(0)
        tear()
        attached = log._live()
        attached.put(L.C_RESERVED, attached.get(L.C_HEAD) + len(batch))
    else:
        path.joinpath("control").unlink()
        tear()
        log = penstock.open(path)
    assert log.append(b"4444") == 4
    assert values(log) == [1, 2, 3, 4444]
    log.close()
    path.joinpath("control").unlink()
    assert len(oracle.read_log(path)[0].events) == 4
    with penstock.open(path) as log:
        assert values(log) == [1, 2, 3, 4444]
        assert log.append(b"5") == 5


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_is_whole_or_not_there(path: Path, mode: Any) -> None:
    """The first frame of a batch, followed by a good frame that is not of it, counts for nothing.

    Seq, back and checksum of both are right; only batch_left tells that they are strangers.
    """
    batch_log, single_log = path.with_name("batch"), path.with_name("single")
    make(path, [3])
    for copy in (batch_log, single_log):
        shutil.copytree(path, copy)
    with penstock.open(batch_log) as log:
        log.extend([b"dead"] * 3)
    with penstock.open(single_log) as log:
        log.append(b"dead")
        log.append(b"dead")
    end = oracle.read_log(path)[0].end
    batch, single = oracle.read_log(batch_log)[0], oracle.read_log(single_log)[0]
    first, second = batch.frames[3], single.frames[4]
    assert (first.at + first.length, second.seq) == (second.at, 5)
    path.joinpath("control").unlink()
    with name_of(path, 1).open("r+b") as file:
        file.seek(end)
        file.write(batch.raw[end : second.at] + single.raw[second.at : single.end])
    with penstock.open(path, mode=mode) as log:
        assert values(log) == [1, 2, 3]
        if mode == "rw":
            assert log.append(b"4") == 4
            assert values(log) == [1, 2, 3, 4]
