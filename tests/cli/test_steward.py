"""``penstock steward``."""

from __future__ import annotations

import signal
import subprocess

import penstock
from tests.cli.support import COMMAND, Shell, picture, real_environment


def filled() -> None:
    """A log of three segments, of which it is to keep one."""
    with penstock.open("a") as log:
        for n in range(3):
            log.append(b"%d" % n, time=f"2026-01-0{n + 1}T00:00Z")
            log.steward.roll()
        log.append(b"last")


def test_retain(shell: Shell) -> None:
    """A dry run writes nothing and says what would go; then it goes."""
    filled()
    shell("configure", "a", "keep_segments=1")
    before = picture("a")
    (plan,) = shell("steward", "retain", "a", "--dry-run").values
    assert picture("a") == before and plan["new_first_seq"] == 4
    assert "a" in shell("steward", "retain", "a", "--dry-run", terminal=True).text
    shell("steward", "retain", "a")
    with penstock.open("a", "r") as log:
        assert log.first_seq == 4


def test_trim(shell: Shell) -> None:
    """It asks, takes a seq or a time, and a dry run writes nothing."""
    filled()
    before = picture("a")
    assert shell("steward", "trim", "a", "--before", "3", "--dry-run").values[0]["first_seq"] == 3
    assert picture("a") == before
    shell("steward", "trim", "a", "--before", "3", code=2)
    shell("steward", "trim", "a", "--before", "2026-01-02T00:00Z", "--yes")
    assert [row["seq"] for row in shell("cat", "a").values] == [2, 3, 4]
    shell("steward", "trim", "a", "--before", "9", "--yes", code=2)
    shell("cat", "a", "--from", "1", code=9)


def test_why_and_roll(shell: Shell) -> None:
    """why says what became of a seq; roll begins a segment."""
    filled()
    shell("steward", "trim", "a", "--before", "2", "--yes")
    states = [shell("steward", "why", "a", "--seq", str(n)).values[0]["state"] for n in (1, 2, 9)]
    assert states == ["gone", "there", "to come"]
    assert shell("steward", "roll", "a").values == [{"active_first_seq": 5}]


def test_run(shell: Shell) -> None:
    """run retains until Ctrl-C, which ends it with 130."""
    filled()
    shell("configure", "a", "keep_segments=1")
    process = subprocess.Popen(
        [*COMMAND, "steward", "run", "a", "--every", "10ms"],
        stderr=subprocess.PIPE,
        env=real_environment(),
    )
    with penstock.open("a", "r") as log:
        while log.first_seq < 4:
            assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"")


def test_what_does_not_go_together(shell: Shell) -> None:
    """No option is ignored."""
    filled()
    for words in (
        ["trim", "a"],
        ["why", "a"],
        ["why", "a", "--seq", "x"],
        ["roll", "a", "--dry-run"],
        ["retain", "a", "--before", "1"],
        ["run", "a", "--every", "soon"],
        ["compress", "a"],
    ):
        shell("steward", *words, code=2)
    shell("steward", "retain", "none", code=3)
