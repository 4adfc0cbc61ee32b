"""How events are printed: as text, JSON lines, CSV, raw values, Arrow or Parquet.

A form takes lists of events, as a reader hands them out, so that nothing is done for each event
where it can be done for many.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Protocol

from penstock._core import event_lines
from penstock.cli.out import Out
from penstock.errors import Usage


class Form(Protocol):
    """Prints events."""

    def write(self, events: list[Any], source: str | None = None) -> None:
        """Print some events; ``source`` is their log, if there are several."""

    def close(self) -> None:
        """Print what belongs at the end."""


def form_of(given: argparse.Namespace, out: Out) -> Form:
    """The form that the options of `options.add_output` ask for."""
    name = given.output or ("jsonl" if given.json or not out.terminal else "text")
    if given.format is not None:
        if given.output is not None:
            raise Usage("--format is a form of its own; leave out -o")
        return _PercentForm(given, out)
    if given.null and name in ("arrow", "parquet", "csv"):
        raise Usage(f"-0 is for text, jsonl and raw, not for {name}")
    end = b"\0" if given.null else b"\n"
    if name == "jsonl":
        return _LineForm(out, "json", end)
    if name == "raw":
        return _LineForm(out, "raw", end)
    if name == "text":
        return _TextForm(given, out, end)
    if name == "csv":
        return _CsvForm(out)
    from penstock.cli.columns import ColumnForm

    return ColumnForm(out, name)


class _LineForm:
    """JSON lines, or values as they are; the compiled core writes both."""

    def __init__(self, out: Out, kind: str, end: bytes) -> None:
        self._out = out
        self._kind: Any = kind
        self._end = end

    def write(self, events: list[Any], source: str | None = None) -> None:
        done = 0
        while done < len(events):
            data, done = event_lines(events, self._kind, self._end, done)
            if source is not None and self._kind == "json":
                import json

                name = b'{"log":' + json.dumps(source).encode() + b","
                data = b"".join(
                    name + line[1:] + self._end for line in data.split(self._end) if line
                )
            self._out.write(data)

    def close(self) -> None:
        pass


class _PercentForm:
    """``--format``."""

    def __init__(self, given: argparse.Namespace, out: Out) -> None:
        from penstock.cli.percent import compile_format

        self._out = out
        self._write = compile_format(given.format)
        self._end = b"\0" if given.null else b""
        if not self._end and not given.format.endswith(("\n", r"\n", r"\0")):
            self._end = b"\n"

    def write(self, events: list[Any], source: str | None = None) -> None:
        for event in events:
            self._out.write(self._write(event) + self._end)

    def close(self) -> None:
        pass


class _TextForm:
    """Lines for people: what is not printable is escaped, so that no event can move the cursor."""

    def __init__(self, given: argparse.Namespace, out: Out, end: bytes) -> None:
        self._out = out
        self._end = end
        if given.utc:
            from penstock.cli.when import iso

            self._time: Callable[[int], str] = iso
        else:
            from penstock.cli.terminal import time_text

            self._time = time_text

    def write(self, events: list[Any], source: str | None = None) -> None:
        for event in events:
            line = self.line(event)
            if source is not None:
                line = f"{self._out.paint(source, 'dim')}  {line}"
            self._out.write(line.encode("utf-8", "backslashreplace") + self._end)

    def line(self, event: Any) -> str:
        """One event for people."""
        from penstock.cli.outcome import one_line

        paint = self._out.paint
        parts = [paint(str(event.seq), "dim"), paint(self._time(event.time_ns), "cyan")]
        if event.topic:
            parts.append(paint(one_line(event.topic), "green"))
        if event.key is not None:
            parts.append(paint("key=" + _printable(event.key), "yellow"))
        parts.append(paint("deleted", "red") if event.deletes else shown_value(event))
        for name, value in event.headers:
            if not name.startswith("penstock."):
                shown = "" if value is None else _printable(value)
                parts.append(paint(f"{one_line(name)}={shown}", "dim"))
        parts += [paint(f"#{one_line(tag)}", "dim") for tag in event.tags]
        return "  ".join(parts)

    def close(self) -> None:
        pass


def shown_value(event: Any) -> str:
    """The value for people: of a codec that is not text, as JSON."""
    value = event.value
    try:
        return _printable(value, strict=True)
    except UnicodeDecodeError:
        pass
    try:
        data = event.data
        if not isinstance(data, bytes):
            import msgspec

            plain = data.to_python() if hasattr(data, "to_python") else data
            return _printable(msgspec.json.encode(plain))
    except Exception:  # whatever the codec raises: its bytes are shown
        pass
    return _printable(value)


def _printable(data: bytes, *, strict: bool = False) -> str:
    from penstock.cli.outcome import one_line

    return one_line(data.decode("utf-8", "strict" if strict else "backslashreplace"))


class _CsvForm:
    """Comma-separated values, with a heading. What is not text is base64 after ``base64:``."""

    COLUMNS = ("seq", "time", "topic", "key", "value", "headers", "tags")

    def __init__(self, out: Out) -> None:
        import csv

        self._out = out
        self._begun = False
        self._rows = csv.writer(CsvFile(out), lineterminator="\n")

    def write(self, events: list[Any], source: str | None = None) -> None:
        from penstock.cli.when import iso

        if not self._begun:
            self._begin()
        self._rows.writerows(
            (
                event.seq,
                iso(event.time_ns),
                event.topic,
                csv_text(event.key),
                csv_text(event.value),
                _csv_headers(event),
                " ".join(event.tags),
            )
            for event in events
        )

    def _begin(self) -> None:
        self._rows.writerow(self.COLUMNS)
        self._begun = True

    def close(self) -> None:
        if not self._begun:
            self._begin()


def csv_text(data: bytes | None) -> str:
    """Bytes in a cell: text as it is, anything else as base64."""
    if data is None:
        return ""
    import base64

    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(data).decode()
    if text.startswith("base64:") or "\0" in text:
        return "base64:" + base64.b64encode(data).decode()
    return text


def _csv_headers(event: Any) -> str:
    import json

    found = [
        [name, None if value is None else csv_text(value)]
        for name, value in event.headers
        if not name.startswith("penstock.")
    ]
    return json.dumps(found, ensure_ascii=False) if found else ""


class CsvFile:
    """A file for csv that passes text on as bytes."""

    def __init__(self, out: Out) -> None:
        self._out = out

    def write(self, text: str) -> int:
        self._out.write(text.encode("utf-8", "surrogateescape"))
        return len(text)
