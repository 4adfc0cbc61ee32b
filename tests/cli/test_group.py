"""``penstock group``."""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

import pytest

import penstock
from penstock.cli import main
from tests.cli.support import Shell, picture, started
from tests.consumers.processes import run

BY_VALUE = ("bash", "-c", "exit $(cat)")  # exits with the value
TELLS = (
    "import json, os, sys\n"
    "names = {n: v for n, v in os.environ.items() if n.startswith('PENSTOCK_')}\n"
    "print(json.dumps([sys.stdin.buffer.read().decode(), names]), flush=True)"
)


def filled(*values: bytes, **how: Any) -> None:
    """A log with these events."""
    with penstock.open("a") as log:
        log.extend(values, **how)


def stats(shell: Shell, name: str = "g") -> dict[str, Any]:
    """What ``penstock group stats`` says."""
    (found,) = shell("group", "stats", "a", name).values
    assert isinstance(found, dict)
    return found


def test_work_settles_by_exit_code(shell: Shell) -> None:
    """0 is done, 100 goes to the dead letters, anything else is tried again, with the reason."""
    filled(b"0", b"100", b"7")
    done = shell("group", "work", "a", "g", "--timeout", "0", "--", *BY_VALUE)
    found = stats(shell)
    assert [found[name] for name in ("acked", "rejected", "nacked", "dead")] == [1, 1, 1, 1]
    assert [(told["kind"], told["seq"]) for told in done.notices] == [
        ("rejected", 2),
        ("failed", 3),
    ]
    (pending,) = shell("group", "pending", "a", "g").values
    assert (pending["seq"], pending["state"], pending["reason"]) == (3, "delayed", "exit code 7")
    (letter,) = shell("group", "dead", "a", "g").values
    assert ["dead.reason", "exit code 100"] in letter["headers"]


def test_work_tells_the_program(shell: Shell) -> None:
    """The value is on stdin, the rest in the environment; nothing of an outer job gets through."""
    filled(b"x" * 100_000, topic="t", key=b"k")
    filled(b"2", key=b"a\0b")
    filled(b"3")
    with penstock.open("a") as log:
        log.append(None, key=b"k")
    words = ("group", "work", "a", "g", "--timeout", "0", "--", sys.executable, "-c", TELLS)
    done = shell.real(*words, PENSTOCK_KEY="outer", PENSTOCK_KEY_BASE64="outer")
    rows = [json.loads(line) for line in done.lines]
    told = {"PENSTOCK_DELIVERIES": "1"}
    assert rows == [
        [
            "x" * 100_000,
            {**told, "PENSTOCK_SEQ": "1", "PENSTOCK_TOPIC": "t", "PENSTOCK_KEY": "k"},
        ],
        ["2", {**told, "PENSTOCK_SEQ": "2", "PENSTOCK_TOPIC": "", "PENSTOCK_KEY_BASE64": "YQBi"}],
        ["3", {**told, "PENSTOCK_SEQ": "3", "PENSTOCK_TOPIC": ""}],
        ["", {**told, "PENSTOCK_SEQ": "4", "PENSTOCK_TOPIC": "", "PENSTOCK_KEY": "k"}],
    ]


def test_tries_and_terms(shell: Shell) -> None:
    """The group is made with the terms of the options; after its tries an event is dead."""
    filled(b"1", b"1", b"1", topic="t", key=b"k")
    filled(b"0")
    terms = ("--deliveries", "2", "--backoff", "0,1ms", "--topic", "t", "--order", "key")
    limits = ("--lease", "1h", "--max-pending", "5", "--dead-per-minute", "9", "--start", "2")
    shell("group", "work", "a", "g", *terms, *limits, "-n", "4", "--", *BY_VALUE)
    assert [
        dict(letter["headers"])["dead.seq"] for letter in shell("group", "dead", "a", "g").values
    ] == ["2", "3"]
    with penstock.open("a") as log, log.group("g") as group:
        found = group.terms
        assert (found.deliveries, found.backoff, found.order) == (2, (0, 1_000_000), "key")
        assert (found.lease, found.max_pending, found.dead_per_minute) == (3600 * 10**9, 5, 9)
    other = ("--deliveries", "3", "--timeout", "0", "--", "true")
    assert "deliveries" in shell("group", "work", "a", "g", *other, code=2).error["message"]


def test_programs_that_do_not_run(shell: Shell) -> None:
    """127 if it is not there, 126 if it cannot be run; no event is to blame, and none is lost."""
    filled(b"0")
    shell("group", "work", "a", "g", "--", "./no-such-program", code=127)
    shell("group", "work", "a", "g", "--", "/tmp", code=126)
    shell("group", "work", "none", "g", "--", "true", code=3)
    (pending,) = shell("group", "pending", "a", "g").values
    assert (pending["state"], pending["deliveries"]) == ("ready", 0)
    shell("group", "work", "a", "g", "-n", "1", "--", *BY_VALUE)
    assert stats(shell)["acked"] == 1


def test_a_program_that_is_killed(shell: Shell) -> None:
    """Its job is tried again, and the reason names the signal."""
    filled(b"0")
    shell("group", "work", "a", "g", "-n", "1", "--", "bash", "-c", "kill -9 $$")
    (pending,) = shell("group", "pending", "a", "g").values
    assert (pending["reason"], pending["deliveries"]) == ("ended by SIGKILL", 1)


def test_a_job_that_was_taken_away(shell: Shell) -> None:
    """If others got the event meanwhile, that is told, and the exit code counts for nothing."""
    filled(b"0")
    program = (
        "import penstock\n"
        "with penstock.open('a') as log, log.group('g') as group:\n"
        "    group.release(group.pending()[0].worker)"
    )
    done = shell.real("group", "work", "a", "g", "-n", "1", "--", sys.executable, "-c", program)
    assert [told["kind"] for told in done.notices] == ["lost"]
    assert stats(shell)["acked"] == 0 and stats(shell)["ready"] == 1


WAITS = (
    "import signal, sys, time\n"
    "def end(*_):\n"
    "    print('bye', flush=True)\n"
    "    {}\n"
    "for number in (signal.SIGINT, signal.SIGTERM):\n"
    "    signal.signal(number, end)\n"
    "print('hi', flush=True)\n"
    "while True:\n"
    "    time.sleep(0.01)"
)
GOES_ON, FINISHES, IGNORES = (
    [sys.executable, "-c", WAITS.format(end)] for end in ("sys.exit(3)", "sys.exit(0)", "pass")
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on(shell: Shell, number: signal.Signals) -> None:
    """The program gets it once and ends; its event comes again, and the try does not count."""
    filled(b"0")
    with started("group", "work", "a", "g", "--", *GOES_ON) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"hi\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert (out, err, process.returncode) == (b"bye\n", b"", 128 + number)
    found = stats(shell)
    assert (found["ready"], found["claimed"], found["workers"]) == (1, 0, 0)
    words = ("group", "work", "a", "g", "-n", "1", "--", sys.executable, "-c", TELLS)
    assert json.loads(shell.real(*words).text)[1]["PENSTOCK_DELIVERIES"] == "1"


def test_a_program_that_finishes_after_a_signal(shell: Shell) -> None:
    """If it exits with 0 all the same, its event is done."""
    filled(b"0")
    with started("group", "work", "a", "g", "--", *FINISHES) as process:
        assert process.stdout is not None and process.stdout.readline() == b"hi\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 143
    assert stats(shell)["acked"] == 1


def test_a_second_signal_kills(shell: Shell) -> None:
    """A program that goes on after the first signal is killed by the second one."""
    filled(b"0")
    with started("group", "work", "a", "g", "--", *IGNORES) as process:
        assert process.stdout is not None and process.stdout.readline() == b"hi\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"bye\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 130
    (pending,) = shell("group", "pending", "a", "g").values
    assert (pending["state"], pending["deliveries"]) == ("ready", 0)


def test_a_signal_while_it_waits(shell: Shell) -> None:
    """A worker that waits for events ends at once, and is gone from the group."""
    filled(b"0")
    with started("group", "work", "a", "g", "--", *BY_VALUE) as process:
        while not shell("group", "list", "a").values or not stats(shell)["acked"]:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert (out, err, process.returncode) == (b"", b"", 130)
    assert stats(shell)["workers"] == 0


def test_list(shell: Shell) -> None:
    """All groups, with how far they are and whether a worker lives."""
    filled(b"1", b"2")
    assert shell("group", "list", "a").raw == b""
    with penstock.open("a") as log, log.group("g") as group, group.worker() as worker:
        worker.poll(1)
        (row,) = shell("group", "list", "a").values
        assert (row["name"], row["live"], row["claimed"], row["lag_events"]) == ("g", True, 1, 1)
    assert "lag events" in shell("group", "list", "a", terminal=True).lines[0]


def test_looking_writes_nothing(shell: Shell) -> None:
    """No file changes, whatever is asked, also of a group whose worker was killed with a job."""
    filled(b"100", b"7", b"0")
    shell("group", "work", "a", "g", "-n", "2", "--", *BY_VALUE)
    with started("group", "work", "a", "g", "--", *IGNORES) as process:
        assert process.stdout is not None and process.stdout.readline() == b"hi\n"
    before = picture("a")
    for words in (
        ("list", "a"),
        ("stats", "a", "g"),
        ("pending", "a", "g"),
        ("dead", "a", "g"),
        ("redrive", "a", "g", "--dry-run"),
    ):
        shell("group", *words)
        shell("group", *words, terminal=True)
        assert picture("a") == before, words
    assert (stats(shell)["claimed"], stats(shell)["workers"]) == (1, 0)


def test_dead_and_redrive(shell: Shell) -> None:
    """Letters are selected with --where and -n; what is tried again is no letter any more."""
    filled(b"100", b"100", b"100", b"100")
    shell("group", "work", "a", "g", "--timeout", "0", "--", *BY_VALUE)
    where = ("--where", 'headers["dead.seq"] in ["2", "3"]')
    assert len(shell("group", "dead", "a", "g").lines) == 4
    assert len(shell("group", "dead", "a", "g", "-n", "1").lines) == 1
    assert shell("group", "dead", "a", "g", *where, "-o", "raw").raw == b"100\n100\n"
    (plan,) = shell("group", "redrive", "a", "g", *where, "--dry-run").values
    assert plan == {"dry_run": True, "redriven": 2}
    assert stats(shell)["dead"] == 4
    assert shell("group", "redrive", "a", "g", *where).values[0]["redriven"] == 2
    assert [row["seq"] for row in shell("group", "pending", "a", "g").values] == [2, 3]
    assert shell("group", "redrive", "a", "g", "-n", "1").values[0]["redriven"] == 1
    assert len(shell("group", "dead", "a", "g").lines) == 1
    assert "1 dead letters" in shell("group", "redrive", "a", "g", terminal=True).text


def test_events_that_are_dying(shell: Shell) -> None:
    """If a worker dies while it moves a letter, the commands say so; the next one moves it."""
    filled(b"100")
    words = ["group", "work", "a", "g", "--timeout", "0", "--", *BY_VALUE]
    assert run(lambda: main(words), "group.letter") == -signal.SIGKILL
    before = picture("a")
    for words in (["dead"], ["redrive", "--dry-run"]):
        done = shell("group", words[0], "a", "g", *words[1:])
        assert [told["kind"] for told in done.notices] == ["dying"]
    assert shell("group", "pending", "a", "g").values[0]["state"] == "dying"
    assert picture("a") == before
    assert shell("group", "redrive", "a", "g").values[0]["redriven"] == 1


def test_release(shell: Shell) -> None:
    """The events of a worker go to others; a number that no worker has is refused."""
    filled(b"1", b"2")
    with penstock.open("a") as log, log.group("g") as group, group.worker() as worker:
        worker.poll(2)
        shell("group", "release", "a", "g", "--worker", "99", code=2)
        assert shell("group", "release", "a", "g", "--worker", worker.number).values == [
            {"released": 2}
        ]
    assert stats(shell)["claimed"] == 0


def test_resume(shell: Shell) -> None:
    """A group that stopped says so with exit code 10, until it is resumed."""
    filled(b"100", b"100", b"100")
    words = ("group", "work", "a", "g", "--dead-per-minute", "1", "--timeout", "0", "--")
    shell(*words, *BY_VALUE, code=10)
    assert stats(shell)["stopped"] is not None
    shell("group", "resume", "a", "g")
    assert stats(shell)["stopped"] is None


def test_delete(shell: Shell) -> None:
    """It needs a yes, and no event of the log goes; a group that is open is Busy."""
    filled(b"1")
    with penstock.open("a") as log, log.group("g"):
        shell("group", "delete", "a", "g", code=2)
        shell("group", "delete", "a", "g", "--yes", code=5)
    shell("group", "delete", "a", "g", stdin=b"yes\n", terminal=True)
    assert shell("group", "list", "a").raw == b""
    assert len(shell("cat", "a").lines) == 1


def test_only_work_makes_a_group(shell: Shell) -> None:
    """Whatever else is asked of a group that is not there is exit code 3, and makes none."""
    filled(b"1")
    for words in (
        ["stats"],
        ["pending"],
        ["dead"],
        ["redrive"],
        ["redrive", "--dry-run"],
        ["release", "--worker", "1"],
        ["resume"],
        ["delete", "--yes"],
    ):
        assert shell("group", words[0], "a", "g", *words[1:], code=3).error["kind"] == "NotFound"
    assert shell("group", "list", "a").raw == b""


def test_what_does_not_go_together(shell: Shell) -> None:
    """No option is ignored."""
    filled(b"1")
    for words in (
        ["list", "a", "g"],
        ["stats", "a"],
        ["stats", "a", "g", "--", "true"],
        ["stats", "a", "../g"],
        ["pending", "a", "g", "--dry-run"],
        ["work", "a", "g"],
        ["work", "a", "g", "--"],
        ["work", "a", "g", "-n", "0", "--", "true"],
        ["work", "a", "g", "--timeout", "soon", "--", "true"],
        ["work", "a", "g", "--backoff", "1,x", "--", "true"],
        ["work", "a", "g", "--order", "topic", "--", "true"],
        ["work", "a", "g", "-o", "raw", "--", "true"],
        ["dead", "a", "g", "--topic", "t"],
        ["redrive", "a", "g", "--yes"],
        ["release", "a", "g"],
        ["release", "a", "g", "--worker", "x"],
        ["remove", "a", "g"],
    ):
        shell("group", *words, code=2)
    assert shell("group", "list", "a").raw == b""
