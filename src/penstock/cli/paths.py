"""Which path a name on the command line means, and opening what is there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

from penstock.errors import Usage

if TYPE_CHECKING:
    from penstock.log import Log

HOME = "PENSTOCK_DIR"


def path_of(name: str) -> str:
    """The path that is meant: a bare name lies in PENSTOCK_DIR, if that is set.

    A name with a slash, or one that begins with a dot or ``~``, is a path as it is.
    """
    if not name:
        raise Usage("a log must be a path or a name, got an empty text")
    base = os.environ.get(HOME)
    if base and "/" not in name and not name.startswith((".", "~")):
        return os.path.join(base, name)
    return name


def open_log(name: str, mode: Literal["r", "rw"] = "r", **options: Any) -> Log[Any]:
    """Open a log that exists. Only commands that write give another mode than "r"."""
    from penstock.opening import open as open_

    options.setdefault("create", False)
    return open_(path_of(name), mode, **options)
