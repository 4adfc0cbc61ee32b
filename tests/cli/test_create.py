"""``penstock create``."""

from __future__ import annotations

import penstock
from tests.cli.support import Shell


def test_a_log_of_segments(shell: Shell) -> None:
    """It creates a log with the settings that were given."""
    shell("create", "orders", "--codec", "json", "--segment-size", "1MiB", "--ttl", "2h")
    with penstock.open("orders", "r") as log:
        assert (log.kind, log.codec, log.settings.segment_size) == ("segments", "json", 1 << 20)
        assert log.settings.ttl == 7200


def test_a_ring(shell: Shell) -> None:
    """It creates a ring with its size, index and what to do when it is full."""
    made = shell(
        "create", "a.ring", "--ring", "64KiB", "--index", "10", "--when-full", "error", "--json"
    )
    assert made.values[0]["kind"] == "ring"
    with penstock.open("a.ring", "r") as log:
        assert log.settings.when_full == "error"
        assert log.stats().ring.index_capacity == 10  # type: ignore[union-attr]


def test_what_exists(shell: Shell) -> None:
    """A log that exists is an error with exit code 4; with --if-missing it must be the same."""
    shell("create", "a", "--codec", "json")
    assert shell("create", "a", code=4).error["kind"] == "AlreadyExists"
    shell("create", "a", "--codec", "json", "--if-missing")
    shell("create", "a", "--codec", "msgpack", "--if-missing", code=2)


def test_bad_values(shell: Shell) -> None:
    """A value that cannot be is refused before anything is made."""
    for words in (
        ["--segment-size", "12"],
        ["--ring", "x"],
        ["--file-mode", "9"],
        ["--file-mode", "777"],
        ["--ttl", "soon"],
        ["--index", "-1", "--ring", "64KiB"],
        ["--index", "5"],
        ["--codec", "no such"],
        ["--when-full", "wait"],
    ):
        assert shell("create", "x", *words, code=2).error["kind"] == "Usage", words
    assert not penstock.exists("x")


def test_modes(shell: Shell) -> None:
    """--file-mode is octal."""
    shell("create", "a", "--file-mode", "660")
    with penstock.open("a", "r") as log:
        assert log.settings.file_mode == 0o660
