"""``penstock sql``."""

from __future__ import annotations

import argparse
import datetime as dt
from contextlib import ExitStack
from decimal import Decimal
from itertools import islice
from typing import Any

from penstock.cli.out import Out
from penstock.cli.paths import open_log, path_of
from penstock.cli.registry import Example
from penstock.errors import NoSuchLog, Usage
from penstock.system.needs import needed

ABOUT = """\
Query logs with SQL, by DuckDB, while others write to them. A table is a log: orders, or in quotes
a path, "data/orders". Its columns are seq, time, topic, key, value, headers, and for a log of JSON
data. Conditions on seq, time and topic limit what is read, and so do the columns that are named."""
EXAMPLES = (
    Example("penstock sql 'select topic, count(*) from orders group by 1'", "events by topic"),
    Example(
        "penstock sql \"select sum((data->>'total')::int) from orders where time > '2026-11-01'\"",
        "a field of JSON values",
    ),
    Example("penstock sql 'select * from \"data/a\" where seq > 100' -o csv", "a path; as CSV"),
)
FORMS = ("text", "jsonl", "csv", "arrow", "parquet")
ROWS = 1000
ROWS_FOR_PEOPLE = 10_000
COLUMNS = ("seq", "time", "append_time", "topic", "key", "value", "headers")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("query", metavar="QUERY", help="one statement; - reads it from stdin")
    parser.add_argument(
        "-o", "--output", choices=FORMS, help="default: a table on a terminal, else jsonl"
    )
    parser.add_argument(
        "--skip-damage",
        action="store_true",
        help="pass over damage, and exit with 12 if there is any",
    )
    parser.add_argument("--explain", action="store_true", help="say what would be read of each log")


def run(given: argparse.Namespace, out: Out) -> None:
    form = given.output or ("jsonl" if out.json else "text")
    if form in ("arrow", "parquet") and out.terminal:
        raise Usage(f"-o {form} is not for a terminal: send it to a file")
    duckdb = needed("duckdb", "duckdb")
    query = _query(given.query)
    scans: dict[str, tuple[dict[str, Any], list[str], _TableSource]] = {}
    with ExitStack() as stack:
        connection = stack.enter_context(duckdb.connect())
        try:
            _register(connection, query, given, stack, scans)
            if given.explain:
                for name, (options, columns, _) in scans.items():
                    out.value({"log": name, "columns": columns, **options})
                return
            _print(connection.sql(query), form, out)
        except duckdb.Error as error:
            failure = next((s.failure for _, _, s in scans.values() if s.failure), None)
            if failure is not None:
                raise failure from None
            raise Usage(f"the query failed: {str(error).strip()}") from None
        for _, _, scan in scans.values():
            out.skip(scan.skipped, "events that are damaged or gone")


def _query(text: str) -> str:
    if text == "-":
        from penstock.cli.lines import stdin_file

        text = stdin_file().read().decode("utf-8", "replace")
    if not text.strip():
        raise Usage("QUERY must be a statement, got nothing")
    return text


class _TableSource:
    """A scan that DuckDB takes as an Arrow stream, as often as it needs; notes why it failed."""

    def __init__(self, scan: Any) -> None:
        self._scan = scan
        self.failure: BaseException | None = None

    @property
    def skipped(self) -> int:
        return int(self._scan.skipped)

    def table(self) -> Any:
        """What DuckDB reads: batches, one after the other."""
        from penstock.system.needs import pyarrow

        return pyarrow().RecordBatchReader.from_batches(self._scan.schema, self._batches())

    def _batches(self) -> Any:
        try:
            yield from self._scan.to_batches()
        except BaseException as error:
            self.failure = error
            raise


def _register(
    connection: Any,
    query: str,
    given: argparse.Namespace,
    stack: ExitStack,
    found: dict[str, tuple[dict[str, Any], list[str], _TableSource]],
) -> None:
    """Make a view of each log that the query names."""
    from penstock.cli.pushdown import needs
    from penstock.places import exists

    tables = set(connection.get_table_names(query))
    logs = {name for name in tables if exists(path_of(name))}
    missing = [n for n in tables - logs if not _is_known(connection, n)]
    if missing:
        raise NoSuchLog(f"{path_of(missing[0])}: there is no log here", filename=missing[0])
    for number, (name, need) in enumerate(needs(connection, query, logs).items()):
        log = stack.enter_context(open_log(name))
        is_json = log.codec == "json"
        wanted = set(COLUMNS) if need.columns is None else need.columns
        if "data" in wanted:
            wanted = wanted | {"value"}
        columns = [c for c in COLUMNS if c in wanted and (c != "append_time" or need.columns)] or [
            "seq"
        ]
        options = need.options()
        scan = log.scan(
            **options, columns=columns, on_damage="skip" if given.skip_damage else "raise"
        )
        source = _TableSource(scan)
        once = _times(query, name) <= 1
        table = source.table() if once else scan.to_arrow()
        connection.register(f"penstock_{number}", table)
        data = ", decode(value)::JSON AS data" if is_json and "value" in columns else ""
        quoted = name.replace('"', '""')
        connection.execute(
            f'CREATE TEMP VIEW "{quoted}" AS SELECT *{data} FROM penstock_{number}'
        ).fetchall()
        found[name] = (options, columns, source)


def _times(query: str, name: str) -> int:
    """How often a query may read a table; a name in a text counts as well."""
    return query.lower().count(name.lower())


def _is_known(connection: Any, name: str) -> bool:
    """Whether DuckDB itself can read it: a file, or a table of its own."""
    if "." in name or "/" in name:
        import os

        return os.path.isfile(name) or "*" in name
    try:
        connection.execute('SELECT 1 FROM "{}" LIMIT 0'.format(name.replace('"', '""'))).fetchall()
    except Exception:
        return False
    return True


def _print(relation: Any, form: str, out: Out) -> None:
    """Print a result. It comes as Arrow, batch by batch."""
    if relation is None:
        return  # a statement without a result
    name = "to_arrow_reader" if hasattr(relation, "to_arrow_reader") else "fetch_arrow_reader"
    reader = getattr(relation, name)(ROWS)
    if form in ("arrow", "parquet"):
        from penstock.cli.columns import ByteSink, write_batches

        write_batches(form, reader.schema, reader, ByteSink(out))
        return
    names = list(reader.schema.names)
    rows = (row for batch in reader for row in zip(*map(_cells, batch.columns), strict=True))
    if form == "text":
        from penstock.cli.out import shown
        from penstock.cli.terminal import table_lines

        some = list(islice(rows, ROWS_FOR_PEOPLE))
        for line in table_lines(names, [list(map(shown, row)) for row in some], out):
            out.line(line)
        if next(rows, None) is not None:
            out.notice("more rows", f"there are more than {ROWS_FOR_PEOPLE:,} rows; -o has all")
    elif form == "csv":
        import csv

        from penstock.cli.forms import CsvFile

        writer = csv.writer(CsvFile(out), lineterminator="\n")
        writer.writerow(names)
        writer.writerows(rows)
    else:
        for row in rows:
            out.value(dict(zip(names, row, strict=True)))


def _cells(column: Any) -> list[Any]:
    """The cells of a column as JSON has them; times as text."""
    from penstock.system.needs import pyarrow

    types = pyarrow().types
    if types.is_timestamp(column.type):
        column = column.cast(pyarrow().timestamp("us", column.type.tz), safe=False)
    return [_plain(cell) for cell in column.to_pylist()]


def _plain(cell: Any) -> Any:
    """A cell as JSON has it: bytes as text if they are, else as base64."""
    if isinstance(cell, bytes | bytearray | memoryview):
        raw = bytes(cell)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            import base64

            return {"base64": base64.b64encode(raw).decode()}
    if isinstance(cell, dt.datetime):
        return (
            cell.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")
            if cell.tzinfo
            else cell.isoformat()
        )
    if isinstance(cell, Decimal):
        return _number(cell)
    if isinstance(cell, dict):
        return {str(key): _plain(value) for key, value in cell.items()}
    if isinstance(cell, list | tuple):
        return [_plain(value) for value in cell]
    if isinstance(cell, str | int | float | bool) or cell is None:
        return cell
    return str(cell)


def _number(value: Decimal) -> int | float | str:
    """A number as JSON has it; as text if it has more digits than a float."""
    if value == value.to_integral_value():
        return int(value)
    return float(value) if Decimal(repr(float(value))) == value else str(value)
