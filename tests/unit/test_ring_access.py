"""Finding an event in a ring that has frames of other kinds before it."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock


@pytest.mark.parametrize("index", [None, 0])
def test_event_behind_the_frame_of_its_producer(tmp_path: Path, index: int | None) -> None:
    """The oldest event is found by its seq and from behind, not the frame that leads to it."""
    with penstock.create(tmp_path / "ring", ring="64KiB", index=index) as log:
        log.append(b"first", producer=("x", 1))
        assert log[1].value == b"first"
        assert [e.value for e in reversed(log)] == [b"first"]
        assert [e.value for e in log.read(1)] == [b"first"]
