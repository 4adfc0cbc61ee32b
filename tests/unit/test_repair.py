"""Repair: nothing valid is thrown away, nothing is changed unasked, and a killed run is no harm."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock import layout as L
from tests.unit import broken, oracle
from tests.unit.broken import STORM, Built, Facts, facts

EVENLY = 1 if STORM else 97


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A log with every kind of frame, closed, without control."""
    return broken.build(tmp_path_factory.mktemp("built") / "log")


@pytest.fixture
def copy(built: Built, tmp_path: Path) -> Path:
    """A copy of it to break."""
    return built.copy(tmp_path / "copy")


def lost_of(path: Path) -> set[int]:
    """The seqs that verify says are lost."""
    ranges = [p.lost for p in penstock.verify(path).problems if p.lost is not None]
    return {seq for first, last in ranges for seq in range(first, last + 1)}


def is_mended(path: Path, truth: dict[int, Facts], lost: set[int]) -> None:
    """A log that verifies, has every event but the lost ones in every way, and goes on."""
    report = penstock.verify(path)
    assert report.ok, str(report)
    wanted = [truth[seq] for seq in sorted(truth) if seq not in lost]
    for mode in ("r", "rw"):
        with penstock.open(path, mode=mode) as log:
            assert [facts(e) for e in log] == wanted
            assert [facts(e) for e in reversed(log)] == wanted[::-1]
            assert [facts(e) for e in log.read(since=0)] == wanted
            for event in wanted:
                assert facts(log[event[0]]) == event
            for seq in lost:
                with pytest.raises(penstock.NotFound):
                    log[seq]
            if mode == "rw":
                more = log.append(b"more")
                assert more > max(truth)
                assert log[more].value == b"more"
                log.steward.roll()
                assert len(list(log)) == len(wanted) + 1
    report = penstock.verify(path)
    assert report.ok, str(report)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_bit(built: Built, tmp_path: Path, number: int) -> None:
    """After a flip anywhere the repaired log verifies and has every event that was not hit."""
    seg = built.segments[number]
    for places in broken.places(seg).values():
        for at in range(places.start + number, places.stop, EVENLY):
            for bit in range(8) if STORM else [at * 7 % 8]:
                path = built.copy(tmp_path / "copy")
                broken.flip(path / seg.path.name, at, bit)
                lost = lost_of(path)
                assert len(lost) <= 1
                target = tmp_path / "mended"
                shutil.rmtree(target, ignore_errors=True)
                plan = penstock.repair(path, to=target)
                assert {s for a, b in plan.lost for s in range(a, b + 1)} == lost
                is_mended(target, built.truth, lost)


def test_a_plan_changes_nothing(built: Built, copy: Path) -> None:
    """Without being told where, repair only says what it would do."""
    seg = built.segments[0]
    broken.flip(copy / seg.path.name, seg.frames[3].at + 45, 0)
    before = {p.name: p.read_bytes() for p in copy.iterdir()}
    plan = penstock.repair(copy)
    assert {p.name: p.read_bytes() for p in copy.iterdir()} == before
    assert plan.target is None and plan.lost == ((4, 4),) and plan.salvaged == 14
    assert [s.action for s in plan.steps] == ["rebuild"]
    assert str(plan).splitlines() == [
        f"{copy}: can be repaired, 14 events salvaged",
        "lost: seq 4",
        f"rebuild {seg.path.name}: damaged: frame; 14 events",
    ]


def test_a_whole_log_needs_nothing(built: Built, copy: Path, tmp_path: Path) -> None:
    """Of a whole log the plan is empty, in place nothing changes, and a copy is a copy."""
    before = {p.name: p.read_bytes() for p in copy.iterdir()}
    assert not penstock.repair(copy, in_place=True).steps
    assert {p.name: p.read_bytes() for p in copy.iterdir()} == before
    plan = penstock.repair(copy, to=tmp_path / "to")
    assert str(plan) == f"{copy}: nothing to repair"
    is_mended(tmp_path / "to", built.truth, set())


def test_in_place(built: Built, copy: Path) -> None:
    """In place the log is mended under its name, originals are kept, and twice is once."""
    hit = [built.segments[0], built.segments[2]]
    originals = set()
    for seg in hit:
        broken.flip(copy / seg.path.name, seg.frames[2].at + 45, 0)
        originals.add((copy / seg.path.name).read_bytes())
    lost = lost_of(copy)
    assert len(lost) == 2
    plan = penstock.repair(copy, in_place=True)
    assert plan.target == str(copy) and len(plan.steps) == 3
    kept = {p.read_bytes() for p in copy.glob("damaged-*.bin")}
    assert kept == originals
    names = sorted(p.name for p in copy.iterdir())
    assert not penstock.repair(copy, in_place=True).steps
    assert sorted(p.name for p in copy.iterdir()) == names
    is_mended(copy, built.truth, lost)


def test_a_log_in_use(built: Built, copy: Path, tmp_path: Path) -> None:
    """In place is Busy while somebody has the log open; a plan or a copy is not."""
    seg = built.segments[0]
    broken.flip(copy / seg.path.name, seg.frames[2].at + 45, 0)
    with penstock.open(copy) as log:
        log.append(b"new")
        with pytest.raises(penstock.Busy):
            penstock.repair(copy, in_place=True)
        assert log.repair().lost == ((3, 3),)
        log.repair(to=tmp_path / "to")
        truth = built.truth | {log.last_seq: facts(log[log.last_seq])}
    is_mended(tmp_path / "to", truth, {3})


def test_arguments(built: Built, copy: Path, tmp_path: Path) -> None:
    """To two places at once is a Usage error, onto something that is there AlreadyExists."""
    with pytest.raises(penstock.Usage):
        penstock.repair(copy, to=tmp_path / "x", in_place=True)
    with pytest.raises(penstock.AlreadyExists):
        penstock.repair(copy, to=copy)
    with pytest.raises(penstock.NotFound):
        penstock.repair(tmp_path / "nothing")


def test_a_batch_that_lost_a_frame(built: Built, copy: Path, tmp_path: Path) -> None:
    """What is left of a batch becomes single events; whole batches stay batches."""
    seg = built.segments[0]
    middle = seg.frames[13]
    assert middle.batch_left == 1
    broken.flip(copy / seg.path.name, middle.at + 40, 0)
    penstock.repair(copy, to=tmp_path / "to")
    first, second, _ = oracle_log(tmp_path / "to")
    assert [f.batch_left for f in first.events[-2:]] == [0, 0]
    assert first.generation == 1
    assert [f.batch_left for f in second.frames] == [f.batch_left for f in built.segments[1].frames]
    is_mended(tmp_path / "to", built.truth, {middle.seq})


def oracle_log(path: Path) -> list[oracle.Segment]:
    """The segments of a repaired log; the oracle knows no holes, so it is told what is missing."""
    return [read_with_holes(p) for p in oracle.segment_paths(path)]


def read_with_holes(path: Path) -> oracle.Segment:
    raw = path.read_bytes()
    (generation,) = struct.unpack_from("<I", raw, L.HEADER_GENERATION)
    if generation == 0:
        return oracle.read_segment(path)
    (data,) = struct.unpack_from("<Q", raw, L.HEADER_DATA_OFFSET)
    (size,) = struct.unpack_from("<Q", raw, L.HEADER_SEGMENT_BYTES)
    frames: list[oracle.Frame] = []
    at, last = data, 0
    while at < size - L.PAGE and (frame := oracle.parse_frame(raw, at)) is not None:
        assert frame.back == (at - last if last else 0)
        assert not frames or frame.seq >= frames[-1].seq
        frames.append(frame)
        last, at = at, at + frame.length
    base, number = struct.unpack_from("<QI", raw, L.HEADER_BASE_SEQ)
    uuid = raw[L.HEADER_UUID : L.HEADER_UUID + 16]
    return oracle.Segment(
        path, raw, uuid, base, number, generation, size, data, 0, 0, 0, 0, 0, 0, b"", tuple(frames)
    )


def test_frames_keep_their_parts(built: Built, copy: Path, tmp_path: Path) -> None:
    """Salvaged frames keep seq, both times, kind, flags and body, control frames among them."""
    seg = built.segments[1]
    broken.flip(copy / seg.path.name, seg.frames[8].at + 45, 0)
    penstock.repair(copy, to=tmp_path / "to")

    def parts(frame: oracle.Frame) -> tuple[object, ...]:
        value = frame.value if frame.kind != L.KIND_PRODUCER else frame.value[:12]
        return (
            *(frame.seq, frame.append_ns, frame.kind, frame.flags, frame.given_ns),
            *(frame.topic, frame.headers, frame.key, value),
        )

    mended = oracle_log(tmp_path / "to")[1]
    assert [parts(f) for f in mended.frames] == [
        parts(f) for i, f in enumerate(seg.frames) if i != 8
    ]


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("gone", [(1,), (1, 2), (2,)])
def test_missing_segments(
    path: Path, tmp_path: Path, gone: tuple[int, ...], in_place: bool
) -> None:
    """In place of missing segments stand empty ones, and reading goes on after them."""
    with penstock.open(path, segment_size="64KiB") as log:
        for _ in range(4):
            log.extend([b"a", b"b", b"c"])
            log.steward.roll()
        log.append(b"last")
        truth = {e.seq: facts(e) for e in log}
    path.joinpath("control").unlink()
    lost = set()
    for index in gone:
        path.joinpath(f"{index * 3 + 1:020d}.seg").unlink()
        lost |= set(range(index * 3 + 1, index * 3 + 4))
    target = path if in_place else tmp_path / "to"
    plan = penstock.repair(path, **({"in_place": True} if in_place else {"to": target}))
    assert [s.action for s in plan.steps] == ["add"] * len(gone)
    assert plan.lost == ((min(lost), max(lost)),)
    numbers = [s.number for s in oracle_log(target)]
    assert numbers == list(range(1, 6))
    is_mended(target, truth, lost)


def test_a_missing_newest_segment(built: Built, copy: Path) -> None:
    """If the newest segment is gone, the log gets a new end and takes appends."""
    copy.joinpath(built.segments[2].path.name).unlink()
    penstock.repair(copy, in_place=True)
    truth = {s: f for s, f in built.truth.items() if s < built.segments[2].base_seq}
    is_mended(copy, truth, set())


@pytest.mark.parametrize("in_place", [True, False])
def test_swapped_segments(built: Built, copy: Path, tmp_path: Path, in_place: bool) -> None:
    """Segments under each other's names get their own back."""
    first, second = (copy / s.path.name for s in built.segments[:2])
    first.rename(copy / "x")
    second.rename(first)
    (copy / "x").rename(second)
    if in_place:
        plan = penstock.repair(copy, in_place=True)
    else:
        plan = penstock.repair(copy, to=tmp_path / "to")
    assert [s.action for s in plan.steps] == ["rename", "rename"]
    is_mended(copy if in_place else tmp_path / "to", built.truth, set())


def test_a_renamed_segment(built: Built, copy: Path) -> None:
    """A segment that somebody renamed gets its name back."""
    name = built.segments[1].path.name
    (copy / name).rename(copy / f"{9999:020d}.seg")
    assert [s.action for s in penstock.repair(copy, in_place=True).steps] == ["rename"]
    assert (copy / name).exists() and not (copy / f"{9999:020d}.seg").exists()
    is_mended(copy, built.truth, set())


@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_truncation(built: Built, tmp_path: Path, number: int) -> None:
    """Of a file that was cut off, what is left is kept, and the log goes on after what is lost.

    Not after what no file speaks of any more: a newest segment without its checkpoints.
    """
    seg = built.segments[number]
    step = 64 if STORM else 700
    cuts = {12288, *range(seg.data_offset, seg.end, step), seg.end - 1, seg.end}
    for cut in sorted(cuts):
        path = built.copy(tmp_path / "copy")
        os.truncate(path / seg.path.name, cut)
        kept = {f.seq for f in seg.events if f.at + f.length <= cut}
        penstock.repair(path, in_place=True)
        is_mended(path, built.truth, built.seqs_of(number) - kept)


@pytest.mark.parametrize("seed", range(30 if STORM else 6))
def test_random_bytes(built: Built, copy: Path, seed: int) -> None:
    """Whatever random bytes did to frames, what verify counts as good is there after repair."""
    rng = random.Random(seed)
    for seg in built.segments:
        for _ in range(2):
            at = rng.randrange(seg.data_offset, seg.end)
            broken.put(copy / seg.path.name, at, rng.randbytes(rng.randrange(1, 900)))
    report = penstock.verify(copy)
    penstock.repair(copy, in_place=True)
    with penstock.open(copy) as log:
        got = {e.seq: facts(e) for e in log}
    assert len(got) == report.events
    assert all(built.truth[seq] == event for seq, event in got.items())
    assert penstock.verify(copy).ok


def test_long_frames(path: Path, tmp_path: Path) -> None:
    """Frames longer than what is held in memory are copied, in batches that broke as well."""
    with penstock.open(path, segment_size="32MiB") as log:
        log.extend([b"a", b"b" * (3 << 20), b"c", b"d" * (2 << 20)], topic="t")
        log.append(b"e" * (4 << 20))
        log.extend([b"f", b"g" * (3 << 20)])
        truth = {e.seq: facts(e) for e in log}
    seg = oracle.segment_paths(path)[0]
    frames = read_with_holes(seg).frames
    for index in (2, 5):
        broken.flip(seg, frames[index].at + 40, 1)
    penstock.repair(path, to=tmp_path / "to")
    is_mended(tmp_path / "to", truth, {3, 6})


def test_producers_are_remembered(path: Path) -> None:
    """After a repair a repeated append of a producer is still a no-op."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.append(b"1", producer=("a", 1))
        log.append(b"2", producer=("b", 1))
        log.steward.roll()
        log.append(b"hit")
        log.append(b"3", producer=("a", 2))
    seg = oracle.read_log(path)[1]
    broken.flip(seg.path, seg.frames[0].at + 40, 0)
    penstock.repair(path, in_place=True)
    with penstock.open(path) as log:
        assert log.append(b"3", producer=("a", 2)) == 4
        assert log.append(b"2", producer=("b", 1)) == 2
        assert log.append(b"4", producer=("b", 2)) == 5


def test_settings_survive(path: Path) -> None:
    """The settings that held go on to hold, whatever segment is written again."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.append(b"a")
        log.append(b"b")
        log.configure(segment_size="128KiB")
    seg = oracle.read_log(path)[0]
    broken.flip(seg.path, seg.frames[0].at + 40, 0)
    penstock.repair(path, in_place=True)
    with penstock.open(path) as log:
        assert log.settings.segment_size == 128 << 10
        assert [e.value for e in log] == [b"b"]


def test_settings_that_cannot_be_read(path: Path) -> None:
    """A settings frame that is intact but holds no settings is damage, and repair ends its rule."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.append(b"a")
        log._append_settings(b"{")
    assert [p.kind for p in penstock.verify(path).problems] == ["settings"]
    with pytest.raises(penstock.Corrupt):
        penstock.open(path)
    penstock.repair(path, in_place=True)
    assert penstock.verify(path).ok
    with penstock.open(path) as log:
        assert log.settings.segment_size == 64 << 10
        assert log.append(b"b") == 2
        assert [e.value for e in log] == [b"a", b"b"]


def test_a_newer_frame_is_not_lost(built: Built, copy: Path) -> None:
    """A frame of a kind that this version does not know is not thrown away: repair refuses."""
    seg = built.segments[0]
    frame = seg.frames[4]
    raw = bytearray(seg.raw[frame.at : frame.at + frame.length])
    raw[L.FRAME_KIND] = 77
    (commit,) = struct.unpack_from("<I", raw)
    struct.pack_into("<I", raw, L.FRAME_CRC, oracle.crc32c(bytes(raw[8 : 40 + commit - 1])))
    broken.put(copy / seg.path.name, frame.at, bytes(raw))
    with pytest.raises(penstock.UnsupportedVersion):
        penstock.repair(copy, in_place=True)


def test_a_torn_tail_is_left_to_open(path: Path, tmp_path: Path) -> None:
    """An unfinished append is no damage, and no reason to write anything again."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.append(b"a")
        truth = {e.seq: facts(e) for e in log}
    seg = oracle.read_log(path)[0]
    path.joinpath("control").unlink()
    broken.put(seg.path, seg.end + 8, b"x" * 60)
    assert not penstock.repair(path).steps
    penstock.repair(path, to=tmp_path / "to")
    is_mended(tmp_path / "to", truth, set())


KILLED = """
import sys
import penstock
from penstock import _core
_core.fail_arm(sys.argv[2], int(sys.argv[3]))
penstock.repair(sys.argv[1], in_place=True)
"""


def wreck(built: Built, path: Path) -> set[int]:
    """Two swapped segments, one of them damaged, and a damaged newest one; the seqs lost."""
    first, second, third = (path / s.path.name for s in built.segments)
    broken.flip(first, built.segments[0].frames[3].at + 45, 0)
    broken.flip(third, built.segments[2].frames[3].at + 45, 0)
    first.rename(path / "x")
    second.rename(first)
    (path / "x").rename(second)
    return {built.segments[0].frames[3].seq, built.segments[2].frames[3].seq}


@pytest.mark.process
@pytest.mark.parametrize(
    ("point", "times"),
    [
        ("mend.built", 1),
        *(("mend.kept", n) for n in (1, 2, 3)),
        *(("mend.named", n) for n in (1, 2, 3, 4)),
    ],
)
def test_killed_at_any_point(built: Built, copy: Path, point: str, times: int) -> None:
    """Whenever a repair in place is killed, a second one finishes it and nothing more is lost."""
    lost = wreck(built, copy)
    done = subprocess.run([sys.executable, "-c", KILLED, str(copy), point, str(times)], check=False)
    assert done.returncode == -9
    penstock.repair(copy, in_place=True)
    is_mended(copy, built.truth, lost)
