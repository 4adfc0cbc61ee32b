"""``penstock configure``."""

from __future__ import annotations

import penstock
from tests.cli.support import Shell, picture


def test_changes(shell: Shell) -> None:
    """Settings are changed as text says, and shown without a change."""
    penstock.open("a").close()
    done = shell(
        "configure", "a", "ttl=7d", "keep_bytes=1GiB", "keep_until_consumed=a,b", "file_mode=660"
    )
    assert done.values[0]["ttl"] == 7 * 86400
    before = picture("a")
    shown = shell("configure", "a").values[0]
    assert picture("a") == before
    assert (shown["keep_bytes"], shown["keep_until_consumed"]) == (1 << 30, ["a", "b"])
    assert shown["file_mode"] == "660"
    shell("configure", "a", "keep_until_consumed=no", "ttl=0", "prepare_at=0.5", "keep_segments=3")
    with penstock.open("a", "r") as log:
        assert log.settings.keep_until_consumed is False and log.settings.prepare_at == 0.5


def test_a_ring(shell: Shell) -> None:
    """A ring has when_full, and no segments."""
    penstock.create("a.ring", ring="64KiB").close()
    assert shell("configure", "a.ring", "when_full=error").values[0]["when_full"] == "error"
    shell("configure", "a.ring", "segment_size=1MiB", code=2)


def test_bad_settings(shell: Shell) -> None:
    """What cannot be is refused, with what may have been meant, and changes nothing."""
    penstock.open("a").close()
    for pair in (
        "tll=7d",
        "ttl",
        "ttl=soon",
        "keep_bytes=x",
        "codec=json",
        "prepare_at=x",
        "file_mode=9",
    ):
        shell("configure", "a", "keep_segments=2", pair, code=2)
    assert "ttl?" in shell("configure", "a", "tll=7d", code=2).error["message"]
    shell("configure", "a", "ttl=1", "ttl=2", code=2)
    with penstock.open("a", "r") as log:
        assert log.settings.keep_segments == 0
