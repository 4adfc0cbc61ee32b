"""``penstock verify``."""

from __future__ import annotations

import penstock
from tests.cli.support import Shell, picture
from tests.cli.test_cat import damage


def filled(path: str) -> None:
    """A log of five events."""
    with penstock.open(path) as log:
        log.extend([b'"value-%d"' % n for n in range(1, 6)])


def test_a_good_log(shell: Shell) -> None:
    """Nothing to say of a good one but what it has, and nothing is written."""
    filled("a")
    before = picture("a")
    (report,) = shell("verify", "a").values
    assert report["ok"] and report["events"] == 5
    assert picture("a") == before
    assert "ok" in shell("verify", "a", terminal=True).lines[0]
    assert shell("verify", "a", "--quiet", terminal=True).raw == b""


def test_damage(shell: Shell) -> None:
    """Damage is told with its place, and the exit code is 7, also beside good logs."""
    filled("a")
    filled("b")
    damage("a")
    bad, good = shell("verify", "a", "b", code=7).values
    assert not bad["ok"] and good["ok"]
    assert any(p["severity"] == "damage" and p["lost"] == [3, 3] for p in bad["problems"])
    assert "damage" in shell("verify", "a", terminal=True, code=7).text


def test_one_that_is_missing(shell: Shell) -> None:
    """A missing log does not stop the check of the others."""
    filled("a")
    shell("verify", "none", code=3)
    assert len(shell("verify", "none", "a", code=3).values) == 1
