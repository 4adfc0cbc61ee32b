"""Key filters: reads by key pass over segments without the key, and never over an event."""

from __future__ import annotations

import random
import shutil
import struct
from pathlib import Path

import pytest

import penstock
from penstock import Entry
from penstock import layout as L
from penstock.segments import segment

GOLDEN = Path(__file__).parents[1] / "golden"


def make(path: Path, segments: int = 5, keys: int = 200) -> dict[bytes, list[int]]:
    """A log of sealed segments, each with its own keys and one that all have; seqs by key."""
    found: dict[bytes, list[int]] = {}
    with penstock.open(path, segment_size="64KiB") as log:
        for number in range(segments):
            given = [Entry(b"", key=b"%d-%d" % (number, i)) for i in range(keys)]
            given += [Entry(b"", key=b"all"), Entry(b"no key")]
            for seq, entry in zip(log.extend(given), given, strict=True):
                if entry.key is not None:
                    found.setdefault(bytes(entry.key), []).append(seq)
            log.steward.roll()
        log.sync()
    return found


def sealed(path: Path) -> list[Path]:
    """The sealed segment files of a closed log."""
    return [p for p in sorted(path.glob("*.seg")) if map_of(p).data_end]


def map_of(path: Path) -> penstock._core.SegmentMap:
    return segment.map_segment(str(path))[0]


def rules_out(path: Path, key: bytes) -> bool:
    return map_of(path).rules_out(None, 0, (1 << 64) - 1, key)


def test_every_key_passes_and_others_seldom(path: Path) -> None:
    """A filter passes each key of its segment, and less than 1 % of the others."""
    found = make(path)
    files = sealed(path)
    assert len(files) == 5
    for key, seqs in found.items():
        for file in files:
            base = int(file.name[:20])
            if any(base <= seq < map_of(file).next_seq for seq in seqs):
                assert not rules_out(file, key)
    other = [rules_out(file, b"other %d" % i) for file in files for i in range(2000)]
    assert other.count(False) < len(other) / 100


def test_reads_by_key_find_each_event(path: Path) -> None:
    """Forward, in reverse, as a scan, from any start and by a consumer: the same events."""
    found = make(path)
    with penstock.open(path) as log:
        for key in [b"all", b"0-0", b"2-7", b"4-199", b"none"]:
            seqs = found.get(key, [])
            assert [e.seq for e in log.read(key=key)] == seqs
            assert [e.seq for e in log.read(key=key, reverse=True)] == seqs[::-1]
            assert log.scan(key=key, columns=["seq"]).to_arrow()["seq"].to_pylist() == seqs
            for start in (1, 203, 405, log.last_seq):
                assert [e.seq for e in log.read(start, key=key)] == [s for s in seqs if s >= start]
                back = [e.seq for e in log.read(start, start + 250, key=key, reverse=True)]
                assert back == [s for s in seqs[::-1] if start <= s < start + 250]
            with log.consumer(f"c{key!r}".strip("b'"), key=key, start="start") as consumer:
                assert [e.seq for e in consumer.poll(1000, timeout=0)] == seqs


def test_segments_without_the_key_are_not_read(path: Path) -> None:
    """A read by key does not touch the frames of a segment that cannot have it."""
    make(path)
    with penstock.open(path) as log:
        for file in sealed(path)[:3]:
            at = map_of(file).data_offset + 8
            with file.open("r+b") as raw:
                raw.seek(at)
                raw.write(b"\xff" * 64)  # reading its first frame would raise Corrupt
        assert [e.seq for e in log.read(key=b"4-0")] == [4 * 202 + 1]
        newest = log.latest(b"3-5")
        assert newest is not None and newest.seq == 3 * 202 + 6
        with pytest.raises(penstock.Corrupt):
            list(log.read(key=b"0-0"))


@pytest.mark.parametrize("how", ["flipped", "zeroed", "cut", "of another segment"])
def test_a_damaged_filter_hides_nothing(path: Path, how: str) -> None:
    """With a damaged filter every event is found; verify reports it, and repair writes it again."""
    found = make(path)
    file = sealed(path)[1]
    size = map_of(file).filter_at
    raw = bytearray(file.read_bytes())
    assert len(raw) > size
    if how == "flipped":
        raw[size + 100] ^= 0xFF
    elif how == "zeroed":
        raw[size:] = bytes(len(raw) - size)
    elif how == "cut":
        del raw[size:]
    else:
        raw[size:] = sealed(path)[2].read_bytes()[size:]
    file.write_bytes(raw)
    with penstock.open(path) as log:
        for key, seqs in found.items():
            assert [e.seq for e in log.read(key=key)] == seqs
    report = penstock.verify(path)
    assert not report.ok and {p.kind for p in report.problems} == {"filter"}
    assert [p.path for p in report.problems] == [str(file)]
    penstock.repair(path, in_place=True)
    assert penstock.verify(path).ok
    assert not rules_out(file, b"all") and rules_out(file, b"0-0")


def test_verify_finds_a_filter_that_lacks_a_key(path: Path) -> None:
    """A filter with right checksums that lacks a key is damage."""
    make(path)
    file = sealed(path)[0]
    raw = bytearray(file.read_bytes())
    at = len(raw) - L.PAGE
    page = bytearray(raw[at:])
    page[: L.FILTER_UUID] = bytes(L.FILTER_UUID)
    L.FILTER.put(page, crc=penstock._core.crc32c(page[: L.FILTER_CRC]))
    raw[at:] = page
    file.write_bytes(raw)
    (problem,) = penstock.verify(path).problems
    assert problem.kind == "filter" and "seq" in problem.message


def test_latest(path: Path) -> None:
    """latest is the newest event of a key, and None after its deletion; of all keys, a dict."""
    rng = random.Random(5)
    state: dict[bytes, bytes] = {}
    with penstock.open(path, segment_size="64KiB") as log:
        for i in range(3000):
            key = b"%d" % rng.randrange(300)
            if rng.random() < 0.2:
                log.append(None, key=key)
                state.pop(key, None)
            else:
                log.append(b"%d" % i * 20, key=key)
                state[key] = b"%d" % i * 20
            if i % 700 == 0:
                log.append(b"no key")
        assert {key: event.value for key, event in log.latest().items()} == state
        for key in [b"%d" % i for i in range(310)]:
            event = log.latest(key)
            assert (None if event is None else event.value) == state.get(key)
        some = sorted(state)[:5]
        assert sorted(log.latest(keys=[*some, b"missing"])) == some
        table = log.latest(arrow=True)
        assert dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)) == state
        assert log.latest(keys=[b"missing"], arrow=True).num_rows == 0
        with pytest.raises(penstock.WrongType):
            log.latest(None)  # type: ignore[call-overload]
        with pytest.raises(penstock.WrongType):
            log.latest(keys=b"one")  # type: ignore[arg-type]
        for wrong in (1, [None], [b"one", None], ["one"]):
            with pytest.raises(penstock.WrongType):
                log.latest(keys=wrong)  # type: ignore[arg-type]
        with pytest.raises(penstock.Usage):
            log.latest(b"1", arrow=True)  # type: ignore[call-overload]


def test_latest_of_a_ring(tmp_path: Path) -> None:
    """A ring has latest, too, of the events that it still has."""
    with penstock.create(tmp_path / "log.ring", ring="32KiB") as ring:
        for i in range(2000):
            ring.append(b"%d" % i, key=b"%d" % (i % 7))
        assert {key: event.seq for key, event in ring.latest().items()} == {
            b"%d" % (i % 7): i + 1 for i in range(1993, 2000)
        }
        event = ring.latest(b"3")
        assert event is not None and event.value == b"1998"


def test_a_segment_without_keys_has_an_empty_filter(path: Path) -> None:
    """If no event has a key, no page is written, and reads by key pass over the segment."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.extend([b"x"] * 100)
        log.steward.roll()
        log.sync()
    (file,) = sealed(path)
    assert file.stat().st_size == 64 << 10
    assert rules_out(file, b"") and rules_out(file, b"key")


def test_segments_of_version_4_have_none(tmp_path: Path) -> None:
    """A segment of an older version is sealed without a filter, and read in full."""
    shutil.unpack_archive(GOLDEN / "v4.tar.xz", tmp_path / "log")
    path = tmp_path / "log"
    with penstock.open(path) as log:
        log.append(b"", key=b"new")
        log.steward.roll()
        log.append(b"", key=b"newer")
        log.steward.roll()
        log.sync()
        assert [e.value for e in log.read(key=b"k")] == [b"all parts", None]
        newest = log.latest(b"new")
        assert newest is not None
    for file in sealed(path):
        (version,) = struct.unpack_from("<I", file.read_bytes(), 8)
        assert map_of(file).has_filter == (version >= 5)
    assert penstock.verify(path).ok


def test_a_backup_keeps_the_filters(path: Path, tmp_path: Path) -> None:
    """The copy of a sealed segment has its key filter."""
    make(path)
    with penstock.open(path) as log:
        log.backup(tmp_path / "copy")
    assert penstock.verify(tmp_path / "copy").ok
    assert [map_of(p).filter_pages for p in sealed(tmp_path / "copy")] == [1] * 5
