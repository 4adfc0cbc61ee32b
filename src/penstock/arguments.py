"""Checks of arguments that several calls share."""

from __future__ import annotations

from penstock.errors import Usage, WrongType


def check_choice(given: object, what: str, *choices: str) -> None:
    """Refuse a value that is not one of the choices."""
    if not isinstance(given, str) or given not in choices:
        words = f"{', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}"
        raise Usage(f"{what} must be {words}, got {given!r}")


def check_progress(given: object) -> None:
    """Refuse a value that cannot be called, before any work is done."""
    if given is not None and not callable(given):
        raise WrongType(f"progress must be a function or None, got {type(given).__name__}")


FOR_EVER = 1e9  # seconds


def seconds(given: float | None, what: str = "timeout") -> float | None:
    """A timeout as it was given; None if it is for ever. Anything but a number is refused."""
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise WrongType(f"{what} must be a number of seconds or None, got {type(given).__name__}")
    if not given >= 0:
        raise Usage(f"{what} must be a number of seconds from 0, or None, got {given!r}")
    return None if given > FOR_EVER else given
