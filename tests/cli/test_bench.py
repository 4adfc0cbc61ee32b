"""``penstock bench``."""

from __future__ import annotations

from pathlib import Path

from tests.cli.support import Shell


def test_rows(shell: Shell, tmp_path: Path) -> None:
    """It measures five kinds of work, and leaves nothing behind."""
    rows = shell("bench", ".", "--seconds", "10ms", "--size", "50").values
    assert len(rows) == 5 and all(row["events_s"] > 0 for row in rows)
    assert list(tmp_path.iterdir()) == []
    assert "append" in shell("bench", "--seconds", "1ms", terminal=True).text
    shell("bench", "--size", "x", code=2)
