"""The tree of errors: as its docstring draws it, with its exit codes, and across processes."""

from __future__ import annotations

import copy
import errno
import inspect
import pickle
import re

import pytest

import penstock
from penstock import errors

NATURAL = {
    "ValueError": ValueError,
    "TypeError": TypeError,
    "KeyError": KeyError,
    "FileExistsError": FileExistsError,
    "PermissionError": PermissionError,
    "FileNotFoundError": FileNotFoundError,
    "OSError": OSError,
    "ImportError": ImportError,
}


def all_errors() -> list[type[penstock.PenstockError]]:
    found = [v for v in vars(errors).values() if inspect.isclass(v)]
    return [v for v in found if issubclass(v, penstock.PenstockError)]


def drawn() -> dict[str, tuple[str, int, str | None]]:
    """Each name in the docstring's tree, with its parent, exit code and natural base."""
    line = re.compile(
        r"    (?P<branch>[│├└─ ]*)(?P<name>[A-Z]\w+) +(?P<code>\d+)(?: to 11)?.*?"
        r"(?:\((?P<also>\w+)\))?$"
    )
    parents: list[str] = []
    tree = {}
    for text in (errors.__doc__ or "").splitlines():
        if not (match := line.match(text)):
            continue
        depth = len(match["branch"]) // 4
        del parents[depth:]
        tree[match["name"]] = (parents[-1] if parents else "", int(match["code"]), match["also"])
        parents.append(match["name"])
    return tree


def test_the_drawing_is_the_tree() -> None:
    """The docstring names every class once, under its parent, with its code and natural base."""
    tree = drawn()
    assert set(tree) == {e.__name__ for e in all_errors()}
    for kind in all_errors():
        parent, code, also = tree[kind.__name__]
        assert kind.exit_code == code
        if parent:
            assert kind.__mro__[1].__name__ == parent
        natural = {n for n, t in NATURAL.items() if t in kind.__bases__}
        assert natural == ({also} if also else set())


def test_every_error_is_public() -> None:
    """Every error can be caught by its name in the package."""
    for kind in all_errors():
        assert getattr(penstock, kind.__name__) is kind
        assert kind.__name__ in penstock.__all__
        assert kind.__doc__


def test_exit_codes_are_one_per_kind() -> None:
    """Kinds directly under the base have different codes from 1 to 11, and none is left out."""
    kinds = [e for e in all_errors() if e.__mro__[1] is penstock.PenstockError]
    assert sorted(k.exit_code for k in kinds) == list(range(1, 12))


@pytest.mark.parametrize("kind", all_errors(), ids=lambda k: k.__name__)
def test_messages_read_as_written(kind: type[penstock.PenstockError]) -> None:
    """str() is the message, also where KeyError would quote it and OSError would number it."""
    assert str(kind("it's gone")) == "it's gone"
    assert str(kind()) in ("", kind.__name__)


@pytest.mark.parametrize("kind", all_errors(), ids=lambda k: k.__name__)
def test_errors_can_be_pickled_and_copied(kind: type[penstock.PenstockError]) -> None:
    """An error crosses processes with its type and message."""
    for other in (pickle.loads(pickle.dumps(kind("text"))), copy.copy(kind("text"))):
        assert type(other) is kind
        assert str(other) == "text"


def test_where_survives_a_pickle() -> None:
    """Path, offset, seq, first_seq and errno are still there on the other side."""
    corrupt = pickle.loads(pickle.dumps(penstock.Corrupt("x", path="p", offset=8, seq=3)))
    assert (corrupt.path, corrupt.offset, corrupt.seq) == ("p", 8, 3)
    gap = pickle.loads(pickle.dumps(penstock.Gap("x", first_seq=9)))
    assert gap.first_seq == 9
    full = errors.from_os(OSError(errno.ENOSPC, "no"), "writing", "/p")
    assert isinstance(full, penstock.DiskFull)
    assert pickle.loads(pickle.dumps(full)).errno == errno.ENOSPC


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, penstock.DiskFull),
        (errno.EDQUOT, penstock.DiskFull),
        (errno.EACCES, penstock.Permission),
        (errno.EPERM, penstock.Permission),
        (errno.EROFS, penstock.Permission),
        (errno.ENOENT, penstock.NoSuchLog),
        (errno.EEXIST, penstock.AlreadyExists),
        (errno.EIO, penstock.Io),
        (errno.EMFILE, penstock.Io),
    ],
)
def test_the_systems_errors_get_their_kind(code: int, kind: type[penstock.PenstockError]) -> None:
    """Each errno becomes the kind that a caller would catch; the message says what and where."""
    error = errors.from_os(OSError(code, "text"), "renaming to", "/some/where")
    assert type(error) is kind
    assert "renaming to /some/where" in str(error)
    if isinstance(error, OSError):
        assert error.errno == code


def test_an_os_error_without_a_number() -> None:
    """An OSError that carries no errno still becomes Io with its text."""
    error = errors.from_os(OSError("just text"), "reading", "/p")
    assert type(error) is penstock.Io
    assert "just text" in str(error)
