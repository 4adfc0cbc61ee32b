"""A real ext4 loses its power under a writer, again and again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.support.fixtures import STORM
from tests.support.outage import LUCK
from tests.support.workers import Crew

pytestmark = [
    pytest.mark.crash,
    pytest.mark.process,
    pytest.mark.skipif(os.geteuid() != 0, reason="a loop device and a mount need root"),
    pytest.mark.skipif(
        shutil.which("mount") is None or shutil.which("mkfs.ext4") is None,
        reason="needs mount and mkfs.ext4",
    ),
]

CYCLES = 1500 if STORM else 8
PATIENCE = 3600 if STORM else 240  # seconds


@pytest.mark.timeout(2 * PATIENCE)
@pytest.mark.parametrize("block_bytes", [1024, 4096])
def test_power_cuts(crew: Crew, tmp_path: Path, block_bytes: int) -> None:
    """Cut off at any moment, ext4 keeps every durable event, whole batches and nothing else."""
    worker = crew.start(
        tmp_path,
        "run_in_worker",
        module="tests.support.outage",
        function="outages",
        args={
            "directory": str(tmp_path),
            "seed": block_bytes,
            "block_bytes": block_bytes,
            "cycles": CYCLES,
        },
    )
    code = worker.wait(PATIENCE)
    assert code == 0, worker.errors()
    (result,) = worker.reports()
    if "unable" in result:
        pytest.skip(result["unable"])
    assert CYCLES <= result["cycles"] <= LUCK * CYCLES
    assert result["lost"] > 0, "nothing was lost, so nothing was proved"
