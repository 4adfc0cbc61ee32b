"""Opening: a path means what a user of Python or of a shell means by it."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory, and the process in an empty directory beside it."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


class Named(str):
    """A string of a class of its own."""


KINDS: dict[str, dict[str, Any]] = {"log": {}, "ring": {"ring": "64KiB"}}
kinds = pytest.mark.parametrize("options", KINDS.values(), ids=list(KINDS))


@kinds
def test_home_directories_are_found(home: Path, options: dict[str, Any]) -> None:
    """`~` and `~user` are home directories, as text and as a Path; nothing is ever called `~`."""
    given: list[str | Path] = ["~/a0", Path("~/a1"), Named("~/a2")]
    for i, path in enumerate(given):
        with penstock.open(path, **options) as log:
            assert log.path == str(home / f"a{i}")
            log.append(b"x")
    me = pwd.getpwuid(os.getuid())
    with pytest.raises(penstock.NoSuchLog) as caught:
        penstock.open(f"~{me.pw_name}/no/such/log", "r")
    assert caught.value.filename == f"{me.pw_dir}/no/such/log"
    assert os.listdir() == []


@kinds
def test_file_urls_are_paths(home: Path, options: dict[str, Any]) -> None:
    """A file: URL is its path, percent-decoded, wherever a path is taken."""
    log = penstock.open(f"file://{home}/a%20b", **options)
    log.append(b"x")
    assert log.path == f"{home}/a b"
    log.backup(f"file:{home}/copy")
    assert penstock.verify(f"file://localhost{home}/copy").events == 1
    log.close()
    assert penstock.repair(f"FILE:{home}/a%20b", to=f"file://{home}/mended").target == (
        f"{home}/mended"
    )
    with pytest.raises(penstock.AlreadyExists):
        penstock.create(f"file://{home}/a%20b", **options)
    assert os.listdir() == []
    assert sorted(os.listdir(home)) == ["a b", "copy", "mended"]


CALLS: dict[str, Callable[[Any, Path], object]] = {
    "open": lambda p, _: penstock.open(p),
    "open a ring": lambda p, _: penstock.open(p, ring="64KiB"),
    "open to read": lambda p, _: penstock.open(p, "r"),
    "create": lambda p, _: penstock.create(p),
    "verify": lambda p, _: penstock.verify(p),
    "repair": lambda p, _: penstock.repair(p),
    "repair to": lambda p, there: penstock.repair(there, to=p),
    "backup": lambda p, there: penstock.open(there).backup(p),
}
REFUSED = [
    "s3://bucket/orders",
    "hdfs:/orders",
    "http://host/x",
    "C:/logs",
    "file://elsewhere/x",
    "file://",
    "file:x",
    "file:",
    "~nobody-has-this-name/x",
    "",
    "a\0b",
    "file:///a%00b",
    "lone-\ud800",
    "file:///lone-\ud800",
]


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
@pytest.mark.parametrize("path", REFUSED, ids=ascii)
def test_what_is_no_path_is_refused(
    home: Path, call: Callable[[Any, Path], object], path: str
) -> None:
    """A URL of another scheme or host, or what no file can be called, is Usage, nothing made."""
    penstock.open(home / "there").close()
    with pytest.raises(penstock.Usage):
        call(path, home / "there")
    assert os.listdir() == []
    assert os.listdir(home) == ["there"]


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
@pytest.mark.parametrize("path", [b"/x", 5, None, object(), ["x"]], ids=lambda v: type(v).__name__)
def test_what_is_no_text_is_refused(
    home: Path, call: Callable[[Any, Path], object], path: object, request: pytest.FixtureRequest
) -> None:
    """Bytes and other objects are WrongType: they are no paths."""
    if path is None and "repair to" in request.node.name:
        pytest.skip("to=None is the default")
    penstock.open(home / "there").close()
    with pytest.raises(penstock.WrongType, match="must be str or path-like"):
        call(path, home / "there")
    assert os.listdir() == []


@kinds
@pytest.mark.parametrize("name", ["a:b", "./~", "x~", "./file:x", "weird\udcff", "a b?c#d%20"])
def test_other_names_are_names(home: Path, options: dict[str, Any], name: str) -> None:
    """A relative path with a colon, a tilde inside or a percent sign is just a path."""
    with penstock.open(name, **options) as log:
        log.append(b"x")
        assert log.path == os.path.join(os.getcwd(), name.removeprefix("./"))
    assert os.listdir() == [name.removeprefix("./")]


@kinds
def test_paths_are_absolute(home: Path, options: dict[str, Any]) -> None:
    """log.path is absolute for both kinds, and `..` leaves a link for where the link leads."""
    with penstock.open("x", **options) as log:
        assert log.path == f"{os.getcwd()}/x"
    with penstock.open("y/../x", mode="r") as log:
        assert log.path == f"{os.getcwd()}/x"
    (home / "deep" / "er").mkdir(parents=True)
    os.symlink(home / "deep" / "er", "link")
    with penstock.open("link/../z", **options) as log:
        assert log.path == str(home / "deep" / "z")
    assert sorted(os.listdir()) == ["link", "x"]
