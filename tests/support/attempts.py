"""Trying what may be refused: a refusal is a typed error and is noted, anything else fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from penstock import PenstockError

_T = TypeVar("_T")

Refusal = tuple[str, str, int | None]  # what, kind of error, errno


class Attempts:
    """Runs calls one after the other and keeps what was refused, and how."""

    def __init__(self, *also: type[BaseException]) -> None:
        self.refusals: list[Refusal] = []
        self._kinds: tuple[type[BaseException], ...] = (PenstockError, *also)

    def __call__(self, what: str, call: Callable[[], _T]) -> _T | None:
        """The call's result, or None if it was refused."""
        try:
            return call()
        except self._kinds as error:
            code = error.errno if isinstance(error, OSError) else None
            self.refusals.append((what, type(error).__name__, code))
            return None

    def kinds(self) -> set[str]:
        """The kinds of errors that there were."""
        return {kind for _, kind, _ in self.refusals}
