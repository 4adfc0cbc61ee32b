"""``penstock import``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any

from penstock.cli import options
from penstock.cli.out import Out
from penstock.cli.paths import open_log, path_of
from penstock.cli.progress import Progress
from penstock.cli.registry import Example
from penstock.cli.sources import BY_NAME, FORMS, IGNORED, PARTS, ImportOptions, items
from penstock.cli.when import whole
from penstock.errors import PenstockError, Usage, from_os

ABOUT = """\
Append what files have, each file as one atomic unit. The form is known from the name, or --as:

  jsonl    events as penstock cat and export print them
  csv      with a heading; the column value is the value, else the row as a JSON object
  arrow, parquet, sqlite   the same, of columns; sqlite needs --table
  kcat     messages as kcat -J prints them
  redis    a stream, as redis-cli --json XRANGE prints it
  log      another log, or a ring: its events with all their parts

The columns key, topic, time, headers and tags are the parts of an event; --columns names others."""
EXAMPLES = (
    Example("penstock import orders day.parquet --columns value=body,key=user", "columns as parts"),
    Example("penstock import orders app.db --table orders --create", "rows as JSON objects"),
    Example("kcat -b host -t orders -C -e -J | penstock import orders - --as kcat", "from Kafka"),
    Example(
        "redis-cli --json XRANGE orders - + | penstock import orders - --as redis", "from Redis"
    ),
    Example("penstock import all old/orders --producer old:1", "another log, once"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    options.add_log(parser)
    parser.add_argument("files", metavar="FILE", nargs="+", help="files, or logs; - is stdin")
    parser.add_argument("--as", dest="form", choices=FORMS, help="the form of all files")
    parser.add_argument(
        "--columns",
        metavar="PART=COLUMN,…",
        help=f"which columns are {', '.join(PARTS[:-1])} or {PARTS[-1]}",
    )
    parser.add_argument("--table", metavar="TABLE", help="of a SQLite database; or a SELECT")
    parser.add_argument("--topic", "-t", metavar="TOPIC", help="of events that have none")
    parser.add_argument("--key", "-k", metavar="KEY", help="of events that have none")
    parser.add_argument("--tag", action="append", metavar="TAG", help="of events that have none")
    parser.add_argument("--skip-bad", action="store_true", help="pass over bad lines of jsonl")
    parser.add_argument("--create", action="store_true", help="create the log if there is none")
    parser.add_argument("--codec", help="with --create: its codec")
    parser.add_argument("--durable", action="store_true", help="on disk before this returns")
    parser.add_argument(
        "--producer", metavar="ID:N", help="append once: a repeat of the same ID and N does nothing"
    )


def run(given: argparse.Namespace, out: Out) -> None:
    if given.codec is not None and not given.create:
        raise Usage("--codec is for --create; an existing log has its codec")
    if given.producer is not None and len(given.files) != 1:
        raise Usage("--producer is for one file: each needs a number of its own")
    forms = [_form_of(name, given.form) for name in given.files]
    if given.skip_bad and set(forms) != {"jsonl"}:
        raise Usage("--skip-bad is for jsonl")
    if given.table is not None and "sqlite" not in forms:
        raise Usage("--table is for sqlite")
    columns = _columns(given.columns)
    if columns and set(forms) <= {"jsonl", "kcat", "log"}:
        raise Usage("--columns is for forms that have columns")
    shared = {
        "topic": given.topic,
        "key": options.raw_key(given.key),
        "tags": given.tag,
        "producer": _producer(given.producer),
        "durable": given.durable or None,
    }
    how = {name: value for name, value in shared.items() if value is not None}
    with open_log(given.log, "rw", create=given.create, codec=given.codec) as log:
        skipped: list[str] | None = [] if given.skip_bad else None
        as_object = log.codec in ("msgpack", "lite3")
        wanted = ImportOptions(columns, given.table, as_object, skipped, log.codec)
        total = 0
        for name, form in zip(given.files, forms, strict=True):
            with Progress(out, f"reading {name}", is_bytes=False) as progress:
                seqs = _load(log, form, name, wanted, how, progress)
            total += len(seqs)
            if given.json:
                first, last = (seqs[0], seqs[-1]) if seqs else (None, None)
                told = {"events": len(seqs), "first_seq": first, "last_seq": last}
                out.value({"file": name, **told})
            for text in skipped or ():
                out.notice("bad line", f"{name}: {text}")
            out.skipped += len(skipped or ())
            if skipped:
                skipped.clear()
        out.note(f"appended {total:,} events to {log.path}")


def _producer(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    name, _, number = text.rpartition(":")
    if not name:
        raise Usage(f"--producer must be ID:N, got {text!r}")
    return name, whole(number, "the N of --producer")


def _form_of(name: str, given: str | None) -> str:
    """The form of a file, as given or by its name."""
    from penstock.places import exists

    if given is not None:
        return given
    if name != "-" and exists(path_of(name)):
        return "log"
    found = BY_NAME.get(os.path.splitext(name)[1].lower())
    if found is None:
        if name != "-" and not os.path.exists(name):
            raise from_os(FileNotFoundError(2, "no such file"), "reading", name)
        raise Usage(f"--as must say what {name} is: {', '.join(FORMS)}")
    return found


def _columns(text: str | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in text.split(",") if text else ():
        part, equals, column = pair.partition("=")
        if part not in PARTS or not equals or not column:
            raise Usage(f"--columns must be {', '.join(PARTS)} with =COLUMN each, got {pair!r}")
        if part in found:
            raise Usage(f"--columns has {part} twice")
        found[part] = column
    return found


def _load(
    log: Any, form: str, name: str, wanted: ImportOptions, how: dict[str, Any], progress: Progress
) -> Any:
    """Append one file as one atomic unit; returns its seqs."""
    if form == "log":
        with open_log(name) as source:
            return log.load(source.read(), **how, progress=progress.update)
    if form in ("arrow", "parquet"):
        return _load_columns(log, form, name, wanted, how, progress)
    found = _checked(items(form, name, wanted), wanted)
    return log.load(found, **how, progress=progress.update)


def _checked(found: Iterator[Any], wanted: ImportOptions) -> Iterator[Any]:
    """The items; a column that is not there is an error that says so."""
    try:
        yield from found
    except KeyError as error:
        if isinstance(error, PenstockError):
            raise
        raise Usage(f"there is no column {error}; --columns names it") from None


def _load_columns(
    log: Any, form: str, name: str, wanted: ImportOptions, how: dict[str, Any], progress: Progress
) -> Any:
    """Arrow or Parquet, without an object for each row where the columns are parts of events."""
    import sys

    from penstock.cli.sources import row_entry
    from penstock.system.needs import pyarrow

    pa = pyarrow()
    try:
        if form == "parquet":
            import pyarrow.parquet as pq

            file = pq.ParquetFile(sys.stdin.buffer if name == "-" else name)
            schema, batches = file.schema_arrow, file.iter_batches()
        else:
            stream = sys.stdin.buffer if name == "-" else pa.OSFile(name)
            file = pa.ipc.open_stream(stream)
            schema, batches = file.schema, iter(file)
    except OSError as error:
        raise from_os(error, "reading", name) from error
    except pa.ArrowInvalid as error:
        raise Usage(f"{name}: is not {form}: {error}") from None
    for column in wanted.columns.values():
        if column not in schema.names:
            raise Usage(f"{name}: has no column {column!r}; it has {', '.join(schema.names)}")
    if "value" not in schema.names and "value" not in wanted.columns:
        rows = (row_entry(row, wanted) for batch in batches for row in batch.to_pylist())
        return log.load(rows, **how, progress=progress.update)
    if "tags" in schema.names or "tags" in wanted.columns:
        raise Usage(f"{name}: tags cannot come from a column; --tag gives them to all rows")
    kept = [column for column in schema.names if column not in IGNORED]
    reader = pa.RecordBatchReader.from_batches(
        pa.schema([schema.field(column) for column in kept]),
        (batch.select(kept) for batch in batches),
    )
    parts = {part: column for part, column in wanted.columns.items()}
    for part in ("topic", "key"):
        if part in how and (part in parts or part in kept):
            raise Usage(f"{name}: has a column for {part}; leave out --{part}")
    return log.load(reader, **parts, **how, progress=progress.update)
