"""``penstock torture``."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

import penstock
from penstock.cli.out import Out
from penstock.cli.progress import Progress
from penstock.cli.registry import Example
from penstock.cli.when import span, whole
from penstock.errors import Corrupt, DiskFull, NoSuchLog

ABOUT = """\
Kill writers at random moments on your own disk, again and again, and check after each round that
every acknowledged event is there once, in order, with its bytes, and that verify finds nothing.
Then fill a log's own limit, and sync. It works in a temporary directory below DIR, which it
removes, and prints a dated report. Exit code 7 if anything was lost."""
EXAMPLES = (Example("penstock torture /data --for 10m > report.json", "ten minutes on that disk"),)
WRITERS = 4
VALUE_BYTES = 200
BYTES_MAX = 64 << 20
ROUND_SECONDS = (0.05, 0.6)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="where to work")
    parser.add_argument(
        "--for", dest="how_long", metavar="SPAN", default="30s", help="default: 30s"
    )
    parser.add_argument("--writers", metavar="N", default=str(WRITERS), help="default: 4")
    parser.add_argument("--seed", metavar="N", help="repeat the moments of another run")
    parser.add_argument("--keep", action="store_true", help="keep the log if something was lost")


def run(given: argparse.Namespace, out: Out) -> int | None:
    if not os.path.isdir(given.directory):
        raise NoSuchLog(f"{given.directory}: there is no such directory", filename=given.directory)
    seconds = span(given.how_long, "--for")
    seed = random.getrandbits(32) if given.seed is None else whole(given.seed, "--seed")
    began = dt.datetime.now(dt.UTC)
    scratch = tempfile.mkdtemp(prefix=".penstock-torture-", dir=given.directory)
    found: list[dict[str, Any]] = []
    try:
        storm = _Storm(scratch, whole(given.writers, "--writers", 1), random.Random(seed))
        with Progress(out, "torturing", is_bytes=False) as progress:
            storm.run(seconds, progress)
        found = [storm.told(), _full(scratch), _synced(scratch)]
        found.append({"test": "forget", "ok": _deleted(storm.path)})
    finally:
        bad = [row for row in found if not row["ok"]] or not found
        if not (bad and given.keep):
            shutil.rmtree(scratch, ignore_errors=True)
        elif given.keep:
            out.notice("kept", f"the log is kept in {scratch}")
    _report(out, given, began, seed, found)
    return Corrupt.exit_code if bad else None


class _Storm:
    """Writers that are killed, and what they were told."""

    def __init__(self, scratch: str, writers: int, source: random.Random) -> None:
        self.path = os.path.join(scratch, "log")
        self._writers = writers
        self._source = source
        self._acked: dict[str, int] = {}  # by life: how many events were acknowledged
        self.acknowledged = 0
        self.rounds = self.kills = 0
        self.problems: list[str] = []
        penstock.create(self.path, segment_size="1MiB").close()

    def run(self, seconds: float, progress: Progress) -> None:
        """Rounds until the time is up, at least one."""
        end = time.monotonic() + seconds
        while not self.problems and (not self.rounds or time.monotonic() < end):
            self._round()
            self._check()
            progress.update(self.rounds)

    def _round(self) -> None:
        """Start writers, kill them, and take what they had said."""
        self.rounds += 1
        lives = [f"{self.rounds}-{n}" for n in range(self._writers)]
        running = []
        try:
            for life in lives:
                said = f"{self.path}-{life}.said"
                command = [sys.executable, "-m", "penstock.cli.tortured", self.path, life, said]
                running.append(subprocess.Popen(command, stdout=subprocess.PIPE))
            for process in running:
                assert process.stdout is not None
                process.stdout.readline()  # it has begun
            for process in self._source.sample(running, len(running)):
                time.sleep(self._source.uniform(*ROUND_SECONDS) / len(running))
                process.send_signal(signal.SIGKILL)
                self.kills += 1
            for life, process in zip(lives, running, strict=True):
                process.wait()
                with open(f"{self.path}-{life}.said", "rb") as file:
                    lines = file.read().split(b"\n")[:-1]  # what has no end was not said
                os.unlink(file.name)
                self._acked[life] = len(lines)
                self.acknowledged += len(lines)
        finally:
            for process in running:
                process.kill()
                process.wait()
                assert process.stdout is not None
                process.stdout.close()

    def _check(self) -> None:
        """Every acknowledged event is there once, in order, with its bytes."""
        report = penstock.verify(self.path)
        if not report.ok:
            self.problems.append(str(report))
        next_number: dict[str, int] = {}
        last: dict[str, int] = {}
        with penstock.open(self.path) as log:
            before = 0
            for event in log:
                life, number, filler = event.value.split(b":", 2)
                name = life.decode()
                if event.seq != before + 1:
                    self.problems.append(f"seq {event.seq} comes after {before}")
                before = event.seq
                if int(number) != next_number.get(name, 0) or filler != b"x" * VALUE_BYTES:
                    self.problems.append(
                        f"seq {event.seq}: life {name} has {number!r} out of order"
                    )
                next_number[name] = int(number) + 1
                last[name] = int(number)
            size = log.stats().disk_bytes
        for name, count in self._acked.items():
            if last.get(name, -1) < count - 1:
                self.problems.append(
                    f"life {name}: {count} events were acknowledged, "
                    f"{last.get(name, -1) + 1} are there"
                )
        if size > BYTES_MAX and not self.problems:  # every round reads all of it
            _deleted(self.path)
            self._acked = {}
            penstock.create(self.path, segment_size="1MiB").close()

    def told(self) -> dict[str, Any]:
        """The outcome."""
        return {
            "test": "kill",
            "ok": not self.problems,
            "rounds": self.rounds,
            "kills": self.kills,
            "acknowledged": self.acknowledged,
            "problems": self.problems[:10],
        }


def _full(scratch: str) -> dict[str, Any]:
    """Appends to a disk without room fail with DiskFull, lose nothing, and work again after it."""
    import resource

    path = os.path.join(scratch, "full")
    problems: list[str] = []
    count = 0
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with penstock.create(path, segment_size="64KiB") as log:
            count = len(log.extend([b"x" * 100] * 100))
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))
            refused = None
            try:
                for _ in range(100):
                    count += len(log.extend([b"x" * 1000] * 20))
            except (DiskFull, penstock.Io) as error:
                refused = type(error).__name__
            if refused is None:
                problems.append("no append was refused")
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            count += len(log.extend([b"y"] * 10))
            if len(log) != count:
                problems.append(f"{count} events were acknowledged, {len(log)} are there")
    except penstock.PenstockError as error:
        problems.append(str(error))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    if not penstock.verify(path).ok:
        problems.append("verify finds damage")
    return {"test": "no room", "ok": not problems, "acknowledged": count, "problems": problems}


def _synced(scratch: str) -> dict[str, Any]:
    """What is durable is said to be, and how long a sync takes here."""
    problems = []
    times = []
    with penstock.create(os.path.join(scratch, "synced")) as log:
        for n in range(20):
            began = time.perf_counter()
            seq = log.append(b"%d" % n, durable=True)
            times.append(time.perf_counter() - began)
            if log.durable_seq < seq:
                problems.append(f"seq {seq} was durable, but durable_seq is {log.durable_seq}")
    times.sort()
    return {
        "test": "sync",
        "ok": not problems,
        "median_ms": round(times[10] * 1000, 3),
        "slowest_ms": round(times[-1] * 1000, 3),
        "problems": problems,
    }


def _deleted(path: str) -> bool:
    """Whether the log can be deleted, which needs that no dead process holds it."""
    penstock.delete(path)
    return not penstock.exists(path)


def _report(
    out: Out, given: argparse.Namespace, began: dt.datetime, seed: int, found: list[dict[str, Any]]
) -> None:
    about = {
        "date": began.isoformat(timespec="seconds"),
        "penstock": penstock.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "directory": os.path.abspath(given.directory),
        "seed": seed,
        "seconds": round((dt.datetime.now(dt.UTC) - began).total_seconds(), 1),
        "ok": all(row["ok"] for row in found),
    }
    if out.json:
        out.value({**about, "tests": found})
        return
    for name, value in about.items():
        out.line(f"{name:<12}{'yes' if value is True else 'no' if value is False else value}")
    for row in found:
        rest = {k: v for k, v in row.items() if k not in ("test", "ok", "problems")}
        colour = "green" if row["ok"] else "red"
        status = out.paint("ok" if row["ok"] else "LOST", colour)
        out.line(f"{row['test']:<12}{status}  {json.dumps(rest)}")
        for problem in row.get("problems", ()):
            out.line(f"            {problem}")
