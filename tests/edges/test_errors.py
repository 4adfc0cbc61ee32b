"""Errors tell a program what a person reads in them, by types and attributes that Python knows."""

from __future__ import annotations

import copy
import errno
import inspect
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import errors
from penstock.system.needs import needed

MISSING: dict[str, Callable[[Path], object]] = {
    "open": lambda p: penstock.open(p, create=False),
    "open to read": lambda p: penstock.open(p, "r"),
    "verify": penstock.verify,
    "repair": penstock.repair,
    "delete": penstock.delete,
}


@pytest.mark.parametrize("call", MISSING.values(), ids=list(MISSING))
def test_a_missing_log_is_a_missing_file(tmp_path: Path, call: Callable[[Path], object]) -> None:
    """Where no log is, every call raises NoSuchLog, which `except FileNotFoundError` catches."""
    for path in (tmp_path / "x", tmp_path / "no" / "x", tmp_path):
        with pytest.raises(FileNotFoundError) as caught:
            call(path)
        error = caught.value
        assert isinstance(error, penstock.NoSuchLog)
        assert isinstance(error, penstock.NotFound)
        assert (error.errno, error.filename) == (errno.ENOENT, str(path))
        assert error.strerror == os.strerror(errno.ENOENT)
        assert str(error).startswith(str(path)) or str(path) in str(error)


@pytest.mark.parametrize("call", MISSING.values(), ids=list(MISSING))
def test_a_path_that_leads_nowhere_is_a_missing_file(
    tmp_path: Path, call: Callable[[Path], object]
) -> None:
    """So is a link to nothing, and a path below a file, which no directory can have."""
    (tmp_path / "link").symlink_to("nothing")
    (tmp_path / "file").write_bytes(b"x")
    for path in (tmp_path / "link", tmp_path / "file" / "x"):
        with pytest.raises(FileNotFoundError) as caught:
            call(path)
        assert isinstance(caught.value, penstock.NoSuchLog)
        assert caught.value.filename == str(path)


@pytest.mark.parametrize("ring", [None, "64KiB"])
def test_where_no_log_can_be_created(tmp_path: Path, ring: str | None) -> None:
    """To create a log through a link to nothing, or below a file, fails with the right reason."""
    (tmp_path / "link").symlink_to("nothing")
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(penstock.NoSuchLog, match="is a link to nothing, which does not exist"):
        penstock.open(tmp_path / "link", ring=ring)
    with pytest.raises(penstock.Io) as caught:
        penstock.open(tmp_path / "file" / "x", ring=ring)
    assert caught.value.errno == errno.ENOTDIR
    assert caught.value.filename == str(tmp_path / "file" / "x")
    assert (tmp_path / "file").read_bytes() == b"x"


def test_a_missing_event_is_a_missing_key(tmp_path: Path) -> None:
    """A seq that is not there is NotFound, a KeyError, and no OSError."""
    with penstock.open(tmp_path / "x") as log, pytest.raises(KeyError) as caught:
        log[1]
    assert type(caught.value) is penstock.NotFound
    assert not isinstance(caught.value, OSError)


def os_errors() -> list[type[penstock.PenstockError]]:
    found = [v for v in vars(errors).values() if inspect.isclass(v)]
    return [v for v in found if issubclass(v, penstock.PenstockError) and issubclass(v, OSError)]


@pytest.mark.parametrize("kind", os_errors(), ids=lambda k: k.__name__)
def test_what_is_an_os_error_has_its_parts(kind: Any) -> None:
    """An error that is an OSError has errno, strerror and filename, pickled and copied as well."""
    for error in (kind("text"), kind("text", errno=errno.EMFILE, filename="/p")):
        for seen in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert seen.errno
            assert seen.strerror == os.strerror(seen.errno)
            assert (seen.errno, seen.filename) == (error.errno, error.filename)
            assert str(seen) == "text"


def test_the_systems_errors_keep_number_and_name() -> None:
    """What the system said is kept, whatever kind it becomes."""
    for code in (errno.ENOSPC, errno.EACCES, errno.ENOENT, errno.EEXIST, errno.EIO, errno.EMFILE):
        error = errors.from_os(OSError(code, "text"), "opening", "/p")
        assert isinstance(error, OSError)
        assert (error.errno, error.filename) == (code, "/p")
        assert error.strerror == os.strerror(code)


REFUSED: dict[str, tuple[Callable[[Path], object], int]] = {
    "create over something": (penstock.create, errno.EEXIST),
    "backup over something": (lambda p: penstock.open(p).backup(p), errno.EEXIST),
    "append to what is read": (lambda p: penstock.open(p, "r").append(b"x"), errno.EACCES),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_path(tmp_path: Path, name: str) -> None:
    """What Penstock refuses by itself has errno and filename as if the system had refused it."""
    penstock.open(tmp_path / "x").close()
    call, code = REFUSED[name]
    with pytest.raises(OSError) as caught:
        call(tmp_path / "x")
    assert isinstance(caught.value, penstock.PenstockError)
    assert (caught.value.errno, caught.value.filename) == (code, str(tmp_path / "x"))


def test_a_missing_package_is_an_import_error() -> None:
    """NotInstalled is an ImportError that has the module's name, also after a pickle and a copy."""
    with pytest.raises(ImportError) as caught:
        needed("no_such_package_here", "it")
    error = caught.value
    assert isinstance(error, penstock.NotInstalled)
    for seen in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert seen.name == "no_such_package_here"
        assert str(seen) == str(error)


@pytest.mark.parametrize("kind", ["log", "ring"])
def test_a_conflict_says_what_was_expected_and_found(tmp_path: Path, kind: str) -> None:
    """Conflict has the seq or number that was given, what the log has, and the log's path."""
    path = tmp_path / "x"
    options: dict[str, Any] = {"ring": "1MiB"} if kind == "ring" else {"segment_size": "64KiB"}
    with penstock.open(path, **options) as log:
        log.extend([b"a", b"b"], producer=("p", 7))
        for call in (
            lambda: log.append(b"x", expect=5),
            lambda: log.extend([b"x"], expect=5),
            lambda: log.load([b"x" * 1000] * 200, expect=5),
        ):
            with pytest.raises(penstock.Conflict) as caught:
                call()
            error = caught.value
            for seen in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):
                assert (seen.expected, seen.found, seen.path) == (5, 2, str(path))
        with pytest.raises(penstock.Conflict) as caught:
            log.append(b"x", producer=("p", 3))
        assert (caught.value.expected, caught.value.found) == (3, 7)
        assert log.last_seq == 2


@pytest.mark.parametrize("kind", ["log", "ring"])
@pytest.mark.parametrize("how", ["read", "item", "scan", "reverse"])
def test_damage_is_told_by_its_seq(tmp_path: Path, kind: str, how: str) -> None:
    """Corrupt.seq is the seq that cannot be read, and last_seq the one before it, if known."""
    path = tmp_path / "x"
    options: dict[str, Any] = {"ring": "64KiB"} if kind == "ring" else {}
    with penstock.open(path, **options) as log:
        log.extend([b"value-%d" % i for i in range(1, 10)])
    file = path if kind == "ring" else next(path.glob("0*"))
    data = bytearray(file.read_bytes())
    data[data.index(b"value-5")] ^= 1
    file.write_bytes(data)
    with penstock.open(path, "r") as log, pytest.raises(penstock.Corrupt) as caught:
        if how == "item":
            log[5]
        elif how == "scan":
            log.scan().to_arrow()
        else:
            list(log.read(reverse=how == "reverse"))
    error = caught.value
    assert error.seq == 5
    assert error.last_seq == (None if how == "reverse" else 4)
    assert error.path == str(file)
    for seen in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (seen.seq, seen.last_seq, seen.offset) == (5, error.last_seq, error.offset)


OLD_PICKLES = [  # made by the release before these attributes existed
    b"\x80\x02cpenstock.errors\nCorrupt\nq\x00X\x04\x00\x00\x00textq\x01\x85q\x02Rq\x03}q\x04(X\x04\x00"
    b"\x00\x00pathq\x05X\x01\x00\x00\x00pq\x06X\x06\x00\x00\x00offsetq\x07K\x08X\x03\x00\x00\x00seqq\x08"
    b"K\x03ub.",
    b"\x80\x02cpenstock.errors\nIo\nq\x00X\x04\x00\x00\x00textq\x01\x85q\x02Rq\x03}q\x04X\x05\x00\x00\x00"
    b"errnoq\x05K\x1csb.",
    *(
        b"\x80\x02cpenstock.errors\n%s\nq\x00X\x04\x00\x00\x00textq\x01\x85q\x02Rq\x03}q\x04b."
        % name
        for name in (b"Conflict", b"NotInstalled", b"NotFound", b"AlreadyExists", b"Poisoned")
    ),
]


@pytest.mark.parametrize("pickled", OLD_PICKLES, ids=range(len(OLD_PICKLES)))
def test_errors_pickled_by_an_older_release_load(pickled: bytes) -> None:
    """What was pickled before an attribute existed still loads; what it does not say is None."""
    error = pickle.loads(pickled)
    assert isinstance(error, penstock.PenstockError)
    assert str(error) == "text"
    if isinstance(error, penstock.Corrupt):
        assert (error.path, error.offset, error.seq, error.last_seq) == ("p", 8, 3, None)
    if isinstance(error, penstock.Conflict):
        assert (error.expected, error.found) == (None, None)
    if type(error) is penstock.Io:
        assert error.errno == errno.ENOSPC
