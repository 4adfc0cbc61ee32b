"""``penstock follow``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

import penstock
from tests.cli.support import COMMAND, Shell, picture, real_environment


def test_one_event(shell: Shell) -> None:
    """It waits for what is appended, prints it at once, and --one ends it."""
    with penstock.open("a") as log:
        log.append(b"before")
        process = subprocess.Popen(
            [*COMMAND, "follow", "a", "--from", "2", "--one"],
            stdout=subprocess.PIPE,
            env=real_environment(),
        )
        log.append(b"now")
        out, _ = process.communicate(timeout=60)
        assert json.loads(out)["value"] == "now"
        assert process.returncode == 0


def test_from_a_place(shell: Shell) -> None:
    """--from and --since say where it begins; it ends with 124 if nothing more comes."""
    with penstock.open("a") as log:
        log.append(b"1", time="2020-01-01T00:00Z")
        log.append(b"2")
    for words, wanted in (
        (["--from", "1"], [1, 2]),
        (["--from", "-1"], [2]),
        (["--since", "-1h"], [2]),
        ([], []),
        (["--from", "1", "--where", "value == '2'"], [2]),
    ):
        done = shell("follow", "a", "--timeout", "20ms", *words, code=124)
        assert [row["seq"] for row in done.values] == wanted


def test_a_filter_does_not_put_off_the_timeout(shell: Shell) -> None:
    """Events that --where refuses do not count as something that came."""
    program = (
        "import sys, threading, penstock\n"
        "log = penstock.open('a')\n"
        "stop = threading.Event()\n"
        "def write():\n"
        "    while not stop.wait(0.01):\n"
        "        log.append(b'x')\n"
        "threading.Thread(target=write, daemon=True).start()\n"
        "from penstock.cli import main\n"
        "code = main(['follow', 'a', '--timeout', '300ms', '--where', 'value == \"y\"'])\n"
        "stop.set()\n"
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=real_environment(), check=False, timeout=60
    )
    assert done.returncode == 124


@pytest.mark.parametrize("words", [[], ["--consumer", "c"]])
def test_ctrl_c(shell: Shell, words: list[str]) -> None:
    """Ctrl-C ends it with 130 and without a word; a reader without consumer wrote nothing."""
    with penstock.open("a") as log:
        log.append(b"x")
    before = picture("a")
    process = subprocess.Popen(
        [*COMMAND, "follow", "a", *(words or ["--from", "1"])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=real_environment(),
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    while words and shell("consumer", "list", "a").values[0]["committed"] < 2:
        pass  # it commits after it has printed
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"")
    if words:
        assert shell("consumer", "list", "a").values[0]["committed"] == 2
    else:
        assert picture("a") == before


def test_a_consumer_commits_what_was_printed(shell: Shell) -> None:
    """The next run goes on after the last printed event, and a live consumer is Busy."""
    with penstock.open("a") as log:
        log.extend([b"1", b"2", b"3"])
        first = shell("follow", "a", "--consumer", "c", "-n", "2").values
        assert [row["seq"] for row in first] == [1, 2]
        assert [row["seq"] for row in shell("follow", "a", "--consumer", "c", "--one").values] == [
            3
        ]
        with log.consumer("c"):
            assert shell("follow", "a", "--consumer", "c", code=5).error["kind"] == "Busy"
    for words in (["--standby"], ["--consumer", "c", "--from", "1"], ["--consumer", "../x"]):
        shell("follow", "a", "--one", *words, code=2)
