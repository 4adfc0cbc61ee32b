"""``penstock doctor``."""

from __future__ import annotations

from pathlib import Path

import penstock
from tests.cli.support import Shell, picture
from tests.cli.test_cat import damage
from tests.cli.test_verify import filled


def test_all_is_well(shell: Shell, tmp_path: Path) -> None:
    """It looks at the machine, the file system and the log, and leaves nothing behind."""
    filled("a")
    before = picture("a")
    rows = {row["check"]: row for row in shell("doctor", "a").values}
    assert {"penstock", "file system", "durable append", "log", "verify"} <= set(rows)
    assert rows["verify"]["status"] == "ok"
    assert picture("a") == before and [path.name for path in tmp_path.iterdir()] == ["a"]
    assert "log" not in {row["check"] for row in shell("doctor").values}
    assert "ok" in shell("doctor", terminal=True).text


def test_a_damaged_log(shell: Shell) -> None:
    """What is not fine is exit code 12, with what to do."""
    filled("a")
    damage("a")
    rows = {row["check"]: row for row in shell("doctor", "a", code=12).values}
    assert rows["verify"]["status"] == "bad" and "penstock verify" in rows["verify"]["todo"]
    shell("doctor", "none", code=3)
    assert penstock.exists("a")
