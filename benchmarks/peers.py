"""The other side of the comparisons with LMDB, set up to be as fast as possible without syncing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

import penstock

MAP_BYTES = 16 << 30


@contextmanager
def open_lmdb(path: Path) -> Iterator[lmdb.Environment]:
    """An environment that never waits for the disk, and writes through its map."""
    with lmdb.open(
        str(path), map_size=MAP_BYTES, sync=False, metasync=False, writemap=True
    ) as environment:
        yield environment


def keys(first: int, count: int) -> list[bytes]:
    """Keys that LMDB can append: integers, big-endian, from ``first`` on."""
    return [seq.to_bytes(8, "big") for seq in range(first, first + count)]


def fill_lmdb(environment: lmdb.Environment, values: list[bytes], count: int) -> None:
    """Put ``count`` values, taken in turn, under the keys from 1 on."""
    for first in range(1, count + 1, len(values)):
        pairs = list(zip(keys(first, min(len(values), count + 1 - first)), values, strict=False))
        with environment.begin(write=True) as txn:
            txn.cursor().putmulti(pairs, append=True)


def fill_log(log: penstock.Log, values: list[bytes], count: int) -> None:
    """Append ``count`` values, taken in turn."""
    for first in range(1, count + 1, len(values)):
        log.extend(values[: count + 1 - first])
