"""``penstock stats``."""

from __future__ import annotations

import penstock
from tests.cli.support import Shell, picture


def test_counters(shell: Shell) -> None:
    """All counters of each log, and nothing is written."""
    for name in ("a", "b"):
        with penstock.open(name) as log:
            log.append(b"x")
    before = picture("a")
    rows = shell("stats", "a", "b").values
    assert [row["last_seq"] for row in rows] == [1, 1] and "ring" not in rows[0]
    assert picture("a") == before
    assert "disk bytes" in shell("stats", "a", terminal=True).text


def test_by_topic_and_key(shell: Shell) -> None:
    """--by counts events and bytes of each topic or key, the most first."""
    with penstock.open("a") as log:
        log.extend([b"123"] * 3, topic="t", key=b"k")
        log.append(b"1")
        log.append(None, key=b"k")
    by_topic = shell("stats", "a", "--by", "topic").values
    assert [(r["topic"], r["events"], r["value_bytes"]) for r in by_topic] == [
        ("t", 3, 9),
        ("", 2, 1),
    ]
    by_key = {r["key"]: r["events"] for r in shell("stats", "a", "--by", "key").values}
    assert by_key == {"k": 4, None: 1}
