"""``penstock doctor``."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

import penstock
from penstock import _core, errors
from penstock.cli import outcome
from penstock.cli.out import Out
from penstock.cli.paths import HOME, path_of
from penstock.cli.registry import Example
from penstock.cli.terminal import size_text
from penstock.errors import PenstockError

ABOUT = """\
Check this machine, a file system and a log: what is fine, what is not, and what to do. It writes
only to a temporary directory that it removes. Exit code 12 if something is not fine."""
EXAMPLES = (
    Example("penstock doctor", "this machine, and the file system here"),
    Example("penstock doctor data/orders", "and a log: can it be opened, is it whole"),
)
OK, WARNING, BAD = "ok", "warning", "bad"
FREE_BYTES = 256 << 20
DESCRIPTORS = 1024
SLOW_SYNC_SECONDS = 0.1


class Checkup(NamedTuple):
    """One thing that was looked at."""

    check: str
    status: str
    message: str
    todo: str = ""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "log", metavar="LOG|DIR", nargs="?", help="a log, or where logs are to be; default: here"
    )


def run(given: argparse.Namespace, out: Out) -> int | None:
    from penstock.places import exists

    place = path_of(given.log) if given.log else os.environ.get(HOME) or "."
    if not os.path.lexists(place):
        raise errors.NoSuchLog(f"{place}: there is nothing here", filename=place)
    is_log = exists(place)
    folder = os.path.dirname(os.path.abspath(place)) if is_log else place
    bad = 0
    for finding in (*_machine(), *_file_system(folder), *(_log(place) if is_log else ())):
        bad += finding.status == BAD
        if out.json:
            out.value(finding._asdict())
        else:
            colour = {OK: "green", WARNING: "yellow", BAD: "red"}[finding.status]
            out.line(
                f"{out.paint(finding.status, colour):<{out.padded(9)}}{finding.check}: "
                + outcome.one_line(finding.message)
                + (f"; {finding.todo}" if finding.todo else "")
            )
        out.flush()
    return outcome.SKIPPED if bad else None


def _machine() -> Iterator[Checkup]:
    """The Python, the kernel and the limits of this process."""
    import resource

    yield Checkup("penstock", OK, f"{penstock.__version__}, Python {platform.python_version()}")
    yield Checkup(
        "system", OK, f"{platform.system()} {platform.release()}, {os.cpu_count()} processors"
    )
    if _core.POLLING:
        yield Checkup("lock", WARNING, "polling", "build with futex: waiting costs less then")
    else:
        yield Checkup("lock", OK, "futex")
    if _core.CRC_HARDWARE:
        yield Checkup("checksums", OK, "by the processor")
    else:
        yield Checkup("checksums", WARNING, "in software", "reads and appends take longer here")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < DESCRIPTORS:
        todo = f"a log needs about six; raise it with ulimit -n (at most {hard})"
        yield Checkup("descriptors", WARNING, f"at most {soft}", todo)
    else:
        yield Checkup("descriptors", OK, f"at most {soft}")
    for package, what in (
        ("pyarrow", "-o arrow, -o parquet, sql"),
        ("duckdb", "sql"),
        ("shtab", "completion"),
    ):
        from importlib.util import find_spec

        if find_spec(package) is None:
            yield Checkup(
                package, WARNING, "not installed", f"needed for {what}: pip install {package}"
            )
        else:
            yield Checkup(package, OK, "installed")


def _file_system(folder: str) -> Iterator[Checkup]:
    """What logs need of the file system, tried in a temporary directory."""
    from penstock.system.filesystem import _REMOTE

    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        remote = _REMOTE.get(_core.file_system_magic(fd))
    finally:
        os.close(fd)
    if remote:
        todo = "use a local directory: processes of other hosts would not see appends"
        yield Checkup("file system", BAD, remote, todo)
    else:
        yield Checkup("file system", OK, "local")
    free = shutil.disk_usage(folder).free
    if free < FREE_BYTES:
        todo = "appends raise DiskFull when nothing is left; free some"
        yield Checkup("space", WARNING, f"{size_text(free)} free", todo)
    else:
        yield Checkup("space", OK, f"{size_text(free)} free")
    if not os.access(folder, os.W_OK):
        yield Checkup("writing", WARNING, f"{folder} is read-only for you", "logs can only be read")
        return
    try:
        with tempfile.TemporaryDirectory(prefix=".penstock-doctor-", dir=folder) as scratch:
            yield from _tried(scratch)
    except OSError as error:
        yield Checkup("writing", BAD, str(error), "check owner and mode of the directory")


def _tried(scratch: str) -> Iterator[Checkup]:
    """Create, append, read, sync and delete a log."""
    steps: list[tuple[str, Callable[[], Any]]] = []
    path = os.path.join(scratch, "log")
    with closing(penstock.create(path)) as log:

        def durable() -> str:
            times = []
            for _ in range(5):
                began = time.perf_counter()
                log.append(b"x", durable=True)
                times.append(time.perf_counter() - began)
            return f"{sorted(times)[2] * 1000:.1f} ms"

        def consume() -> str:
            log.consumer("doctor").close()
            return "made"

        steps = [
            ("append", lambda: f"seq {log.append(b'x' * 1000)}"),
            ("durable append", durable),
            ("read", lambda: f"{len(list(log))} events"),
            ("consumer", consume),
        ]
        for name, step in steps:
            try:
                message = str(step())
            except PenstockError as error:
                yield Checkup(name, BAD, str(error), "this file system cannot hold logs")
                return
            slow = (
                name == "durable append"
                and float(message.split(maxsplit=1)[0]) > SLOW_SYNC_SECONDS * 1000
            )
            todo = "the disk syncs slowly; sync_seconds= syncs in the background" if slow else ""
            yield Checkup(name, WARNING if slow else OK, message, todo)


def _log(path: str) -> Iterator[Checkup]:
    """One log: opened, verified, its consumers."""
    try:
        with penstock.open(path, "r", timeout=5) as log:
            stats = log.stats()
            yield Checkup("log", OK, f"{log.kind}, seq {stats.first_seq} to {stats.last_seq}")
            if stats.poisoned:
                todo = "close it in every process, check the disk, and run penstock verify"
                yield Checkup("syncs", BAD, "a sync has failed, so nothing is appended", todo)
            for name, why in stats.spurious.items():
                yield Checkup("files", WARNING, f"{name}: {why}", "move it away")
            for found in log.consumers():
                if found.problem is not None:
                    todo = f"penstock consumer delete {path} {found.name}"
                    yield Checkup(f"consumer {found.name}", BAD, found.problem, todo)
    except PenstockError as error:
        yield Checkup("log", BAD, str(error), f"penstock repair {path} says what can be saved")
    report = penstock.verify(path)
    if report.ok:
        yield Checkup("verify", OK, f"{report.events} events, nothing is damaged")
    else:
        damage = sum(problem.severity == "damage" for problem in report.problems)
        yield Checkup("verify", BAD, f"{damage} damaged places", f"penstock verify {path}")
