"""Reading past damage when told to, and never otherwise."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import headers
from penstock import layout as L
from tests.unit import broken, oracle
from tests.unit.broken import STORM, Built, facts

EVENLY = 1 if STORM else 61


@pytest.fixture(scope="module", params=[True, False], ids=["control", "no control"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A log with every kind of frame, closed."""
    return broken.build(tmp_path_factory.mktemp("built") / "log", control=request.param)


@pytest.fixture
def copy(built: Built, tmp_path: Path) -> Path:
    """A copy of it to break."""
    return built.copy(tmp_path / "copy")


def skipping(log: penstock.Log, truth: dict[int, Any], lost: set[int], **how: Any) -> None:
    """All events but the lost ones come, in order, as they were appended; the lost are counted."""
    for reverse in (False, True):
        reader = log.read(reverse=reverse, on_damage="skip", **how)
        got = [facts(e) for e in reader]
        wanted = [truth[seq] for seq in sorted(truth, reverse=reverse) if seq not in lost]
        assert got == wanted, (reverse, [g[0] for g in got], lost)
        assert reader.skipped == len(lost), (reverse, lost)


def strictly(log: penstock.Log, truth: dict[int, Any], lost: set[int]) -> None:
    """By default a read gives everything or raises where the first lost event is."""
    for reverse in (False, True):
        reader = log.read(reverse=reverse)
        got = []
        try:
            for event in reader:
                got.append(facts(event))
        except penstock.Corrupt:
            pass
        else:
            assert not lost
            assert len(got) == len(truth)
        order = sorted(truth, reverse=reverse)
        assert got == [truth[seq] for seq in order[: len(got)]]
        assert not lost & {g[0] for g in got}


def one_by_one(log: penstock.Log, truth: dict[int, Any], lost: set[int]) -> None:
    """An event that is whole can be had by its seq, whatever happened to its neighbours."""
    for seq, wanted in truth.items():
        if seq in lost:
            with pytest.raises(penstock.Corrupt):
                log[seq]
            assert not log.read(seq, seq + 1, on_damage="skip").take(9)
        else:
            assert facts(log[seq]) == wanted
            assert [facts(e) for e in log.read(seq, seq + 1)] == [wanted]
            (event,) = log.read(seq, seq + 1, reverse=True, on_damage="skip")
            assert facts(event) == wanted


@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_bit(built: Built, tmp_path: Path, number: int) -> None:
    """A flipped bit in a frame costs the frame's event; in index, footer or slot it costs none."""
    seg = built.segments[number]
    for what, places in broken.places(seg).items():
        if what == "header":
            continue
        for at in range(places.start + number, places.stop, EVENLY):
            for bit in range(8) if STORM else [at * 3 % 8]:
                path = built.copy(tmp_path / "copy")
                broken.flip(path / seg.path.name, at, bit)
                lost = {
                    seq
                    for p in penstock.verify(path).problems
                    if p.lost is not None
                    for seq in range(p.lost[0], p.lost[1] + 1)
                }
                assert len(lost) <= 1
                with penstock.open(path, mode="r") as log:
                    skipping(log, built.truth, lost)
                    strictly(log, built.truth, lost)
                    one_by_one(log, built.truth, lost)


@pytest.mark.parametrize("number", [0, 1])
def test_a_damaged_header_costs_its_segment(built: Built, copy: Path, number: int) -> None:
    """A segment of which no copy of the header can be read is passed over; the others are read."""
    for at in (0, *headers.COPIES):
        broken.flip(copy / built.segments[number].path.name, at + 40, 2)
    lost = built.seqs_of(number)
    with penstock.open(copy, mode="r") as log:
        skipping(log, built.truth, lost)
        strictly(log, built.truth, lost)
        assert not list(log.read(since=0, until=1, topic="none", on_damage="skip"))
        for seq in set(built.truth) - lost:
            assert facts(log[seq]) == built.truth[seq]


def test_a_missing_segment_is_passed_over(built: Built, copy: Path) -> None:
    """A segment that is not there at all is passed over as well, and counted."""
    copy.joinpath(built.segments[1].path.name).unlink()
    with penstock.open(copy, mode="r") as log:
        skipping(log, built.truth, built.seqs_of(1))
        strictly(log, built.truth, built.seqs_of(1))


@pytest.mark.parametrize("sealed", [True, False])
def test_the_rest_of_a_segment(built: Built, copy: Path, sealed: bool) -> None:
    """Where the rest of a segment is lost, reading goes on in the next one."""
    seg = built.segments[0]
    name = copy / seg.path.name
    if not sealed:
        os.truncate(name, seg.segment_bytes - L.PAGE)
    broken.put(name, seg.frames[9].at, b"\xff" * (seg.end - seg.frames[9].at))
    lost = {f.seq for f in seg.frames[9:] if f.is_event}
    with penstock.open(copy, mode="r") as log:
        skipping(log, built.truth, lost)
        strictly(log, built.truth, lost)
        reader = log.read(12, on_damage="skip")
        assert next(reader).seq == built.segments[1].base_seq


def test_several_places(built: Built, copy: Path) -> None:
    """Damage in many places costs those places, whichever way one reads, filtered or not."""
    lost = set()
    for seg in built.segments[:2]:
        for frame in seg.frames[1::3]:
            broken.flip(copy / seg.path.name, frame.at + 21, 1)
            if frame.is_event:
                lost.add(frame.seq)
    with penstock.open(copy, mode="r") as log:
        skipping(log, built.truth, lost)
        one_by_one(log, built.truth, lost)
        got = [e.seq for e in log.read(topic="t0", on_damage="skip")]
        assert got == [s for s, f in built.truth.items() if f[2] == "t0" and s not in lost]
        got = [e.seq for e in log.read(since=200, until=900, reverse=True, on_damage="skip")]
        wanted = [s for s, f in built.truth.items() if 200 <= f[1] < 900 and s not in lost]
        assert got == wanted[::-1]


def test_following_a_live_log(path: Path) -> None:
    """A follower that skips goes on after damage, and after a lost end once more is appended."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.extend([b"%d" % i for i in range(6)])
        seg = oracle.read_log(path)[0]
        broken.flip(seg.path, seg.frames[1].at + 40, 0)
        broken.put(seg.path, seg.frames[4].at, bytes(16))
        broken.put(seg.path, seg.frames[5].at, bytes(16))
        with pytest.raises(penstock.Corrupt):
            list(log.follow("start", timeout=0))
        reader = log.follow("start", timeout=0, on_damage="skip")
        assert [e.seq for e in reader] == [1, 3, 4]
        log.append(b"six")
        assert [e.value for e in reader] == [b"six"]
        log.steward.roll()
        log.append(b"seven")
        assert [e.value for e in reader] == [b"seven"]
        assert reader.skipped == 3
        assert [e.seq for e in log.read(on_damage="skip")] == [1, 3, 4, 7, 8]
        assert [e.seq for e in log.read(reverse=True, on_damage="skip")] == [8, 7, 4, 3, 1]


def test_beside_a_writer(path: Path) -> None:
    """Skipping readers of a log in use miss only what is damaged, while it rolls."""
    log = penstock.open(path, segment_size="64KiB")
    log.extend([b"x" * 200] * 20)
    seg = oracle.read_log(path)[0]
    broken.flip(seg.path, seg.frames[7].at + 60, 2)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set() and log.last_seq < 20_000:
            log.extend([b"x" * 200] * 5)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with penstock.open(path, mode="r") as other:
            for _ in range(20):
                last = other.last_seq
                seqs = [e.seq for e in other.read(stop=last + 1, on_damage="skip")]
                assert seqs == [s for s in range(1, last + 1) if s != 8]
                seqs = [e.seq for e in other.read(stop=last + 1, reverse=True, on_damage="skip")]
                assert seqs == [s for s in range(last, 0, -1) if s != 8]
    finally:
        stop.set()
        writer.join()
        log.close()


def test_the_option_is_checked(log: penstock.Log) -> None:
    """Anything but "raise" and "skip" is a Usage error."""
    for call in (log.read, log.follow):
        with pytest.raises(penstock.Usage, match="on_damage must be"):
            call(on_damage="ignore")  # type: ignore[arg-type]


def test_a_lying_index_hides_nothing(path: Path) -> None:
    """In a log in use, an index entry with a wrong seq or place leads to no wrong answer."""
    with penstock.open(path, segment_size="64KiB") as log:
        for i in range(100):
            log.append(b"%d" % i * 100)
        seg = oracle.read_log(path)[0]
        entries = oracle.index_entries(seg)
        at = L.INDEX_OFFSET + 2 * L.INDEX_ENTRY_BYTES
        offset, _, seq = entries[2][:3]
        for lie in (1, seq - 5, seq + 5, 1 << 40):
            broken.put(seg.path, at + 8, lie.to_bytes(8, "little"))
            assert [log[s].seq for s in range(1, 101)] == list(range(1, 101)), lie
        broken.put(seg.path, at + 8, seq.to_bytes(8, "little"))
        for lie in (0, 8, offset + 8, offset + 3, 1 << 40, entries[3][0]):
            broken.put(seg.path, at, lie.to_bytes(8, "little"))
            assert [log[s].seq for s in range(1, 101)] == list(range(1, 101)), lie
        assert not log.verify().ok


def test_a_damaged_log_opens_for_reading(built: Built, copy: Path, tmp_path: Path) -> None:
    """Damage in the newest segment keeps writers out, and readers only from what is damaged."""
    seg = built.segments[2]
    broken.flip(copy / seg.path.name, seg.frames[-2].at + 17, 0)
    again = tmp_path / "again"
    shutil.copytree(copy, again)
    with penstock.open(again, mode="r") as log:
        assert log.last_seq == max(built.truth)
        skipping(log, built.truth, {seg.frames[-2].seq})
    with pytest.raises(penstock.Corrupt):
        penstock.open(again)
