"""What holds for a log of segments and for a ring is tested with both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock

KINDS: dict[str, dict[str, Any]] = {"log": {"segment_size": "64KiB"}, "ring": {"ring": "256KiB"}}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """A kind of log."""
    return str(request.param)


@pytest.fixture
def path(tmp_path: Path, kind: str) -> Path:
    """A path for a log of that kind, where nothing is yet."""
    return tmp_path / ("log" if kind == "log" else "log.ring")


@pytest.fixture
def log(path: Path, kind: str) -> Iterator[penstock.Log]:
    """A new log of that kind, closed afterwards."""
    with penstock.create(path, **KINDS[kind]) as opened:
        yield opened


@pytest.fixture
def folder(path: Path, kind: str) -> Path:
    """Where the folders of its groups are."""
    return path / "groups" if kind == "log" else path.parent / "log.ring.d" / "groups"
