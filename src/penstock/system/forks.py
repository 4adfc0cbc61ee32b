"""Work with private files, which only the process that began it may continue.

A callback or a generator of the user may fork during it. The child then runs the same code with
the same private files: it must neither write to them nor delete them.
"""

from __future__ import annotations

from penstock import _core
from penstock.errors import Usage


class Begun:
    """Remembers the process that began some work."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._generation = _core.fork_generation()

    @property
    def here(self) -> bool:
        """Whether this is that process."""
        return self._generation == _core.fork_generation()

    def check(self) -> None:
        """Raise Usage in a child."""
        if not self.here:
            raise Usage(
                f"this {self._what} was begun by the parent process, which continues it; "
                "begin another one in this process"
            )
