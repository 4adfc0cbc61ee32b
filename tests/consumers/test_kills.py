"""Owners and standbys die at every store and any moment; each event is handled, none skipped."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock import Busy, Log
from penstock import layout as L
from penstock.consumers.file import parse
from tests.consumers.conftest import KINDS
from tests.consumers.processes import Child, run, start
from tests.support.fixtures import STORM

pytestmark = [pytest.mark.crash, pytest.mark.process]

SCALE = 20 if STORM else 1
KILLED = -signal.SIGKILL
STORES = ["consumer.fields", "consumer.summed", "consumer.stored"]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def filled(path: Path, kind: str) -> Path:
    """A closed log of ten events."""
    with penstock.create(path, **KINDS[kind]) as log:
        log.extend([b"%d" % i for i in range(10)])
    return path


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize(("point", "times"), list(itertools.product(STORES, (1, 2, 3, 7))))
def test_death_in_a_commit(filled: Path, point: str, times: int, durable: bool) -> None:
    """The next owner finds the last commit that returned, or the one that was under way."""
    said = filled.parent / "said"

    def work() -> None:
        with penstock.open(filled) as log, log.consumer("c") as consumer:
            for event in consumer:
                consumer.commit(durable=durable)
                with said.open("a") as lines:
                    print(event.seq, file=lines, flush=True)

    assert run(work, point, times) == KILLED
    told = len(said.read_text().split()) if said.exists() else 0
    with penstock.open(filled) as log, log.consumer("c") as consumer:
        assert consumer.committed in (told + 1, told + 2)
        assert consumer.committed == told + 1 + (point == "consumer.stored")
        assert next(consumer).seq == consumer.committed


@pytest.mark.parametrize("point", ["consumer.made", "consumer.named"])
def test_death_making_one(filled: Path, point: str) -> None:
    """It is there, at its start, or not there; what is half-made goes away."""

    def work() -> None:
        with penstock.open(filled) as log:
            log.consumer("c", start=4)

    assert run(work, point) == KILLED
    with penstock.open(filled) as log:
        assert ("c" in log.consumers()) == (point == "consumer.named")
        with log.consumer("c", start=7) as consumer:
            assert consumer.position == (4 if point == "consumer.named" else 7)
        folder = filled / "consumers" if filled.is_dir() else Path(f"{filled}.d") / "consumers"
        assert os.listdir(folder) == ["c"]


def test_death_deleting_one(filled: Path) -> None:
    """A consumer whose deleter dies is gone."""

    def work() -> None:
        with penstock.open(filled) as log:
            log.consumer("c").close()
            log.consumers().delete("c")

    assert run(work, "consumer.deleted") == KILLED
    with penstock.open(filled) as log:
        assert len(log.consumers()) == 0


def test_a_standby_takes_over_from_a_dead_owner(filled: Path) -> None:
    """The kernel says that the owner died: the standby goes on where that one committed."""
    ready, told = os.pipe()

    def own() -> None:
        with penstock.open(filled) as log, log.consumer("c") as consumer:
            consumer.poll(4)
            consumer.commit()
            os.write(told, b"!")
            signal.pause()

    owner = start(own)
    assert os.read(ready, 1) == b"!"
    with penstock.open(filled) as log:
        with pytest.raises(Busy, match="at seq 5"):
            log.consumer("c")

        def stand_by() -> None:
            with penstock.open(filled) as again, again.consumer("c", standby=True) as consumer:
                assert consumer.position == 5
                consumer.poll()
                consumer.commit()

        standby = start(stand_by)
        owner.kill()
        assert owner.wait() == KILLED
        assert standby.wait() == 0
        assert log.consumers()["c"].committed == 11


def test_a_stopped_owner_stays_the_owner(filled: Path) -> None:
    """SIGSTOP is not death: nobody takes over from an owner that may go on."""
    ready, told = os.pipe()

    def own() -> None:
        with penstock.open(filled) as log, log.consumer("c"):
            os.write(told, b"!")
            signal.pause()

    owner = start(own)
    os.read(ready, 1)
    os.kill(owner.pid, signal.SIGSTOP)
    with penstock.open(filled) as log:
        with pytest.raises(Busy):
            log.consumer("c")
        assert log.consumers()["c"].live
        owner.kill()
        owner.wait()
        assert not log.consumers()["c"].live
        log.consumer("c").close()


@pytest.mark.skipif(os.geteuid() != 0, reason="a PID namespace needs root")
def test_pid_namespaces(filled: Path) -> None:
    """An owner in another PID namespace is seen to live, and to be dead when it is."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    program = """
        import sys, os, penstock
        with penstock.open(sys.argv[1]) as log, log.consumer("c") as consumer:
            consumer.poll(3); consumer.commit()
            print(os.getpid(), flush=True)
            sys.stdin.read()
    """
    owner = subprocess.Popen(
        [
            *("unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c"),
            *(textwrap.dedent(program), str(filled)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert owner.stdout is not None and owner.stdin is not None
    line = owner.stdout.readline()
    if not line:
        pytest.skip("this system gives no PID namespaces")
    assert line == b"1\n", "it is in a namespace of its own"
    with penstock.open(filled) as log:
        with pytest.raises(Busy):
            log.consumer("c")
        owner.kill()
        owner.wait()
        with log.consumer("c", standby=True) as consumer:
            assert consumer.position == 4
    owner.stdin.close()
    owner.stdout.close()


def test_storm(filled: Path) -> None:
    """Owners and standbys are killed at random: each event is handled before it is committed."""
    handled = filled.parent / "handled"
    handled.touch()
    goal = 10 + 300 * SCALE
    random_source = random.Random(11)

    def write() -> None:
        with penstock.open(filled) as log:
            while log.last_seq < goal:
                if log.last_seq - lowest(log) < 500:  # else a ring would overtake the consumer
                    log.append(b"x")

    def lowest(log: Log) -> int:
        found = [info.committed for info in log.consumers() if not info.problem]
        return found[0] if found else 1

    def work() -> None:
        rng = random.Random(os.getpid())
        fd = os.open(handled, os.O_WRONLY | os.O_APPEND)
        with (
            penstock.open(filled) as log,
            log.consumer("c", standby=True, auto_commit=rng.choice([None, 0, 0.001])) as consumer,
        ):
            os.write(fd, b"from %d\n" % consumer.position)
            while consumer.committed <= goal:
                for event in consumer.poll(rng.randint(1, 9), timeout=1):
                    os.write(fd, b"%d\n" % event.seq)
                if rng.random() < 0.7:
                    consumer.commit(durable=rng.random() < 0.1)

    writer = start(write)
    workers: list[Child] = []
    try:
        for _ in range(25 * SCALE):
            while len(workers) < 3:
                workers.append(
                    start(work, random_source.choice(STORES), random_source.randint(1, 60))
                    if random_source.random() < 0.6
                    else start(work)
                )
            ended = workers.pop(random_source.randrange(3))
            if random_source.random() < 0.8:
                for _ in range(random_source.randint(0, 2000)):
                    os.sched_yield()
                ended.kill()
            assert ended.wait() in (0, KILLED)
        assert run(work) == 0
    finally:
        for child in workers:
            child.kill()
            child.wait()
    assert writer.wait() == 0
    check_handled(handled, goal)


def check_handled(handled: Path, goal: int) -> None:
    """Nobody began beyond what was handled before, so nothing was committed that was not passed."""
    seen: set[int] = set()
    complete = 0  # every seq up to this one was handled
    for line in handled.read_text().splitlines():
        if line.startswith("from"):
            began = int(line.split()[1])
            assert began <= complete + 1, f"an owner began at {began}, after {complete}"
            continue
        seen.add(int(line))
        while complete + 1 in seen:
            complete += 1
    assert complete == goal


def pipeline_in_batches(log: Log, out: Log) -> None:
    with log.consumer("c", standby=True) as consumer:
        rng = random.Random(os.getpid())
        while not consumer.caught_up:
            with consumer.into(out) as step:
                for event in consumer.poll(rng.randint(1, 7)):
                    if event.value != b"5":
                        step.extend([event.value] * int(event.value or b"1"))


def pipeline_one_by_one(log: Log, out: Log) -> None:
    with log.consumer("c", standby=True, timeout=0) as consumer:
        for event in consumer:
            with consumer.into(out) as step:
                if event.value != b"5":
                    step.extend([event.value] * int(event.value))


PIPELINES = {"batches": pipeline_in_batches, "one by one": pipeline_one_by_one}
POINTS = [
    *("consumer.appended", "consumer.fields", "consumer.summed", "consumer.stored"),
    *("publish.reserved", "publish.batch_body", "publish.written", "publish.commit"),
    *("publish.head", "publish.words", "lock.taken", "lock.given"),
]


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("point", POINTS)
def test_exactly_once_from_log_to_log(filled: Path, point: str, pipeline: str) -> None:
    """Killed at each fail-point again and again, the output is what the input makes of it."""
    target = filled.parent / "out"
    penstock.create(target, segment_size="64KiB").close()

    def work() -> None:
        with penstock.open(filled) as log, penstock.open(target) as out:
            PIPELINES[pipeline](log, out)

    deaths = 0
    for times in (1, 2, 3, 1, 2, 4, 2, 1, 3):
        deaths += run(work, point, times) == KILLED
    assert run(work) == 0
    if not (pipeline == "batches" and point == "publish.reserved"):
        assert deaths > 0, "nothing was tested"
    expected = [b"%d" % i for i in range(10) for _ in range(i) if i != 5]
    with penstock.open(target) as out:
        found = [event.value for event in out]
    zero = [value for value in found if value == b"0"]
    assert [value for value in found if value != b"0"] == expected
    assert len(zero) <= 1


def storm_of_pipelines(path: Path, work: Callable[[], object], rounds: int) -> None:
    rng = random.Random(5)
    for _ in range(rounds):
        child = start(work, rng.choice(POINTS), rng.randint(1, 40))
        if rng.random() < 0.5:
            for _ in range(rng.randint(0, 3000)):
                os.sched_yield()
            child.kill()
        assert child.wait() in (0, KILLED)
    assert run(work) == 0


def test_exactly_once_storm(tmp_path: Path) -> None:
    """Two inputs into one output while writers append and everybody is killed: output = input."""
    inputs = [tmp_path / "one", tmp_path / "two"]
    target = tmp_path / "out"
    for path in (*inputs, target):
        penstock.create(path, segment_size="64KiB").close()

    def work() -> None:
        with penstock.open(target) as out:
            for path in inputs:
                with penstock.open(path) as log:
                    for i in range(40):
                        log.append(b"%s %d" % (path.name.encode(), i))
                    with log.consumer("c", standby=True) as consumer:
                        rng = random.Random(os.getpid())
                        while not consumer.caught_up:
                            with consumer.into(out) as step:
                                step.extend(
                                    event.value + b" %d" % event.seq
                                    for event in consumer.poll(rng.randint(1, 30))
                                )

    storm_of_pipelines(target, work, 25 * SCALE)
    with penstock.open(target) as out:
        found = [event.value for event in out]
    for path in inputs:
        with penstock.open(path) as log:
            expected = [event.value + b" %d" % event.seq for event in log]
        assert [v for v in found if v.startswith(path.name.encode())] == expected


@pytest.mark.parametrize("point", ["consumer.saved", "consumer.tracked", *STORES])
def test_exactly_once_into_sqlite(filled: Path, point: str) -> None:
    """Killed around the commits of the database and of the consumer, each row is there once."""
    database = filled.parent / "db"
    sqlite3.connect(database).execute("CREATE TABLE seen (seq INTEGER)").connection.commit()

    def work() -> None:
        rows = sqlite3.connect(database)
        with penstock.open(filled) as log, log.consumer("c", standby=True) as consumer:
            tracker = consumer.track(rows)
            while not consumer.caught_up:
                with tracker:
                    for event in consumer.poll(3):
                        rows.execute("INSERT INTO seen VALUES (?)", (event.seq,))

    deaths = sum(run(work, point, times) == KILLED for times in (1, 2, 1, 3, 1, 2))
    assert deaths > 0
    assert run(work) == 0
    rows = sqlite3.connect(database).execute("SELECT seq FROM seen ORDER BY rowid").fetchall()
    assert [row[0] for row in rows] == list(range(1, 11))


def test_power_loss(filled: Path, kind: str) -> None:
    """Of each page any version since the last sync may be on disk: a place is always there.

    It is at least the one that was committed durably last, and at most the last one of all.
    """
    durable_at = {3, 7}
    folder = filled / "consumers" if kind == "log" else Path(f"{filled}.d") / "consumers"
    with penstock.open(filled) as log:
        log.consumer("c").close()
    fresh = (folder / "c").read_bytes()

    def work() -> None:
        with penstock.open(filled) as log, log.consumer("c") as consumer:
            for event in consumer.poll(9):
                consumer.commit(event.seq, durable=event.seq in durable_at)

    states: list[tuple[int, bytes]] = [(0, fresh)]  # with the number of the commit it is of
    for number in range(1, 10):
        for point in STORES:
            (folder / "c").write_bytes(fresh)
            assert run(work, point, number) == KILLED
            states.append((number, (folder / "c").read_bytes()))
    for now in range(len(states)):
        # A durable commit has synced once the next one begins.
        synced = max((d for d in durable_at if d < states[now][0]), default=0)
        since = [data for number, data in states[: now + 1] if number >= synced]
        since = since[2:] if synced else since  # the last of its states, and what came after it
        for one, two in itertools.product(since, repeat=2):
            place = parse(one[: L.PAGE] + two[L.PAGE :], "c")
            assert synced + 1 <= place.slot.next <= states[now][0] + 1
