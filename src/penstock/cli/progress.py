"""Progress of long work, for people only: how far, how fast, how long it will take."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.cli.terminal import size_text, span_text

if TYPE_CHECKING:
    from penstock.cli.out import Out

EVERY_SECONDS = 0.2


class Progress:
    """A line on stderr that is written over; nothing where that is no terminal, or with --quiet."""

    def __init__(self, out: Out, what: str, *, is_bytes: bool = True) -> None:
        self._what = what
        self._show = size_text if is_bytes else lambda count: f"{count:,}"
        self._began = self._last = time.monotonic()
        self._on = not out.quiet and not out.json_errors and sys.stderr.isatty()
        self._wrote = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._wrote:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    @property
    def callback(self) -> Callable[[int, int], None] | None:
        """What verify, repair and backup call; None if there is nobody to tell."""
        return self.update if self._on else None

    def update(self, done: int, total: int | None = None) -> None:
        """Note how far the work is."""
        now = time.monotonic()
        if not self._on or now - self._last < EVERY_SECONDS:
            return
        self._last = now
        seconds = now - self._began
        text = f"{self._what}: {self._show(done)}"
        if total:
            text += f" of {self._show(total)} ({100 * min(done, total) // total} %)"
            if done and done < total:
                text += f", {span_text(seconds * (total - done) / done)} left"
        else:
            text += f", {self._show(round(done / seconds))}/s" if seconds > 1 else ""
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        self._wrote = True
