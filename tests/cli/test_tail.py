"""``penstock tail``."""

from __future__ import annotations

import subprocess

import penstock
from tests.cli.support import COMMAND, Shell, real_environment


def test_the_last_ones(shell: Shell) -> None:
    """It prints the last events, oldest first, ten unless told, of those that match."""
    with penstock.open("a") as log:
        log.extend([b"%d" % n for n in range(20)])
        log.append(b"x", topic="t")
        log.extend([b"z"] * 3)
    assert [row["seq"] for row in shell("tail", "a").values] == list(range(15, 25))
    assert [row["seq"] for row in shell("tail", "a", "-n", "2").values] == [23, 24]
    assert [row["seq"] for row in shell("tail", "a", "--topic", "t").values] == [21]
    assert [row["seq"] for row in shell("tail", "a", "-g", "^1", "-n", "2").values] == [19, 20]
    assert shell("tail", "a", "-n", "0").raw == b""
    shell("tail", "a", "--topic", "none", code=3)


def test_goes_on(shell: Shell) -> None:
    """With -f it prints what is appended later, each event once."""
    with penstock.open("a") as log:
        log.extend([b"1", b"2", b"3"])
        process = subprocess.Popen(
            [*COMMAND, "tail", "a", "-n", "2", "-f", "-o", "raw", "--timeout", "60"],
            stdout=subprocess.PIPE,
            env=real_environment(),
        )
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == [b"2\n", b"3\n"]
        log.append(b"4")
        assert process.stdout.readline() == b"4\n"
        process.terminate()
        assert process.wait(60) == 128 + 15


def test_timeouts(shell: Shell) -> None:
    """Without events -f ends with 124 after --timeout, which is for -f only."""
    penstock.open("a").close()
    shell("tail", "a", "-f", "--timeout", "10ms", code=124)
    shell("tail", "a", "--timeout", "1", code=2)
