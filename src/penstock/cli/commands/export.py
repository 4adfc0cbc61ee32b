"""``penstock export``."""

from __future__ import annotations

import argparse
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.cli import options
from penstock.cli.out import Out
from penstock.cli.paths import open_log
from penstock.cli.progress import Progress
from penstock.cli.registry import Example
from penstock.cli.selecting import read_lists
from penstock.errors import AlreadyExists, Usage, from_os

ABOUT = """\
Write events to a file: JSON lines, CSV, Arrow or Parquet, by its name or --as. The file gets its
name when it is complete and on disk. Several files split it: with --rows, part 0, part 1, …"""
EXAMPLES = (
    Example("penstock export orders orders.parquet --since 2026-11-01", "as Parquet"),
    Example("penstock export orders day.jsonl --topic eu", "as JSON lines, for penstock import"),
    Example("penstock export orders part.parquet --rows 1000000", "part-0.parquet, part-1.parquet"),
)
BY_NAME = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".parquet": "parquet",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    options.add_log(parser)
    parser.add_argument("file", metavar="FILE", help="the file; what is there is not replaced")
    parser.add_argument("--as", dest="form", choices=sorted(set(BY_NAME.values())), help="its form")
    parser.add_argument("--force", action="store_true", help="replace the file if it is there")
    parser.add_argument("--rows", metavar="N", help="at most that many events in a file")
    options.add_selection(parser)


def run(given: argparse.Namespace, out: Out) -> None:
    from penstock.cli.when import whole

    path = Path(given.file)
    form = given.form or BY_NAME.get(path.suffix.lower())
    if form is None:
        raise Usage(f"FILE must end in one of {', '.join(BY_NAME)}, or --as says its form")
    rows = None if given.rows is None else whole(given.rows, "--rows", 1)
    with open_log(given.log) as log, Progress(out, "writing", is_bytes=False) as progress:
        write = _write_columns if form in ("arrow", "parquet") else _write_lists
        done = write(log, given, out, path, form, rows, progress)
    if given.json:
        out.value({"files": [str(name) for name, _ in done], "events": sum(n for _, n in done)})
    out.note(
        f"wrote {sum(n for _, n in done):,} events to {', '.join(str(name) for name, _ in done)}"
    )


class _File:
    """A file that gets its name when it is complete and on disk."""

    def __init__(self, path: Path, force: bool) -> None:
        self.path = path
        self._force = force
        if not force and os.path.lexists(path):
            raise AlreadyExists(
                f"{path}: is there already; --force replaces it", filename=str(path)
            )
        self._unnamed = path.with_name(f".{path.name}.{os.getpid()}.part")

    def __enter__(self) -> Any:
        try:
            self.file = open(self._unnamed, "wb", buffering=1 << 20)
        except OSError as error:
            raise from_os(error, "writing", str(self._unnamed)) from error
        return self.file

    def __exit__(self, kind: Any, *_: object) -> None:
        try:
            if kind is None:
                self.file.flush()
                os.fsync(self.file.fileno())
                self.file.close()
                if self._force:
                    os.replace(self._unnamed, self.path)
                else:
                    os.link(self._unnamed, self.path)  # never over a file that came meanwhile
                _sync_folder(self.path)
        except OSError as error:
            raise from_os(error, "writing", str(self.path)) from error
        finally:
            with suppress(OSError):  # the error that counts was raised before
                self.file.close()
            if os.path.lexists(self._unnamed):
                os.unlink(self._unnamed)


def _sync_folder(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _named(path: Path, number: int, rows: int | None) -> Path:
    return path if rows is None else path.with_name(f"{path.stem}-{number}{path.suffix}")


class _FileOut:
    """What a form prints to, where that is a file."""

    def __init__(self, file: Any, out: Out) -> None:
        self._file = file
        self.terminal = False
        self.color = False
        self.paint = out.paint

    def write(self, data: bytes) -> None:
        self._file.write(data)


def _write_lists(
    log: Any,
    given: argparse.Namespace,
    out: Out,
    path: Path,
    form: str,
    rows: int | None,
    progress: Progress,
) -> list[tuple[Path, int]]:
    from penstock.cli.forms import form_of

    how = argparse.Namespace(output=form, format=None, null=False, json=True, utc=True)
    reader, lists = read_lists(log, given)
    done: list[tuple[Path, int]] = []
    total = 0
    rest: Any = next(lists, None)
    while rest is not None or not done:
        name = _named(path, len(done), rows)
        count = 0
        with _File(name, given.force) as file:
            printer = form_of(how, _FileOut(file, out))  # type: ignore[arg-type]
            while rest is not None and (rows is None or count < rows):
                some = rest if rows is None else rest[: rows - count]
                printer.write(some)
                count += len(some)
                rest = rest[len(some) :] or next(lists, None)
                progress.update(total + count)
            printer.close()
        done.append((name, count))
        total += count
    out.skip(reader.skipped, "events that are damaged or gone")
    return done


def _write_columns(
    log: Any,
    given: argparse.Namespace,
    out: Out,
    path: Path,
    form: str,
    rows: int | None,
    progress: Progress,
) -> list[tuple[Path, int]]:
    from penstock.cli.columns import write_batches

    if given.grep is not None or given.where is not None:
        raise Usage(f"--grep and --where are not for {form}; penstock sql can select")
    scan = log.scan(
        **options.seq_range(given, log),
        **options.time_options(given),
        **options.read_options(given),
        limit=options.limit_of(given),
    )
    batches = iter(scan.to_batches())
    done: list[tuple[Path, int]] = []
    total = 0
    rest = next(batches, None)
    while rest is not None or not done:
        name = _named(path, len(done), rows)

        def some() -> Any:
            nonlocal rest, total
            left = rows
            while rest is not None and left != 0:
                part = rest if left is None else rest.slice(0, left)
                more = rest.num_rows - part.num_rows
                left = None if left is None else left - part.num_rows
                total += part.num_rows
                progress.update(total)
                rest = rest.slice(part.num_rows) if more else next(batches, None)
                yield part

        with _File(name, given.force) as file:
            done.append((name, write_batches(form, scan.schema, some(), file)))
    out.skip(scan.skipped, "events that are damaged or gone")
    return done
