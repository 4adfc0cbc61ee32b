"""Checks of arguments that several calls have in common."""

from __future__ import annotations

from penstock.errors import Usage, WrongType


def check_choice(given: object, what: str, *choices: str) -> None:
    """Refuse what is none of the words that an argument can be."""
    if not isinstance(given, str) or given not in choices:
        words = f"{', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}"
        raise Usage(f"{what} must be {words}, got {given!r}")


def check_progress(given: object) -> None:
    """Refuse what cannot be called, before any work is done."""
    if given is not None and not callable(given):
        raise WrongType(f"progress must be a function or None, got {type(given).__name__}")
