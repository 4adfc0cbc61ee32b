"""NamedFile: the file of a ring that a handle has open, and the name by which others find it.

A resized ring is another file under the same name; a renamed one is the same file.
"""

from __future__ import annotations

import os

from penstock import layout as L
from penstock.errors import Corrupt, Gone, NotFound, UnsupportedVersion, gone_error
from penstock.handle.control import ControlPlace
from penstock.ring.file import place_of, read_header
from penstock.segments.leftovers import begins_as
from penstock.system import files
from penstock.system.directory import Held, Name

SIDECAR = ".d"  # ends the name of a ring's own directory, after the ring's name
RESIZED = ".resized"  # ends the name of the file that a resize is making


class NamedFile:
    """A ring's file, held by a descriptor, and its name in a held directory."""

    held: Held  # the ring, even if it was renamed
    place: ControlPlace  # the place of its control

    def __init__(self, path: str) -> None:
        self.path = path
        self.parent = files.hold_dir(os.path.dirname(path))
        self.name = self.parent.file(os.path.basename(path))
        self.uuid: bytes | None = None  # not known yet
        self.hold_named()

    def hold_named(self) -> None:
        """Switch to the file that has the ring's name."""
        self.held = files.hold_file(self.name)
        self.place = place_of(self.held)

    def has_name(self) -> bool:
        """Whether the ring still has its name; it may have been resized since."""
        if files.same_file(self.held.anchor().fd, self.name):
            return True
        return self.uuid is not None and _uuid_at(self.name) == self.uuid

    def is_replaced(self) -> bool:
        """Whether the ring is another file now, of another size.

        `Gone` if it was deleted or replaced by another ring. A renamed one is the same file.
        """
        if files.same_file(self.held.anchor().fd, self.name):
            return False
        if self.uuid is None or _uuid_at(self.name) == self.uuid:
            return True
        if not files.is_linked(self.held.anchor().fd, self.path):
            raise gone_error(self.path)
        return False

    def is_moved(self) -> bool:
        """For a reader: whether to switch to another file. The open one can still be read."""
        try:
            return self.is_replaced()
        except Gone:
            return False

    @property
    def resized(self) -> Name:
        """The name of the file that a resize makes."""
        return self.parent.file(self.name.base + RESIZED)

    @property
    def home(self) -> Name:
        """The name of the ring's own directory, which has its consumers."""
        return self.parent.file(self.name.base + SIDECAR)

    def sync_name(self) -> None:
        """Sync the name of the ring."""
        files.sync_name_in(self.parent, self.path)

    def release(self) -> None:
        """Release the file and its directory."""
        self.parent.close()
        self.held = Held(None, self.path)
        self.place = place_of(self.held)


def _uuid_at(path: str) -> bytes | None:
    """The uuid of the ring that has a name; None if there is none."""
    fd = files.open_if_there(path)
    if fd is None:
        return None
    try:
        return read_header(fd, path).uuid
    except (Corrupt, UnsupportedVersion):
        return None
    finally:
        files.close(fd)


def remove_unfinished(path: Name) -> None:
    """Delete the copy that a dead resize left; a locked one is in use.

    For a moment it may be another ring, which took the name while the old one was resized.
    """
    if not begins_as(path, L.RING_MAGIC):
        return
    try:
        fd = files.open_file(path, write=False)
    except NotFound:
        return
    try:
        if files.lock_exclusive(fd, path) and files.same_file(fd, path):
            files.unlink(path)
    finally:
        files.close(fd)
