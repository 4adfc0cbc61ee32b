"""Paths as Spark users write them: plain ones, or ``file:`` URIs."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote

from penstock.errors import Usage

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=/)")


def local_path(text: str, what: str) -> str:
    """An absolute path of this host; any other scheme than ``file:`` is refused."""
    scheme = _SCHEME.match(text)
    if scheme is None:
        return os.path.abspath(text)
    if scheme[1].lower() != "file":
        raise Usage(
            f"{what} {text!r}: give a path, or a file: URI, of a file system that this host has "
            f"mounted; a log is files and shared memory of one host, and {scheme[1]}: has neither"
        )
    rest = unquote(text[scheme.end() :])
    if rest.startswith("//"):
        host, slash, below = rest[2:].partition("/")
        if host not in ("", "localhost") or not slash:
            raise Usage(f"{what} {text!r}: names another host; give a path of this one")
        rest = f"/{below}"
    return os.path.abspath(rest)
