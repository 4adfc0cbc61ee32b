"""Which log a streaming query writes into, noted in its checkpoint.

Spark makes a new writer for each batch, and another one to commit it, so no handle outlives a
batch. Without the note, it would go unnoticed that the log was moved away or replaced between two
batches, and the query would go on in another log, or in a new one.

The note has the path and the log's uuid. It holds as long as the query is started with that path:
another path means another log. A checkpoint that is not a directory on this host, for example in an
object store, has no note; then each batch is still bound to the log that it was planned for, but
the next batch is not.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from penstock.errors import Gone, NotFound, Usage
from penstock.opening import open as open_log
from penstock.spark.quirks import is_checkpoint
from penstock.system import files

NOTE = "penstock-log.json"


@dataclass(frozen=True)
class Bound:
    """The note in a checkpoint about the log at a path."""

    path: str
    note: str | None  # None: this host does not see the checkpoint

    @classmethod
    def of(cls, path: str, checkpoint: str | None) -> Bound:
        """Find the note's place, if the checkpoint is a directory on this host."""
        if checkpoint is None:
            return cls(path, None)
        try:
            directory = files.path_text(checkpoint, "checkpointLocation")
        except Usage:  # a URL
            return cls(path, None)
        return cls(path, os.path.join(directory, NOTE) if is_checkpoint(directory) else None)

    def check(self) -> None:
        """`Gone` if the query started with a log that is no longer at the path."""
        noted = self._noted()
        if noted is None:
            return
        try:
            with open_log(self.path, "r") as log:
                if log._uuid().hex() == noted:
                    return
            found = "there is another log"
        except NotFound:
            found = "there is no log"
        raise Gone(
            f"{self.path}: the log that this query writes into, {noted}, was deleted, moved or "
            f"replaced: {found}. Nothing was written. Put the log back and start the query again; "
            f"or delete {self.note}, and the next rows go into another log",
            filename=self.path,
        )

    def keep(self, uuid: bytes) -> None:
        """Note the log, unless one is noted."""
        if self.note is not None and self._noted() is None:
            files.replace_text(self.note, json.dumps({"path": self.path, "uuid": uuid.hex()}))

    def _noted(self) -> str | None:
        """The uuid in the note, if the note is for this path."""
        text = None if self.note is None else files.read_text(self.note)
        try:
            said = json.loads(text or "null")
        except ValueError:
            return None
        if not isinstance(said, dict) or said.get("path") != self.path:
            return None
        return str(said.get("uuid"))
