"""The examples of the docs do what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from examples import ordered_jobs, scheduled_report
from tests.consumers.processes import start
from tests.support.workers import ROOT


@pytest.mark.process
def test_mail_queue(tmp_path: Path) -> None:
    """Every good address gets its mail once; the bad one ends in the dead letters."""
    done = subprocess.run(
        [sys.executable, "-m", "examples.mail_queue", str(tmp_path / "mail")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    lines = sorted(done.stdout.splitlines())
    assert [line for line in lines if line.startswith("sent")] == [
        "sent to ann@example.org",
        "sent to bob@example.org",
        "sent to eve@example.org",
    ]
    [given_up] = [line for line in lines if line.startswith("given up")]
    assert "is no address" in given_up and "b'3' tries" in given_up


def test_ordered_jobs(tmp_path: Path) -> None:
    """The steps of each customer are done in order, though one fails at first."""
    done = ordered_jobs.main(str(tmp_path / "shop"))
    assert len(done) == 5
    assert all(steps == ordered_jobs.STEPS for steps in done.values())


@pytest.mark.process
def test_scheduled_report(tmp_path: Path) -> None:
    """Two processes make each report once."""
    path = str(tmp_path / "reports")
    other = start(lambda: scheduled_report.main(path, 1.0, 0.1))
    scheduled_report.main(path, 1.0, 0.1)
    assert other.wait() == 0
    with penstock.open(path) as log, log.group("reports") as group:
        ticks = [event.time_ns for event in log.read(topic="sales")]
        assert len(ticks) == len(set(ticks)) > 0
        stats = group.stats()
        assert stats.acked + stats.ready == len(ticks)
