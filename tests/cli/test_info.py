"""``penstock info``."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from tests.cli.support import Shell, picture


@pytest.mark.parametrize("kind", ["segments", "ring"])
def test_what_a_log_is(shell: Shell, kind: str) -> None:
    """It has kind, seqs, times, sizes, settings and consumers, and writes nothing."""
    options: Any = {"ring": "64KiB"} if kind == "ring" else {"segment_size": "64KiB"}
    with penstock.create("a.ring" if kind == "ring" else "a", codec="json", **options) as log:
        log.append({"a": 1}, time="2026-01-01T00:00Z")
        log.append({"a": 2}, time="2026-01-02T00:00Z")
        log.consumer("billing").close()
        path = log.path
    before = picture(path)
    found = shell("info", path).values[0]
    assert picture(path) == before
    assert (found["kind"], found["codec"], found["events"]) == (kind, "json", 2)
    assert (found["first_seq"], found["last_seq"]) == (1, 2)
    assert found["oldest"] == "2026-01-01T00:00:00.000000000Z"
    assert found["consumers"] == ["billing"]
    assert ("segments" in found) == (kind == "segments")
    text = shell("info", path, terminal=True).text
    assert "last seq" in text and "billing" in text and not text.startswith("{")


def test_an_empty_log(shell: Shell) -> None:
    """A log without events has no times."""
    shell("create", "a")
    found = shell("info", "a").values[0]
    assert (found["oldest"], found["newest"], found["last_seq"]) == (None, None, 0)


def test_no_log(shell: Shell) -> None:
    """Where there is none the exit code is 3, and nothing is created."""
    error = shell("info", "nothing", code=3).error
    assert (error["kind"], error["type"]) == ("NotFound", "NoSuchLog")
    assert error["path"].endswith("nothing") and "penstock create" in error["hint"]
    assert not penstock.exists("nothing")
