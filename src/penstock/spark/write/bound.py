"""Which log a streaming query writes into: noted in its checkpoint, since Spark opens it by path.

Spark makes a new writer for every batch, and another one to commit it, so no handle outlives a
batch. A log that was moved away or replaced between two of them would go unnoticed, and the query
would go on in another one, or in a new one made for it.

The note says the path and the log's uuid. It binds as long as the query is started with that path:
who gives another one wants another log. A checkpoint that this host does not see as a directory, on
an object store for instance, has no note; then a batch is still bound to the log that it was
planned for, but not the next one.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from penstock.errors import Gone, NotFound, Usage
from penstock.opening import open as open_log
from penstock.system import files

NOTE = "penstock-log.json"
_SPARKS_OWN = "metadata"  # every checkpoint has this file before its first batch is planned


@dataclass(frozen=True)
class Bound:
    """The note in a checkpoint about the log at a path."""

    path: str
    note: str | None  # None: the checkpoint is not here

    @classmethod
    def of(cls, path: str, checkpoint: str | None) -> Bound:
        """Find the note's place, if the checkpoint is a directory on this host."""
        if checkpoint is None:
            return cls(path, None)
        try:
            directory = files.path_text(checkpoint, "checkpointLocation")
        except Usage:  # not of a file system
            return cls(path, None)
        here = files.is_file(os.path.join(directory, _SPARKS_OWN))
        return cls(path, os.path.join(directory, NOTE) if here else None)

    def check(self) -> None:
        """`Gone` if the query has begun in a log that is not at the path any more."""
        noted = self._noted()
        if noted is None:
            return
        try:
            with open_log(self.path, "r") as log:
                if log._uuid().hex() == noted:
                    return
            found = "another log is there"
        except NotFound:
            found = "no log is there"
        raise Gone(
            f"{self.path}: the log that this query writes into, {noted}, was deleted, moved away "
            f"or replaced: {found}; nothing was written. Put it back at this path and start the "
            f"query again; or, if its next rows are to go into another log, delete {self.note}",
            filename=self.path,
        )

    def keep(self, uuid: bytes) -> None:
        """Note the log that was found or made."""
        if self.note is not None and self._noted() is None:
            files.replace_text(self.note, json.dumps({"path": self.path, "uuid": uuid.hex()}))

    def _noted(self) -> str | None:
        """The uuid that the note gives for this path."""
        text = None if self.note is None else files.read_text(self.note)
        try:
            said = json.loads(text or "null")
        except ValueError:
            return None
        if not isinstance(said, dict) or said.get("path") != self.path:
            return None
        return str(said.get("uuid"))
