"""``penstock resize``."""

from __future__ import annotations

import penstock
from tests.cli.support import Shell


def test_another_size(shell: Shell) -> None:
    """A ring grows without a question; smaller needs --yes, and the newest events stay."""
    with penstock.create("a.ring", ring="128KiB") as ring:
        ring.extend([b"x" * 1000] * 50)
    shell("resize", "a.ring", "1MiB")
    shell("resize", "a.ring", "64KiB", code=2)
    told = shell("resize", "a.ring", "64KiB", "--yes", "--json").values[0]
    assert told["file_bytes"] == 64 << 10 and told["dropped_events"] > 0
    with penstock.open("a.ring", "r") as ring:
        assert ring.last_seq == 50 and len(ring) == 50 - told["dropped_events"]


def test_what_cannot_be(shell: Shell) -> None:
    """Segments have no size, a size must be one, and an open ring is Busy."""
    penstock.open("a").close()
    shell("resize", "a", "1MiB", code=2)
    with penstock.create("a.ring", ring="64KiB"):
        shell("resize", "a.ring", "big", code=2)
        shell("resize", "a.ring", "128KiB", code=5)
