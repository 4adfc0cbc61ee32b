"""Exit codes, and errors and notices as people and programs read them."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import Any

from penstock import errors
from penstock.errors import PenstockError

DONE = 0
SKIPPED = 12  # done, but something was passed over
TIMEOUT = 124  # as for timeout(1)
INTERRUPTED = 130  # 128 + SIGINT, as shells have it
BROKEN_PIPE = 141  # 128 + SIGPIPE

_HINTS: dict[str, str] = {
    "NoSuchLog": "penstock list shows the logs of a directory, penstock create makes one",
    "Corrupt": "penstock verify shows what is damaged, penstock repair mends it, and "
    "--skip-damage reads what is whole",
    "Gap": "--skip-gaps goes on with what is still there",
    "Busy": "penstock info shows who has it open",
}


class TimedOut(Exception):
    """Nothing came within the time that was given."""


def as_error(error: BaseException) -> PenstockError:
    """The error as one of ours, with a kind and an exit code."""
    if isinstance(error, PenstockError):
        return error
    if isinstance(error, OSError):
        return errors.from_os(error, "using", str(error.filename or "a file"))
    if isinstance(error, MemoryError):
        return errors.Io("not enough memory", errno=errno.ENOMEM)
    if os.environ.get("PENSTOCK_TRACEBACK"):
        import traceback

        traceback.print_exception(error)
    return errors.Internal(
        f"{type(error).__name__}: {error}; this is a bug in Penstock: set PENSTOCK_TRACEBACK=1 to "
        "see where, and please report it"
    )


def kind_of(error: PenstockError) -> str:
    """The name that its exit code has: of the class right below PenstockError."""
    bases = [kind for kind in type(error).__mro__ if issubclass(kind, PenstockError)]
    return bases[max(len(bases) - 2, 0)].__name__


def told(error: PenstockError) -> dict[str, Any]:
    """An error as JSON. What is not known is left out."""
    filename = getattr(error, "filename", None)
    known = {
        "kind": kind_of(error),
        "type": type(error).__name__,
        "message": str(error),
        "exit_code": error.exit_code,
        "path": getattr(error, "path", None) or filename,
        "seq": getattr(error, "seq", None),
        "offset": getattr(error, "offset", None),
        "first_seq": getattr(error, "first_seq", None),
        "hint": _hint(error),
    }
    return {name: value for name, value in known.items() if value is not None}


def _hint(error: PenstockError) -> str | None:
    for kind in type(error).__mro__:
        if kind.__name__ in _HINTS:
            return _HINTS[kind.__name__]
    return None


def report(error: BaseException, command: str, as_json: bool) -> int:
    """Say on stderr what went wrong; returns the exit code."""
    ours = as_error(error)
    if as_json:
        say({"error": told(ours)})
    else:
        hint = _hint(ours)
        say(f"{command}: {one_line(str(ours))}" + (f" ({hint})" if hint else ""))
    return ours.exit_code


def notice(kind: str, message: str, command: str, as_json: bool, **details: object) -> None:
    """Say on stderr what does not stop the command."""
    if as_json:
        say({"notice": {"kind": kind, "message": message, **details}})
    else:
        say(f"{command}: {one_line(message)}")


def one_line(text: str) -> str:
    """Text without characters that would move a terminal's cursor."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def say(what: str | dict[str, Any]) -> None:
    """Write one line to stderr; if nobody can read it, so be it."""
    if isinstance(what, str):
        text = what
    else:
        import json

        text = json.dumps(what, ensure_ascii=True)
    with contextlib.suppress(OSError, ValueError, AttributeError, UnicodeEncodeError):
        print(text.encode("utf-8", "backslashreplace").decode(), file=sys.stderr, flush=True)
