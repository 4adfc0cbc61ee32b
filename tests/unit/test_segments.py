"""Segments: rolling, preparing, allocating, sealing, and the index that goes with them."""

from __future__ import annotations

import itertools
import os
import shutil
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.segments import writing as segmented
from penstock.segments.segment import file_name, map_segment
from penstock.segments.storage import SegmentStorage
from penstock.steward import ahead
from penstock.steward.seal import seal
from penstock.system import files
from tests.support.wait import wait_for
from tests.unit import oracle


def fill(log: penstock.Log, count: int, nbytes: int = 1000, **parts: Any) -> None:
    for _ in range(count):
        log.append(b"x" * nbytes, **parts)


def blocks(path: Path) -> int:
    return sum(p.stat().st_blocks * 512 for p in path.iterdir())


def footer(segment: oracle.Segment) -> tuple[Any, ...] | None:
    """The fields of the footer page, or None if the segment is not sealed."""
    page = segment.raw[segment.segment_bytes - 4096 : segment.segment_bytes]
    if page[:8] != b"PSKSEALD":
        return None
    assert struct.unpack_from("<I", page, 4092) == (oracle.crc32c(page[:4092]),)
    return struct.unpack_from("<II16sQIIQQQQQQQQQQQQIIIII", page, 8)


def footer_topics(segment: oracle.Segment) -> list[bytes]:
    page = segment.raw[segment.segment_bytes - 4096 : segment.segment_bytes]
    (length,) = struct.unpack_from("<I", page, 160)
    raw, found = page[168 : 168 + length], []
    while raw:
        n = int.from_bytes(raw[:2], "little")
        found.append(raw[2 : 2 + n])
        raw = raw[2 + n :]
    return found


def test_a_seal_keeps_the_table_of_producers(path: Path) -> None:
    """A sealed segment still has the table of producers that its header speaks of."""
    with penstock.open(path, segment_size="64KiB") as log:
        for n in range(3):
            log.append(b"x", producer=("someone", n))
            log.steward.roll()
    segments = oracle.read_log(path)
    sealed = [s.raw for s in segments[1:] if footer(s) is not None]
    assert len(sealed) == 2
    for raw in sealed:
        at, nbytes, crc = struct.unpack_from("<QII", raw, 112)
        assert nbytes > 0 and oracle.crc32c(raw[at : at + nbytes]) == crc


def test_an_empty_log_takes_little_space(path: Path) -> None:
    """A new log with default settings takes less than a MiB of disk, its first event included."""
    with penstock.open(path) as log:
        assert blocks(path) < 1 << 20
        log.append(b"first")
    assert blocks(path) < 1 << 20


def test_space_is_taken_in_steps(path: Path) -> None:
    """The file grows ahead of the frames and never to the whole segment at once."""
    with penstock.open(path) as log:
        sizes = []
        for _ in range(40):
            fill(log, 1, 50_000)
            (name,) = oracle.segment_paths(path)
            sizes.append(name.stat().st_size)
            assert name.stat().st_size < 16 << 20
    assert sizes == sorted(sizes)
    segment = oracle.read_segment(name)
    assert sizes[-1] >= segment.end
    written = name.stat().st_blocks * 512
    assert written >= segment.end - segment.data_offset


def test_roll_by_size(log: penstock.Log, path: Path) -> None:
    """A segment without room for the next event ends in a roll frame that names its successor."""
    fill(log, 200)
    segments = oracle.read_log(path)
    assert len(segments) > 3
    assert [s.number for s in segments] == list(range(1, len(segments) + 1))
    assert len({s.uuid for s in segments}) == 1
    for before, after in itertools.pairwise(segments):
        assert before.rolled
        assert before.frames[-1].seq == after.base_seq == before.events[-1].seq + 1
        assert after.prior_append_ns == before.frames[-1].append_ns
        assert after.prior_event_max_ns == max(f.time_ns for f in before.events)
    assert not segments[-1].rolled
    assert [e.seq for e in log] == list(range(1, 201))


def test_roll_on_call(log: penstock.Log, path: Path) -> None:
    """steward.roll ends the active segment and returns the first seq of the new one."""
    fill(log, 3)
    assert log.steward.roll() == 4
    assert [s.base_seq for s in oracle.read_log(path)] == [1, 4]
    assert log.append(b"next") == 4


def test_an_empty_segment_is_not_rolled(log: penstock.Log, path: Path) -> None:
    """Rolling where nothing was appended leaves the segment, also if it holds a settings frame."""
    assert log.steward.roll() == 1
    log.append(b"a")
    assert [log.steward.roll() for _ in range(3)] == [2, 2, 2]
    log.configure(segment_size="128KiB")
    assert log.steward.roll() == 2
    assert [s.base_seq for s in oracle.read_log(path)] == [1, 2]


def test_roll_by_a_settings_frame(log: penstock.Log, path: Path) -> None:
    """A settings frame that finds no room rolls like an event and holds in the new segment."""
    room = oracle.read_log(path)[0]
    log.append(b"x" * (room.segment_bytes - 4096 - 40 - room.data_offset - 40 - 8))
    log.configure(segment_size="128KiB")
    log.append(b"next")
    segments = oracle.read_log(path)
    assert [s.base_seq for s in segments] == [1, 2]
    assert [f.kind for f in segments[1].frames] == [6, 1]
    assert [e.seq for e in log] == [1, 2]
    assert [e.seq for e in reversed(log)] == [2, 1]


def test_the_next_segment_is_prepared(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From 80 % on, a file is ready under a temporary name, and the roll uses that very file."""
    prepared: list[int] = []
    rename = files.rename

    def watched(source: str, target: str, *, replace: bool = True) -> None:
        rename(source, target, replace=replace)
        if target.endswith("next.tmp"):
            prepared.append(Path(target).stat().st_ino)

    monkeypatch.setattr(files, "rename", watched)
    with penstock.open(path, segment_size="1MiB") as log:
        fill(log, 90, 10_000)
    assert prepared
    assert not path.joinpath("next.tmp").exists()  # the last writer to close deletes it
    with penstock.open(path) as log:
        prepared.clear()
        fill(log, 1, 10_000)
        log._look_ahead()
        keeper = log._keeper
        assert keeper is not None
        keeper.stop()
        assert prepared
        log.steward.roll()
        used = oracle.segment_paths(path)[-1].stat().st_ino
        assert used in prepared
    assert [e.seq for e in penstock.open(path, mode="r")] == list(range(1, 92))


def test_a_prepared_segment_has_blocks_for_a_while(path: Path) -> None:
    """Appends that roll go on without anybody allocating for them; a new log has few blocks."""
    with penstock.open(path, segment_size="16MiB") as log:
        [first] = path.glob("*.seg")
        assert first.stat().st_blocks * 512 < 1 << 20
        fill(log, 14_500, 1000)  # nine tenths
        wait_for(path.joinpath("next.tmp").exists, "the next segment to be prepared")
        assert path.joinpath("next.tmp").stat().st_blocks * 512 >= 2 << 20


def test_a_prepared_file_of_another_size_is_not_used(path: Path) -> None:
    """A file prepared before the segment size was changed is not used for the wrong size."""
    with penstock.open(path, segment_size="1MiB") as log:
        fill(log, 90, 10_000)
        log._look_ahead()
        log.configure(segment_size="64KiB")
        log.steward.roll()
        log.append(b"small")
        log.configure(segment_size="16MiB")
        log.steward.roll()
        log.append(b"large")
    sizes = [s.segment_bytes for s in oracle.read_log(path)]
    assert sizes == [1 << 20, 64 << 10, 16 << 20]
    assert len(list(penstock.open(path))) == 92


def sealed_log(path: Path, **options: Any) -> list[oracle.Segment]:
    """A log of several segments whose times rise, fall and repeat, all but the last one sealed."""
    with penstock.open(path, segment_size="64KiB", **options) as log:
        log.append(b"first", topic="only here")
        for i in range(150):
            parts: dict[str, Any] = {"time": (i * 37) % 101 + 5} if 40 < i < 90 else {}
            log.append(b"x" * (i * 11 % 1500), topic=f"t{i % 7}", **parts)
        log.append(None, key=b"k")
        log.steward.roll()
        log.append(b"active")
    return oracle.read_log(path)


def test_sealed_segments_have_a_true_footer(path: Path) -> None:
    """Every field of every footer equals what the frames themselves say."""
    segments = sealed_log(path)
    assert len(segments) > 2
    log_max, log_monotone = 0, True
    for segment in segments[:-1]:
        fields = footer(segment)
        assert fields is not None
        version, flags, uuid, base, number, generation = fields[:6]
        assert (version, uuid, base, number, generation) == (
            5,
            segment.uuid,
            segment.base_seq,
            segment.number,
            0,
        )
        times = [f.time_ns for f in segment.events]
        monotone = times == sorted(times)
        log_monotone = log_monotone and monotone and times[0] >= log_max
        log_max = max(log_max, *times)
        entries = oracle.index_entries(segment)
        index = b"".join(struct.pack("<IIQQQQ", *e) for e in entries)
        assert fields[6:17] == (
            segment.end,
            segment.frames[-1].at,
            len(segment.events),
            segment.events[0].seq,
            segment.events[-1].seq,
            segment.events[-1].seq + 1,
            segment.events[0].append_ns,
            segment.frames[-1].append_ns,
            min(times),
            max(times),
            log_max,
        )
        topics = {f.topic for f in segment.events}
        assert fields[18:22] == (
            len(entries),
            oracle.crc32c(index),
            oracle.crc32c(b"".join(segment.raw[f.at : f.at + 8] for f in segment.frames)),
            len(topics),
        )
        assert footer_topics(segment) == sorted(topics)
        assert flags == (1 if monotone else 0) | 2 | (4 if log_monotone else 0) | 8
        at = segment.index_offset
        assert segment.raw[at : at + len(index)] == index
    assert footer(segments[-1]) is None


def test_the_active_index_is_true(path: Path) -> None:
    """The writer keeps the same index in the active segment, all but the block still open."""
    with penstock.open(path, segment_size="1MiB") as log:
        for i in range(1200):
            log.append(b"x" * (i * 37 % (90 if i % 50 else 3000)), time=i * 7919 % 1000)
    (segment,) = oracle.read_log(path)
    entries = oracle.index_entries(segment)[:-1]
    assert len(entries) > 10
    raw = segment.raw[segment.index_offset :]
    assert [struct.unpack_from("<IIQQQQ", raw, 40 * i) for i in range(len(entries))] == entries
    assert not any(raw[40 * len(entries) : segment.data_offset - segment.index_offset])


def test_many_topics_are_not_listed(path: Path) -> None:
    """Topics that do not fit the footer are left out of it, and still found by reading."""
    names = {f"{i:04d}" * 50 for i in range(30)}
    with penstock.open(path, segment_size="64KiB") as log:
        for name in sorted(names):
            log.append(b"x", topic=name)
        log.steward.roll()
        log.append(b"y", topic="active")
    first = oracle.read_log(path)[0]
    fields = footer(first)
    assert fields is not None
    assert fields[1] & 2 == 0
    assert footer_topics(first) == []
    with penstock.open(path) as log:
        assert log.topics() == names | {"active"}
        assert [e.seq for e in log.read(topic="0007" * 50)] == [8]


def test_sealing_gives_slack_back(path: Path) -> None:
    """A sealed segment takes no more disk than its header, index, frames and footer."""
    with penstock.open(path, segment_size="16MiB") as log:
        fill(log, 10)
        log.steward.roll()
    sealed = oracle.segment_paths(path)[0]
    assert sealed.stat().st_size == 16 << 20
    assert sealed.stat().st_blocks * 512 <= 64 << 10
    with penstock.open(path) as log:
        assert len(list(log)) == 10


def test_a_sealed_segment_is_not_written_again(path: Path) -> None:
    """Opening, appending and rolling later on leave a sealed segment's bytes alone."""
    segments = sealed_log(path)
    with penstock.open(path) as log:
        fill(log, 100)
        log.steward.roll()
    again = oracle.read_log(path)
    assert [s.raw for s in again[: len(segments) - 1]] == [s.raw for s in segments[:-1]]


def test_what_was_not_sealed_is_sealed_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments that a dead process left closed but unsealed are whole, and get sealed in time."""
    with monkeypatch.context() as patch:
        patch.setattr(ahead, "seal_finished", lambda *_: 0)
        patch.setattr(segmented, "seal_finished", lambda *_: 0)
        with penstock.open(path, segment_size="64KiB") as log:
            fill(log, 200)
            assert len(list(log)) == 200
    assert {footer(s) for s in oracle.read_log(path)} == {None}
    with penstock.open(path, mode="r") as log:
        assert len(list(log)) == len(list(reversed(log))) == 200
        assert [log[i].seq for i in range(1, 201)] == list(range(1, 201))
        assert len(list(log.read(since=0))) == 200
    with penstock.open(path) as log:
        log.steward.roll()
        log.append(b"new")
    assert [footer(s) is not None for s in oracle.read_log(path)][:-1] == [True] * (
        len(oracle.read_log(path)) - 1
    )
    with penstock.open(path) as log:
        assert len(list(log)) == 201


def test_a_handle_keeps_few_maps(path: Path) -> None:
    """Reading a log of many segments keeps a bounded number of them mapped."""
    with penstock.open(path, segment_size="64KiB") as log:
        for _ in range(60):
            log.append(b"x")
            log.steward.roll()
        assert len(list(log)) == len(list(reversed(log))) == 60
        assert [log[i].seq for i in range(1, 61)] == list(range(1, 61))
        lines = Path("/proc/self/maps").read_text().splitlines()
        mapped = {line.split()[-1] for line in lines if str(path) in line}
        assert len(mapped) < 40


def test_looks_at_a_growing_file(path: Path) -> None:
    """A thread that allocates can write there, though others have looked before the file grew."""
    with penstock.open(path) as log:
        log.append(b"x")
    m, header = map_segment(str(path / file_name(1)), write=True)
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            m.grown()

    threads = [threading.Thread(target=look) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    for thread in threads:
        thread.start()
    try:
        for nbytes in range(m.file_bytes, header.footer_offset, 256 << 10):
            os.truncate(m.fd, nbytes)
            m.grown()
            time.sleep(0)  # the others' turn
            m.zero(nbytes - 8, nbytes)
    finally:
        ended.set()
        sys.setswitchinterval(interval)
        for thread in threads:
            thread.join()


def test_two_who_seal_write_the_same_bytes(path: Path, tmp_path: Path) -> None:
    """Two processes may seal one segment at once, and one break off: the bytes are the same."""
    copies = [tmp_path / "a", tmp_path / "b"]
    with penstock.open(path, segment_size="64KiB") as log:
        log.extend([b"x" * 100] * 50, topic="t")
        log.steward.roll()
        log.append(b"active")
    for copy in copies:
        shutil.copytree(path, copy)
        name = copy / oracle.segment_paths(path)[0].name
        with name.open("r+b") as file:  # as if nobody had sealed it yet
            file.truncate(name.stat().st_size - oracle.PAGE)
        seal(*map_segment(str(name), write=True))
    first, second = (oracle.segment_paths(copy)[0].read_bytes() for copy in copies)
    assert first == second and any(first[-oracle.PAGE :])


def test_sealing_waits_for_a_pause(log: penstock.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper leaves a finished segment alone while appends go on, however often it looks."""
    now = [100.0]
    monkeypatch.setattr(ahead, "monotonic", lambda: now[0])
    fill(log, 10)
    log.steward.roll()
    storage = log._storage
    assert isinstance(storage, SegmentStorage)
    attached, m, header = log._ctl, log._active_map, storage.header
    assert attached is not None
    assert m is not None
    assert header is not None
    keeper = ahead.Ahead(log._record, storage.directory, header.uuid, attached, seals=True)
    keeper.active = (m, header, log.settings)

    def sealed() -> bool:
        return map_segment(os.path.join(log.path, file_name(1)))[0].summary is not None

    assert keeper.work(False)
    assert keeper.work(False)
    now[0] += ahead.PAUSE * 0.9
    assert keeper.work(False)
    log.append(b"more")
    now[0] += ahead.PAUSE * 0.9
    assert keeper.work(False)
    assert not sealed()
    now[0] += ahead.PAUSE
    assert not keeper.work(False)
    assert sealed()
