"""The demo runs whole: its counts agree, and it leaves nothing but its results."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyarrow import parquet

from examples import checks, demo, flights
from tests.support.wait import wait_for
from tests.support.workers import ROOT

pytestmark = pytest.mark.process


def start(where: Path, scratch: Path, *more: str) -> subprocess.Popen[str]:
    """Start the demo, in a session of its own."""
    scratch.mkdir()
    return subprocess.Popen(
        [sys.executable, "-m", "examples.demo", "--dir", str(where), *more],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def in_session(session: int) -> list[str]:
    """The processes of a session that are still there."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.getsid(int(name)) == session:
                found.append(Path(f"/proc/{name}/cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # it ended meanwhile
    return found


def assert_nothing_left(session: int, where: Path, scratch: Path) -> None:
    """No process of the demo is left, and no file but those that it names."""
    wait_for(lambda: not in_session(session), "the demo's processes to end")
    assert list(scratch.iterdir()) == []
    names = {path.name for path in where.iterdir()}
    assert names <= {demo.MARK, "flights", "lake", "_lake", "delays.parquet", "spark.log"}


def test_the_demo_agrees(tmp_path: Path) -> None:
    """A demo of fewer flights kills its writer, loses and doubles nothing, and cleans up."""
    where, scratch = tmp_path / "demo", tmp_path / "scratch"
    process = start(where, scratch, "--flights", "20000")
    out, _ = process.communicate()
    assert process.returncode == 0, out
    assert "was killed with SIGKILL" in out
    assert "all counts agree" in out
    assert "WRONG" not in out
    assert_nothing_left(process.pid, where, scratch)

    wanted = flights.read()[:20_000]
    rows = checks.read_lake(where / "lake")
    assert rows.num_rows == 20_000
    assert checks.count_twice(rows, ["log", "offset"]) == 0
    assert checks.count_missing(wanted, rows, flights.IDENTITY) == 0
    delays = parquet.read_table(where / "delays.parquet")
    assert sum(delays["flights"].to_pylist()) == 20_000
    assert f"{max(filter(None, wanted['dep_delay'].to_pylist()))} min" in out


def test_the_checks_see_what_is_wrong(tmp_path: Path) -> None:
    """A lake that lacks a flight, has one twice, or has another's delay does not agree."""
    wanted = flights.read()[:100]
    good = wanted.append_column("log", wanted["origin"]).append_column("offset", wanted["flight"])
    assert checks.count_missing(wanted, good, flights.IDENTITY) == 0
    assert checks.count_missing(wanted, good[1:], flights.IDENTITY) == 1
    doubled = good.take([*range(100), 5])
    assert checks.count_twice(doubled, flights.IDENTITY) == 1
    assert checks.count_twice(doubled, ["log", "offset"]) >= 1
    hours = checks.by_hour(wanted)
    assert checks.count_missing(hours, checks.by_hour(wanted)) == 0
    assert checks.count_missing(hours, checks.by_hour(wanted[1:])) == 1


def test_an_interrupted_demo_cleans_up(tmp_path: Path) -> None:
    """Ctrl-C ends the demo and all that it started."""
    where, scratch = tmp_path / "demo", tmp_path / "scratch"
    process = start(where, scratch)
    assert process.stdout
    for line in process.stdout:
        if "writers begin" in line:
            break
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate()
    assert process.returncode == 130, out
    assert "Traceback" not in out
    assert_nothing_left(process.pid, where, scratch)


def test_the_demo_deletes_nothing_of_others(tmp_path: Path) -> None:
    """A directory that no demo made stays as it is; that of an earlier run is replaced."""
    (tmp_path / "mine").write_text("dear")
    with pytest.raises(SystemExit, match="must be empty or from an earlier demo"):
        demo.prepare(tmp_path)
    assert (tmp_path / "mine").read_text() == "dear"
    for _ in range(2):
        demo.prepare(tmp_path / "demo")
        assert [path.name for path in (tmp_path / "demo").iterdir()] == [demo.MARK]
        (tmp_path / "demo" / "old").touch()


def test_without_java(tmp_path: Path) -> None:
    """Without Java, one sentence says what to install."""
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo", "--dir", str(tmp_path / "demo")],
        cwd=ROOT,
        env={**os.environ, "PATH": str(tmp_path), "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "openjdk-17" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "demo").exists()
