"""Retention: which segments go, by which rule, and who holds them back."""

from __future__ import annotations

import datetime as dt
import errno
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

import penstock
from penstock import Busy, Closed, Gap, Log, NotFound, Permission, Usage, WrongType, _core
from penstock.steward import retention, turn
from penstock.system import files
from tests.support import alone
from tests.support.wait import wait_for

DAY = 86_400
EACH = 4  # events that fit one segment


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Nothing is deleted in the background, so that plans are exact."""
    if "in_background" not in request.fixturenames:
        monkeypatch.setattr(retention, "keep_up", lambda *_: False)


@pytest.fixture
def in_background() -> None:
    """Except in tests that ask for it."""


@pytest.fixture
def log(path: Path) -> Iterator[Log]:
    """Ten finished segments of four events, and an active one with two."""
    with penstock.open(path, segment_size="64KiB") as log:
        fill(log, 10 * EACH + 2)
        yield log


def fill(log: Log, count: int) -> None:
    for _ in range(count):
        log.append(bytes(9000))


def bases(log: Log) -> list[int]:
    """The first seqs of the segment files."""
    return sorted(int(name[:20]) for name in os.listdir(log.path) if name.endswith(".seg"))


def seqs(log: Log) -> list[int]:
    return [event.seq for event in log]


def verdicts(log: Log) -> list[str]:
    return [found.verdict for found in log.steward.retain(dry_run=True).segments]


def years_later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let retention see a clock that is so much ahead."""
    real = _core.now_ns

    class Later:
        def __getattr__(self, name: str) -> Any:
            return getattr(_core, name)

        def now_ns(self) -> int:
            return real() + int(seconds * 1e9)

    monkeypatch.setattr(retention, "_core", Later())


def test_nothing_goes_by_default(log: Log) -> None:
    """A log without rules keeps everything, whoever asks, and its plan says so."""
    assert bases(log) == list(range(1, 42, EACH))
    plan = log.steward.retain()
    assert (plan.deleted, plan.first_seq, plan.new_first_seq) == ((), 1, 1)
    assert verdicts(log) == ["keep"] * 10 + ["active"]
    assert "no rule is set" in str(plan)
    assert seqs(log) == list(range(1, 43))


def test_by_segments(log: Log) -> None:
    """keep_segments deletes the oldest above that number; a dry run changes nothing."""
    log.configure(keep_segments=3)
    plan = log.steward.retain(dry_run=True)
    assert plan.dry_run and [p.rule for p in plan.deleted] == ["keep_segments"] * 8
    assert (log.first_seq, len(bases(log))) == (1, 11)
    done = log.steward.retain()
    assert [p.first_seq for p in done.deleted] == [p.first_seq for p in plan.deleted]
    assert done.new_first_seq == log.first_seq == 33
    assert bases(log) == [33, 37, 41]
    assert seqs(log) == list(range(33, 43))
    assert log.verify().ok
    with pytest.raises(NotFound, match="it has seq 33 to 42"):
        log[32]


def test_by_bytes(log: Log) -> None:
    """keep_bytes deletes the oldest until the log takes no more on disk."""
    log.configure(keep_bytes=4 * 60_000)
    plan = log.steward.retain()
    left = sum(p.bytes for p in plan.segments if p.verdict != "delete")
    assert left <= 4 * 60_000
    assert left + plan.deleted[-1].bytes > 4 * 60_000
    assert [p.verdict for p in plan.segments][-1] == "active"
    assert plan.freed_bytes == sum(p.bytes for p in plan.deleted) > 0
    assert seqs(log) == list(range(log.first_seq, 43))


def test_by_age(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """keep_seconds deletes what is older, ends an active segment that is, and says when."""
    log.configure(keep_seconds=DAY)
    assert not log.steward.retain().deleted
    plan = log.steward.retain(dry_run=True)
    for found in plan.segments[:-1]:
        assert found.newest is not None and found.goes_at is not None
        assert found.goes_at - found.newest == dt.timedelta(days=1)
        assert abs(found.newest - dt.datetime.now(dt.UTC)) < dt.timedelta(minutes=5)
    years_later(monkeypatch, DAY + 600)
    assert [p.verdict for p in log.steward.retain(dry_run=True).segments][-2:] == [
        "delete",
        "active",
    ]
    done = log.steward.retain()
    assert len(done.deleted) == 11
    assert (log.first_seq, log.last_seq, len(log), seqs(log)) == (43, 42, 0, [])
    assert log.append(b"on") == 43
    assert seqs(log) == [43]


def test_a_clock_that_went_back(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock before the appends nothing is old."""
    log.configure(keep_seconds=1)
    years_later(monkeypatch, -5 * 365 * DAY)
    assert not log.steward.retain().deleted


def test_until_consumed(log: Log) -> None:
    """With keep_until_consumed alone a segment goes when all consumers have committed it."""
    log.configure(keep_until_consumed=True)
    assert not log.steward.retain().deleted  # no consumer yet: nothing was consumed
    assert "no consumer and no group yet" in str(log.steward.retain(dry_run=True))
    with log.consumer("fast") as fast, log.consumer("slow") as slow:
        fast.poll(42)
        fast.commit()
        slow.poll(2 * EACH + 1)
        slow.commit()
        plan = log.steward.retain()
        assert [p.first_seq for p in plan.deleted] == [1, 5]
        held = [p for p in plan.segments if p.verdict == "held"]
        assert {p.held_by for p in held} == {("slow",)}
        assert "'slow' (live) has committed only what is before seq 10" in str(plan)
        assert next(slow).seq == 10
        slow.poll(100)
        slow.commit()
        assert log.steward.retain().new_first_seq == 41
        log.configure(keep_until_consumed=["slow", "later"])
        fill(log, 10)
        assert not log.steward.retain().deleted
        assert "'later' does not exist" in str(log.steward.retain(dry_run=True))


def test_rules_and_holders(log: Log) -> None:
    """With a rule besides, a segment goes when the rule says so and everybody has committed it."""
    log.configure(keep_segments=3, keep_until_consumed=["a"])
    with log.consumer("a") as a, log.consumer("b", start="start"):
        a.poll(5 * EACH)
        a.commit()
        plan = log.steward.retain()
        assert plan.new_first_seq == 21
        assert {p.overtakes for p in plan.deleted} == {("b",)}
        assert verdicts(log) == ["held"] * 3 + ["keep"] * 2 + ["active"]


def test_a_live_consumer_is_told(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    """A consumer that a rule overtakes is in the plan and in the log messages, and gets Gap."""
    with log.consumer("billing", timeout=0) as billing:
        assert [e.seq for e in billing.poll(2)] == [1, 2]
        billing.commit()
        log.configure(keep_segments=2)
        plan = log.steward.retain(dry_run=True)
        assert {p.overtakes for p in plan.deleted} == {("billing",)}
        assert "billing: would get Gap" in str(plan)
        log.steward.retain()
        assert "deleting seq 3 to 36, which 'billing' (live) has not committed" in caplog.text
        with pytest.raises(Gap) as caught:
            for _ in billing:
                pass
        assert caught.value.first_seq == 37


def test_the_dead_and_the_hopeless(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """consumer_ttl gives up who is not live and was not seen; max_lag who is too far behind."""
    log.consumer("dead").close()
    log.configure(keep_until_consumed=True, consumer_ttl=DAY)
    plan = log.steward.retain(dry_run=True)
    assert {p.verdict for p in plan.segments[:-1]} == {"held"}
    assert "counts until" in str(plan)
    log.configure(max_lag=3 * 60_000)
    lagging = [p.first_seq for p in log.steward.retain(dry_run=True).deleted]
    assert lagging == [1, 5, 9, 13, 17, 21, 25]
    log.configure(max_lag=0)
    with log.consumer("live", start=30) as live:
        years_later(monkeypatch, 2 * DAY)
        assert live.committed == 30
        assert [p.first_seq for p in log.steward.retain().deleted][-1] == 25


def test_a_consumer_that_cannot_be_read_holds_everything(log: Log) -> None:
    """Nobody knows what it needs; the plan says why."""
    log.consumer("odd").close()
    (Path(log.path) / "consumers" / "odd").write_bytes(b"?" * 9000)
    log.configure(keep_until_consumed=True, consumer_ttl=1)
    plan = log.steward.retain()
    assert not plan.deleted
    assert "'odd' (not live) cannot be read" in str(plan)


def test_trim(log: Log) -> None:
    """trim is exact to the event; files go by whole segments; rules and consumers do not count."""
    log.configure(keep_until_consumed=True)
    log.consumer("c").close()
    assert log.steward.trim(before=18, dry_run=True) == 18
    assert log.first_seq == 1
    assert log.steward.trim(before=18) == log.first_seq == 18
    assert seqs(log) == list(range(18, 43))
    assert [e.seq for e in reversed(log)] == list(range(42, 17, -1))
    assert bases(log) == [17, *range(21, 42, EACH)]
    assert log.steward.trim(before=3) == 18
    assert log.steward.trim(before=numpy.uint32(20)) == 20
    later = penstock.open(log.path, mode="r")
    assert (later.first_seq, len(later)) == (20, 23)
    later.close()
    assert log.steward.trim(before=43) == 43
    assert (len(log), bases(log)) == (0, [43])
    assert log.append(b"x") == 43
    assert log.verify().ok


def test_trim_by_time(path: Path) -> None:
    """trim(before=time) keeps everything from the first event of that time or later on."""
    with penstock.open(path, segment_size="64KiB") as log:
        for day in range(1, 29):
            log.append(bytes(9000), time=dt.datetime(2026, 1, day, tzinfo=dt.UTC))
        assert log.steward.trim(before="2026-01-10T00:00Z") == 10
        assert log.steward.trim(before=dt.date(2026, 1, 15)) in (14, 15, 16)  # local time
        assert log.steward.trim(before=dt.timedelta(0)) == 29
        assert len(log) == 0


def test_why(log: Log) -> None:
    """why says whether an event is there, and what will become of its segment."""
    log.configure(keep_segments=3)
    log.steward.trim(before=5)
    assert log.steward.why(4).state == "gone"
    found = log.steward.why(5)
    assert found.state == "there" and found.segment is not None
    assert (found.segment.verdict, found.segment.rule) == ("delete", "keep_segments")
    assert "seq 5 is there" in str(found) and "keep_segments" in str(found)
    assert log.steward.why(42).segment.verdict == "active"  # type: ignore[union-attr]
    assert log.steward.why(43).state == "to come"
    log.append(b"short-lived", ttl=1e-9)
    assert log.steward.why(43).state == "expired"


def test_arguments(log: Log, tmp_path: Path) -> None:
    """Wrong arguments, handles that cannot write, and rings get typed errors; nothing changes."""
    steward = log.steward
    for given in (None, "end", "start", True, 1.5, b"1", [1], -1, 1 << 70):
        with pytest.raises(Usage):
            steward.trim(before=given)  # type: ignore[arg-type]
    with pytest.raises(Usage, match="which is 43, got 44"):
        steward.trim(before=44)
    for flag in (1, None, "yes"):
        with pytest.raises(WrongType, match="dry_run must be True or False"):
            steward.retain(dry_run=flag)  # type: ignore[arg-type]
    for wrong in ("1", -1):
        with pytest.raises(Usage):
            steward.retain(timeout=wrong)  # type: ignore[arg-type]
    for interval in (0, -1, "1", None):
        with pytest.raises(Usage):
            steward.run(interval)  # type: ignore[arg-type]
    with pytest.raises(WrongType, match="stop must be"):
        steward.run(stop=1)  # type: ignore[arg-type]
    with penstock.open(log.path, mode="r") as reader:
        assert [p.verdict for p in reader.steward.retain(dry_run=True).segments][-1] == "active"
        assert reader.steward.why(1).state == "there"
        assert reader.steward.trim(before=9, dry_run=True) == 9
        for call in (reader.steward.retain, reader.steward.run):
            with pytest.raises(Permission):
                call()
        with pytest.raises(Permission):
            reader.steward.trim(before=9)
    with penstock.create(tmp_path / "x.ring", ring="64KiB") as ring:
        ring.append(b"a")
        for call in (ring.steward.retain, lambda: ring.steward.why(1)):  # type: ignore[assignment]
            with pytest.raises(Usage, match="this is a ring"):
                call()
        with pytest.raises(Usage, match="this is a ring"):
            ring.steward.trim(before=1)
    assert (log.first_seq, len(bases(log))) == (1, 11)
    log.close()
    with pytest.raises(Closed):
        steward.retain()


def test_one_at_a_time(log: Log) -> None:
    """While another job has the turn, retain and trim wait, then raise Busy; a dry run does not."""
    log.configure(keep_segments=1)
    directory = files.hold_dir(log.path)
    with turn.taken(directory):
        assert len(log.steward.retain(dry_run=True).deleted) == 10
        with pytest.raises(Busy, match="another maintenance job"):
            log.steward.retain(timeout=0)
        with pytest.raises(Busy):
            log.steward.trim(before=9, timeout=0.001)
    assert log.first_seq == 1
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(len(log.steward.retain().deleted)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [0, 0, 0, 10]


def test_files_that_came_back_are_deleted(log: Log, tmp_path: Path) -> None:
    """A segment below the first seq is deleted by the next run; what is not the log's stays."""
    copies = tmp_path / "copies"
    copies.mkdir()
    for base in bases(log)[:3]:
        (copies / f"{base:020d}.seg").write_bytes(
            (Path(log.path) / f"{base:020d}.seg").read_bytes()
        )
    log.steward.trim(before=21)
    for file in copies.iterdir():
        (Path(log.path) / file.name).write_bytes(file.read_bytes())
    with penstock.open(tmp_path / "other", segment_size="64KiB") as other:
        other.append(b"foreign")
    foreign = Path(log.path) / f"{2:020d}.seg"
    foreign.write_bytes((tmp_path / "other" / f"{1:020d}.seg").read_bytes())
    garbage = Path(log.path) / f"{3:020d}.seg"
    garbage.write_bytes(b"not a segment")
    assert seqs(log) == list(range(21, 43))
    plan = log.steward.retain(dry_run=True)
    assert len(plan.leftovers) == 3 and len(plan.left_alone) == 2
    log.steward.retain()
    assert bases(log) == [2, 3, *range(21, 42, EACH)]
    assert seqs(log) == list(range(21, 43))
    assert "left alone" in str(log.steward.retain(dry_run=True))


def test_a_damaged_segment_does_not_stop_it(log: Log) -> None:
    """Age and size of a damaged segment are known from its neighbours: it goes in its turn."""
    file = Path(log.path) / f"{5:020d}.seg"
    with file.open("r+b") as raw:
        raw.seek(20_000)
        raw.write(b"\xff" * 4000)
    log.configure(keep_segments=2)
    assert log.steward.retain().new_first_seq == 37
    assert bases(log) == [37, 41]


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS, errno.EPERM])
def test_a_file_that_cannot_be_deleted(
    log: Log, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The error is typed and names the file; its events are gone; a later run deletes it."""
    log.configure(keep_segments=2)
    real = os.unlink

    def unlink(name: Any, **where: Any) -> None:
        if str(name).startswith(f"{9:020d}"):
            raise OSError(code, os.strerror(code))
        real(name, **where)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unlink)
        with pytest.raises(penstock.PenstockError, match=f"{9:020d}.seg") as caught:
            log.steward.retain()
        assert isinstance(caught.value, OSError) and caught.value.errno == code
    assert bases(log)[0] == 9
    assert (log.first_seq, seqs(log)) == (37, list(range(37, 43)))
    assert len(log.steward.retain().leftovers) == 7
    assert bases(log) == [37, 41]


@pytest.mark.usefixtures("in_background")
def test_writers_do_it_after_a_roll(path: Path) -> None:
    """Whoever writes deletes, in the background, after a roll; without a rule nobody does."""
    with penstock.open(path, segment_size="64KiB") as log, penstock.open(path) as other:
        fill(log, 30)
        assert len(bases(log)) == 8
        log.configure(keep_segments=3)
        fill(other, 4)

        def few() -> bool:
            other._look_ahead()
            return len(bases(log)) == 3

        wait_for(few, "old segments to go")

        def told() -> bool:
            jobs = [one.stats().background["retain"] for one in (log, other)]
            return any(job.successes for job in jobs)

        wait_for(told, "a success to be recorded")
        assert seqs(log) == list(range(log.first_seq, 35))


@pytest.mark.usefixtures("in_background")
def test_a_short_lived_writer_does_it_when_it_closes(path: Path) -> None:
    """A log that is opened for each batch keeps to its rules, too."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.configure(keep_segments=2)
    for _ in range(6):
        with penstock.open(path) as log:
            fill(log, 9)
        assert len(bases(log)) <= 3
    with penstock.open(path) as log:
        assert seqs(log) == list(range(log.first_seq, 55))


def test_run_goes_on_after_an_error(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """run retains at once and again; an error is counted and logged, and the next round goes on."""
    log.configure(keep_segments=2)
    stop = threading.Event()
    real, calls = files.unlink, []

    def unlink(path: str) -> bool:
        calls.append(path)
        if len(calls) < 3:
            raise penstock.Io("the disk is ill")
        return real(path)

    monkeypatch.setattr(files, "unlink", unlink)
    worker = threading.Thread(target=log.steward.run, args=(0.001,), kwargs={"stop": stop})
    worker.start()
    wait_for(lambda: log.stats().background["retain"].successes > 1, "a success")
    stop.set()
    worker.join()
    found = log.stats().background["retain"]
    assert (found.failures, found.in_a_row, found.last_error) == (2, 0, "the disk is ill")
    assert bases(log) == [37, 41]


def test_run_ends_with_the_log(log: Log) -> None:
    """run raises when its log is closed."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            log.steward.run(0.001)
        except BaseException as error:
            errors.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    log.close()
    worker.join()
    assert [type(error) for error in errors] == [Closed]


def test_a_plan_prints_as_a_table(log: Log) -> None:
    """A plan of many segments is a few lines, with sizes, seqs and reasons."""
    log.configure(keep_segments=4)
    log.consumer("slow").close()
    lines = str(log.steward.retain(dry_run=True)).splitlines()
    assert lines[0].startswith(f"{log.path}: would delete 7 of 11 segments, ")
    assert lines[0].endswith("first_seq would go from 1 to 29")
    assert lines[1].split() == ["segments", "seqs", "size", "newest", "verdict", "why"]
    assert "delete" in lines[2] and "1 to 28" in lines[2] and "not committed by 'slow'" in lines[2]
    assert "active" in lines[4]
    assert lines[5] == "slow: would get Gap, with events that were not committed"
    assert len(lines) == 6


def test_groups_hold_events_back(log: Log) -> None:
    """What a group still needs is held like what a consumer needs."""
    with log.group("mail").worker() as worker:
        worker.ack(worker.poll(9))
    log.configure(keep_until_consumed=True)
    plan = log.steward.retain()
    assert plan.new_first_seq == 9
    assert {p.held_by for p in plan.segments if p.verdict == "held"} == {("mail",)}


def test_in_a_child_of_a_fork(log: Log, tmp_path: Path) -> None:
    """A child of a fork retains with the handle that it inherited; so do copies of a steward."""
    log.configure(keep_segments=3)
    alone.run(log.steward.retain, tmp_path)
    assert (log.first_seq, len(bases(log))) == (33, 3)
    again = pickle.loads(pickle.dumps(log.steward))
    fill(log, 8)
    assert len(again.retain().deleted) == 2
    again._log.close()
    assert seqs(log) == list(range(log.first_seq, 51))


def test_ctrl_c_ends_run(log: Log) -> None:
    """Ctrl-C ends the loop with KeyboardInterrupt, in a retention or between two."""
    log.configure(keep_segments=3)
    log.close()
    code = "import sys, penstock; print(1, flush=True); "
    code += "penstock.open(sys.argv[1]).steward.run(0.001)"
    for delay in (0, 1, 2):
        with subprocess.Popen(
            [sys.executable, "-c", code, log.path], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            if delay:
                wait_for(lambda: len(list(Path(log.path).glob("*.seg"))) == 3, "a retention")
            process.send_signal(signal.SIGINT)
            _, said = process.communicate()
            assert process.returncode in (-signal.SIGINT, 1)
            assert b"KeyboardInterrupt" in said
        with penstock.open(log.path) as after:
            assert seqs(after) == list(range(after.first_seq, 43))
