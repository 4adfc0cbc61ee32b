"""Deleting the oldest segments of a group's own logs, beside whoever reads them."""

from __future__ import annotations

from typing import Any

from penstock import _core
from penstock.errors import Busy, PenstockError
from penstock.segments import segment
from penstock.system import files
from penstock.system.messages import logger


def first_seqs(log: Any) -> list[int]:
    """The first seq of each segment of a log, in order."""
    names = files.list_dir(log._storage.home)
    return sorted(int(name.split(".")[0]) for name in names if segment.is_name(name))


def trim(log: Any, before: int) -> None:
    """Delete segments all of whose events are before that seq; slow readers get `Gap`.

    It is maintenance: what cannot be done now is done the next time.
    """
    bases = first_seqs(log)
    kept = max((base for base in bases if base <= before), default=0)
    if not bases or kept <= bases[0]:
        return
    _core.fail_point("group.trim")
    try:
        log.steward.trim(before=kept, timeout=0)
    except Busy:
        pass
    except PenstockError as error:
        logger.warning("%s: old segments were not deleted: %s", log.path, error)
