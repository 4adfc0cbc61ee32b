"""Which logs a path, a glob or a list of them stands for, and their names.

The name of a log is its absolute path: in the column ``log``, and in offsets.
"""

from __future__ import annotations

import errno
import glob
import json
import os
from collections.abc import Iterable, Mapping
from typing import Literal

import penstock
from penstock.errors import Io, NoSuchLog, NotFound, Usage
from penstock.ring.file import is_ring
from penstock.segments.segment import is_name
from penstock.spark.options import SourceOptions
from penstock.spark.quirks import PATHS
from penstock.system import files


def given_paths(options: SourceOptions) -> list[str]:
    """The paths and globs that were given to ``load``, absolute."""
    paths = json.loads(options.text(PATHS) or "[]")
    if path := options.text("path"):
        paths.append(path)
    if not paths:
        raise Usage('the path is missing: .load("data/orders"), or a glob, or a list of them')
    return [files.path_text(path, "path") for path in paths]


def is_log(path: str) -> bool:
    """Whether there is a log at ``path``: a directory of segments, or a ring."""
    names = _names_in(path)
    return is_ring(path) if names is None else any(is_name(name) for name in names)


def _names_in(path: str) -> list[str] | None:
    """The names in a directory; None if there is no directory."""
    try:
        return files.list_dir(path)
    except NotFound:
        return None
    except Io as error:
        if error.errno == errno.ENOTDIR:
            return None
        raise


def find_logs(
    paths: Iterable[str], *, missing: Literal["none", "globs", "any"] = "none"
) -> list[str]:
    """The logs at these paths, sorted.

    A directory that is not a log stands for the logs directly in it: ``orders`` for ``orders/0``
    and ``orders/1``. ``missing`` says which paths may stand for no log yet.
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
    below = [os.path.join(place, name) for name in _names_in(place) or ()]
    return [os.path.abspath(path) for path in below if is_log(path)]


def partition_of(log: str) -> int:
    """The number that is the log's own folder name, else 0."""
    name = os.path.basename(log)
    return int(name) if name.isascii() and name.isdigit() and int(name) < 1 << 31 else 0


def open_log(path: str) -> penstock.Log:
    """The log, for reading; on a network file system without its writers."""
    return penstock.open(path, mode="r")


def by_log(name: str, given: Mapping[str, object], logs: Iterable[str]) -> dict[str, object]:
    """The value for each log in an option's JSON.

    It names a log by its path, by the end of its path if that is unique, or as Kafka does:
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
            what = "several logs" if matching else "no log"
            raise Usage(
                f"option {name!r} must name each log, got {key!r}, which is {what}; "
                f"the logs are {', '.join(there) or '(none)'}"
            )
        found[matching[0]] = value
    if missing := [log for log in there if log not in found]:
        raise Usage(f"option {name!r} must name each log, and {', '.join(missing)} is missing")
    return found
