"""Where nothing can be written, no consumer can be made, opened or deleted; reading goes on."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock import Permission
from tests.consumers.conftest import KINDS
from tests.consumers.processes import run

pytestmark = pytest.mark.process

_NEW_NAMESPACE = 0x00020000
_READ_ONLY, _REMOUNT, _BIND, _PRIVATE = 1, 32, 4096, (1 << 18) | (1 << 14)


def read_only(directory: Path) -> None:
    """Have this process see a directory mounted read-only."""
    libc = ctypes.CDLL(None, use_errno=True)
    path = os.fsencode(directory)

    def check(result: int) -> None:
        assert result == 0, os.strerror(ctypes.get_errno())

    check(libc.unshare(_NEW_NAMESPACE))
    check(libc.mount(None, b"/", None, _PRIVATE, None))
    check(libc.mount(path, path, None, _BIND, None))
    check(libc.mount(None, path, None, _REMOUNT | _BIND | _READ_ONLY, None))


def as_nobody() -> None:
    """Have this process be a user who owns nothing."""
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


def check_refused(path: Path) -> None:
    with penstock.open(path, mode="r") as log:
        for name in ("old", "new"):
            with pytest.raises(Permission, match=r"use log.read\(\) or log.follow\(\) instead"):
                log.consumer(name)
        with pytest.raises(Permission):
            log.consumers().delete("old")
        assert [(info.name, info.committed) for info in log.consumers()] == [("old", 3)]
        assert len(list(log)) == 5


@pytest.fixture
def parent() -> Iterator[Path]:
    """A directory that other users may look into."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting, and being another user, takes root")
@pytest.mark.parametrize("become", ["read-only mount", "another user"])
def test_where_nothing_can_be_written(parent: Path, kind: str, become: str) -> None:
    """A typed error says why and what to do; places can still be looked at."""
    path = parent / ("log" if kind == "log" else "log.ring")
    with penstock.create(path, file_mode=0o644, **KINDS[kind]) as log:
        log.extend([b"x"] * 5)
        with log.consumer("old") as consumer:
            consumer.poll(2)
            consumer.commit()

    def work() -> None:
        os.chdir("/")
        if become == "read-only mount":
            read_only(parent)
            check_refused(path)
        else:
            as_nobody()
            check_refused(path)

    assert run(work) == 0
