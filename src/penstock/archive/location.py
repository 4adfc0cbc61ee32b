"""Where an archive lies: what a user may give, what the log stores, and the depot there.

A location is stored in the log's settings, so it never has a secret in it.
"""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from penstock.archive.depots import Depot, LocalDepot, ObjectDepot
from penstock.archive.naming import INSIDE, is_url
from penstock.errors import Usage
from penstock.system import files
from penstock.system.directory import Directory

SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "memory")


def checked(given: str | os.PathLike[str], what: str) -> str:
    """The location that a user gives, in the form that is stored."""
    if not isinstance(given, str) or not is_url(given):
        return files.path_text(given, what)
    url = str(given)
    parts = urlsplit(url)
    if parts.scheme.lower() not in SCHEMES:
        raise Usage(
            f"{what} must be a path, or a URL that begins with "
            f"{', '.join(f'{s}:' for s in SCHEMES)} or file:, got {parts.scheme}:"
        )
    if "@" in parts.netloc and parts.scheme.lower() not in ("abfs", "abfss"):
        raise Usage(f"{what} must have no user or password: credentials come from the environment")
    if ":" in parts.netloc.partition("@")[0] and "@" in parts.netloc:
        raise Usage(f"{what} must have no password: credentials come from the environment")
    if parts.query or parts.fragment:
        raise Usage(f"{what} must have no '?' or '#': settings come from the environment")
    if not parts.netloc and parts.scheme.lower() != "memory":
        raise Usage(f"{what} must name a bucket or container, as in s3://bucket/path, got {url!r}")
    return f"{parts.scheme.lower()}://{parts.netloc}{parts.path.rstrip('/')}"


def given_for(directory: Directory, to: str | os.PathLike[str]) -> str:
    """The location that a user gives for the archive of the log in ``directory``."""
    location = checked(to, "to")
    if is_url(location):
        return location
    home, there = os.path.realpath(directory.path), os.path.realpath(location)
    if there == os.path.join(home, INSIDE):
        return INSIDE
    if there == home or there.startswith(home + os.sep):
        raise Usage(
            f"{location}: is inside the log's directory; leave out to=, and the archive is in "
            f"{os.path.join(directory.path, INSIDE)}, or give a path or URL outside of it"
        )
    return location


def depot_at(
    location: str, directory: Directory | None, mode: int = 0o700, file_mode: int = 0o600
) -> Depot:
    """The depot at a location, of the log in ``directory``."""
    if is_url(location):
        return ObjectDepot(location)
    if location == INSIDE and directory is not None:
        return LocalDepot(directory.file(INSIDE), mode, file_mode)
    return LocalDepot(location, mode, file_mode)


def text_of(location: str, directory: Directory) -> str:
    """A location for messages."""
    return os.path.join(directory.path, INSIDE) if location == INSIDE else location
