"""One Spark for all tests of a test process: starting one takes longer than most of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.spark import why_no_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs Spark; without one it is skipped, and says why."""
    here = os.path.dirname(__file__)
    why = why_no_spark()
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.spark)
            if why:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark of two cores, which all tests of this process share."""
    from tests.support.spark import local_session

    session = local_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
