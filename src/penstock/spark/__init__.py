"""Penstock in Spark: the data source and sink "penstock", and pipelines that use them.

``spark.read.format("penstock")`` needs no import: see ``pyspark_penstock``. What is here is what
the source is made of, `prepare` and `tune`, which set up a session for it, and
`penstock.spark.lake`, which takes logs into a Parquet lake.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from penstock.spark.tuning import prepare, tune

__all__ = ["lag", "prepare", "tune"]


def lag(progress: Mapping[str, Any]) -> dict[str, int]:
    """How many events of each log a query has yet to read, from its ``lastProgress``.

    >>> source = {"endOffset": '{"/logs/a": 11}', "latestOffset": '{"/logs/a": 15, "/logs/b": 3}'}
    >>> penstock.spark.lag({"sources": [source]})
    {'/logs/a': 4, '/logs/b': 2}
    """
    found: dict[str, int] = {}
    for source in progress["sources"]:
        latest = _offset(source.get("latestOffset"))
        end = _offset(source.get("endOffset"))
        for log, seq in latest.items():
            found[log] = found.get(log, 0) + max(0, seq - end.get(log, 1))
    return found


def _offset(given: Any) -> dict[str, int]:
    """An offset of a penstock source, which progress holds as text; of others nothing."""
    parsed = json.loads(given) if isinstance(given, str) else given
    if not isinstance(parsed, dict) or not all(name.startswith("/") for name in parsed):
        return {}
    return parsed
