"""Taking the groups of a log along to a copy of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import NotFound, PenstockError
from penstock.groups import folder as folders
from penstock.groups.desk import open_inner
from penstock.system import files
from penstock.system.messages import logger

if TYPE_CHECKING:
    from penstock.log import Log


def copy_groups(log: Log[Any], home: str, next_seq: int) -> None:
    """Copy the groups of ``log`` to the directory ``home`` of a copy that ends before ``next_seq``.

    A copied group does not know what was decided about later events: it hands them out again. The
    dead letters are copied after the decisions, so that none is missing. Workers stay where they
    are; those of the copy are found dead.
    """
    for name in folders.group_names(log._storage.home):
        source = folders.open_group(log._storage.home, name)
        if source is None or folders.STATE not in files.list_dir(source):
            continue
        target = f"{home}/{folders.FOLDER}/{name}"
        try:
            files.make_dir(target, log.settings.dir_mode)
            for part in (folders.STATE, folders.DEAD, folders.RESULTS):
                if part in files.list_dir(source):
                    _copy_one(log, files.hold_dir(source.file(part)), f"{target}/{part}")
            copied = files.hold_dir(target)
            folders.write_note(copied, next_seq)
            files.sync_name_in(copied, copied.file(folders.STATE))
            above = files.hold_dir(f"{home}/{folders.FOLDER}")
            files.sync_name_in(above, above.file(name))
        except NotFound:  # deleted just now
            files.remove_tree(target)
        except PenstockError as error:
            logger.warning("%s: the group is not in the copy: %s", source.path, error)
            files.remove_tree(target)


def _copy_one(log: Log[Any], directory: Any, target: str) -> None:
    inner = open_inner(log, directory, None, write=False)
    try:
        inner.backup(target)
    finally:
        inner.close()
