"""``penstock top``."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import penstock
from tests.cli.support import COMMAND, Shell, picture, real_environment


def test_rows(shell: Shell) -> None:
    """Each round has a row for each log; rates come with the second; nothing is written."""
    with penstock.open("d/a") as log:
        log.append(b"x")
        log.consumer("c").close()
    penstock.create("d/b.ring", ring="64KiB").close()
    before = picture("d")
    rows = shell("top", "d", "--rounds", "2", "--interval", "10ms").values
    assert picture("d") == before
    assert [Path(row["log"]).name for row in rows] == ["a", "b.ring"] * 2
    assert rows[0]["events_s"] is None and rows[2]["events_s"] == 0
    assert (rows[0]["consumers"], rows[0]["lag_events"], rows[0]["live"]) == (1, 1, False)
    table = shell("top", "d", "--rounds", "1", terminal=True).text
    assert "last seq" in table and "d/a" in table


def test_a_bad_log(shell: Shell) -> None:
    """A log that cannot be read is a row with its error, and does not hide the others."""
    penstock.open("d/a").close()
    penstock.open("d/b").close()
    next(Path("d/a").glob("*.seg")).write_bytes(b"\xff" * 9000)
    bad, good = shell("top", "d", "--rounds", "1").values
    assert bad["error"]["kind"] == "Corrupt" and good["last_seq"] == 0
    assert "Corrupt" in shell("top", "d", "--rounds", "1", terminal=True).text
    shell("top", "none", code=3)
    shell("top", "d", "--rounds", "0", code=2)
    shell("top", "d", "--interval", "soon", code=2)


def test_ctrl_c(shell: Shell) -> None:
    """Ctrl-C ends it with 130 and without a word."""
    penstock.open("a").close()
    process = subprocess.Popen(
        [*COMMAND, "top", "a", "--interval", "10ms"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=real_environment(),
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"")
