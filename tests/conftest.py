"""Fixtures that every kind of test shares: a fresh path, and a log of small segments in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A path where nothing is yet."""
    return tmp_path / "log"


@pytest.fixture
def log(path: Path) -> Iterator[penstock.Log]:
    """A new log of the smallest segments, closed afterwards."""
    with penstock.open(path, segment_size="64KiB") as opened:
        yield opened
