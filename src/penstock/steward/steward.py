"""The steward of one log: its maintenance, as ``log.steward``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from penstock._core import LogCore
from penstock.errors import Usage

if TYPE_CHECKING:
    from penstock.log import Log


class Steward:
    """Maintenance that a user requests explicitly."""

    def __new__(cls, log: object = None, *args: object, **others: object) -> Self:
        if args or others or not isinstance(log, LogCore):
            raise Usage("a Steward comes from log.steward; open the log with penstock.open(path)")
        return super().__new__(cls)

    def __init__(self, log: Log) -> None:
        self._log = log

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._log,)

    def roll(self) -> int:
        """End the active segment and begin a new one; returns the new segment's first seq.

        A segment without events is left as it is.

        >>> log = penstock.open(path)
        >>> log.append(b"old")
        1
        >>> log.steward.roll()
        2
        """
        return self._log._storage.roll(self._log)
