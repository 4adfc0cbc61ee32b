"""Penstock in Spark: the data source and sink "penstock", and pipelines that use them.

``spark.read.format("penstock")`` needs no import: see ``pyspark_penstock``. This package
holds the source and the sink, `prepare` and `tune`, which set up a session for them, and
`penstock.spark.lake`, which copies logs into a Parquet lake.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from penstock.errors import Usage, WrongType
from penstock.spark.tuning import prepare, tune

__all__ = ["lag", "prepare", "tune"]


def lag(progress: Mapping[str, Any]) -> dict[str, int]:
    """How many events of each log a query has not read yet, from its ``lastProgress``.

    >>> source = {"endOffset": '{"/logs/a": 11}', "latestOffset": '{"/logs/a": 15, "/logs/b": 3}'}
    >>> penstock.spark.lag({"sources": [source]})
    {'/logs/a': 4, '/logs/b': 2}
    """
    if not isinstance(progress, Mapping):
        raise WrongType(
            f"progress must be the lastProgress of a query, got {type(progress).__name__}; it is "
            "None until the query has taken a batch"
        )
    sources = progress.get("sources")
    if not isinstance(sources, list) or not all(isinstance(each, Mapping) for each in sources):
        raise Usage("progress must be the lastProgress of a query, got no list of its sources")
    found: dict[str, int] = {}
    for source in sources:
        latest = _offset(source.get("latestOffset"))
        end = _offset(source.get("endOffset"))
        for log, seq in latest.items():
            found[log] = found.get(log, 0) + max(0, seq - end.get(log, 1))
    return found


def _offset(given: Any) -> dict[str, int]:
    """An offset of a Penstock source, which the progress holds as text; empty for other sources."""
    try:
        parsed = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return {}
    if not isinstance(parsed, dict) or not all(name.startswith("/") for name in parsed):
        return {}
    return parsed
