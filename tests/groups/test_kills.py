"""Workers die at every fail-point, in namespaces, in forks; no event is lost or done twice."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Literal

import pytest

import penstock
from penstock import Closed, Conflict, Entry
from penstock.groups import ledger
from tests.consumers.processes import run, start
from tests.groups import judge
from tests.groups.conftest import KINDS

pytestmark = [pytest.mark.crash, pytest.mark.process]

KILLED = -signal.SIGKILL
ROOT = Path(__file__).parents[2]
EVENTS = 12


@pytest.fixture
def filled(path: Path, kind: str) -> Path:
    """A closed log of a few events."""
    with penstock.create(path, **KINDS[kind]) as log:
        log.extend([Entry(b"%d" % i, key=b"%d" % (i % 3)) for i in range(EVENTS)])
    return path


def settle_some(path: Path, order: Literal["key"] | None) -> None:
    """Ack, nack, reject, redrive and ack again, with a snapshot after every few decisions."""
    ledger.SNAPSHOT_EVERY = 5
    with (
        penstock.open(path) as log,
        log.group("storm", order=order, backoff=(0,)) as group,
        group.worker(timeout=0.05, prefetch=2) as worker,
    ):
        for job in worker:
            if job.seq == 3 and job.deliveries == 1:
                job.reject("no")
            elif job.seq % 5 == 4 and job.deliveries == 1:
                job.nack(delay=0)
            else:
                job.ack(result=b"r" if job.seq == 1 else None)
        group.redrive()
        for job in worker:
            job.ack()


POINTS = [
    *("group.made", "group.locked", "group.before", "group.recorded", "group.handed"),
    *("group.snapshot", "group.trim", "group.letter", "group.moved", "group.raise", "group.result"),
]


@pytest.mark.parametrize("order", [None, "key"])
@pytest.mark.parametrize("point", POINTS)
def test_death_anywhere(filled: Path, point: str, order: Literal["key"] | None) -> None:
    """Killed there again and again, a group comes to the end; each event has one outcome."""
    deaths = 0
    for times in (1, 2, 3, 5, 9, 14):
        deaths += run(lambda: settle_some(filled, order), point, times) == KILLED
    assert deaths or point == "group.trim"
    with penstock.open(filled) as log:
        judge.drain(log)
        group = log.group("storm")
        letters = Counter(int(letter.header("dead.seq") or 0) for letter in group.dead)
        stats = group.stats()
        acked = stats.acked
        assert acked + stats.dead == EVENTS
        assert letters[3] <= 2 and set(letters) <= {3, 4, 9}
        group.close()


@pytest.mark.parametrize("point", ["group.found-dead", "group.recorded"])
def test_death_while_burying_the_dead(filled: Path, point: str) -> None:
    """Whoever finds a worker dead may die as well: the next one finds both."""

    def claim() -> None:
        with penstock.open(filled) as log, log.group("storm") as group:
            worker = group.worker()
            next(worker)
            os._exit(7)

    def find() -> None:
        with penstock.open(filled) as log, log.group("storm") as group:
            group.worker(timeout=5).poll(3, timeout=5)

    assert run(claim) == 7
    assert run(find, point) == KILLED
    with penstock.open(filled) as log, log.group("storm") as group, group.worker() as worker:
        jobs = worker.poll(EVENTS, timeout=5)
        assert [job.seq for job in jobs] == list(range(1, EVENTS + 1))
        assert jobs[0].deliveries == 2
        worker.ack(jobs)
        assert not [info for info in group.workers() if not info.live]
        files = list((Path(group.path) / "workers").iterdir())
        assert len(files) == 1


def test_a_killed_worker_is_noticed_at_once(filled: Path) -> None:
    """A waiting worker gets what a killed one had, without any timeout to be set."""
    with penstock.open(filled) as log:
        group = log.group("storm")
        said, tell = os.pipe()

        def hold() -> None:
            with penstock.open(filled) as mine:
                worker = mine.group("storm").worker()
                worker.poll(EVENTS)
                os.write(tell, b"x")
                time.sleep(60)

        child = start(hold)
        os.read(said, 1)
        with group.worker(timeout=30) as worker:
            assert worker.poll(1, timeout=0.05) == []
            child.kill()
            child.wait()
            job = next(worker)
            assert (job.seq, job.deliveries) == (1, 2)
        group.close()


def test_a_stopped_worker_keeps_what_it_has(filled: Path) -> None:
    """SIGSTOP is no death: nobody else gets the event, and the ack counts when it goes on."""
    said, tell = os.pipe()
    go, release = os.pipe()

    def hold() -> None:
        with penstock.open(filled) as mine:
            job = next(mine.group("storm").worker())
            os.write(tell, b"x")
            os.read(go, 1)
            job.ack()

    with penstock.open(filled) as log:
        child = start(hold)
        try:
            os.read(said, 1)
            os.kill(child.pid, signal.SIGSTOP)
            with log.group("storm") as group, group.worker() as worker:
                jobs = worker.poll(EVENTS, timeout=0.2)
                assert [job.seq for job in jobs] == list(range(2, EVENTS + 1))
                worker.ack(jobs)
                assert worker.poll(timeout=0.1) == []
                os.kill(child.pid, signal.SIGCONT)
                os.write(release, b"x")
                assert child.wait() == 0
                assert group.stats().acked == EVENTS
        finally:
            os.kill(child.pid, signal.SIGCONT) if not _ended(child.pid) else None


def _ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_stopped_worker_with_a_lease(filled: Path) -> None:
    """With lease= a stopped worker loses its events, and gets Conflict when it goes on."""
    said, tell = os.pipe()
    go, release = os.pipe()

    def hold() -> None:
        with penstock.open(filled) as mine:
            job = next(mine.group("storm").worker())
            os.write(tell, b"x")
            os.read(go, 1)
            with pytest.raises(Conflict):
                job.ack()

    with penstock.open(filled) as log, log.group("storm", lease=0.1) as group:
        child = start(hold)
        os.read(said, 1)
        os.kill(child.pid, signal.SIGSTOP)
        try:
            with group.worker() as worker:
                seqs = set()
                while 1 not in seqs:
                    jobs = worker.poll(EVENTS, timeout=5)
                    seqs |= {job.seq for job in jobs}
                    worker.ack(jobs)
        finally:
            os.kill(child.pid, signal.SIGCONT)
            os.write(release, b"x")
        assert child.wait() == 0
        assert group.stats().acked == EVENTS


def test_a_poison_job(filled: Path) -> None:
    """A job that always kills its worker ends in the dead letters; its neighbours do not."""

    def work() -> None:
        with penstock.open(filled) as log, log.group("storm") as group:
            for job in group.worker(timeout=0.3, prefetch=EVENTS):
                if job.seq == 5:
                    os.kill(os.getpid(), signal.SIGKILL)
                job.ack()

    with penstock.open(filled) as log:
        log.group("storm", deliveries=3, backoff=(0,)).close()
    codes = [run(work) for _ in range(4)]
    assert codes == [KILLED, KILLED, KILLED, 0]
    with penstock.open(filled) as log, log.group("storm") as group:
        [letter] = group.dead
        assert letter.header("dead.seq") == b"5"
        assert letter.header("dead.reason") == b"its worker died"
        assert group.stats().acked == EVENTS - 1


def test_a_fork_owns_nothing(filled: Path) -> None:
    """In a child the parent's workers are closed; it cannot keep the parent's claims alive."""
    with penstock.open(filled) as log:
        group = log.group("storm")

        def parent() -> None:
            worker = group.worker()
            jobs = worker.poll(2)
            pid = os.fork()
            if pid == 0:
                for call in (jobs[0].ack, lambda: next(worker), worker.poll):
                    with pytest.raises(Closed, match="belongs to the process that forked"):
                        call()
                worker.close()
                with group.worker() as mine:
                    job = next(mine)
                    assert job.seq == 3, "the parent still has the others"
                    job.ack()
                time.sleep(60)
            while group.stats().acked < 1:
                time.sleep(0.01)
            (filled.parent / "child").write_text(str(pid))
            os._exit(5)  # the child lives on

        assert run(parent) == 5
        child = int((filled.parent / "child").read_text())
        try:
            with group.worker() as worker:
                jobs = worker.poll(EVENTS, timeout=10)
                assert [job.seq for job in jobs] == [1, 2, *range(4, EVENTS + 1)]
        finally:
            os.kill(child, signal.SIGKILL)
        group.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="a namespace of process ids needs root")
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare(1)")
def test_another_namespace(filled: Path) -> None:
    """A worker whose pid means nothing here is alive while it lives, and dead once it dies."""
    program = (
        "import sys, time, penstock\n"
        "log = penstock.open(sys.argv[1])\n"
        "worker = log.group('storm').worker()\n"
        "worker.poll(3)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    with penstock.open(filled) as log:
        child = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", program, filled],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert child.stdout is not None and child.stderr is not None
            if child.stdout.readline() != "ready\n":
                pytest.skip(f"no namespace here: {child.stderr.read()}")
            with log.group("storm") as group, group.worker() as worker:
                assert len(worker.poll(EVENTS, timeout=0.1)) == EVENTS - 3
                [other] = [info for info in group.workers() if info.number != worker.number]
                assert other.live
                child.kill()
                child.wait()
                assert len(worker.poll(3, timeout=10)) == 3
        finally:
            child.kill()
            child.communicate()


def test_death_in_a_deletion(filled: Path) -> None:
    """A deletion that dies leaves the group or nothing; the next one clears up."""

    def delete() -> None:
        with penstock.open(filled) as log:
            log.groups().delete("storm")

    with penstock.open(filled) as log:
        log.group("storm").close()
    assert run(delete, "group.deleted") == KILLED
    with penstock.open(filled) as log:
        assert log.groups().names() == []
        log.group("other").close()
        log.groups().delete("other")
        home = filled / "groups" if filled.is_dir() else Path(f"{filled}.d") / "groups"
        assert list(home.iterdir()) == []


def test_death_in_a_schedule(filled: Path) -> None:
    """Killed between the event and the decision, a schedule appends no tick twice."""

    def tick() -> None:
        with (
            penstock.open(filled) as log,
            log.group("storm") as group,
            group.every(0.05, "tick", b"tick", topic="ticks"),
        ):
            time.sleep(0.3)

    for _ in range(3):
        assert run(tick, "group.ticked") == KILLED
    with penstock.open(filled) as log:
        ticks = [event.time_ns for event in log.read(topic="ticks")]
        assert ticks
        assert len(set(ticks)) == len(ticks)


def test_no_fail_point_is_left_out() -> None:
    """Every fail-point of the groups is named in the tests of this folder."""
    named = set()
    for file in (ROOT / "src" / "penstock" / "groups").glob("*.py"):
        named |= set(re.findall(r"fail_point\(\"([^\"]+)\"", file.read_text()))
    tests = "".join(file.read_text() for file in Path(__file__).parent.glob("test_*.py"))
    assert {name for name in named if f'"{name}"' not in tests} == set()
