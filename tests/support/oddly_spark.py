"""What `oddly` calls of `penstock.spark`, without a running Spark.

A session that is no more than its class stands for one. Whoever asks it for anything has taken all
arguments; odd ones must be refused before that.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import penstock.spark
from penstock.spark import lake
from tests.support import oddly


class Taken(Exception):
    """The session was asked for something: nothing was left to refuse."""


class Untouched(SparkSession):
    """A session without Spark."""

    def __init__(self) -> None:
        """Nothing is started."""

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        raise Taken(name)


def _is_whole(least: int) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= least


def _none_or_text(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value != "")


# What a parameter of that name may be; with the function's name, of that function only.
MAY_BE: dict[str, Callable[[Any], bool]] = {
    "builder": lambda v: v is None,
    "row_bytes": _is_whole(1),
    "rows_per_batch": _is_whole(1),
    "rows_per_file": _is_whole(1),
    "progress": oddly.MAY_BE["progress"],
    "partition_by": lambda v: isinstance(v, tuple | list) and not v,
    "keep": lambda v: v is None,
    "schema": lambda v: v is None,
    "options": lambda v: v is None or (isinstance(v, dict) and oddly.are_words(v)),  # the source's
    "bad": oddly.MAY_BE["to"],
    "checkpoint": oddly.MAY_BE["to"],
    "target": oddly.MAY_BE["path"],
    "name": _none_or_text,
    "every": _none_or_text,
    "lake.compact(rows_per_file)": _is_whole(2),
}


def targets(log: Any, place: Path) -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    """Every callable of the package and of its lake, and what it is given where it must be."""
    numbers = itertools.count()
    needed: dict[str, Any] = {
        "spark": Untouched,
        "progress": lambda: {"sources": []},
        "logs": lambda: str(log.path),
        "target": lambda: str(place / f"lake{next(numbers)}"),
    }
    (place / "_filled").mkdir()  # the book of a lake, which compact asks for
    filled = {"target": lambda: str(place / "filled")}
    for module in (penstock.spark, lake):
        for name in module.__all__:
            found = getattr(module, name)
            if inspect.isfunction(found):
                own = needed | (filled if name == "compact" else {})
                yield f"{module.__name__.rpartition('.')[2]}.{name}", _asked(found), own


def _asked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function; that the session was asked is its result."""

    def call(**given: Any) -> Any:
        try:
            return function(**given)
        except Taken as taken:
            return taken

    signature = inspect.signature(function)
    if any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):  # those of start
        named = dict(inspect.signature(lake.start).parameters)
        del named["every"]
        signature = signature.replace(parameters=list(named.values()))
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call
