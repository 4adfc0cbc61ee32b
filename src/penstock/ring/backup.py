"""Copy a live ring to a new file; writers go on, unless they lap the copy repeatedly."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock import _core
from penstock.consumers.folder import copy_all, make_folder
from penstock.errors import AlreadyExists
from penstock.handle.storage import Beside
from penstock.report import Progress
from penstock.ring.named import SIDECAR
from penstock.ring.rewrite import name_copy, source_of, write_copy
from penstock.settings import Settings
from penstock.system import files
from penstock.system.directory import Directory

if TYPE_CHECKING:
    from penstock.handle.handle import Handle
    from penstock.ring.storage import RingStorage

ATTEMPTS = 3


def backup(
    handle: Handle,
    storage: RingStorage,
    target: str,
    progress: Progress | None,
    beside: Beside | None = None,
) -> int:
    """Copy the ring as it is now to ``target``; returns the last seq copied.

    ``beside`` copies what else belongs to it to a directory, for a copy that ends before a seq.
    """
    if files.exists(target):
        raise AlreadyExists(
            f"{target}: this path exists already; give another one", filename=target
        )
    handle._ensure_open()
    header = storage.known_header(handle)
    settings = handle.settings
    header = replace(header, settings=settings.to_json(), created_ns=_core.now_ns())
    partial = f"{target}.partial-{_core.now_ns()}"
    for _ in range(ATTEMPTS):
        after = write_copy(source_of(handle, storage), partial, header, settings.file_mode)
        if after is not None:
            break
    else:
        with handle._live().locked():  # writers lapped the copy; so now they wait
            after = write_copy(source_of(handle, storage), partial, header, settings.file_mode)
    assert after is not None
    _copy_consumers(storage, target, partial, header.uuid, after, settings)
    if beside is not None:
        beside(os.path.abspath(target) + SIDECAR, after)
    name_copy(partial, target)
    if progress is not None:
        progress(header.file_bytes, header.file_bytes)
    return after - 1


def _copy_consumers(
    storage: RingStorage, target: str, partial: str, uuid: bytes, after: int, settings: Settings
) -> None:
    """Have the consumers beside the copy, before that has its name."""
    parent = files.hold_dir(os.path.dirname(os.path.abspath(target)))
    home = parent.file(os.path.basename(target) + SIDECAR)

    def folder() -> Directory:
        return make_folder(home, settings.dir_mode)

    try:
        if files.exists(home):
            raise AlreadyExists(
                f"{home}: something is there already; give another path", filename=str(home)
            )
        copy_all(storage.home, folder, uuid, after, settings.file_mode)
    except BaseException:
        files.unlink(partial)
        raise
