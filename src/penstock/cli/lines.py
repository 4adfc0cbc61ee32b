"""Lines as they come in: as many as there are at once, so that none waits for the next one."""

from __future__ import annotations

import contextlib
import fcntl
import io
import sys
from collections.abc import Iterator
from typing import Any

from penstock.errors import Io, TooLarge
from penstock.layout import VALUE_BYTES_MAX

PIECE_BYTES = 1 << 20
LINE_BYTES_MAX = 2 * VALUE_BYTES_MAX  # as JSON, a value takes more


def stdin_file() -> Any:
    """Standard input as bytes."""
    if sys.stdin is None:
        raise Io("standard input is closed", filename="stdin")
    stream = sys.stdin.buffer
    with contextlib.suppress(OSError, ValueError, AttributeError, io.UnsupportedOperation):
        fcntl.fcntl(stream.fileno(), fcntl.F_SETPIPE_SZ, PIECE_BYTES)
    return stream


def pieces(stream: Any, end: bytes, most: int = PIECE_BYTES) -> Iterator[bytes]:
    """Complete lines, many at once, without the end of the last one; what is left at the end."""
    held: list[bytes] = []
    held_bytes = 0
    while data := _read(stream, most):
        cut = data.rfind(end)
        if cut < 0:
            held.append(data)
            held_bytes += len(data)
            if held_bytes > LINE_BYTES_MAX:
                raise TooLarge(f"a line must be at most {LINE_BYTES_MAX} bytes")
            continue
        yield b"".join([*held, data[:cut]]) if held else data[:cut]
        rest = data[cut + 1 :]
        held = [rest] if rest else []
        held_bytes = len(rest)
    if held:
        yield b"".join(held)


def _read(stream: Any, most: int) -> bytes:
    try:
        return bytes(stream.read1(most))
    except OSError as error:
        error.filename = error.filename or "standard input"
        raise
