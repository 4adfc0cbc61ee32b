"""How long Hypothesis looks: seconds in `make test`, minutes under PENSTOCK_STORM=1."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from tests.support.fixtures import STORM

settings.register_profile(
    "penstock",
    max_examples=400 if STORM else 25,
    stateful_step_count=60 if STORM else 30,
    deadline=None,
    print_blob=True,
    database=DirectoryBasedExampleDatabase(Path(tempfile.gettempdir(), "penstock-hypothesis"))
    if STORM
    else None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("penstock")
