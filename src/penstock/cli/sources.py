"""What ``penstock import`` takes, as items for `Log.load`, one after the other."""

from __future__ import annotations

import codecs
import csv
import io
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from penstock.cli.lines import PIECE_BYTES, pieces, stdin_file
from penstock.cli.when import moment
from penstock.errors import BadData, Usage, from_os
from penstock.event import Entry

BY_NAME = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".parquet": "parquet",
    ".db": "sqlite",
    ".sqlite": "sqlite",
    ".sqlite3": "sqlite",
}
FORMS = ("jsonl", "csv", "arrow", "parquet", "sqlite", "kcat", "redis", "log")
PARTS = ("value", "key", "topic", "time", "headers", "tags")
IGNORED = ("seq", "append_time")  # of what export writes: the log gives new ones
ROWS = 10_000


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """How rows become events."""

    columns: dict[str, str] = field(default_factory=dict)  # part of an event: column
    table: str | None = None  # or a query
    as_object: bool = False  # the log encodes objects itself
    skipped: list[str] | None = None  # bad lines, if they may be passed over
    codec: str = "bytes"  # of the log


def items(form: str, name: str, wanted: ImportOptions) -> Iterator[Any]:
    """What a file has, as items for ``load``."""
    makers = {"jsonl": _jsonl, "kcat": _kcat, "csv": _csv_rows, "redis": _redis, "sqlite": _sqlite}
    return makers[form](name, wanted)


def _opened(name: str) -> Any:
    """A file, or stdin, as bytes."""
    if name == "-":
        return stdin_file()
    try:
        return open(name, "rb", buffering=PIECE_BYTES)
    except OSError as error:
        raise from_os(error, "reading", name) from error


def _jsonl(name: str, wanted: ImportOptions) -> Iterator[Any]:
    from penstock.cli.records import entry_of, parse_lines

    done = 0
    for piece in pieces(_opened(name), b"\n"):
        for record in parse_lines(piece, done, wanted.skipped):
            if record.codec not in (None, wanted.codec):
                raise Usage(
                    f"the log's codec is {wanted.codec!r}, but an event has {record.codec!r}; "
                    "penstock append --jsonl can append both"
                )
            yield entry_of(record, wanted.as_object)
        done += piece.count(b"\n") + 1


class _KcatLine(msgspec.Struct):
    """One message as ``kcat -J`` prints it."""

    topic: str = ""
    partition: int | None = None
    offset: int | None = None
    ts: int | None = None
    headers: list[str | None] | None = None
    key: str | None = None
    payload: str | None = None


def _kcat(name: str, wanted: ImportOptions) -> Iterator[Any]:
    decoder = msgspec.json.Decoder(_KcatLine)
    number = 0
    for piece in pieces(_opened(name), b"\n"):
        for line in piece.split(b"\n"):
            number += 1
            if not line.strip():
                continue
            try:
                found = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise BadData(f"line {number}: must be a message of kcat -J: {error}") from None
            pairs = found.headers or []
            if len(pairs) % 2:
                raise BadData(f"line {number}: headers must be pairs")
            headers: list[tuple[str, bytes | None]] = [
                (str(pairs[i]), _bytes(pairs[i + 1])) for i in range(0, len(pairs), 2)
            ]
            for what in ("partition", "offset"):
                if getattr(found, what) is not None:
                    headers.append((f"kafka.{what}", b"%d" % getattr(found, what)))
            time = None if found.ts is None or found.ts < 0 else found.ts * 1_000_000
            yield Entry(
                _value(_bytes(found.payload), wanted),
                _bytes(found.key),
                found.topic or None,
                headers or None,
                time,
            )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _value(value: bytes | None, wanted: ImportOptions) -> Any:
    if value is None or not wanted.as_object:
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadData(f"a value must be JSON, since the log has a codec: {error}") from None


def _redis(name: str, wanted: ImportOptions) -> Iterator[Any]:
    """Entries of a stream, as ``redis-cli --json XRANGE stream - +`` prints them."""
    for entry in _array_items(_opened(name)):
        if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)):
            raise BadData(f"an entry must be [id, [field, value, …]], got {str(entry)[:60]}")
        name_, parts = entry
        if isinstance(parts, list):
            if len(parts) % 2:
                raise BadData(f"entry {name_}: fields must be pairs")
            parts = dict(zip(parts[::2], parts[1::2], strict=True))
        milliseconds = name_.partition("-")[0]
        if not (milliseconds.isascii() and milliseconds.isdigit()):
            raise BadData(f"an id must be like 1526919030474-0, got {name_[:40]!r}")
        made = row_entry(parts, wanted)
        yield made._replace(
            time=made.time if made.time is not None else int(milliseconds) * 1_000_000,
            headers=[*(made.headers or ()), ("redis.id", name_.encode())],
        )


def _array_items(stream: Any) -> Iterator[Any]:
    """The items of a JSON array, of any length, one after the other."""
    decoder = json.JSONDecoder()
    text, begun, ended = "", False, False
    incremental = codecs.getincrementaldecoder("utf-8")("strict")
    while True:
        data = stream.read1(PIECE_BYTES)
        try:
            text += incremental.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise BadData(f"the input must be JSON as UTF-8: {error}") from None
        at = 0
        while True:
            while at < len(text) and text[at] in " \t\r\n,":
                at += 1
            if at == len(text) or ended:
                break
            if not begun:
                if text[at] != "[":
                    raise BadData(f"the input must be a JSON array, got {text[at : at + 20]!r}")
                begun = True
                at += 1
                continue
            if text[at] == "]":
                ended = True
                at += 1
                break
            try:
                item, at = decoder.raw_decode(text, at)
            except ValueError as error:
                if data:
                    break  # the rest of it is still to come
                raise BadData(f"the input must be a JSON array: {error}") from None
            yield item
        text = text[at:]
        if not data:
            break
    if not ended or text.strip():
        raise BadData("the input must be one JSON array, and it does not end like one")


def _csv_rows(name: str, wanted: ImportOptions) -> Iterator[Any]:
    csv.field_size_limit(256 << 20)
    stream = _opened(name)
    try:
        with io.TextIOWrapper(stream, "utf-8", newline="") as text:
            rows = csv.DictReader(text, strict=True)
            for row in rows:
                if None in row or None in row.values():
                    raise BadData(f"line {rows.line_num}: must have as many cells as the heading")
                try:
                    yield row_entry({str(k): v for k, v in row.items()}, wanted, cells=True)
                except (BadData, Usage) as error:
                    raise BadData(f"line {rows.line_num}: {error}") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise BadData(f"{name}: must be CSV as UTF-8: {error}") from None


def _sqlite(name: str, wanted: ImportOptions) -> Iterator[Any]:
    if wanted.table is None:
        raise Usage("give the --table, or a query: --table 'select …'")
    if name == "-":
        raise Usage("a database is a file, and cannot be read from stdin")
    table = wanted.table
    if not table.lstrip()[:7].lower().startswith(("select ", "with ")):
        table = 'SELECT * FROM "{}"'.format(table.replace('"', '""'))
    if not Path(name).is_file():
        raise from_os(FileNotFoundError(2, "no such file"), "reading", name)
    try:
        with closing(sqlite3.connect(f"{Path(name).resolve().as_uri()}?mode=ro", uri=True)) as base:
            cursor = base.execute(table)
            names = [column[0] for column in cursor.description or ()]
            while rows := cursor.fetchmany(ROWS):
                for row in rows:
                    yield row_entry(dict(zip(names, row, strict=True)), wanted)
    except sqlite3.Error as error:
        raise BadData(f"{name}: {error}") from None


def row_entry(row: dict[str, Any], wanted: ImportOptions, *, cells: bool = False) -> Entry:
    """A row as an event: its column ``value``, else all of it as a JSON object."""
    named = {part: row[wanted.columns[part]] for part in wanted.columns if part in PARTS}
    if "value" in wanted.columns or "value" in row:
        for part in PARTS:
            if part not in named and part in row and part not in wanted.columns.values():
                named[part] = row[part]
    value = named.get("value")
    if "value" not in named:
        used = set(wanted.columns.values())
        value = {name: cell for name, cell in row.items() if name not in used}
        value = value if wanted.as_object else msgspec.json.encode(value)
    else:
        value = _value(_cell(value, cells), wanted)
    key = _cell(named.get("key"), cells)
    if cells and key == b"":
        key = None
    topic = named.get("topic")
    return Entry(
        value,
        key,
        None if topic in (None, "") else str(topic),
        _headers(named.get("headers"), cells),
        _time(named.get("time")),
        _tags(named.get("tags")),
    )


def _cell(value: Any, cells: bool) -> bytes | None:
    """The bytes of a cell."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        if cells and value.startswith("base64:"):
            import base64
            import binascii

            try:
                return base64.b64decode(value[7:], validate=True)
            except (binascii.Error, ValueError) as error:
                raise BadData(f"what follows base64: must be base64: {error}") from None
        return value.encode("utf-8", "surrogateescape")
    return bytes(msgspec.json.encode(value))


def _time(value: Any) -> Any:
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdigit() else moment(value, "time")
    return value


def _headers(value: Any, cells: bool) -> Any:
    if value in (None, ""):
        return None
    try:
        pairs = json.loads(value)
        return [(name, _cell(part, cells)) for name, part in pairs]
    except (ValueError, TypeError):
        raise BadData(f"headers must be a JSON array of pairs, got {str(value)[:60]!r}") from None


def _tags(value: Any) -> list[str] | None:
    return str(value).split() or None if value else None
