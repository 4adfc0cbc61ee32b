"""``penstock backup``."""

from __future__ import annotations

import penstock
from tests.cli.support import Shell, picture


def test_a_copy(shell: Shell) -> None:
    """The copy has the same events, and the log is as it was; what is there is not replaced."""
    with penstock.open("a") as log:
        log.extend([b"1", b"2"])
    before = picture("a")
    assert shell("backup", "a", "b", "--json").values[0]["last_seq"] == 2
    assert picture("a") == before
    assert shell("cat", "b").raw == shell("cat", "a").raw
    assert shell("backup", "a", "b", code=4).error["kind"] == "AlreadyExists"
    shell("backup", "none", "c", code=3)
