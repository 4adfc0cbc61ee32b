"""Opening, listing, copying and deleting groups; odd arguments."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import Busy, Closed, Corrupt, Log, NotFound, Permission, Usage, WrongType
from penstock.groups.group import Group
from penstock.groups.holding import needed
from penstock.groups.job import Job
from penstock.groups.listing import Groups
from penstock.groups.worker import Worker

ODD: list[tuple[str, Any]] = [
    ("order", "topic"),
    ("order", True),
    ("order", 1),
    ("deliveries", 0),
    ("deliveries", -1),
    ("deliveries", True),
    ("deliveries", 1.5),
    ("deliveries", None),
    ("deliveries", 1 << 40),
    ("backoff", 5),
    ("backoff", "5"),
    ("backoff", (-1,)),
    ("backoff", ("1",)),
    ("backoff", (float("nan"),)),
    ("backoff", None),
    ("lease", 0),
    ("lease", -1),
    ("lease", True),
    ("lease", "1 minute"),
    ("lease", float("inf")),
    ("max_pending", 0),
    ("max_pending", 2.0),
    ("dead_per_minute", -1),
    ("topic", b"x"),
    ("topic", 5),
    ("tags", "red"),
    ("tags", [b"red"]),
    ("start", None),
    ("start", True),
    ("start", -1),
    ("start", 99),
    ("start", "yesterday"),
]


@pytest.mark.parametrize(("what", "value"), ODD, ids=str)
def test_odd_terms(log: Log, folder: Path, what: str, value: Any) -> None:
    """A wrong term is a Usage error that names it, and no group is made."""
    with pytest.raises(Usage):
        log.group("mail", **{what: value})
    with log.group("mail") as group:  # as if nothing had been tried
        assert group.terms.deliveries == 5


@pytest.mark.parametrize("name", ["", " ", ".x", "a/b", "a\nb", "x" * 201, "\ud800", 5, None, b"x"])
def test_odd_names(log: Log, folder: Path, name: Any) -> None:
    """What cannot be the name of a group is refused, and nothing is made."""
    with pytest.raises(Usage, match="the name of a group"):
        log.group(name)
    assert not folder.exists()


@pytest.mark.parametrize("what", ["batch", "prefetch"])
@pytest.mark.parametrize("value", [0, -1, True, 1.0, "1", 1 << 20, np.array([1, 2])])
def test_odd_workers(log: Log, what: str, value: Any) -> None:
    """A wrong argument of a worker is a Usage error, and no worker is left."""
    group = log.group("mail")
    with pytest.raises(Usage, match=what):
        group.worker(**{what: value})
    for odd in ({"timeout": "1"}, {"timeout": -1}, {"on_error": "ignore"}, {"on_error": None}):
        with pytest.raises(Usage):
            group.worker(**odd)
    assert group.workers() == []


def test_odd_settling(log: Log) -> None:
    """Wrong arguments settle nothing."""
    log.extend([b"a", b"b"])
    group = log.group("mail", lease=60)
    worker = group.worker(timeout=0)
    job = next(worker)
    wrong: list[Callable[[], object]] = [
        lambda: job.nack(delay=-1),
        lambda: job.nack(delay=True),
        lambda: job.nack(delay="1"),  # type: ignore[arg-type]
        lambda: job.nack(reason=b"x"),  # type: ignore[arg-type]
        lambda: job.reject(5),  # type: ignore[arg-type]
        lambda: job.extend(0),
        lambda: job.extend("1"),  # type: ignore[arg-type]
        lambda: job.ack(result="text"),
        lambda: worker.ack(job),  # type: ignore[arg-type]
        lambda: worker.ack([job, 5]),  # type: ignore[list-item]
        lambda: worker.ack([job, job]),
        lambda: group.worker().ack([job]),
        lambda: worker.poll(0),
        lambda: worker.poll(5, timeout="x"),  # type: ignore[arg-type]
        lambda: group.release(99),
        lambda: group.release(True),
        lambda: group.redrive(5),  # type: ignore[arg-type]
        lambda: group.redrive(limit=-1),
        lambda: log.result(-1),
        lambda: log.result(1, timeout="x"),  # type: ignore[arg-type]
        lambda: log.result(1, group="a/b"),
    ]
    for call in wrong:
        with pytest.raises(Usage):
            call()
    job.nack(reason="\ud800 odd text", delay=np.float64(0.0))
    with next(worker) as again:
        assert (again.seq, again.deliveries) == (1, 2)
    assert len(worker.poll(np.int64(5))) == 1


def test_terms_are_settled(path: Path, log: Log) -> None:
    """Terms are compared when a group is opened again; what is left out is as it was made."""
    log.group("mail", order="key", deliveries=7, lease=2.5, tags=["b", "a"]).close()
    with log.group("mail") as group:
        assert (group.terms.order, group.terms.deliveries) == ("key", 7)
    log.group("mail", order="key", deliveries=7, lease=2.5, tags=("a", "b")).close()
    for other in ({"order": None}, {"deliveries": 5}, {"lease": None}, {"backoff": (9,)}):
        with pytest.raises(Usage, match=f"was made with {next(iter(other))}="):
            log.group("mail", **other)


def test_only_for_writers(path: Path, log: Log) -> None:
    """A log that was opened for reading lists its groups, and opens none."""
    log.append(b"a")
    with log.group("mail") as group:
        next(group.worker()).ack(result=b"r")
        with penstock.open(path, mode="r") as reading:
            with pytest.raises(Permission, match="mode='rw'"):
                reading.group("mail")
            assert [found.name for found in reading.groups()] == ["mail"]
            assert reading.result(1) == b"r"


def test_nothing_can_be_copied(log: Log) -> None:
    """Groups, workers and jobs stay where they are, and come from a log."""
    log.append(b"a")
    group = log.group("mail")
    worker = group.worker()
    for thing in (group, worker, next(worker)):
        with pytest.raises(WrongType, match="cannot be copied or pickled"):
            pickle.dumps(thing)
        with pytest.raises(WrongType):
            copy.copy(thing)
    for made in (Group, Job, lambda: Worker(log), lambda: Groups(5)):  # type: ignore[arg-type]
        with pytest.raises(Usage, match=r"comes? from"):
            made()


def test_listing_and_deleting(path: Path, log: Log, folder: Path) -> None:
    """Groups are listed by name; one that is open cannot be deleted, a closed one can."""
    log.extend([b"a", b"b"])
    group = log.group("mail")
    worker = group.worker()
    next(worker).ack()
    groups = log.groups()
    assert (groups.names(), len(groups), "mail" in groups, 5 in groups) == (
        ["mail"],
        1,
        True,
        False,
    )
    assert (groups["mail"].live, groups["mail"].lag.events, repr(groups)[:17]) == (
        True,
        1,
        "<penstock.Groups ",
    )
    with pytest.raises(Busy, match="the group is open"):
        groups.delete("mail")
    for missing in (groups.__getitem__, groups.delete):
        with pytest.raises(NotFound, match="has no group 'x'; it has 'mail'"):
            missing("x")
    group.close()
    assert not groups["mail"].live
    groups.delete("mail")
    assert groups.names() == []
    with log.group("mail") as again:
        assert again.stats().ready == 2


def test_deleting_the_log(path: Path, log: Log, kind: str) -> None:
    """The groups go with their log, unless one is open or a foreign file is among them."""
    log.append(b"a")
    group = log.group("mail")
    with group.worker() as worker:
        next(worker).reject()
    folder = Path(group.path)
    _ = group.dead
    log.close()
    with pytest.raises(Busy, match="the group is open"):
        penstock.delete(path)
    group.close()
    foreign = folder / "mine.txt"
    foreign.write_text("precious")
    with pytest.raises(Usage, match="groups"):
        penstock.delete(path)
    foreign.unlink()
    penstock.delete(path)
    assert list(path.parent.iterdir()) == []


def test_inner_logs_are_not_found(path: Path, log: Log) -> None:
    """`find` lists the log, not those of its groups; verify and a roll leave them alone."""
    log.append(b"a")
    with log.group("mail") as group, group.worker() as worker:
        next(worker).reject()
        assert len(group.dead) == 1
        assert penstock.find(path.parent) == [str(path)]
        assert log.verify().ok
        assert penstock.verify(path).ok
        assert penstock.open(group.dead.path, mode="r")[1].value == b"a"


def test_a_backup_takes_groups_along(path: Path, log: Log, kind: str) -> None:
    """A copy's groups go on where the original's were; claims of its workers return."""
    log.extend([b"%d" % i for i in range(5)])
    group = log.group("mail")
    worker = group.worker()
    jobs = worker.poll(3)
    jobs[0].ack(result=b"r")
    jobs[1].reject("no")
    assert len(group.dead) == 1
    copied = path.parent / ("copy" if kind == "log" else "copy.ring")
    log.backup(copied)
    with penstock.open(copied) as other, other.group("mail") as same:
        assert other.result(1) == b"r"
        assert [letter.header("dead.seq") for letter in same.dead] == [b"2"]
        with same.worker() as mine:
            found = mine.poll(5)
            assert [job.seq for job in found] == [3, 4, 5]
            mine.ack(found)
        assert same.redrive() == 1
    assert group.stats().claimed == 1
    group.close()


def test_a_ring_is_resized_beside_a_group(tmp_path: Path) -> None:
    """The groups of a ring stay with its name."""
    with penstock.open(tmp_path / "a.ring", ring="64KiB") as ring:
        ring.extend([b"a", b"b"])
        with ring.group("mail") as group, group.worker() as worker:
            next(worker).ack()
            ring.resize("256KiB")
            ring.append(b"c")
            assert [job.event.value for job in worker.poll(9)] == [b"b", b"c"]


def test_what_is_needed(log: Log) -> None:
    """Retention learns the lowest seq of each group, whoever is alive, and changes nothing."""
    log.extend([b"%d" % i for i in range(5)])
    assert needed(log) == []
    group = log.group("mail")
    worker = group.worker()
    one, two, _ = worker.poll(3)
    two.ack()
    [found] = needed(log)
    assert (found.name, found.seq, found.live, found.problem) == ("mail", 1, True, None)
    assert found.seen_ns > 0
    one.reject()
    _ = group.dead
    assert needed(log)[0].seq == 3
    group.redrive()
    assert needed(log)[0].seq == 3, "the letter has a copy"
    worker.close()
    assert not needed(log)[0].live


def test_events_that_are_gone(tmp_path: Path) -> None:
    """Retention, a ring's reach and expiry never stop a group: what is gone is counted as lost."""
    with penstock.open(tmp_path / "a.ring", ring="64KiB") as ring:
        ring.append(b"first")
        group = ring.group("mail", backoff=(0,))
        worker = group.worker(timeout=0)
        next(worker).nack()
        for _ in range(3000):
            ring.append(bytes(100))
        left = worker.poll(5000)
        assert [job.seq for job in left] == list(range(ring.first_seq, ring.last_seq + 1))
        worker.ack(left)
        assert group.stats().lost == 3001 - len(left)
        assert group.pending() == []
    with penstock.open(tmp_path / "log", segment_size="64KiB") as log:
        log.append(b"short")
        log.append(b"long")
        group = log.group("mail")
        worker = group.worker(timeout=5)
        next(worker).nack(delay=0.1)
        next(worker).ack()
        log.configure(ttl=0.01)
        assert worker.poll(timeout=0.5) == []
        assert group.stats().lost == 1
        log.configure(ttl=0)
        log.extend([b"x"] * 5)
        late = log.group("late")
        log.steward.trim(before=6)
        assert [job.seq for job in late.worker().poll(10)] == [6, 7]
        assert late.stats().lost == 5


def test_a_dead_letter_of_what_is_gone(tmp_path: Path) -> None:
    """A redriven event comes from its letter if the log has it no more."""
    with penstock.open(tmp_path / "log", segment_size="64KiB") as log:
        log.append(b"old", key=b"k")
        group = log.group("mail")
        worker = group.worker(timeout=0)
        next(worker).reject()
        assert len(group.dead) == 1
        log.append(b"new")
        log.steward.trim(before=2)
        assert group.redrive() == 1
        job = next(worker)
        assert (job.seq, job.event.value, job.event.key) == (1, b"old", b"k")
        job.ack(result=b"late")
        assert log.result(1) == b"late"


def test_damaged_decisions(path: Path, log: Log, folder: Path) -> None:
    """Damage in the decisions is a typed error that names the file, for opening and in listings."""
    log.append(b"a")
    log.group("mail").close()
    [segment] = (folder / "mail" / "state").glob("*.seg")
    data = bytearray(segment.read_bytes())
    at = data.index(log._uuid()[:8], 16384)
    data[at] ^= 1
    segment.write_bytes(data)
    with pytest.raises(Corrupt, match="state"):
        log.group("mail")
    [found] = log.groups()
    assert found.problem is not None
    [held] = needed(log)
    assert (held.seq, bool(held.problem)) == (0, True)
    log.groups().delete("mail")
    assert log.group("mail").stats().ready == 1


def test_a_group_of_another_log(path: Path, log: Log, folder: Path, tmp_path: Path) -> None:
    """A folder that was put there from another log is refused."""
    log.group("mail").close()
    with penstock.open(tmp_path / "other") as other:
        other.group("x").close()
        shutil.copytree(folder / "mail", tmp_path / "other" / "groups" / "mail")
        with pytest.raises(Corrupt, match="of another log"):
            other.group("mail")
        other.groups().delete("mail")


def test_a_worker_whose_file_was_deleted(log: Log) -> None:
    """Without its file a worker is taken for dead, and says so; its claims return."""
    log.extend([b"a", b"b"])
    group = log.group("mail")
    one, two = group.worker(timeout=0), group.worker(timeout=5)
    assert len(one.poll(2)) == 2
    shutil.rmtree(Path(group.path) / "workers")
    assert next(two).seq == 1
    with pytest.raises(Closed, match="its file was deleted"):
        one.poll()
    one.close()


def test_chdir_and_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group stays with its log when the directory changes, or the log is renamed."""
    monkeypatch.chdir(tmp_path)
    with penstock.open("log") as log:
        log.extend([b"a", b"b", b"c"])
        group = log.group("mail")
        worker = group.worker(timeout=0)
        next(worker).ack()
        os.chdir("/")
        (tmp_path / "log").rename(tmp_path / "moved")
        next(worker).reject()
        assert len(group.dead) == 1
        next(worker).ack(result=b"r")
        assert log.result(3) == b"r"
        assert not (tmp_path / "log").exists()
        group.close()
