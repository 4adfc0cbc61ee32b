"""Checks of arguments that several calls have in common."""

from __future__ import annotations

from penstock.errors import Usage, WrongType


def check_choice(given: object, what: str, *choices: str) -> None:
    """Refuse what is none of the words that an argument can be."""
    if not isinstance(given, str) or given not in choices:
        words = " or ".join(repr(choice) for choice in choices)
        raise Usage(f"{what} must be {words}, got {given!r}")


def check_progress(given: object) -> None:
    """Refuse what cannot be called, before any work is done."""
    if given is not None and not callable(given):
        raise WrongType(f"progress must be a function or None, got {type(given).__name__}")
