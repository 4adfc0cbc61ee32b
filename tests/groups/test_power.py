"""After a loss of power: what was durable stays, the rest is handed out again, never lost."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

import penstock
from penstock import Log
from penstock.groups.folder import notes_in
from penstock.system import files
from tests.consumers.processes import run
from tests.groups.conftest import KINDS
from tests.support.fixtures import STORM

pytestmark = pytest.mark.crash


def photograph(path: Path, to: Path) -> None:
    """A copy of what is on disk by now, without the shared memory that a boot ends."""
    to.mkdir(parents=True)
    shutil.copytree(path, to / "log", ignore=shutil.ignore_patterns("control", "workers"))


def test_any_mixture_of_old_and_new(tmp_path: Path) -> None:
    """Log, decisions and dead letters may each be as they were at any moment since their sync."""
    path = tmp_path / "log"
    shots: list[Path] = []

    def shoot() -> None:
        shots.append(tmp_path / "shots" / str(len(shots)))
        photograph(path, shots[-1])

    durable: dict[int, tuple[int, ...]] = {}
    with penstock.create(path, **KINDS["log"]) as log:
        log.extend([b"%d" % i for i in range(1, 7)], durable=True)
        group = log.group("mail", deliveries=2, backoff=(0,))
        with group.worker(timeout=0) as worker:
            shoot()
            next(worker).ack()
            shoot()
            next(worker).ack(durable=True)
            durable[2] = (1, 2)
            shoot()
            next(worker).reject("no")
            shoot()
            _ = group.dead
            durable[4] = (1, 2, 3)
            shoot()
            log.extend([b"%d" % i for i in range(7, 10)])
            worker.ack(worker.poll(5))
            shoot()
            next(worker).ack()
            shoot()
        group.close()

    rng = random.Random(3)
    count = len(shots)
    for _ in range(200 if STORM else 25):
        parts = {"log": rng.randrange(count), "state": rng.randrange(count)}
        parts["dead"] = rng.randrange(4, count) if parts["state"] >= 4 else rng.randrange(count)
        check_mixture(tmp_path / "mixed", shots, parts, durable)


def check_mixture(
    mixed: Path, shots: list[Path], parts: dict[str, int], durable: dict[int, tuple[int, ...]]
) -> None:
    """Open such a disk: each event of the log is handed out, or was settled durably."""
    shutil.rmtree(mixed, ignore_errors=True)
    shutil.copytree(shots[parts["log"]] / "log", mixed, ignore=shutil.ignore_patterns("groups"))
    (mixed / "groups" / "mail").mkdir(parents=True)
    for part in ("state", "dead"):
        source = shots[parts[part]] / "log" / "groups" / "mail" / part
        if source.exists():
            shutil.copytree(source, mixed / "groups" / "mail" / part)
    with penstock.open(mixed) as log:
        last = log.last_seq
        log.extend([b"new"] * 4)
        with log.group("mail") as group, group.worker(timeout=0) as worker:
            seen = [job.seq for job in drained(worker)]
            dead = [int(letter.header("dead.seq") or 0) for letter in group.dead]
        kept = max((seqs for at, seqs in durable.items() if at <= parts["state"]), default=())
        settled = settled_at(parts["state"])
        for seq in range(1, last + 5):
            if seq in kept:
                assert seq not in seen, (parts, seq)
            if seq > last:
                assert seen.count(seq) == 1, (parts, seq, seen)
            if seq not in settled:
                assert seq in seen or seq in dead, (parts, seq, seen, dead)


def settled_at(shot: int) -> set[int]:
    """What the decisions of that moment say is done."""
    return set(range(1, [0, 1, 2, 2, 3, 8, 9][shot] + 1))


def drained(worker: penstock.Worker) -> list[penstock.Job]:
    """Ack everything."""
    jobs = []
    for job in worker:
        job.ack()
        jobs.append(job)
    return jobs


def test_a_cut_is_told_and_done_once(
    log: Log, path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A group beyond the end of its log goes on at the end, and says so."""
    log.extend([b"x"] * 3)
    older = path.parent / ("older" if kind == "log" else "older.ring")
    log.backup(older)
    log.extend([b"x"] * 4)
    with log.group("mail") as group, group.worker() as worker:
        worker.ack(worker.poll(6))
    home = "older/groups" if kind == "log" else "older.ring.d/groups"
    source = path / "groups" if kind == "log" else path.with_name("log.ring.d") / "groups"
    shutil.copytree(source, path.parent / home)
    with penstock.open(older) as opened:
        opened.extend([b"new"] * 2)
        with opened.group("mail") as group, group.worker(timeout=0) as worker:
            assert "had come to seq 7, and the log ended before seq 4" in caplog.text
            assert [job.event.value for job in worker] == [b"new", b"new"]
            assert notes_in(group._desk.folder) == {}


@pytest.mark.process
@pytest.mark.parametrize("point", ["group.note", "group.cut"])
def test_death_around_a_note(path: Path, kind: str, point: str) -> None:
    """Whoever dies while telling, or while doing what was told, leaves it to the next opener."""
    with penstock.create(path, **KINDS[kind]) as log:
        log.extend([b"x"] * 3)
        older = path.parent / ("older" if kind == "log" else "older.ring")
        log.backup(older)
        log.extend([b"x"] * 4)
        with log.group("mail") as group, group.worker() as worker:
            worker.ack(worker.poll(6))
            source = Path(group.path).parent
    home = "older/groups" if kind == "log" else "older.ring.d/groups"
    shutil.copytree(source, path.parent / home)

    def work() -> None:
        with penstock.open(older) as opened, opened.group("mail"):
            pass

    assert run(work, point) != 0
    with penstock.open(older) as opened:
        opened.append(b"new")
        with opened.group("mail") as group, group.worker(timeout=0) as worker:
            assert [job.event.value for job in worker] == [b"new"]


def test_notes_are_not_piled_up(path: Path, log: Log, kind: str) -> None:
    """A log that is opened again and again tells a group that nobody opens only once."""
    log.append(b"x")
    with log.group("mail") as group:
        folder = Path(group.path)
    log.close()
    for _ in range(3):
        forget_boot(path, kind)
        with penstock.open(path) as again:
            again.append(b"y")
    held = files.hold_dir(str(folder))
    assert len(notes_in(held)) == 1
    with penstock.open(path) as again, again.group("mail") as group:
        assert len(group.worker().poll(10)) == 4
        assert notes_in(held) == {}


def forget_boot(path: Path, kind: str) -> None:
    """Have the next opener find no shared memory of this boot."""
    if kind == "log":
        (path / "control").unlink()
        return
    with path.open("r+b") as file:
        file.seek(penstock.layout.RING_CONTROL_OFFSET)
        file.write(bytes(64))
