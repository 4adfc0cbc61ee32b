"""Rings for unit tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A path where no ring is yet."""
    return tmp_path / "log.ring"


@pytest.fixture
def ring(file: Path) -> Iterator[penstock.Log]:
    """A small ring."""
    with penstock.create(file, ring="32KiB") as log:
        yield log
