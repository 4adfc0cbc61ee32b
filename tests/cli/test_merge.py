"""``penstock merge``."""

from __future__ import annotations

import json
import subprocess

import penstock
from tests.cli.support import COMMAND, Shell, real_environment


def filled() -> None:
    """Two logs, whose events alternate."""
    with penstock.open("a") as a, penstock.open("b") as b:
        for n in range(1, 5):
            (a if n % 2 else b).append(b"%d" % n, time=n * 10, topic="t" if n > 2 else None)


def test_by_time(shell: Shell) -> None:
    """Events come by time, each with its log, and options select."""
    filled()
    rows = shell("merge", "a", "b").values
    assert [(row["log"], row["value"]) for row in rows] == [
        ("a", "1"),
        ("b", "2"),
        ("a", "3"),
        ("b", "4"),
    ]
    for words, wanted in (
        (["-r"], ["4", "3", "2", "1"]),
        (["-n", "3"], ["1", "2", "3"]),
        (["--topic", "t", "--one"], ["3"]),
        (["--where", "value > '1'", "-n", "2"], ["2", "3"]),
    ):
        assert [row["value"] for row in shell("merge", "a", "b", *words).values] == wanted, words
    assert shell("merge", "a", "b", "-o", "raw").raw == b"1\n2\n3\n4\n"
    assert shell("merge", "a", "b", terminal=True).text.startswith("\x1b[02ma")
    shell("merge", "a", "b", "--topic", "x", "--one", code=3)


def test_goes_on(shell: Shell) -> None:
    """With -f it prints what comes, and a silent log holds nothing back for longer than told."""
    filled()
    with penstock.open("a") as log:
        process = subprocess.Popen(
            [*COMMAND, "merge", "a", "b", "-f", "-n", "5", "--quiet-after", "10ms"],
            stdout=subprocess.PIPE,
            env=real_environment(),
        )
        assert process.stdout is not None
        for n in range(1, 5):
            assert json.loads(process.stdout.readline())["value"] == str(n)
        log.append(b"5")
        assert json.loads(process.stdout.readline())["log"] == "a"
        assert process.wait(60) == 0
    shell("merge", "a", "b", "-f", "--timeout", "20ms", "--from-now", code=124)


def test_what_does_not_go_together(shell: Shell) -> None:
    """Options of following need -f, and seqs are of one log."""
    filled()
    for words in (["--timeout", "1"], ["--from", "1"], ["-f", "-r"], ["-f", "--until", "now"]):
        shell("merge", "a", "b", *words, code=2)
    shell("merge", "a", "none", code=3)
