"""A compaction or an erasure is killed, loses power, or its calls fail: nothing is lost."""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock import Corrupt, _core
from penstock import layout as L
from penstock.segments import segment
from tests.crash.test_power_loss import from_another_boot
from tests.steward import plain
from tests.steward.plain import Plain
from tests.support import pages
from tests.support.fixtures import STORM
from tests.support.pages import History
from tests.support.recorder import LOOSE, Recorder
from tests.unit.test_faults import CALLS, KINDS, Fault

COMPACT = [
    *("compact.surveyed", "compact.copied", "compact.written", "compact.noted"),
    *("compact.renamed", "compact.named", "compact.removed"),
]
ERASE = [
    *("compact.copied", "compact.written", "erase.kept", "compact.renamed", "compact.named"),
    *("erase.zeroed", "erase.deleted"),
]
SECRET = b"the key that is erased"
VALUE = b"a value that nobody may find again"


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "penstock")


def fill(path: Path, segments: int = 5) -> list[Plain]:
    """A closed log with sealed segments, in groups that are compacted apart; the model of it."""
    rng = random.Random(7)
    model: list[Plain] = []
    with penstock.open(path, segment_size="64KiB") as log:

        def add(key: bytes, value: bytes | None) -> None:
            model.append(Plain(log.append(value, key=key), key, value))

        for number in range(segments):
            for _ in range(12):
                add(b"key %d" % rng.randrange(9), rng.randbytes(700))
            add(SECRET, VALUE + b"%d" % number)
            if number == 2:
                add(b"large", b"l" * 30_000)
            log.steward.roll()
        add(b"key 1", b"active")
    return model


def in_child(work: Callable[[], object], fail: str, times: int = 1) -> bool:
    """Do the work in a process that is killed at a fail-point; whether it was."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _core.fail_arm(fail, times, signal.SIGKILL)
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL)
    return code != 0


def check_between(log: penstock.Log, model: list[Plain]) -> None:
    """The log has what compaction keeps, nothing that never was, and each key's last event."""
    kept = {e.seq for e in model if not e.gone}
    found = list(log)
    assert kept <= {e.seq for e in found}
    assert [e.seq for e in found] == sorted({e.seq for e in found})
    assert [e.seq for e in log.read(reverse=True)] == [e.seq for e in found][::-1]
    for event in found:
        assert (event.key, event.value) == (model[event.seq - 1].key, model[event.seq - 1].value)
        assert log[event.seq].value == event.value
    last = {e.key: e.seq for e in model}
    assert {key: e.seq for key, e in log.latest().items()} == last
    report = log.verify()
    assert report.ok, str(report)


@pytest.mark.parametrize("witness", [True, False])
@pytest.mark.parametrize("name", COMPACT)
def test_killed_while_compacting(path: Path, name: str, witness: bool) -> None:
    """Killed anywhere, it leaves a log that reads as before or after it, for others too."""
    model = fill(path)
    base = plain.active_base(path)

    done = [Plain(e.seq, e.key, e.value) for e in model]
    plain.compact(done, base)
    for times in range(1, 9):
        copy = path.with_name(f"copy-{times}")
        shutil.copytree(path, copy)

        def compact_copy(at: Path = copy) -> None:
            with penstock.open(at) as log:
                log.steward.compact()

        other = penstock.open(copy) if witness else None
        reader = None if other is None else other.read()
        began = [] if reader is None else [e.seq for e in reader.take(20)]
        killed = in_child(compact_copy, name, times)
        if reader is not None and other is not None:
            began += [e.seq for e in reader]
            assert began == sorted(set(began))
            assert {e.seq for e in done if not e.gone} <= set(began)
            check_between(other, done)
        with penstock.open(copy, mode="r") as log:
            check_between(log, done)
        with penstock.open(copy) as log:
            check_between(log, done)
            assert log.append(b"goes on", key=b"other") == len(model) + 1
            log.steward.compact()
            names = os.listdir(copy)
            assert not [n for n in names if n.startswith(("compact.", "erase.", "merged."))]
            assert [e.seq for e in log] == [e.seq for e in done if not e.gone] + [len(model) + 1]
            assert not [p for p in log.verify().problems if "merged" in p.message]
        if other is not None:
            assert [e.seq for e in other] == [e.seq for e in log_seqs(copy)]
            other.close()
        shutil.rmtree(copy)
        if not killed:
            assert times > 1, "the fail-point was never reached"
            return
    raise AssertionError("it was killed each time")


def log_seqs(path: Path) -> list[penstock.Event]:
    with penstock.open(path, mode="r") as log:
        return list(log)


@pytest.mark.parametrize("name", ERASE)
def test_killed_while_erasing(path: Path, name: str) -> None:
    """Killed anywhere, the other events are there, and the next erasure leaves no byte behind."""
    model = fill(path)
    for times in range(1, 9):
        copy = path.with_name(f"copy-{times}")
        shutil.copytree(path, copy)

        def erase(at: Path = copy) -> None:
            with penstock.open(at) as log:
                log.steward.erase(SECRET)

        killed = in_child(erase, name, times)
        with penstock.open(copy) as log:
            rest = [e.seq for e in model if e.key != SECRET]
            assert [e.seq for e in log if e.key != SECRET] == rest
            assert log.verify().ok
            done = log.steward.erase(SECRET)
            assert done.complete, str(done)
            assert [e.seq for e in log] == rest
        for file in copy.rglob("*"):
            data = file.read_bytes()
            assert SECRET not in data, file.name
            assert VALUE not in data, file.name
            assert not file.name.startswith(("erase.", "compact.")), file.name
        shutil.rmtree(copy)
        if not killed:
            assert times > 1, "the fail-point was never reached"
            return
    raise AssertionError("it was killed each time")


@pytest.mark.timeout(1800 if STORM else 300)
def test_power_loss(tmp_path: Path) -> None:
    """Whatever a loss of power leaves during a compaction, every kept event is there."""
    place = tmp_path / "log"
    model = fill(place)
    base = plain.active_base(place)
    recorder = Recorder(History.of(place, LOOSE), str(place))
    with recorder.recording():
        log = penstock.open(place)
        log.steward.compact()
        recorder.look("compacted")
        log.close()
    done = [Plain(e.seq, e.key, e.value) for e in model]
    assert plain.compact(done, base)
    history, rng = recorder.history, random.Random(3)
    moments = list(range(history.moment + 1))
    rng.shuffle(moments)
    tried: set[int] = set()
    removed = whole = 0
    for moment in moments[: len(moments) if STORM else 60]:
        for picks in pages.ways(history.options(moment), rng, all_below=8, samples=2):
            image = history.image(moment, picks, rng)
            mark = hash(tuple(sorted(image.items())))
            if mark in tried or (len(tried) > 150 and not STORM):
                continue
            tried.add(mark)
            disk = tmp_path / f"disk-{len(tried)}"
            pages.write(image, disk)
            if (disk / "control").exists():
                from_another_boot(disk / "control")
            try:
                with penstock.open(disk, mode="r") as log:
                    check_between(log, done)
                with penstock.open(disk) as log:
                    check_between(log, done)
                    whole += len(log) == len(model)
                    removed += len(log) < len(model)
                    assert log.append(b"goes on", key=b"other") == len(model) + 1
                    log.steward.compact()
                    kept = [e.seq for e in done if not e.gone]
                    assert [e.seq for e in log] == [*kept, len(model) + 1]
                    assert log.verify().ok
            except BaseException as error:
                error.add_note(f"power loss at {moment}, {history.labels[moment]!r} ({disk})")
                raise
            shutil.rmtree(disk)
    assert whole > 5
    assert removed > 5


@pytest.mark.parametrize("code", KINDS)
@pytest.mark.parametrize("name", [*CALLS, "link", "unnamed_file"])
@pytest.mark.parametrize("job", ["compact", "erase"])
def test_failing_calls(
    path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int, job: str
) -> None:
    """Whichever call fails, the error is typed, nothing is lost, and the next try succeeds."""
    model = fill(path, segments=3)
    base = plain.active_base(path)
    done = [Plain(e.seq, e.key, e.value) for e in model]
    if job == "compact":
        plain.compact(done, base)
    kept = {e.seq for e in done if (e.key != SECRET if job == "erase" else not e.gone)}
    for nth in (1, 2, 5, 9, 30):
        copy = path.with_name(f"copy-{nth}")
        shutil.copytree(path, copy)
        with penstock.open(copy) as log:
            with monkeypatch.context() as patch:
                fault = Fault(name, nth, code, patch)
                try:
                    if job == "compact":
                        log.steward.compact()
                    else:
                        log.steward.erase(SECRET, timeout=0)
                except (KINDS[code], penstock.Poisoned):
                    assert fault.hit
            assert kept <= {e.seq for e in log}
            assert [e.value for e in log] == [model[e.seq - 1].value for e in log]
            assert log.verify().ok
        with penstock.open(copy) as log:
            if job == "compact":
                log.steward.compact()
            else:
                assert log.steward.erase(SECRET).complete
            assert {e.seq for e in log} == kept
            left = [n for n in os.listdir(copy) if n.startswith(("compact.", "erase."))]
            assert not left
        shutil.rmtree(copy)
        if not fault.hit:
            return


def test_a_full_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the disk is full halfway, it says so, and readers have the old generation."""
    model = fill(path)
    with penstock.open(path) as log:
        with monkeypatch.context() as patch:
            Fault("write_at", 12, errno.ENOSPC, patch)
            with pytest.raises(penstock.DiskFull):
                log.steward.compact()
        assert log.stats().background["compact"].failures == 1
        assert [e.seq for e in log] == [e.seq for e in model]
        assert log.steward.compact().dead
        assert log.stats().background["compact"].last_success_ns is not None


def test_flipped_bits_before(path: Path) -> None:
    """A damaged frame anywhere stops a compaction with `Corrupt` before anything is changed."""
    fill(path)
    rng = random.Random(5)
    files = sorted(path.glob("*.seg"))[:-1]
    before = {p: p.read_bytes() for p in files}
    for _ in range(60 if STORM else 12):
        file = rng.choice(files)
        m, header = segment.map_segment(str(file))
        raw = bytearray(before[file])
        at = rng.randrange(header.data_offset, m.data_end - L.FRAME_HEADER_BYTES)
        raw[at] ^= 1 << rng.randrange(8)
        file.write_bytes(raw)
        with penstock.open(path) as log:
            padding = log.verify().ok  # zeros after a frame's body are in no checksum
            if padding:
                log.close()
                file.write_bytes(before[file])
                continue
            with pytest.raises(Corrupt, match=file.name):
                log.steward.compact()
            with pytest.raises(Corrupt, match=file.name):
                log.steward.erase(SECRET, timeout=0)
        now = {p: p.read_bytes() for p in files}
        assert now == before | {file: bytes(raw)}
        file.write_bytes(before[file])


def test_flipped_bits_after(path: Path) -> None:
    """Verify finds damage in a compacted segment, and repair saves the rest of it."""
    model = fill(path)
    base = plain.active_base(path)
    with penstock.open(path) as log:
        log.steward.compact()
    plain.compact(model, base)
    file = min(path.glob("*.seg"))
    _, header = segment.map_segment(str(file))
    raw = bytearray(file.read_bytes())
    raw[header.data_offset + L.FRAME_HEADER_BYTES + 20] ^= 4
    file.write_bytes(raw)
    kept = [e.seq for e in model if not e.gone]
    report = penstock.verify(path)
    assert not report.ok
    with penstock.open(path) as log:
        with pytest.raises(Corrupt):
            list(log)
        assert [e.seq for e in log.read(on_damage="skip")] == kept[1:]
    penstock.repair(path, in_place=True)
    with penstock.open(path) as log:
        assert [e.seq for e in log] == kept[1:]
        assert log.verify().ok
        log.steward.compact(keyless="drop")
        assert [e.seq for e in log] == kept[1:]
