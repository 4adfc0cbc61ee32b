"""Damaged logs, odd numbers and interrupts: every command ends with an error of its own kind."""

from __future__ import annotations

import json
import random
import signal
import subprocess
from fcntl import ioctl
from pathlib import Path
from termios import FIONREAD

import pytest

import penstock
from tests.cli.support import COMMAND, Shell, real_environment

READERS = [
    ["info"],
    ["cat"],
    ["cat", "--skip-damage", "--skip-gaps"],
    ["cat", "-o", "arrow"],
    ["tail"],
    ["tail", "-n", "3", "--skip-damage"],
    ["get", "2"],
    ["stats"],
    ["stats", "--by", "key"],
    ["verify"],
    ["repair"],
    ["dump"],
    ["dump", "frames", "--hex"],
    ["dump", "index"],
    ["dump", "header"],
    ["dump", "checkpoints"],
    ["dump", "control"],
    ["dump", "footer"],
    ["top", "--rounds", "1"],
    ["consumer-list"],
    ["merge"],
    ["configure"],
]


def words_for(reader: list[str], path: str) -> list[str]:
    """The command line of a reader for a log."""
    name, *rest = reader
    if name == "consumer-list":
        return ["consumer", "list", path]
    return [name, path, *rest]


@pytest.mark.parametrize("kind", ["segments", "ring"])
@pytest.mark.parametrize("seed", range(6))
def test_damaged_files(shell: Shell, kind: str, seed: int) -> None:
    """Whatever bytes a file has, no command fails as a bug would, and errors are JSON."""
    path = "a.ring" if kind == "ring" else "a"
    options = {"ring": "64KiB"} if kind == "ring" else {}
    with penstock.create(path, **options) as log:  # type: ignore[arg-type]
        for n in range(20):
            log.append(b"value-%d" % n, key=b"k", topic="t", headers={"h": b"1"}, tags=["x"])
        log.consumer("c").close()
    file = Path(path) if kind == "ring" else next(Path(path).glob("*.seg"))
    source = random.Random(seed)
    data = bytearray(file.read_bytes())
    used = [at for at in range(len(data)) if data[at]]
    for at in source.sample(used, 12 if seed else 1):
        data[at] = source.randrange(256)
    if seed == 5:
        del data[source.randrange(4096, len(data)) :]
    file.write_bytes(data)
    for reader in READERS:
        done = shell(*words_for(reader, path), code=None)
        assert done.code in (0, 2, 3, 5, 7, 8, 9, 12), (reader, done.code, done.said)
        for line in done.said.splitlines():
            assert json.loads(line).keys() & {"error", "notice"}


@pytest.mark.parametrize(
    "words",
    [
        ["get", "a", "9" * 30],
        ["get", "a", "-" + "9" * 30],
        ["cat", "a", "--from", "9" * 30],
        ["cat", "a", "--to", "9" * 30],
        ["cat", "a", "-n", "9" * 30],
        ["cat", "a", "--since", "9" * 30],
        ["cat", "a", "--since", "@" + "9" * 30],
        ["cat", "a", "--since", "-" + "9" * 30 + "d"],
        ["cat", "a", "--topic", "\udcff"],
        ["cat", "a", "--topic", "x" * 2000],
        ["cat", "a", "--key", "x" * 2000],
        ["cat", "a", "--tag", "\udcff"],
        ["cat", "a", "--grep", "(a" * 2000],
        ["follow", "a", "--timeout", "9" * 400, "-n", "0"],
        ["follow", "a", "--from", "9" * 30, "--timeout", "0"],
        ["tail", "a", "-n", "9" * 30],
        ["append", "a", "x", "--ttl", "9" * 30],
        ["append", "a", "x", "--expect", "9" * 30],
        ["append", "a", "x", "--producer", "p:" + "9" * 30],
        ["append", "a", "x", "--topic", "\udcff"],
        ["append", "a", "x", "--header", "\udcff=1"],
        ["create", "b", "--segment-size", "9" * 30],
        ["create", "b", "--ring", "9" * 30 + "GiB"],
        ["create", "a/b\0c"],
        ["info", "x" * 5000],
        ["dump", "a", "frames", "--from", "9" * 30],
        ["steward", "why", "a", "--seq", "9" * 30],
        ["configure", "a", "keep_bytes=" + "9" * 30],
        ["configure", "a", "ttl=" + "9" * 30],
        ["bench", "--size", "9" * 30, "--seconds", "0"],
        ["merge", "a", "a"],
        ["consumer", "show", "a", "../../x"],
        ["consumer", "reset", "a", "c", "--to", "9" * 30, "--yes", "--create"],
        ["sql", "select * from a where seq > " + "9" * 30],
    ],
)
def test_odd_values(shell: Shell, words: list[str]) -> None:
    """No number or text is too odd for a proper error."""
    with penstock.open("a") as log:
        log.append(b"x")
    done = shell(*words, code=None)
    assert done.code != 1, done.said


@pytest.mark.parametrize(
    "words",
    [
        ["append", "a"],
        ["append", "a", "--jsonl", "--atomic"],
        ["import", "a", "-", "--as", "jsonl"],
    ],
)
def test_ctrl_c_while_it_waits_for_input(shell: Shell, words: list[str]) -> None:
    """Ctrl-C ends it with 130 and without a word; what is atomic leaves nothing."""
    penstock.open("a").close()
    process = subprocess.Popen(
        [*COMMAND, *words],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=real_environment(),
    )
    assert process.stdin is not None
    process.stdin.write(b'{"value":"1"}\n')
    process.stdin.flush()
    with penstock.open("a", "r") as log:
        if words == ["append", "a"]:
            assert log.wait(60, after=0)
        else:
            while ioctl(process.stdin, FIONREAD, bytes(4)) != bytes(4):
                assert process.poll() is None  # it has not read yet
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (130, b"")
        assert log.last_seq == (1 if words == ["append", "a"] else 0)
    assert penstock.verify("a").ok


def test_ctrl_c_while_nobody_reads(shell: Shell) -> None:
    """Ctrl-C ends a cat whose pipe is full with 130."""
    with penstock.open("a") as log:
        for _ in range(20):
            log.extend([b"x" * 1000] * 1000)
    process = subprocess.Popen(
        [*COMMAND, "cat", "a"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=real_environment(),
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"")
