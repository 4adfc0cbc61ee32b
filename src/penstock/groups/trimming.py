"""Deleting the oldest segments of a group's own logs, beside whoever reads them."""

from __future__ import annotations

import itertools
from typing import Any

from penstock import _core
from penstock.errors import Busy, PenstockError
from penstock.segments import segment
from penstock.steward import turn
from penstock.system import files
from penstock.system.messages import logger


def trim(log: Any, before: int) -> None:
    """Delete segments all of whose events are before that seq; slow readers get `Gap`.

    It is maintenance: what cannot be done now is done the next time.
    """
    directory = log._storage.home
    bases = sorted(
        int(name.split(".")[0]) for name in files.list_dir(directory) if segment.is_name(name)
    )
    goes = [base for base, after in itertools.pairwise(bases) if after <= before]
    if not goes:
        return
    first = bases[len(goes)]
    try:
        with turn.taken(directory):
            log._change_settings(lambda now: now.changed(first_seq=max(now.first_seq, first)))
            log.sync()
            _core.fail_point("group.trim")
            for base in goes:
                files.unlink(directory.file(segment.file_name(base)))
    except Busy:
        pass
    except PenstockError as error:
        logger.warning("%s: old segments were not deleted: %s", log.path, error)
