"""``penstock get``."""

from __future__ import annotations

import penstock
from tests.cli.support import Shell, picture


def test_by_seq(shell: Shell) -> None:
    """It prints events by seq in the order given; negative ones count from the end."""
    with penstock.open("a") as log:
        log.extend([b"a", b"b", b"\xff\0"])
    before = picture("a")
    assert [row["seq"] for row in shell("get", "a", "2", "1", "-1").values] == [2, 1, 3]
    assert shell("get", "a", "-1", "-o", "raw").raw == b"\xff\0\n"
    assert picture("a") == before


def test_by_key(shell: Shell) -> None:
    """--key prints the newest event of a key; 3 if there is none, or it was deleted."""
    with penstock.open("a") as log:
        for value in (b"1", b"2", None):
            log.append(value, key=b"gone")
            log.append(value or b"3", key=b"k")
    assert shell("get", "a", "--key", "k").values[0]["value"] == "3"
    assert shell("get", "a", "--key", "gone", code=3).error["kind"] == "NotFound"


def test_what_is_not_there(shell: Shell) -> None:
    """A seq that is not there is 3, what is no seq is 2, and what came before it is printed."""
    with penstock.open("a") as log:
        log.append(b"a")
    done = shell("get", "a", "1", "7", code=3)
    assert len(done.values) == 1 and done.error["path" if "path" in done.error else "kind"]
    for words in (["x"], [], ["1", "--key", "k"], ["1.5"]):
        shell("get", "a", *words, code=2)
    shell("get", "a", "0", code=3)
