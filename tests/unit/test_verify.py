"""Verify names every damage, calls nothing damage that is none, and survives any bytes at all."""

from __future__ import annotations

import errno
import os
import random
import shutil
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import _core, errors, tunables
from penstock import layout as L
from penstock.segments import segment
from penstock.segments.check.examine import look
from penstock.system import files
from tests.support.wait import wait_for
from tests.unit import broken, oracle
from tests.unit.broken import STORM, Built

EVENLY = 1 if STORM else 23  # every so many bytes one bit is flipped


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A log with every kind of frame, closed, without control."""
    return broken.build(tmp_path_factory.mktemp("built") / "log")


@pytest.fixture
def copy(built: Built, tmp_path: Path) -> Path:
    """A copy of it to break."""
    return built.copy(tmp_path / "copy")


def damage(path: Path) -> list[penstock.Problem]:
    return [p for p in penstock.verify(path).problems if p.severity == "damage"]


def sample(places: range, salt: int = 0) -> Iterator[tuple[int, int]]:
    """Offsets, evenly spread, and a bit for each; all of both under PENSTOCK_STORM=1."""
    for at in range(places.start + salt % EVENLY, places.stop, EVENLY):
        for bit in range(8) if STORM else [at * 5 % 8]:
            yield at, bit


def snapshot(path: Path) -> dict[str, tuple[bytes, int, int]]:
    """Bytes, mode and time of change of every file."""
    return {
        p.name: (p.read_bytes(), p.stat().st_mode, p.stat().st_mtime_ns) for p in path.iterdir()
    }


def test_a_whole_log_is_ok(built: Built) -> None:
    """Of a whole log verify counts everything, finds nothing and changes nothing."""
    before = snapshot(built.path)
    report = penstock.verify(built.path)
    assert report.ok and not report.problems and not report.live
    assert (report.events, report.segments) == (len(built.truth), 3)
    assert (report.first_seq, report.last_seq) == (1, max(built.truth))
    assert report.frames == sum(len(s.frames) for s in built.segments)
    assert report.bytes == sum(s.end - s.data_offset for s in built.segments)
    assert str(report).startswith(f"{built.path}: ok\n3 segments, 39 events (seq 1 to 39)")
    assert snapshot(built.path) == before


@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_bit(built: Built, tmp_path: Path, number: int) -> None:
    """A flipped bit in any byte that matters is named where it is, and costs one event at most."""
    seg = built.segments[number]
    padding = {
        at
        for f in seg.frames
        for at in range(f.at + f.length - 8, f.at + f.length)
        if at >= f.at + 40 + struct.unpack_from("<I", seg.raw, f.at)[0] - 1
    }
    for what, places in broken.places(seg).items():
        for at, bit in sample(places, number):
            name = built.copy(tmp_path / "copy") / seg.path.name
            broken.flip(name, at, bit)
            report = penstock.verify(name.parent)
            if at in padding:
                assert report.ok, (what, at, bit)
                continue
            assert len(report.problems) == 1, (what, at, bit, str(report))
            (problem,) = report.problems
            assert problem.path == str(name)
            if not what.startswith("slot"):
                assert not report.ok, (what, at, bit)
            if what == "frames":
                hit = next(f for f in seg.frames if f.at <= at < f.at + f.length)
                assert problem.offset == hit.at
                assert problem.lost == ((hit.seq, hit.seq) if hit.is_event else None)
                assert report.events == len(built.truth) - hit.is_event
            else:
                assert report.events == len(built.truth), (what, at, bit)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_truncation(built: Built, tmp_path: Path, number: int) -> None:
    """A file cut off anywhere is damage if a frame, or what vouches for one, is gone."""
    seg = built.segments[number]
    step = 8 if STORM else 251
    cuts = {*range(0, len(seg.raw), 4096), *range(seg.data_offset, seg.end, step), seg.end - 1}
    for cut in sorted(cuts):
        name = built.copy(tmp_path / "copy") / seg.path.name
        os.truncate(name, cut)
        report = penstock.verify(name.parent)
        sealed = cut == seg.segment_bytes  # the footer is there, and its key filter is not
        assert report.ok == (cut >= seg.end and not sealed), (cut, str(report))
        whole = [f for f in seg.events if f.at + f.length <= cut]
        others = len(built.truth) - len(seg.events)
        assert report.events == others + len(whole), (cut, str(report))


FIELDS = [
    *((L.FRAME_COMMIT, "<I"), (L.FRAME_BACK, "<I"), (L.FRAME_BATCH_LEFT, "<I")),
    *((L.FRAME_KEY_LEN, "<H"), (L.FRAME_HEADERS_LEN, "<H"), (L.FRAME_TOPIC_LEN, "<H")),
    *((L.FRAME_SEQ, "<Q"), (L.FRAME_APPEND_NS, "<Q")),
]


@pytest.mark.parametrize(("field", "form"), FIELDS)
def test_every_length_at_its_limits(built: Built, tmp_path: Path, field: int, form: str) -> None:
    """A number of a frame that is 0, its greatest or one off is damage, checksum right or not."""
    seg = built.segments[1]
    most = (1 << 8 * struct.calcsize(form)) - 1
    for index in (0, 1, 5, len(seg.frames) - 1):
        frame = seg.frames[index]
        (was,) = struct.unpack_from(form, seg.raw, frame.at + field)
        for value in {0, most, most - 1, (was + 1) & most, (was - 1) & most} - {was}:
            for summed in (False, True):
                name = built.copy(tmp_path / "copy") / seg.path.name
                raw = bytearray(seg.raw[frame.at : frame.at + frame.length])
                struct.pack_into(form, raw, field, value)
                if summed:
                    (commit,) = struct.unpack_from("<I", raw)
                    crc = _core.crc32c(bytes(raw[8 : 40 + commit - 1]))
                    struct.pack_into("<I", raw, L.FRAME_CRC, crc)
                broken.put(name, frame.at, bytes(raw))
                report = penstock.verify(name.parent)
                assert not report.ok, (index, field, value, summed)
                if field != L.FRAME_APPEND_NS:  # a frame of the year 2554 makes all others too old
                    assert report.events >= len(built.truth) - 1, (index, value, str(report))


def test_damage_tells_what_to_do(built: Built, copy: Path) -> None:
    """A problem names file, place, last good seq, what is lost and the next step; so does str()."""
    seg = built.segments[0]
    broken.flip(copy / seg.path.name, seg.frames[3].at + 50, 0)
    (problem,) = damage(copy)
    assert (problem.kind, problem.last_seq, problem.lost) == ("frame", 3, (4, 4))
    assert str(problem).startswith(
        f"damage: {copy / seg.path.name} at offset {seg.frames[3].at}, after seq 3: "
    )
    assert "seq 4 to 4 cannot be read" in str(problem) and "repair" in str(problem)
    assert str(penstock.verify(copy)).splitlines()[0] == f"{copy}: 1 damaged place"


def test_two_damaged_frames_are_two_problems(built: Built, copy: Path) -> None:
    """One damaged frame costs its own report and no other; neighbours that are damaged, one."""
    seg = built.segments[0]
    for index in (2, 6, 7):
        broken.flip(copy / seg.path.name, seg.frames[index].at + 20, 3)
    report = penstock.verify(copy)
    assert [p.lost for p in report.problems] == [(3, 3), (7, 8)]
    assert report.events == len(built.truth) - 3


def test_a_lost_page_is_one_problem(built: Built, copy: Path) -> None:
    """A page of zeros in the middle of the frames loses the frames in it and nothing else."""
    seg = built.segments[0]
    broken.put(copy / seg.path.name, 20480, bytes(4096))
    hit = [f.seq for f in seg.events if f.at < 24576 and f.at + f.length > 20480]
    (problem,) = damage(copy)
    assert problem.lost == (hit[0], hit[-1])


def nested(path: Path) -> tuple[Path, oracle.Segment, int]:
    """A log with a value that holds frames of another log, of the seqs that come next here."""
    other = path.with_name("other")
    with penstock.open(other, segment_size="64KiB") as log:
        log.extend([b"%d" % i for i in range(30)])
    frames = oracle.read_log(other)[0]
    inner = bytearray(frames.raw[frames.data_offset : frames.end])
    at = 0
    while at < len(inner):  # as if another process had appended them just before
        struct.pack_into("<Q", inner, at + L.FRAME_APPEND_NS, time.time_ns())
        (commit,) = struct.unpack_from("<I", inner, at)
        crc = _core.crc32c(bytes(inner[at + 8 : at + 40 + commit - 1]))
        struct.pack_into("<I", inner, at + L.FRAME_CRC, crc)
        at += -(-(40 + commit - 1) // 8) * 8
    with penstock.open(path, segment_size="64KiB") as log:
        log.extend([b"a", b"b"])
        log.append(bytes(inner))
        log.extend([b"d", b"e"])
    seg = oracle.read_log(path)[0]
    return seg.path, seg, seg.frames[2].at


@pytest.mark.parametrize("hit", ["length", "body", "header"])
def test_a_frame_inside_a_value_is_no_event(path: Path, hit: str) -> None:
    """Whole frames inside a damaged value are not taken for events of this log."""
    name, seg, at = nested(path)
    if hit == "length":
        broken.flip(name, at, 1)
        broken.flip(name, at + 1, 0)
    elif hit == "body":
        broken.flip(name, seg.end - 300, 1)
    else:
        broken.put(name, at, b"\xff" * 40)
    (problem,) = damage(path)
    assert problem.lost == (3, 3)
    assert penstock.verify(path).events == 4


# What lies after the last whole batch.


def unfinished(path: Path) -> tuple[Path, oracle.Segment]:
    """A log with a few events and no checkpoint that speaks of them, nor control."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.extend([b"a", b"b"])
        log.append(b"c")
    path.joinpath("control").unlink()
    seg = oracle.read_log(path)[0]
    for at in (L.SLOT_A_OFFSET, L.SLOT_B_OFFSET):
        broken.put(seg.path, at, bytes(L.SLOT_BYTES))
    fd = os.open(seg.path, os.O_RDONLY)
    header = segment.read_header(fd, str(seg.path))
    os.close(fd)
    broken.put(seg.path, L.SLOT_A_OFFSET, segment.first_slot(header).pack())
    return seg.path, seg


def test_a_torn_tail_is_normal(path: Path) -> None:
    """Bytes of an append that was never published, at the end, are told and are no damage."""
    name, seg = unfinished(path)
    assert not penstock.verify(path).problems
    broken.put(name, seg.end + 8, b"x" * 100)
    report = penstock.verify(path)
    (problem,) = report.problems
    assert report.ok and problem.kind == "torn" and problem.offset == seg.end
    assert problem.last_seq == 3 and report.events == 3


def test_a_dead_batch_is_a_torn_tail(path: Path) -> None:
    """The frames of a batch whose first one was never published are no events, and no damage."""
    name, seg = unfinished(path)
    ahead = path.with_name("ahead")
    shutil.copytree(path, ahead)
    with penstock.open(ahead) as log:
        log.extend([b"dead"] * 3)
    after = oracle.read_log(ahead)[0]
    batch = bytearray(after.raw[seg.end : after.end])
    batch[:4] = bytes(4)
    broken.put(name, seg.end, bytes(batch))
    report = penstock.verify(path)
    assert report.ok and [p.kind for p in report.problems] == ["torn"]
    assert (report.events, report.last_seq, report.frames) == (3, 3, 3)
    # The same bytes after something that did get published are events that nothing leads to.
    broken.flip(name, seg.frames[2].at + 10, 1)
    report = penstock.verify(path)
    assert not report.ok


def test_events_behind_a_bad_frame_are_damage(path: Path) -> None:
    """Valid events after a bad frame are damage, even if nothing vouches for them."""
    name, seg = unfinished(path)
    broken.flip(name, seg.frames[1].at + 40, 1)
    (problem,) = damage(path)
    assert problem.lost == (2, 2)


def test_zeros_below_a_checkpoint_are_damage(built: Built, copy: Path) -> None:
    """Frames that a checkpoint speaks of and that are gone are damage, with their seqs."""
    seg = built.segments[2]
    gone = seg.frames[-2:]
    broken.put(copy / seg.path.name, gone[0].at, bytes(seg.end - gone[0].at))
    (problem,) = damage(copy)
    assert (problem.kind, problem.lost) == ("end", (gone[0].seq, gone[1].seq))


def test_control_of_this_boot_vouches(path: Path) -> None:
    """Without a checkpoint, frames that control knows of and that are broken are damage."""
    log = penstock.open(path, segment_size="64KiB")
    log.extend([b"a", b"b", b"c"])
    seg = oracle.read_log(path)[0]
    copy = path.with_name("copy")
    shutil.copytree(path, copy)
    broken.flip(seg.path, seg.frames[2].at + 40, 1)
    (problem,) = damage(path)
    assert problem.offset == seg.frames[2].at
    log._ctl = None  # so that closing does not mind
    broken.flip(copy / seg.path.name, seg.frames[2].at + 40, 1)
    report = penstock.verify(copy)  # its control is a copy, and nobody's
    assert report.ok and [p.kind for p in report.problems] == ["torn"]


# Segments as files.


def kinds(path: Path) -> dict[str, str]:
    return {
        f"{Path(p.path).name[:20]} {p.kind}": p.severity for p in penstock.verify(path).problems
    }


def test_a_missing_segment(built: Built, copy: Path) -> None:
    """A missing middle segment is damage, with the range of its seqs; a missing oldest is none."""
    second = built.segments[1]
    copy.joinpath(second.path.name).unlink()
    (problem,) = damage(copy)
    assert problem.lost == (second.base_seq, built.segments[2].base_seq - 1)
    copy.joinpath(built.segments[0].path.name).unlink()
    assert penstock.verify(copy).ok


def test_a_missing_newest_segment(built: Built, copy: Path) -> None:
    """A sealed segment whose successor is gone is damage: seqs from there on were given out."""
    copy.joinpath(built.segments[2].path.name).unlink()
    (problem,) = damage(copy)
    assert problem.kind == "missing" and problem.last_seq == built.segments[2].base_seq - 1


def test_an_unfinished_roll_is_normal(path: Path) -> None:
    """A roll frame whose successor was not made yet is what a crash leaves."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.append(b"a")
        log.steward.roll()
    first, second = oracle.segment_paths(path)
    second.unlink()
    path.joinpath("control").unlink()
    broken.put(first, first.stat().st_size - L.PAGE, bytes(L.PAGE))  # not sealed yet
    report = penstock.verify(path)
    assert report.ok and [p.kind for p in report.problems] == ["roll"]


def test_a_load_that_was_broken_off(path: Path) -> None:
    """Segments of a load that died before it was part of the log are no damage, and no events."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.append(b"a")
    end = oracle.read_log(path)[0].end
    with penstock.open(path) as log:
        log.load(b"%d" % n * 20 for n in range(3000))
    first, *loaded = oracle.segment_paths(path)
    assert len(loaded) > 3
    path.joinpath("control").unlink()
    for name in loaded:  # as they are until the load is done
        for at in (L.SLOT_B_OFFSET, oracle.read_segment(name).segment_bytes - L.PAGE):
            if at < name.stat().st_size:
                broken.put(name, at, bytes(L.PAGE))
    raw = first.read_bytes()
    (size,) = struct.unpack_from("<Q", raw, L.HEADER_SEGMENT_BYTES)
    broken.put(first, end, bytes(min(size, len(raw)) - end))
    for at in (L.SLOT_A_OFFSET, L.SLOT_B_OFFSET):
        if struct.unpack_from("<Q", raw, at + L.SLOT_OFFSET)[0] > end:
            broken.put(first, at, bytes(L.SLOT_BYTES))
    for torn in (b"", b"\0\0\0\0torn"):
        broken.put(first, end, torn)
        report = penstock.verify(path)
        assert report.ok and report.events == 1, str(report)
        assert [p.kind for p in report.problems].count("spurious") == len(loaded)
        assert not penstock.repair(path).steps
    with penstock.open(path) as log:
        assert [e.value for e in log] == [b"a"]


def test_swapped_segments(built: Built, copy: Path) -> None:
    """Two segments under each other's names are both told, and their events are counted."""
    first, second = (copy / s.path.name for s in built.segments[:2])
    first.rename(copy / "x")
    second.rename(first)
    (copy / "x").rename(second)
    report = penstock.verify(copy)
    assert {p.kind for p in report.problems} == {"name"} and not report.ok
    assert report.events == len(built.truth)


def test_a_second_copy_of_a_segment(built: Built, copy: Path) -> None:
    """A segment under a second name is spurious, with the reason, and no damage."""
    shutil.copy(copy / built.segments[0].path.name, copy / f"{7:020d}.seg")
    report = penstock.verify(copy)
    (problem,) = report.problems
    assert report.ok and problem.kind == "spurious" and "under another name" in problem.message


def test_a_segment_of_another_log(built: Built, copy: Path, tmp_path: Path) -> None:
    """A segment of another log is spurious, even if its base would fit."""
    other = broken.build(tmp_path / "other")
    shutil.copy(other.segments[0].path, copy / f"{1000:020d}.seg")
    shutil.copy(other.segments[2].path, copy / f"{1001:020d}.seg")
    report = penstock.verify(copy)
    assert report.ok and [p.kind for p in report.problems] == ["spurious"] * 2
    assert report.events == len(built.truth)


def test_a_segment_inside_anothers_range(path: Path) -> None:
    """A segment of this log's own uuid that begins inside another's range is spurious."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.extend([b"x"] * 5)
    fork = path.with_name("fork")
    shutil.copytree(path, fork)
    with penstock.open(fork) as log:
        log.steward.roll()
        log.append(b"fork")
    with penstock.open(path) as log:
        log.extend([b"y"] * 5)
        log.steward.roll()
        log.append(b"z")
    shutil.copy(fork / f"{6:020d}.seg", path)
    report = penstock.verify(path)
    assert report.ok and kinds(path) == {f"{6:020d} spurious": "normal"}
    assert report.events == 11


def test_left_over_files_are_mentioned(built: Built, copy: Path) -> None:
    """Files that are no segments are mentioned one by one, and are no damage."""
    names = ["lost-1-2.bin", "damaged-1-2.bin", "next.tmp", "next.7.tmp", "control.tmp", "notes"]
    for name in names:
        (copy / name).write_bytes(b"x")
    report = penstock.verify(copy)
    assert report.ok
    assert sorted(Path(p.path).name for p in report.problems) == sorted(names)
    assert {p.kind for p in report.problems} == {"left-over"}


def test_staged_rows_are_nothing_strange(path: Path, log: penstock.Log) -> None:
    """A directory for what somebody has yet to append is known, and no part of the log."""
    log.append(b"a")
    (path / "staging" / "some").mkdir(parents=True)
    assert log.verify().problems == ()


def test_no_log() -> None:
    """What is no log is NotFound, not an empty report."""
    for path in ("/nowhere/at/all", "/proc"):
        with pytest.raises(penstock.NotFound):
            penstock.verify(path)
    with pytest.raises(penstock.WrongType):
        penstock.verify(7)  # type: ignore[arg-type]


# Hostile files.


def test_files_that_are_none(built: Built, copy: Path) -> None:
    """Pipes, links, directories and empty files under a segment's name neither hang nor end it."""
    os.mkfifo(copy / f"{100:020d}.seg")
    os.symlink("/dev/zero", copy / f"{101:020d}.seg")
    (copy / f"{102:020d}.seg").mkdir()
    (copy / f"{103:020d}.seg").touch()
    report = penstock.verify(copy)
    assert report.events == len(built.truth) and not report.ok
    assert len(report.problems) == 4
    assert [s.action for s in penstock.repair(copy, in_place=True).steps] == ["move"] * 4
    assert penstock.verify(copy).ok
    assert not penstock.repair(copy, in_place=True).steps
    with penstock.open(copy) as log:
        assert [e.seq for e in log] == sorted(built.truth)


@pytest.mark.parametrize("seed", range(40 if STORM else 8))
def test_random_bytes(built: Built, copy: Path, seed: int) -> None:
    """Random bytes over any part of any file end in a report, and never in a wrong count."""
    rng = random.Random(seed)
    for seg in built.segments:
        size = len(seg.raw)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(0, size - 8)
            broken.put(copy / seg.path.name, at, rng.randbytes(rng.randrange(1, 3000)))
    report = penstock.verify(copy)
    assert report.events <= len(built.truth)
    str(report)


@pytest.mark.parametrize("shape", ["longest", "nested", "valid and long"])
def test_bytes_made_to_take_long(path: Path, shape: str) -> None:
    """Frames that make a naive search take quadratic time take a few times the file's length.

    Each looks plausible and claims to reach to the end of a 16 MiB segment, so that a checksum of
    each would be 100 000 times 8 MiB.
    """
    with penstock.open(path, segment_size="16MiB") as log:
        log.append(b"first")
    path.joinpath("control").unlink()
    seg = oracle.read_log(path)[0]
    start, size = seg.end, seg.segment_bytes - L.PAGE
    out = bytearray()
    at, seq, last = start, 2, seg.frames[-1].at
    step = 40 if shape == "nested" else 48
    good = oracle.parse_frame(seg.raw, seg.data_offset)
    assert good is not None
    while at + 2000 < size:
        body = size - at - 48 if shape != "nested" else (size - at) // 2
        frame = bytearray(step)
        struct.pack_into(
            "<IIQQIIHHHBB",
            frame,
            0,
            body,
            1,
            seq,
            good.append_ns,
            at - last if shape == "valid and long" else step,
            0,
            L.NO_KEY,
            0,
            0,
            L.KIND_DATA,
            0,
        )
        out += frame
        if shape == "valid and long":
            tiny = bytearray(40)
            struct.pack_into(
                "<IIQQIIHHHBB",
                tiny,
                0,
                1,
                0,
                seq + 1,
                good.append_ns,
                step,
                0,
                L.NO_KEY,
                0,
                0,
                L.KIND_DATA,
                0,
            )
            struct.pack_into("<I", tiny, L.FRAME_CRC, _core.crc32c(bytes(tiny[8:])))
            out += tiny
            last = at + step
            seq += 1
            at += 40
        at += step
        seq += 1
    with seg.path.open("r+b") as file:
        file.truncate(size)
        file.seek(start)
        file.write(out)
    began = time.process_time()
    report = penstock.verify(path)
    assert not report.ok
    assert len(report.problems) < 1100
    assert time.process_time() - began < 60  # a naive search takes hours
    with penstock.open(path, mode="r") as log:
        assert log[1].value == b"first"
    with penstock.open(path) as log:  # looks for what to keep aside
        assert log.append(b"second") == 2


def test_a_device_that_fails(built: Built, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that the device does not give is told, and costs what is in it."""
    seg = built.segments[0]
    bad = 20480
    real = files.read_at

    def read_at(fd: int, nbytes: int, offset: int, path: str) -> bytes:
        if path.endswith(seg.path.name) and offset < bad + 4096 and offset + nbytes > bad:
            raise errors.from_os(OSError(errno.EIO, ""), "reading", path)
        return real(fd, nbytes, offset, path)

    monkeypatch.setattr(files, "read_at", read_at)
    report = penstock.verify(copy)
    hit = [f for f in seg.events if f.at < bad + 4096 and f.at + f.length > bad]
    assert {p.kind for p in report.problems} == {"unreadable", "frame"}
    assert report.events == len(built.truth) - len(hit)


def test_read_only_media(built: Built, copy: Path) -> None:
    """Verify works where nothing can be written, and leaves times and modes alone."""
    for name in copy.iterdir():
        name.chmod(0o400)
    copy.chmod(0o500)
    before = snapshot(copy)
    assert penstock.verify(copy).ok
    assert snapshot(copy) == before
    copy.chmod(0o700)


# Memory, speed and company.


def test_long_frames_are_read_in_pieces(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames longer than what is held in memory are checked, and a flipped bit in one is found."""
    with penstock.open(path, segment_size="16MiB") as log:
        for i in range(4):
            log.append(b"%d" % i * (3 << 20), topic="long")
            log.append(b"short")
    most = 0
    real = files.read_at

    def read_at(fd: int, nbytes: int, offset: int, name: str) -> bytes:
        nonlocal most
        most = max(most, nbytes)
        return real(fd, nbytes, offset, name)

    monkeypatch.setattr(files, "read_at", read_at)
    report = penstock.verify(path)
    assert report.ok and report.events == 8
    assert most <= tunables.SCAN_WINDOW_BYTES
    seg = oracle.segment_paths(path)[0]
    for at in (1 << 20, 5 << 20):
        broken.flip(seg, at, 0)
    assert [p.lost for p in damage(path)] == [(1, 1), (3, 3)]


def test_progress(path: Path) -> None:
    """Progress grows to the total, which it reaches; what it raises ends the verify."""
    with penstock.open(path, segment_size="16MiB") as log:
        for _ in range(30):
            log.append(b"x" * (1 << 20))
        said: list[tuple[int, int]] = []
        log.verify(progress=lambda done, total: said.append((done, total)))
    assert said == sorted(said) and len(said) > 2
    assert said[-1][0] == said[-1][1] > 30 << 20

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        penstock.verify(path, progress=stop)


def test_beside_a_writer(path: Path) -> None:
    """While another appends and rolls, verify finds no damage, and ever more events."""
    log = penstock.open(path, segment_size="64KiB")
    log.append(b"first")
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            log.extend([b"x" * 300] * 7, topic="t")
            log.append(b"y" * 5000)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = 0
        with penstock.open(path, mode="r") as other:
            turn = segments = 0
            while turn < 30 or segments < 4:
                turn += 1
                report = log.verify() if turn % 2 else other.verify()
                segments = report.segments
                assert report.ok, str(report)
                assert report.live and report.events == report.last_seq
                assert report.events >= seen
                seen = report.events
    finally:
        stop.set()
        writer.join()
        log.close()
    report = penstock.verify(path)
    assert report.ok and not report.live and report.segments > 3


def test_segments_that_come_meanwhile(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that rolls and seals after a verify's look at control leaves nothing missing."""
    list_dir = files.list_dir
    with penstock.open(path, segment_size="64KiB") as log:
        log.extend([b"a"] * 100)

        def sealed(base: int) -> bool:
            found = look(str(path / segment.file_name(base)), base)
            return found is not None and found.footer is not None

        def roll_then_list(directory: str) -> list[str]:
            monkeypatch.undo()
            for base in (1, 101):
                log.steward.roll()
                log.append(b"b")
                wait_for(partial(sealed, base), "the segment to be sealed")
            return list_dir(directory)

        monkeypatch.setattr(files, "list_dir", roll_then_list)
        report = penstock.verify(path)
    assert report.ok and report.live and report.events == 100, report


def test_what_lies_behind_a_live_head_is_not_looked_at(path: Path) -> None:
    """Of a log in use, bytes after head are somebody's unfinished append; below it they count."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.extend([b"a", b"b", b"c"])
        seg = oracle.read_log(path)[0]
        broken.put(seg.path, seg.end, b"\xff" * 500)
        report = log.verify()
        assert report.live and not report.problems
        broken.put(seg.path, seg.end, bytes(500))
        broken.put(seg.path, seg.frames[1].at, bytes(8))
        report = log.verify()
        assert [p.lost for p in report.problems] == [(2, 2)]
        broken.put(seg.path, seg.frames[1].at, seg.raw[seg.frames[1].at :][:8])


def test_four_at_a_time_is_one_at_a_time(path: Path) -> None:
    """What verify says of many frames alike is what it says of the same frames one by one.

    The quick way takes four frames of one length; a flipped bit in any of them is found all the
    same, in every field.
    """
    with penstock.open(path, segment_size="64KiB") as log:
        log.extend([b"%03d" % i for i in range(40)], topic="t")
        for i in range(40):
            log.append(b"%03d" % i, topic="t")
    seg = oracle.read_log(path)[0]
    assert penstock.verify(path).events == 80
    rng = random.Random(7)
    for index in range(30, 50):
        frame = seg.frames[index]
        for at in [0, 5, 9, 17, 25, 29, 33, 35, 37, 38, 39, 40, 43]:
            bit = rng.randrange(8)
            broken.flip(seg.path, frame.at + at, bit)
            (problem,) = damage(path)
            assert problem.offset == frame.at and problem.lost == (frame.seq, frame.seq)
            broken.flip(seg.path, frame.at + at, bit)
    assert penstock.verify(path).ok


def test_a_footer_that_lies(built: Built, copy: Path) -> None:
    """A footer with a right checksum that says something else than the frames is damage."""
    seg = built.segments[0]
    name = copy / seg.path.name
    fd = os.open(name, os.O_RDWR)
    header = segment.read_header(fd, str(name))
    footer = segment.read_footer(fd, header, str(name))
    assert footer is not None
    lies: list[dict[str, Any]] = [
        {"count": 7},
        {"first_seq": 2},
        {"last_seq": 99},
        {"event_max_ns": 1},
        {"data_crc": 0},
        {"topics": frozenset({b"t0"})},
        {"monotone": not footer.monotone},
        {"log_event_max_ns": 0},
    ]
    for lie in lies:
        os.pwrite(fd, replace(footer, **lie).pack(header), header.footer_offset)
        (problem,) = damage(copy)
        assert problem.kind == "footer" and next(iter(lie)) in problem.message
    os.close(fd)


def test_the_golden_logs_are_whole(tmp_path: Path) -> None:
    """Logs of every released format version verify."""
    golden = Path(__file__).parents[1] / "golden"
    for archive in sorted(golden.glob("v*.tar.xz")):
        shutil.unpack_archive(archive, tmp_path / archive.name)
        logs = {p.parent for p in (tmp_path / archive.name).rglob("*.seg")}
        assert logs
        for log in logs:
            report = penstock.verify(log)
            assert report.ok and report.events, str(report)
