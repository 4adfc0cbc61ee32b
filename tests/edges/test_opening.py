"""Opening: a path means what a user means by it, and no argument is ever ignored."""

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
    "ftp://host/orders",
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


class Odd:
    """Something like a path that is not text."""

    def __init__(self, text: Any) -> None:
        self.text = text

    def __fspath__(self) -> Any:
        return self.text


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
@pytest.mark.parametrize("text", [5, None, b"/x"], ids=lambda v: type(v).__name__)
def test_a_path_like_object_must_give_text(
    home: Path, call: Callable[[Any, Path], object], text: object
) -> None:
    """An object whose __fspath__ gives anything but text is WrongType as well."""
    penstock.open(home / "there").close()
    with pytest.raises(penstock.WrongType, match="must be str or path-like, got Odd"):
        call(Odd(text), home / "there")
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


def test_a_name_that_says_ring_needs_a_size(home: Path) -> None:
    """A new log called x.ring is a ring, or an error that says how to make one; no directory."""
    for call in (penstock.open, penstock.create):
        with pytest.raises(penstock.Usage, match=r"open\('b.ring', ring='64MiB'\)"):
            call("b.ring")
        with pytest.raises(penstock.Usage, match=r"open\('B.Ring', ring='64MiB'\)"):
            call("B.Ring")
    with pytest.raises(penstock.NoSuchLog):
        penstock.open("b.ring", "r")
    assert os.listdir() == []
    penstock.open("b.ring", ring="64KiB").close()
    assert os.path.isfile("b.ring")
    with penstock.open("b.ring") as ring:
        assert ring.stats().ring is not None
    os.mkdir("old.ring")
    penstock.open("old.ring").close()  # somebody made the directory


HAS: dict[str, dict[str, Any]] = {
    "log": {"segment_size": "128KiB", "file_mode": 0o640, "codec": "json"},
    "ring": {"ring": "64KiB", "index": 9, "file_mode": 0o640, "when_full": "block"},
}
OTHERS: list[tuple[str, dict[str, Any], str]] = [
    ("log", {"segment_size": "1MiB"}, r"segment_size=1048576.*131072.*configure\(segment_size="),
    ("log", {"file_mode": 0o600}, r"file_mode=0o600.*0o640.*configure\(file_mode=0o600"),
    ("log", {"codec": "msgpack"}, "codec is 'json', not 'msgpack'"),
    ("log", {"codec": "bytes"}, "codec is 'json', not 'bytes'"),
    ("log", {"ring": "64KiB"}, "is a directory"),
    ("log", {"when_full": "drop"}, "when_full is for a ring"),
    ("log", {"index": 5}, "index is for a ring"),
    ("ring", {"ring": "1MiB"}, r"ring=1048576.*65536 bytes.*resize\(1048576\)"),
    ("ring", {"index": 8}, "index=8 was given, but the ring has 9"),
    ("ring", {"index": 0}, "index=0 was given"),
    ("ring", {"when_full": "drop"}, r"when_full='drop'.*'block'.*configure\(when_full='drop'"),
    ("ring", {"file_mode": 0o600}, r"file_mode=0o600.*0o640.*configure"),
    ("ring", {"segment_size": "64MiB"}, "segment_size"),
    ("ring", {"segment_size": "64MiB", "ring": "64KiB"}, "segment_size"),
]


@pytest.mark.parametrize(("kind", "given", "words"), OTHERS)
@pytest.mark.parametrize("mode", ["rw", "r"])
def test_what_contradicts_the_log_is_refused(
    home: Path, kind: str, given: dict[str, Any], words: str, mode: Any
) -> None:
    """An argument of open that is not what the log has is Usage with both, and what changes it."""
    with penstock.open("x", **HAS[kind]) as log:
        log.append(b"1")
        before = log.settings
        with pytest.raises(penstock.Usage, match=words):
            penstock.open("x", mode, **given)
    with pytest.raises(penstock.Usage, match=words):
        penstock.open("x", mode, **given)
    with penstock.open("x", mode, **HAS[kind]) as log:
        assert log.settings == before
        assert log.last_seq == 1


@pytest.mark.parametrize("kind", HAS)
def test_what_the_log_has_can_be_given(home: Path, kind: str) -> None:
    """An argument of open that is what the log has is fine, also after the log was changed."""
    penstock.open("x", **HAS[kind]).close()
    for name, value in HAS[kind].items():
        penstock.open("x", **{name: value}).close()
        penstock.open("x", "r", **{name: value}).close()
    with penstock.open("x", **HAS[kind]) as log:
        if kind == "ring":
            log.configure(when_full="error")
            log.resize("128KiB")
        else:
            log.configure(segment_size="256KiB")
    now: dict[str, Any] = {"ring": {"ring": 1 << 17, "when_full": "error"}}.get(
        kind, {"segment_size": "256KiB"}
    )
    penstock.open("x", **now).close()
    with pytest.raises(penstock.Usage):
        penstock.open("x", **HAS[kind])


NEW: list[tuple[dict[str, Any], str]] = [
    ({"ring": "64KiB", "segment_size": "1MiB"}, "segment_size"),
    ({"when_full": "block"}, "ring="),
    ({"index": 5}, "ring="),
    ({"mode": "r", "create": True}, "create=True needs mode='rw'"),
    ({"mode": "r", "sync_seconds": 1}, "sync_seconds needs mode='rw'"),
    ({"mode": "r", "sync_events": 1}, "sync_events needs mode='rw'"),
]


@pytest.mark.parametrize(("given", "words"), NEW)
def test_arguments_that_do_not_go_together(home: Path, given: dict[str, Any], words: str) -> None:
    """An argument that means nothing beside the others is Usage, and makes nothing."""
    with pytest.raises(penstock.Usage, match=words):
        penstock.open("x", **given)
    assert os.listdir() == []


def test_calls_of_the_other_kind_are_refused(home: Path) -> None:
    """hold, configure, resize and sync take no argument that means nothing for the log."""
    with penstock.open("x") as log, penstock.open("y", ring="64KiB") as ring:
        with pytest.raises(penstock.Usage, match="hold=True is for a ring"):
            log.follow(hold=True)
        with pytest.raises(penstock.Usage, match="when_full is for a ring"):
            log.configure(when_full="block")
        with pytest.raises(penstock.Usage, match="no fixed size to change"):
            log.resize("1MiB")
        with pytest.raises(penstock.Usage, match="has no segment_size"):
            ring.configure(segment_size="1MiB")
        with pytest.raises(penstock.Usage, match="drops its oldest"):
            ring.follow(hold=True)
        for either in (log, ring):
            with pytest.raises(penstock.Usage, match="wait=True"):
                either.sync(wait=False, timeout=1)
