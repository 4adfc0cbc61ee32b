"""Compaction: what it keeps, what readers see beside it, and what it refuses."""

from __future__ import annotations

import datetime as dt
import json
import lzma
import os
import random
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import Busy, Entry, Gap, NotFound, Usage, WrongType
from penstock import layout as L
from penstock.data.spans import spans
from penstock.segments import segment
from penstock.steward import turn
from penstock.system import files
from tests.steward import plain
from tests.steward.plain import Plain

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def log(path: Path) -> Iterator[penstock.Log]:
    """A log of small segments."""
    with penstock.open(path, segment_size="64KiB") as log:
        yield log


def fill(
    log: penstock.Log, segments: int = 5, each: int = 100, keys: int = 30, seed: int = 1
) -> list[Plain]:
    """Sealed segments of events of a few keys, some of which delete; the model of them."""
    rng = random.Random(seed)
    model = []
    for _ in range(segments):
        for _ in range(each):
            key = rng.choice([None, *(b"key %d" % i for i in range(keys))])
            value = None if key is not None and rng.random() < 0.1 else rng.randbytes(9)
            model.append(Plain(log.append(value, key=key), key, value))
        log.steward.roll()
    return model


def names(log: penstock.Log) -> list[str]:
    return sorted(p.name for p in Path(log.path).glob("*.seg"))


@pytest.mark.parametrize("versions", [1, 3])
@pytest.mark.parametrize("keyless", ["keep", "drop"])
@pytest.mark.parametrize("grace", [0, plain.HOUR])
def test_what_is_kept(log: penstock.Log, versions: int, keyless: Any, grace: int) -> None:
    """The last events of each key, deletions for a while, and events without a key if asked."""
    model = fill(log)
    base = plain.active_base(Path(log.path))
    model += [Plain(log.append(b"new", key=b"key 1"), b"key 1", b"new")]
    done = log.steward.compact(versions=versions, keyless=keyless, grace=grace)
    removed = plain.compact(model, base, versions, grace == 0, keyless == "drop")
    assert done.dead == len(removed) > 100
    plain.check(log, model)
    assert log.steward.compact(versions=versions, keyless=keyless, grace=grace).dead == 0


def test_a_dry_run_changes_nothing_and_says_the_same(log: penstock.Log) -> None:
    """It names the same segments and figures as the compaction after it, and prints a table."""
    model = fill(log)
    log.steward.compact(dry_run=True)  # which may still seal segments
    before = {p.name: p.read_bytes() for p in Path(log.path).glob("*.seg")}
    plan = log.steward.compact(dry_run=True)
    assert {p.name: p.read_bytes() for p in Path(log.path).glob("*.seg")} == before
    assert not log.settings.holes
    plain.check(log, model)
    done = log.steward.compact()
    assert (plan.segments, plan.dry_run, done.dry_run) == (done.segments, True, False)
    assert 0 < done.share < 1
    assert done.rewritten == 5
    assert sum(s.events for s in done.segments) == done.events == 500
    assert "would remove" in str(plan)
    assert "removed" in str(done)
    assert len(str(done).splitlines()) == 2 + 5
    assert penstock.open(log.path, mode="r").steward.compact(dry_run=True).dead == 0


def test_expired_events_go(log: penstock.Log) -> None:
    """They are removed and count for nothing: the version before an expired one is kept."""
    log.append(b"old", key=b"a")
    log.append(b"lives", key=b"a", ttl=plain.HOUR)
    log.append(b"expired", key=b"a", ttl=1e-9)
    log.append(b"expired", ttl=1e-9)
    log.steward.roll()
    assert log.steward.compact().dead == 3
    assert [(e.seq, e.value) for e in log] == [(2, b"lives")]
    log.append(b"later", key=b"b")
    log.configure(ttl=1e-6)
    log.steward.roll()
    assert log.steward.compact().dead == 2
    assert (list(log), len(log), log.first_seq, log.last_seq) == ([], 0, 6, 5)


def test_a_deletion_goes_last(log: penstock.Log) -> None:
    """Until its grace is over it stays, and what it deletes goes; then it goes itself."""
    log.append(b"old", key=b"a")
    log.steward.roll()
    log.append(None, key=b"a")
    log.steward.roll()
    assert log.steward.compact(grace=dt.timedelta(hours=1)).dead == 1
    assert [(e.seq, e.deletes) for e in log] == [(2, True)]
    assert log.steward.compact(grace=dt.timedelta(0)).dead == 1
    assert list(log) == []
    assert log.latest(b"a") is None


def test_what_is_dead_is_in_the_figures(log: penstock.Log) -> None:
    """A dry run counts the bytes that compaction would free, and a compaction leaves none."""
    for n in range(2000):
        log.append(bytes(200), key=b"%d" % (n % 10))
    log.steward.roll()
    assert log.stats().disk.dead is None
    plan = log.steward.compact(dry_run=True)
    assert log.stats().disk.dead == plan.dead_bytes > 300_000
    log.steward.compact()
    assert log.stats().disk.dead == 0


def test_bounded_memory(log: penstock.Log) -> None:
    """With memory for few keys, most are spilled, part by part, and the result is the same."""
    model = []
    for number in range(250):
        keys = [b"%d" % (i * 7 % 60_013) for i in range(500)]
        keys += [b"%d" % (number * 300 + i) for i in range(300)]
        seqs = log.extend([Entry(b"v", key=key) for key in keys])
        model += [Plain(seq, key, b"v") for seq, key in zip(seqs, keys, strict=True)]
    log.steward.roll()
    base = plain.active_base(Path(log.path))
    done = log.steward.compact(memory="1MiB")
    assert done.spilled > 50_000
    assert done.dead == len(plain.compact(model, base))
    assert [e.seq for e in log] == [e.seq for e in model if e.read]
    assert not [n for n in os.listdir(log.path) if n.startswith("compact")]


def test_neighbours_become_one(log: penstock.Log) -> None:
    """Small compacted neighbours are merged; numbers and the chain stay in order."""
    model = fill(log, segments=8)
    base = plain.active_base(Path(log.path))
    done = log.steward.compact()
    plain.compact(model, base)
    assert {s.action for s in done.segments} == {"merge"}
    assert {s.into for s in done.segments} == {1}
    assert names(log) == [segment.file_name(1), segment.file_name(base)]
    _, header = segment.map_segment(str(Path(log.path, segment.file_name(1))))
    assert (header.number, header.merged, header.number_first) == (8, 7, 1)
    assert header.compacted
    assert (header.generation, header.version) == (1, L.FORMAT_VERSION)
    plain.check(log, model)
    model += [Plain(log.append(b"x", key=b"key 2"), b"key 2", b"x")]
    log.steward.roll()
    log.steward.compact()
    plain.compact(model, plain.active_base(Path(log.path)))
    plain.check(log, model)
    log.close()
    with penstock.open(log.path) as again:
        plain.check(again, model)


def test_large_segments_are_left_alone(path: Path) -> None:
    """A segment with nothing dead is not written again, unless it and a neighbour are small."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.append(b"x" * 44_000, key=b"a")
        log.steward.roll()
        log.append(b"x" * 10, key=b"b")
        log.steward.roll()
        log.append(b"x" * 10, key=b"c")
        log.steward.roll()
        done = log.steward.compact()
        assert [s.action for s in done.segments] == ["keep", "merge", "merge"]
        assert not log.settings.holes
        assert len(log) == 3
        assert log.steward.compact().rewritten == 0


def test_readers_go_on_over_replaced_segments(log: penstock.Log) -> None:
    """Readers of an old generation go on with it, then in the new ones: each event once."""
    model = fill(log, segments=6)
    base = plain.active_base(Path(log.path))
    readers = {start: log.read(start) for start in (1, 50, 250, 399, 500)}
    backward = {stop: log.read(stop=stop, reverse=True) for stop in (601, 320, 101)}
    scan = iter(log.scan(columns=["seq"], batch_rows=70).to_batches())
    taken = {start: [e.seq for e in r.take(30)] for start, r in readers.items()}
    back = {stop: [e.seq for e in r.take(30)] for stop, r in backward.items()}
    rows = next(scan)["seq"].to_pylist()
    log.steward.compact()
    plain.compact(model, base)
    alive = [e.seq for e in model if e.read]
    for start, reader in readers.items():
        found = taken[start] + [e.seq for e in reader]
        assert found == sorted(set(found))
        assert {s for s in alive if s >= start} <= set(found)
        end = (found[29] - 1) // 100 * 100 + 100  # of the segment that it had mapped
        assert [s for s in found if s > end] == [s for s in alive if s > end]
    for stop, reader in backward.items():
        found = back[stop] + [e.seq for e in reader]
        assert found == sorted(set(found), reverse=True)
        assert {s for s in alive if s < stop} <= set(found)
    for batch in scan:
        rows += batch["seq"].to_pylist()
    assert rows == sorted(set(rows))
    assert set(alive) <= set(rows)


def test_events_of_replaced_segments_stay_readable(log: penstock.Log) -> None:
    """Events that were read before keep their values, whatever happens to their segment."""
    fill(log)
    before = list(log)
    values = [event.value for event in before]
    view = before[0].view
    log.steward.compact(keyless="drop", grace=0)
    log.steward.erase(b"key 1", timeout=0)
    assert [event.value for event in before] == values
    assert bytes(view) == values[0]


def test_another_handle_sees_the_new_generation(log: penstock.Log) -> None:
    """Handles of any mode drop their old maps: what was removed is not found by them either."""
    model = fill(log)
    base = plain.active_base(Path(log.path))
    with penstock.open(log.path) as other, penstock.open(log.path, mode="r") as reader:
        for handle in (other, reader):
            assert len(list(handle)) == 500
            assert handle[7].seq == 7
        log.steward.compact(grace=0, keyless="drop")
        plain.compact(model, base, 1, True, True)
        plain.check(other, model)
        plain.check(reader, model)


def test_consumers_beside_it(log: penstock.Log) -> None:
    """A consumer goes on over holes, and its lag counts the events that are left."""
    model = fill(log)
    with log.consumer("slow", timeout=0, topic=None) as slow:
        assert [e.seq for e in slow.poll(120, timeout=0)] == list(range(1, 121))
        slow.commit()
        base = plain.active_base(Path(log.path))
        log.steward.compact()
        plain.compact(model, base)
        alive = [e.seq for e in model if e.read and e.seq > 120]
        assert slow.lag().events == len(alive)
        found = [e.seq for e in slow.poll(1000, timeout=0)]
        assert set(alive) <= set(found)
        assert found == sorted(set(found))
        slow.commit()
    assert log.consumers()["slow"].lag.events == 0
    with log.consumer("late", timeout=0) as late:
        assert late.lag().events == len(log)
        assert [e.seq for e in late.poll(1000, timeout=0)] == [e.seq for e in model if e.read]


def test_places_in_a_log_with_holes(log: penstock.Log) -> None:
    """log[seq], `in`, slices, tail, seq_at, limits and pieces of work are right between holes."""
    model = fill(log)
    base = plain.active_base(Path(log.path))
    log.steward.compact()
    plain.compact(model, base)
    alive = [e.seq for e in model if e.read]
    gone = next(e.seq for e in model if e.gone and e.seq > alive[0])
    with pytest.raises(NotFound, match=f"no event has seq {gone} any more: compaction"):
        log[gone]
    assert [e.seq for e in log[gone : gone + 50]] == [s for s in alive if gone <= s < gone + 50]
    assert [e.seq for e in log[: base + 5 : -1]] == []
    assert [e.seq for e in log[base - 1 : 1 : -1]] == [s for s in alive if 1 < s < base][::-1]
    assert [e.seq for e in log.tail(7)] == alive[-7:]
    assert log.first_seq == alive[0]
    assert [e.seq for e in log.read(gone, limit=3)] == [s for s in alive if s > gone][:3]
    assert [e.seq for e in log.read(1, limit=3)] == alive[:3]  # no gap: nothing was deleted
    assert log.seq_at("2020-01-01") == alive[0]
    assert log.seq_at("2200-01-01") == log.last_seq + 1
    pieces = spans(log, 1, base)
    assert [e.seq for p in pieces for e in log.read(p.start, p.stop)] == alive
    rows = log.scan(gone, columns=["seq"], limit=4).to_arrow()["seq"].to_pylist()
    assert rows == [s for s in alive if s > gone][:4]
    since = model[alive[5] - 1]
    found = log[since.seq]
    assert next(log.read(since=found.append_ns)).seq <= since.seq


def test_reads_below_what_was_trimmed_are_gaps_only_there(log: penstock.Log) -> None:
    """A hole is no gap: Gap is for what lies before the first segment."""
    fill(log)
    log.steward.compact(grace=0, keyless="drop")
    first = log.first_seq
    assert first > 1
    assert next(log.read(1)).seq == first
    log._change_settings(lambda now: now.changed(first_seq=first + 10))
    with pytest.raises(Gap):
        next(log.read(1))
    assert len(log) == len(list(log.read()))


def test_settings_and_producers_survive(log: penstock.Log) -> None:
    """A repeat of a producer's append is still a no-op, and settings of old segments still hold."""
    log.append(b"1", producer=("p", 1))
    log.extend([b"2", b"3"], producer=("q", 7))
    log.configure(segment_size="128KiB", ttl=plain.HOUR)
    log.steward.roll()
    log.append(b"4", producer=("p", 2), key=b"k")
    log.append(b"5", key=b"k")
    log.steward.roll()
    settings = log.settings
    assert log.steward.compact(keyless="drop").dead == 4
    log.close()
    (Path(log.path) / "control").unlink()
    with penstock.open(log.path) as again:
        assert again.settings == settings.changed(holes=True)
        assert again.append(b"1", producer=("p", 2)) == 4
        assert again.extend([b"2", b"3"], producer=("q", 7)) == range(2, 4)
        with pytest.raises(penstock.Conflict):
            again.append(b"1", producer=("p", 1))
        assert again.append(b"6", producer=("p", 3)) == 6
        table, _ = again._storage.ask_producers(again, lambda t: dict(t.entries))
        assert table[b"q"].first_seq == 2
    # Repair makes the table of a segment without a header from the one before it.
    first, second = sorted(Path(log.path).glob("*.seg"))[:2]
    assert segment.map_segment(str(first))[1].producers_bytes > 0
    raw = bytearray(second.read_bytes())
    for at in (0, L.COPY_A_OFFSET, L.COPY_B_OFFSET):
        raw[at : at + 200] = bytes(200)
    second.write_bytes(raw)
    penstock.repair(log.path, in_place=True)
    with penstock.open(log.path) as mended:
        assert mended.extend([b"2", b"3"], producer=("q", 7)) == range(2, 4)


def test_long_frames_and_many_topics(path: Path) -> None:
    """Events longer than a copy's turn are copied whole; topics and times of the rest are right."""
    with penstock.open(path, segment_size="32MiB") as log:
        log.append(b"a" * 5, key=b"x", topic="gone")
        log.append(b"b" * 9_000_001, key=b"y", topic="long", headers={"h": b"1"})
        log.append(b"c" * 4_200_000, key=b"x", topic="stays", time=5)
        log.extend([Entry(b"%d" % i, key=b"%d" % (i % 7), topic=f"t{i}") for i in range(500)])
        log.steward.roll()
        assert log.steward.compact().dead == 494
        assert log[2].value == b"b" * 9_000_001
        assert log[2].headers["h"] == b"1"
        assert log[3].time_ns == 5
        assert log.topics() == {"long", "stays", *(f"t{i}" for i in range(493, 500))}
        assert [e.seq for e in log.read(topic="t499")] == [503]
        assert log.verify().ok
        assert log.stats().disk_bytes < 20 << 20


@pytest.mark.parametrize("version", range(L.FORMAT_VERSION_OLDEST, L.FORMAT_VERSION + 1))
def test_logs_of_every_version(tmp_path: Path, version: int) -> None:
    """A log of an older format is compacted into segments of this one."""
    archive = GOLDEN / f"v{version}.tar.xz"
    with lzma.open(archive) as raw, tarfile.open(fileobj=raw) as tar:
        tar.extractall(tmp_path / "log", filter="data")
    events = json.loads((GOLDEN / f"v{version}.json").read_text())["events"]
    with penstock.open(tmp_path / "log") as log:
        log.steward.roll()
        base = plain.active_base(tmp_path / "log")
        model = [
            Plain(
                e["seq"],
                None if e["key"] is None else bytes.fromhex(e["key"]),
                log[e["seq"]].value,
            )
            for e in events
        ]
        assert log.steward.compact(grace=0, keyless="drop").dead
        plain.compact(model, base, 1, True, True)
        plain.check(log, model)
        assert log.steward.erase(b"long").complete
        for event in model:
            event.gone |= event.key == b"long"
        plain.check(log, model)


def test_backup_of_a_compacted_log(log: penstock.Log, tmp_path: Path) -> None:
    """A backup and a repaired copy have the same events, and can be compacted further."""
    model = fill(log)
    base = plain.active_base(Path(log.path))
    log.steward.compact()
    plain.compact(model, base)
    log.backup(tmp_path / "backup")
    log.repair(to=tmp_path / "copy")
    for copy in ("backup", "copy"):
        with penstock.open(tmp_path / copy) as other:
            plain.check(other, model)
            assert other.steward.compact().dead == 0


def test_one_job_at_a_time(log: penstock.Log) -> None:
    """A compaction beside another job is `Busy`, waits if asked, and changes nothing."""
    model = fill(log)
    with turn.taken(files.hold_dir(log.path)):
        with pytest.raises(Busy, match="another maintenance job"):
            log.steward.compact()
        with pytest.raises(Busy):
            log.steward.erase(b"key 1", timeout=0.01)
        assert log.steward.compact(dry_run=True).dead
    plain.check(log, model)
    assert log.stats().background["compact"].failures == 0
    log.steward.compact(timeout=None)
    assert log.stats().background["compact"].last_success_ns is not None


def test_progress_and_interrupt(log: penstock.Log) -> None:
    """Progress goes up to the total; what it raises stops the compaction, and the log is whole."""
    model = fill(log)
    told: list[tuple[int, int]] = []
    log.steward.compact(dry_run=True, progress=lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1] > 0

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        log.steward.compact(progress=interrupt)
    plain.check(log, model)
    assert log.append(b"goes on") == 501


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"versions": 0}, Usage, "versions must be from 1 to 65535, got 0"),
    ({"versions": 65536}, Usage, "versions must be from 1"),
    ({"versions": True}, WrongType, "versions must be an int, got bool"),
    ({"versions": 1.0}, WrongType, "versions must be an int, got float"),
    ({"versions": np.zeros(2, int)}, WrongType, "versions must be an int, got ndarray"),
    ({"grace": -1}, Usage, "grace must be above 0"),
    ({"grace": float("nan")}, Usage, "grace must be above 0"),
    ({"grace": "1d"}, WrongType, "grace must be a number of seconds or a timedelta, got str"),
    ({"grace": ""}, WrongType, "grace must be a number of seconds"),
    ({"grace": None}, WrongType, "grace must be a number of seconds"),
    ({"grace": False}, WrongType, "grace must be a number of seconds"),
    ({"keyless": "gone"}, Usage, "keyless must be 'keep' or 'drop', got 'gone'"),
    ({"dry_run": 1}, WrongType, "dry_run must be True or False, got 1"),
    ({"timeout": -1}, Usage, "timeout must be"),
    ({"timeout": "1"}, WrongType, "timeout must be"),
    ({"memory": 5}, Usage, "memory must be at least 1048576 bytes, got 5"),
    ({"memory": "5XB"}, Usage, "memory must be a size"),
    ({"progress": 3}, WrongType, "progress must be a function"),
]


@pytest.mark.parametrize(("given", "kind", "said"), BAD, ids=lambda v: str(v)[:40])
def test_bad_arguments(
    log: penstock.Log, given: dict[str, Any], kind: type[Exception], said: str
) -> None:
    """Each is refused with a message that says what it must be, before anything is done."""
    with pytest.raises(kind, match=said):
        log.steward.compact(**given)


def test_odd_but_right_arguments(log: penstock.Log) -> None:
    """Numbers of numpy and timedeltas are numbers."""
    fill(log, segments=1)
    assert log.steward.compact(versions=np.int64(1), grace=dt.timedelta(days=1)).dead
    assert log.steward.compact(versions=np.uint8(2), memory=1 << 20).dead == 0


def test_who_cannot_compact(log: penstock.Log, tmp_path: Path) -> None:
    """A ring, a log open for reading and a closed log refuse, each by its own error."""
    with penstock.create(tmp_path / "x.ring", ring="64KiB") as ring:
        for call in (ring.steward.compact, lambda: ring.steward.erase(b"k")):
            with pytest.raises(Usage, match="ring"):
                call()
    with penstock.open(log.path, mode="r") as reader:
        for call in (reader.steward.compact, lambda: reader.steward.erase(b"k")):
            with pytest.raises(penstock.Permission, match="mode='r'"):
                call()
    log.close()
    with pytest.raises(penstock.Closed):
        log.steward.compact()
    with pytest.raises(penstock.Closed):
        log.steward.erase(b"k")


def test_an_empty_log(log: penstock.Log) -> None:
    """There is nothing to do, and that is said."""
    done = log.steward.compact()
    assert (done.segments, done.share, done.events) == ((), 0.0, 0)
    assert "0 of 0 events" in str(done)
    log.append(b"active", key=b"k")
    assert log.steward.compact().segments == ()


def test_segments_without_events_left(log: penstock.Log) -> None:
    """A range without events stays covered; readers, reverse ones too, pass over it."""
    for number in range(3):
        log.append(b"x" * 40_000 if number != 1 else b"x", key=b"k", ttl=1e-9)
        log.steward.roll()
    last = log.append(b"active")
    done = log.steward.compact()
    assert (done.dead, done.events) == (3, 3)
    assert [e.seq for e in log] == [e.seq for e in log.read(reverse=True)] == [last]
    assert (log.first_seq, len(log)) == (last, 1)
    assert log.topics() == {""}
    assert log.verify().ok
    assert log.latest() == {}
    assert log.scan(columns=["seq"]).to_arrow().num_rows == 1
    log.close()
    with penstock.open(log.path) as again:
        assert [e.seq for e in again] == [last]


def test_why_an_event_is_missing(log: penstock.Log) -> None:
    """It was compacted away, or it is there; before the first event that is left, too."""
    fill(log)
    log.steward.compact(grace=0, keyless="drop")
    first = log.first_seq
    gone = next(s for s in range(first, 500) if s not in {e.seq for e in log})
    for seq in (1, gone):
        why = log.steward.why(seq)
        assert why.state == "missing"
        assert "compaction removed it" in str(why)
    assert log.steward.why(first).state == "there"


def test_running_it_by_share(log: penstock.Log) -> None:
    """`run` compacts in its first round, then when enough was appended; failures do not end it."""
    stop = threading.Event()
    rounds: list[int] = []

    def after_round(seconds: float | None = None) -> bool:
        rounds.append(len(log))
        if len(rounds) == 1:
            fill(log, segments=1, each=5)  # too little
        elif len(rounds) == 2:
            fill(log, segments=3)  # enough
        elif len(rounds) == 3:
            stop.set()
        return stop.is_set()

    fill(log, segments=3, each=200)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stop, "wait", after_round)
        log.steward.run(60, stop=stop, compact_at=0.5, grace=plain.HOUR)
    assert rounds[0] < 200
    assert rounds[1] == rounds[0] + 5
    assert rounds[2] < rounds[1] + 150
    for bad, kind in ((0, Usage), (1.5, Usage), ("1", WrongType), (True, WrongType)):
        with pytest.raises(kind, match="compact_at must be"):
            log.steward.run(compact_at=bad)  # type: ignore[arg-type]
    with pytest.raises(Usage, match="versions must be"):
        log.steward.run(compact_at=0.5, versions=0)


def test_maintenance_of_every_kind_together(log: penstock.Log) -> None:
    """Retention, trims and compaction go on from what the other left."""
    model = fill(log, segments=6)
    base = plain.active_base(Path(log.path))
    log.steward.trim(before=150)
    log.steward.compact()
    for event in model:
        event.gone |= event.seq < 150
    plain.compact(model, base)
    plain.check(log, model)
    log.configure(keep_segments=1)
    log.append(b"active")
    log.steward.retain()
    assert [e.value for e in log] == [b"active"]
    assert log.verify().ok
    log.close()
    with penstock.open(log.path) as again:
        assert [e.value for e in again] == [b"active"]


def test_repair_of_merged_segments(path: Path) -> None:
    """A merged segment in the middle is in order; one that lost its header is made again."""
    with penstock.open(path, segment_size="64KiB") as log:
        model: list[Plain] = []
        for number in range(8):
            size = 40_000 if number in (0, 5) else 500
            for key in (b"large %d" % number, b"small"):
                value = b"v" * (size if key != b"small" else 9)
                model.append(Plain(log.append(value, key=key), key, value))
            log.steward.roll()
        base = plain.active_base(path)
        done = log.steward.compact()
        plain.compact(model, base)
        into = sorted({s.into for s in done.segments})
        assert into == [1, 11]
        plain.check(log, model)
    assert str(penstock.repair(path)).endswith("nothing to repair")
    middle = path / segment.file_name(11)
    before = segment.map_segment(str(middle))[1]
    assert (before.number, before.merged) == (8, 2)
    raw = bytearray(middle.read_bytes())
    for at in (0, L.COPY_A_OFFSET, L.COPY_B_OFFSET):
        raw[at : at + 300] = bytes(300)
    middle.write_bytes(raw)
    assert not penstock.verify(path).ok
    penstock.repair(path, in_place=True)
    after = segment.map_segment(str(middle))[1]
    assert (after.number, after.merged, after.base_seq) == (8, 2, 11)
    with penstock.open(path) as log:
        assert [e.seq for e in log] == [e.seq for e in model if e.read]
        assert log.verify().ok
        assert log.steward.compact(keyless="drop").dead == 0


def test_closed_by_another_thread(log: penstock.Log) -> None:
    """A compaction whose log is closed meanwhile ends with `Closed`, and leaves the log whole."""
    model = fill(log)
    log.sync()
    reached = threading.Event()

    def stop(done: int, total: int) -> None:
        if not reached.is_set():
            reached.set()
            log.close()

    with pytest.raises(penstock.Closed):
        log.steward.compact(progress=stop)
    with penstock.open(log.path) as again:
        base = plain.active_base(Path(log.path))
        again.steward.compact()
        plain.compact(model, base)
        plain.check(again, model)


def test_a_fork_amid_it(log: penstock.Log) -> None:
    """A child that is forked inside `progress` ends nothing; the parent's compaction goes on."""
    model = fill(log)
    base = plain.active_base(Path(log.path))
    children: list[int] = []

    def fork(done: int, total: int) -> None:
        if not children:
            child = os.fork()
            if child == 0:
                try:
                    os._exit(0 if in_child() else 1)
                finally:
                    os._exit(2)
            children.append(child)

    def in_child() -> bool:
        return kept <= {event.seq for event in log}  # it opens the log again

    later = [Plain(e.seq, e.key, e.value) for e in model]
    plain.compact(later, base)
    kept = {e.seq for e in later if e.read}
    log.steward.compact(progress=fork)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
    plain.compact(model, base)
    plain.check(log, model)


def test_a_fork_that_goes_on(log: penstock.Log) -> None:
    """A child that returns from `progress` gets `Usage`: the compaction belongs to the parent."""
    model = fill(log)
    base = plain.active_base(Path(log.path))
    parent = os.getpid()
    children: list[int] = []

    def fork(done: int, total: int) -> None:
        if not children:
            children.append(os.fork())

    try:
        log.steward.compact(progress=fork)
    except BaseException as error:
        if os.getpid() != parent:
            os._exit(0 if isinstance(error, Usage) else 1)
        raise
    if os.getpid() != parent:
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
    plain.compact(model, base)
    plain.check(log, model)


def test_deleting_a_log_with_leftovers(log: penstock.Log) -> None:
    """What a killed job left goes with the log."""
    fill(log)
    log.steward.compact()
    path = Path(log.path)
    first = (path / segment.file_name(1)).read_bytes()
    log.close()
    (path / "erase.00000000000000000001-0.tmp").write_bytes(first)
    (path / "compact.00000000000000000001.tmp").write_bytes(first)
    (path / "merged.00000000000000000001-00000000000000000300.tmp").write_bytes(b"PSKMERGE\n")
    assert penstock.verify(path).ok
    penstock.delete(path)
    assert not path.exists()


def test_a_missing_segment(log: penstock.Log) -> None:
    """A log with a gap is not compacted: a deletion could go before what it deletes comes back."""
    fill(log)
    log.steward.compact(dry_run=True)
    path = Path(log.path)
    middle = path / segment.file_name(201)
    kept = middle.read_bytes()
    middle.unlink()
    before = names(log)
    for dry_run in (True, False):
        with pytest.raises(penstock.Corrupt, match=middle.name):
            log.steward.compact(dry_run=dry_run, grace=0)
    assert names(log) == before
    middle.write_bytes(kept)
    assert log.steward.compact(grace=0).dead
