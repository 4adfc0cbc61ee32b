"""The tests' side of faulty.c: building it, and arming it in a process that was started with it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("faulty.c")

FUNCTIONS = [
    *("fsync", "fdatasync", "ftruncate", "fallocate", "pread", "pwrite", "pwritev", "mmap"),
    *("open", "rename", "unlink", "mkdir", "opendir", "stat", "fstat", "chmod", "fchmod"),
    *("flock", "fcntl", "lseek"),
]


def build(directory: Path) -> Path | None:
    """Compile it into ``directory``; None if there is no compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    library = directory / "faulty.so"
    options = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]
    subprocess.run([compiler, *options, "-o", library, SOURCE, "-ldl"], check=True)
    return library


def arm(below: str, functions: list[str], nth: int, code: int, *, lasting: bool = False) -> None:
    """Have the nth call of these functions on files below a directory fail; [] means all.

    With ``lasting`` every call from the nth on fails. A code of 0 cuts a write in half.
    """
    names = f",{''.join(f'{name},' for name in functions)}"
    ctypes.CDLL(None).faulty_arm(
        below.encode(), names.encode(), ctypes.c_int64(nth), code, int(lasting)
    )


def disarm() -> None:
    """Let everything go well again; the counts stay until it is armed again."""
    ctypes.CDLL(None).faulty_disarm()


def count_hits() -> int:
    """How many of them were made to fail."""
    return _number("faulty_hits")


def count_hits_in_use() -> int:
    """Of those that failed, how many were about files that had more than a temporary name."""
    return _number("faulty_hits_in_use")


def count_syncs() -> int:
    """How many segments below the directory this process has synced since it was armed."""
    return _number("faulty_syncs")


def shift_clock(ns: int) -> None:
    """Set the wall clock that this process sees off by so much."""
    ctypes.CDLL(None).faulty_clock(ctypes.c_int64(ns))


def _number(function: str) -> int:
    call = getattr(ctypes.CDLL(None), function)
    call.restype = ctypes.c_int64
    return int(call())
