"""Where a command prints: bytes to stdout, and what is known of the terminal.

Everything goes through here, so that a full disk, a closed pipe and a half write are seen.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock.cli import outcome
from penstock.errors import Io

BUFFER_BYTES = 1 << 16


class Out:
    """The output of one command."""

    def __init__(
        self, command: str, *, json: bool = False, quiet: bool = False, color: str = "auto"
    ) -> None:
        self.command = command
        self.quiet = quiet
        self.terminal = _is_terminal(sys.stdout)
        self.json = json or not self.terminal
        self.json_errors = json or not _is_terminal(sys.stderr)
        self.color = color == "always" or (
            color == "auto" and self.terminal and not os.environ.get("NO_COLOR")
        )
        self.skipped = 0  # what was passed over; then the exit code says so
        self._pending: list[bytes] = []
        self._pending_bytes = 0

    def write(self, data: bytes) -> None:
        """Print bytes, at once or with the next ones."""
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= BUFFER_BYTES:
            self.flush()

    def line(self, text: str = "") -> None:
        """Print one line of text."""
        self.write(text.encode("utf-8", "surrogateescape") + b"\n")

    def flush(self) -> None:
        """Have everything printed. Raises what the system says, of a full disk for example."""
        data = b"".join(self._pending)
        self._pending = []
        self._pending_bytes = 0
        if not data:
            return
        if sys.stdout is None:
            raise Io("standard output is closed", errno=errno.EBADF, filename="stdout")
        try:
            if hasattr(sys.stdout, "buffer"):
                _write_all(sys.stdout.buffer, data)
            else:  # a notebook, or whatever else has only text
                sys.stdout.write(data.decode("utf-8", "replace"))
                sys.stdout.flush()
        except OSError as error:
            if error.filename is None:
                error.filename = "standard output"
            raise

    def value(self, what: Any) -> None:
        """Print one JSON value, on one line."""
        import json

        self.line(json.dumps(what, ensure_ascii=False, default=_plain))

    def note(self, text: str) -> None:
        """Say on stderr what was done, for people."""
        if not self.quiet and not self.json_errors:
            outcome.say(outcome.one_line(text))

    def notice(self, kind: str, message: str, **details: object) -> None:
        """Say on stderr what the user should know, though the command goes on."""
        outcome.notice(kind, message, self.command, self.json_errors, **details)

    def skip(self, count: int, what: str) -> None:
        """Note that something was passed over, and say so."""
        if count:
            self.skipped += count
            self.notice("skipped", f"passed over {count} {what}", count=count)

    def fields(self, found: Mapping[str, Any]) -> None:
        """Print names and values: as JSON, or as two columns."""
        if self.json:
            self.value(found)
            return
        width = max(map(len, found), default=0) + 2
        for name, value in found.items():
            self.line(
                f"{self.paint(name.replace('_', ' '), 'dim'):<{self.padded(width)}}{shown(value)}"
            )

    def padded(self, width: int) -> int:
        """The width of a column whose text has colours."""
        return width + (8 if self.color else 0)

    def table(self, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
        """Print rows: as JSON lines, or as a table with a heading."""
        if self.json:
            for row in rows:
                self.value(row)
            return
        from penstock.cli.terminal import table_lines

        cells = [[shown(row.get(name)) for name in columns] for row in rows]
        for line in table_lines(columns, cells, self):
            self.line(line)

    def paint(self, text: str, how: str) -> str:
        """Text in a colour, if colours are wanted."""
        return f"\x1b[{_COLORS[how]}m{text}\x1b[0m" if self.color and text else text


_COLORS = {"dim": "02", "bold": "01", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def _write_all(stream: Any, data: bytes) -> None:
    left = memoryview(data)
    while left:
        try:
            count = stream.write(left)
        except BlockingIOError as error:  # someone made the pipe non-blocking
            count = error.characters_written
            if not count:
                import select

                select.select([], [stream], [])
        left = left[len(left) if count is None else count :]
    stream.flush()


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


def _plain(value: Any) -> Any:
    """What JSON does not have: bytes as text, other things by their names."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)
    return str(value)


def shown(value: Any) -> str:
    """A value for people."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, (list, tuple, set)):
        value = ", ".join(map(shown, value)) or "-"
    if isinstance(value, dict):
        value = ", ".join(f"{name}={shown(part)}" for name, part in value.items()) or "-"
    return outcome.one_line(str(value))
