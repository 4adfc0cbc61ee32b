"""Which logs a path, a glob or a list of them stands for, and what they are called.

A log is called by its absolute path: in the column ``log``, and in offsets.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterable, Mapping
from typing import Literal

import penstock
from penstock.errors import NoSuchLog, Usage
from penstock.ring.file import is_ring
from penstock.segments.segment import is_name
from penstock.spark.options import Options
from penstock.system import files


def given_paths(options: Options) -> list[str]:
    """The paths and globs that were given to ``load``, absolute."""
    paths = json.loads(options.text("paths") or "[]")
    if path := options.text("path"):
        paths.append(path)
    if not paths:
        raise Usage('which log? Give its path: .load("data/orders"), or a glob, or a list of them')
    return [files.path_text(path, "path") for path in paths]


def is_log(path: str) -> bool:
    """Whether there is a log at ``path``: a directory of segments, or a ring."""
    try:
        return any(is_name(name) for name in os.listdir(path))
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        return is_ring(path)


def find_logs(
    paths: Iterable[str], *, missing: Literal["none", "globs", "any"] = "none"
) -> list[str]:
    """The logs at these paths, sorted.

    A directory that is no log stands for the logs right below it: ``orders`` for ``orders/0`` and
    ``orders/1``. ``missing`` says which paths need not stand for a log yet.
    """
    found: set[str] = set()
    for path in paths:
        is_glob = glob.has_magic(path) and not is_log(path)
        places = glob.glob(path, recursive=True) if is_glob else [path]
        here = {log for place in places for log in _at_or_below(place)}
        if not here and (missing == "none" or (missing == "globs" and not is_glob)):
            raise NoSuchLog(
                f"{path}: {'no log matches' if is_glob else 'there is no log here'}", filename=path
            )
        found |= here
    return sorted(found)


def _at_or_below(place: str) -> list[str]:
    if is_log(place):
        return [os.path.abspath(place)]
    try:
        below = [os.path.join(place, name) for name in os.listdir(place)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [os.path.abspath(path) for path in below if is_log(path)]


def partition_of(log: str) -> int:
    """The number that is the log's own folder name, else 0."""
    name = os.path.basename(log)
    return int(name) if name.isascii() and name.isdigit() and int(name) < 1 << 31 else 0


def open_log(path: str) -> penstock.Log:
    """The log, for reading: on a network file system as it is, without those who write there."""
    return penstock.open(path, mode="r")


def by_log(name: str, given: Mapping[str, object], logs: Iterable[str]) -> dict[str, object]:
    """What an option's JSON says for each log.

    It names them by path, by the last part of it if that is clear, or as Kafka does:
    ``{"orders": {"0": 23}}`` for the log ``orders/0``.
    """
    there = list(logs)
    flat: dict[str, object] = {}
    for key, value in given.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}/{number}": inner for number, inner in value.items()}
        else:
            flat[key] = value
    found: dict[str, object] = {}
    for key, value in flat.items():
        matching = [log for log in there if log == key] or [
            log
            for log in there
            if log.endswith("/" + key.strip("/")) or log == os.path.abspath(key)
        ]
        if len(matching) != 1:
            what = "several logs are" if matching else "no log is"
            raise Usage(
                f"option {name!r}: {what} called {key!r}; the logs are {', '.join(there) or 'none'}"
            )
        found[matching[0]] = value
    if missing := [log for log in there if log not in found]:
        raise Usage(f"option {name!r} says nothing of {', '.join(missing)}")
    return found
