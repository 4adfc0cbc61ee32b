"""Merging the small files of a lake, beside the stream that fills it and beside readers.

Needs pyarrow and no Spark. The algorithm, for each directory with two small files or more:

1.  Write their rows, in the order of the files' names, into larger ones in a new directory in
    staging, and sync them.
2.  Under ``publish.lock``: link to every other file of the directory from the new one, and
    exchange the two directories. Others see only this one step of the file system.
3.  At the end, delete staging, which has the old directories now.

A death before the exchange leaves the lake as it was, one after it leaves it compacted; either way
the next compaction deletes what is in staging.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.arguments import check_progress
from penstock.errors import Io, NoSuchLog, Usage, WrongType
from penstock.spark.lake.book import HOLD_TIMEOUT, Book, parquet_files
from penstock.system import files
from penstock.system.needs import needed

logger = logging.getLogger("penstock.lake")

ROWS_PER_FILE = 1_000_000
_BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a compaction did: how many directories were changed, and files and rows in them."""

    directories: int = 0
    files_before: int = 0
    files_after: int = 0
    rows: int = 0


def compact(
    target: str | os.PathLike[str],
    *,
    rows_per_file: int = ROWS_PER_FILE,
    bad: str | os.PathLike[str] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Compaction:
    """Merge small files of the lake at ``target``, and of its bad records.

    A file is small if it has less than half of ``rows_per_file`` rows. A stream may fill the lake
    at the same time, and others may read it. A second call changes nothing. ``bad`` is as for
    `start`; ``progress`` is called with a directory, and how many files it had and has now.

    Raises `Busy` if another process compacts the lake, and `Io` where the file system cannot
    exchange two directories: ext4, XFS, Btrfs and tmpfs can, NFS cannot.
    """
    if isinstance(rows_per_file, bool) or not isinstance(rows_per_file, int):
        raise WrongType(f"rows_per_file must be a whole number, got {type(rows_per_file).__name__}")
    if rows_per_file < 2:
        raise Usage(f"rows_per_file must be 2 or more, got {rows_per_file}")
    check_progress(progress)
    needed("pyarrow.parquet", "'penstock[spark]'")
    book = Book(target, bad)
    if not files.exists(book.path):
        raise NoSuchLog(
            f"{book.target}: there is no lake here; its book would be {book.path}",
            filename=book.target,
        )
    hold = book.hold("compact", HOLD_TIMEOUT)
    try:
        book.recover()
        book.sweep("compact")
        done = Compaction()
        for top in (book.target, book.bad):
            for directory in _directories(top):
                before, after, rows = _compact_one(book, directory, rows_per_file)
                if before == after:
                    continue
                done = Compaction(
                    directories=done.directories + 1,
                    files_before=done.files_before + before,
                    files_after=done.files_after + after,
                    rows=done.rows + rows,
                )
                logger.info("%s: merged %d files into %d", directory, before, after)
                if progress is not None:
                    progress(directory, before, after)
        book.sweep("compact")
        return done
    finally:
        hold.release()


def _directories(top: str) -> list[str]:
    return sorted({os.path.dirname(os.path.join(top, name)) for name in parquet_files(top)})


def _names(directory: str) -> list[str]:
    return [name for name in parquet_files(directory) if os.path.dirname(name) == ""]


def _compact_one(book: Book, directory: str, rows_per_file: int) -> tuple[int, int, int]:
    """Compact one directory; how many files it had and has, and rows of those merged."""
    from pyarrow import parquet

    names = _names(directory)
    sizes = {name: parquet.read_metadata(os.path.join(directory, name)).num_rows for name in names}
    small = [name for name in names if sizes[name] < rows_per_file // 2]
    rows = sum(sizes[name] for name in small)
    if len(small) < 2:
        return len(names), len(names), 0
    staged = book.stage("compact")
    made = _merge(directory, small, staged, rows, rows_per_file)
    with book.publishing():
        for name in files.list_dir(directory):
            if name not in small:
                files.link(os.path.join(directory, name), os.path.join(staged, name))
        shutil.copystat(directory, staged)
        files.sync_name(staged)
        _exchange(staged, directory)
        files.sync_name(os.path.dirname(directory))
    return len(names), len(names) - len(small) + made, rows


def _exchange(staged: str, directory: str) -> None:
    try:
        files.exchange(staged, directory)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV):
            raise Io(
                f"{directory}: this file system cannot exchange two directories, which compact "
                "needs; nothing was changed",
                errno=error.errno,
                filename=directory,
            ) from error
        raise


def _merge(directory: str, names: Sequence[str], staged: str, rows: int, rows_per_file: int) -> int:
    """Write the rows of some files into larger ones; returns how many of those there are."""
    from pyarrow import parquet

    paths = [os.path.join(directory, name) for name in names]
    schema = _common([parquet.read_schema(path) for path in paths], directory)
    codec = parquet.read_metadata(paths[0]).row_group(0).column(0).compression.lower()
    files.make_dirs(staged)
    # Equal shares, so that no small file is left for the next time.
    count = max(1, -(-rows // rows_per_file))
    share = -(-rows // count)
    first = names[0].removesuffix(".parquet").split("-")[0]
    attempt = uuid.uuid4().hex[:8]
    source = _slices(paths, schema, share)
    for n in range(count):
        path = os.path.join(staged, f"{first}-c{attempt}-{n}.parquet")
        left = min(share, rows - n * share)
        with parquet.ParquetWriter(path, schema, compression=codec) as writer:
            while left:
                part = next(source)
                writer.write_table(part)
                left -= part.num_rows
        files.sync_name(path)
    return count


def _common(schemas: Sequence[Any], directory: str) -> Any:
    """A schema that has the columns of all."""
    import pyarrow as pa

    if all(schema.equals(schemas[0], check_metadata=True) for schema in schemas):
        return schemas[0]
    try:
        # Without what Spark notes of a file's columns, which would be those of the first alone.
        return pa.unify_schemas([schema.remove_metadata() for schema in schemas])
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise Usage(
            f"{directory}: its files have columns of the same name and of different types, and "
            f"cannot be merged ({error}); nothing was changed"
        ) from error


def _slices(paths: Sequence[str], schema: Any, share: int) -> Iterator[Any]:
    """The rows of some files, in tables that never cross a multiple of ``share``."""
    import pyarrow as pa
    from pyarrow import parquet

    left = share
    for path in paths:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH_ROWS):
                table = pa.Table.from_batches([batch])
                table = _as(table, schema)
                at = 0
                while at < table.num_rows:
                    part = table.slice(at, left)
                    yield part
                    at += part.num_rows
                    left = left - part.num_rows or share


def _as(table: Any, schema: Any) -> Any:
    """A table with the columns of a schema; missing ones are null."""
    import pyarrow as pa

    columns = [
        table[field.name].cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
