"""``penstock consumer``."""

from __future__ import annotations

import penstock
from tests.cli.support import Shell


def test_list_and_show(shell: Shell) -> None:
    """Places, lags and filters of all consumers, or of one."""
    with penstock.open("a") as log:
        log.extend([b"1", b"2"], topic="t")
        with log.consumer("live") as live, log.consumer("dead", topic="t", key=b"k"):
            live.poll(1)
            live.commit()
            rows = {row["name"]: row for row in shell("consumer", "list", "a").values}
            assert (rows["live"]["live"], rows["live"]["lag_events"]) == (True, 1)
        shown = shell("consumer", "show", "a", "dead").values[0]
        assert (shown["topic"], shown["key"], shown["live"]) == ("t", "k", False)
    assert "lag events" in shell("consumer", "list", "a", terminal=True).lines[0]
    assert shell("consumer", "show", "a", "none", code=3).error["kind"] == "NotFound"


def test_reset(shell: Shell) -> None:
    """reset moves a consumer to a seq, a time or an end; the next reader begins there."""
    with penstock.open("a") as log:
        log.extend([b"1", b"2", b"3"])
        log.consumer("c").close()
    for place, wanted in (("2", 2), ("end", 4), ("start", 1), ("+1h", 4), ("-1h", 1)):
        shell("consumer", "reset", "a", "c", "--to", place, "--yes")
        assert shell("consumer", "show", "a", "c").values[0]["committed"] == wanted, place
    shell("consumer", "reset", "a", "new", "--to", "start", "--yes", code=3)
    shell("consumer", "reset", "a", "new", "--to", "2", "--yes", "--create")
    assert [row["seq"] for row in shell("cat", "a", "--consumer", "new").values] == [2, 3]


def test_needs_a_yes(shell: Shell) -> None:
    """reset and delete ask, or need --yes; a live consumer is Busy."""
    with penstock.open("a") as log, log.consumer("c"):
        shell("consumer", "delete", "a", "c", code=2)
        shell("consumer", "reset", "a", "c", "--to", "end", code=2)
        shell("consumer", "delete", "a", "c", "--yes", code=5)
        shell("consumer", "reset", "a", "c", "--to", "end", "--yes", code=5)
    shell("consumer", "delete", "a", "c", stdin=b"yes\n", terminal=True)
    assert shell("consumer", "list", "a").raw == b""


def test_what_does_not_go_together(shell: Shell) -> None:
    """A name for list, a place for show and the like are refused."""
    penstock.open("a").close()
    for words in (
        ["list", "a", "c"],
        ["show", "a"],
        ["show", "a", "c", "--to", "end"],
        ["reset", "a", "c"],
        ["reset", "a", "c", "--to", "soon"],
        ["delete", "a", "c", "--create"],
        ["remove", "a", "c"],
    ):
        shell("consumer", *words, code=2)
