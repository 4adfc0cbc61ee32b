"""Fixtures that the conftest files of the process and crash tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import faulty
from tests.support.rings import RingScene
from tests.support.scene import Scene
from tests.support.workers import Crew

STORM = os.environ.get("PENSTOCK_STORM") == "1"


@pytest.fixture(scope="session")
def _zygote() -> Iterator[Crew]:
    crew = Crew()
    yield crew
    crew.close()


@pytest.fixture
def crew(_zygote: Crew) -> Iterator[Crew]:
    """Starts worker processes; whatever is left of them at the end of the test is killed."""
    yield _zygote
    _zygote.clear()


@pytest.fixture
def scene(crew: Crew, tmp_path: Path) -> Scene:
    """A place for one log and its workers."""
    return Scene(crew, tmp_path)


@pytest.fixture(params=[Scene, RingScene], ids=["segmented", "ring"])
def any_scene(request: pytest.FixtureRequest, crew: Crew, tmp_path: Path) -> Scene:
    """A place for one log of each kind and its workers."""
    made: Scene = request.param(crew, tmp_path)
    return made


@pytest.fixture(scope="session")
def _faulty_zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    library = faulty.build(tmp_path_factory.mktemp("faulty"))
    if library is None:
        pytest.skip("a system that fails on demand needs a C compiler")
    crew = Crew(preload=library)
    yield crew
    crew.close()


@pytest.fixture
def faulty_crew(_faulty_zygote: Crew) -> Iterator[Crew]:
    """Starts worker processes that tests.support.faulty can be armed in."""
    yield _faulty_zygote
    _faulty_zygote.clear()
