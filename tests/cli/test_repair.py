"""``penstock repair``."""

from __future__ import annotations

from tests.cli.support import Shell, picture
from tests.cli.test_cat import damage
from tests.cli.test_verify import filled


def test_the_plan(shell: Shell) -> None:
    """Without options it says what would be lost, and writes nothing."""
    filled("a")
    assert shell("repair", "a").values[0]["steps"] == []
    damage("a")
    before = picture("a")
    for words in ([], ["--dry-run"]):
        (plan,) = shell("repair", "a", *words).values
        assert plan["lost"] == [[3, 3]] and plan["target"] is None
    assert "lost: seq 3" in shell("repair", "a", terminal=True).text
    assert picture("a") == before


def test_a_mended_copy(shell: Shell) -> None:
    """--to makes a copy without the damage and leaves the log alone."""
    filled("a")
    damage("a")
    before = picture("a")
    shell("repair", "a", "--to", "b")
    assert picture("a") == before
    assert [row["seq"] for row in shell("cat", "b").values] == [1, 2, 4, 5]
    shell("verify", "b")


def test_in_place(shell: Shell) -> None:
    """--in-place asks, and then the log is good."""
    filled("a")
    damage("a")
    shell("repair", "a", "--in-place", code=2)
    shell("repair", "a", "--in-place", stdin=b"y\n", terminal=True)
    shell("verify", "a")
    shell("repair", "a", "--in-place", "--to", "b", "-y", code=2)
    shell("repair", "a", "--in-place", "--dry-run", "-y", code=2)
