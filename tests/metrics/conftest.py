"""Logs for tests of metrics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A path where no log is yet."""
    return tmp_path / "log"


@pytest.fixture(params=["segments", "ring"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[penstock.Log]:
    """A small log of each kind."""
    if request.param == "ring":
        made = penstock.create(tmp_path / "log.ring", ring="64KiB")
    else:
        made = penstock.create(tmp_path / "log", segment_size="64KiB")
    with made:
        yield made
