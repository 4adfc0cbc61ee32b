"""``penstock tap``."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import penstock
from tests.cli.support import Shell, started

PROGRAM = (
    "import sys\n"
    "print('out 1')\n"
    "sys.stdout.flush()\n"
    "sys.stderr.write('err 1\\n')\n"
    "sys.stdout.buffer.write(b'\\xff\\0 2\\nrest')\n"
    "sys.exit(7)"
)


def test_lines_and_exit_code(shell: Shell) -> None:
    """Each line is an event with its stream as topic; output is passed on, the exit code kept."""
    done = shell.real(
        "tap", "a", "--create", "--tag", "x", "--", sys.executable, "-c", PROGRAM, code=7
    )
    assert done.raw == b"out 1\n\xff\0 2\nrest" and done.said == "err 1\n"
    with penstock.open("a", "r") as log:
        assert [e.value for e in log.read(topic="stdout")] == [b"out 1", b"\xff\0 2", b"rest"]
        assert [e.value for e in log.read(topic="stderr")] == [b"err 1"]
        assert log[1].tags == ("x",)


def test_options_of_the_program_are_its_own(shell: Shell) -> None:
    """What comes after -- is the program's, another -- among it."""
    shell("create", "a")
    done = shell.real("tap", "a", "-t", "t", "--silent", "--", "echo", "--create", "--", "-x")
    assert done.raw == b""
    with penstock.open("a", "r") as log:
        assert [(event.topic, event.value) for event in log] == [("t", b"--create -- -x")]


def test_programs_that_do_not_run(shell: Shell) -> None:
    """127 if it is not there, 126 if it cannot be run, 128 and the signal if one ends it."""
    shell("create", "a")
    shell.real("tap", "a", "--", "./no-such-program", code=127)
    shell.real("tap", "a", "--", "/tmp", code=126)
    shell.real("tap", "a", "--", "bash", "-c", "kill -9 $$", code=137)
    shell("tap", "a", code=2)
    shell("tap", "a", "ls", code=2)
    shell("tap", "none", "--", "ls", code=3)


def test_a_child_that_goes_on(shell: Shell) -> None:
    """A process that the program leaves behind with its output open is not waited for."""
    shell("create", "a")
    shell.real("tap", "a", "--", "bash", "-c", "echo 1; sleep 100 & echo $! >pid", code=0)
    with open("pid") as file:
        subprocess.run(["kill", file.read().strip()], check=True)
    with penstock.open("a", "r") as log:
        assert log[1].value == b"1"


WAITS = (
    "import signal, sys, time\n"
    "def end(*_):\n"
    "    print('bye')\n"
    "    sys.exit(3)\n"
    "signal.signal(signal.SIGINT, end)\n"
    "print('hi', flush=True)\n"
    "while True:\n"
    "    time.sleep(0.01)"
)


def test_ctrl_c_is_the_programs(shell: Shell) -> None:
    """A signal goes to the program; what it prints before it ends is recorded."""
    shell("create", "a")
    with started("tap", "a", "--", sys.executable, "-c", WAITS) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"hi\n"
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        assert (out, process.returncode) == (b"bye\n", 3)
    with penstock.open("a", "r") as log:
        assert [event.value for event in log] == [b"hi", b"bye"]


def test_a_program_that_ignores_signals_is_not_left_behind(shell: Shell) -> None:
    """When a test ends tap, however it goes, the program goes as well."""
    shell("create", "a")
    program = "trap '' INT TERM; echo $$; while :; do sleep 0.01; done"
    with started("tap", "a", "--", "bash", "-c", program) as process:
        assert process.stdout is not None
        end = os.pidfd_open(int(process.stdout.readline()))
        process.send_signal(signal.SIGINT)
        process.kill()
        process.wait()
    try:
        assert select.select([end], [], [], 0)[0]
    finally:
        os.close(end)


def test_a_log_that_takes_no_more(shell: Shell) -> None:
    """If the log fails, the program runs to its end, and the failure is told after it."""
    penstock.create("a.ring", ring="32KiB", when_full="error").close()
    done = shell.real(
        "tap", "a.ring", "--", "bash", "-c", "for i in {1..3000}; do echo $i; done", code=10
    )
    assert done.raw.count(b"\n") == 3000 and done.error["kind"] == "Backpressure"
