"""``penstock delete``."""

from __future__ import annotations

from pathlib import Path

import penstock
from tests.cli.support import Shell


def test_deletes_logs(shell: Shell) -> None:
    """With --yes it deletes all logs that are named, rings as well."""
    penstock.open("a").close()
    penstock.create("b.ring", ring="64KiB").close()
    shell("delete", "a", "b.ring", "--yes")
    assert penstock.find(".") == []


def test_needs_a_yes(shell: Shell) -> None:
    """Without --yes it asks on a terminal, and refuses elsewhere."""
    penstock.open("a").close()
    assert "--yes" in shell("delete", "a", code=2).error["message"]
    for answer in (b"n\n", b"", b"what\n"):
        shell("delete", "a", stdin=answer, terminal=True, code=2)
    assert penstock.exists("a")
    shell("delete", "a", stdin=b"y\n", terminal=True)
    assert not penstock.exists("a")


def test_what_cannot_be_deleted(shell: Shell) -> None:
    """An open log is 5, a missing one 3, a foreign file 2; nothing is deleted."""
    with penstock.open("a"):
        assert shell("delete", "a", "-y", code=5).error["kind"] == "Busy"
    shell("delete", "none", "-y", code=3)
    shell("delete", "none", "-y", "--if-exists")
    Path("a/mine.txt").write_text("x")
    shell("delete", "a", "-y", code=2)
    assert penstock.exists("a")
