"""A log for tests of its maintenance."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fixtures import _zygote, crew

__all__ = ["_zygote", "crew"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A path where no log is yet."""
    return tmp_path / "log"
