"""A handle belongs to the directory that it opened, not to a path or to what lies there now."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import AlreadyExists, Gone, _core
from penstock.segments.segment import file_name

pytestmark = pytest.mark.process

SIZE = "64KiB"
LONG = bytes(9000)  # a few of these fill a segment


def make(path: Path | str, name: str, count: int = 3) -> None:
    """A log whose events say whose they are."""
    with penstock.open(path, segment_size=SIZE) as log:
        log.extend([b"%s-%d" % (name.encode(), i) for i in range(count)])


def contents(path: Path) -> dict[str, bytes]:
    """Every byte in a directory, but for control, which an opener may build again."""
    found = sorted(p for p in path.rglob("*") if p.is_file() and p.name != "control")
    return {str(p.relative_to(path)): p.read_bytes() for p in found}


def values(log: penstock.Log) -> list[bytes]:
    return [event.value or b"" for event in log]


def fill(log: penstock.Log, name: str, count: int = 30) -> list[bytes]:
    """Append so much that the log rolls several times."""
    added = [b"%s-long-%d-" % (name.encode(), i) + LONG for i in range(count)]
    for value in added:
        log.append(value)
    return added


def in_child(work: Callable[[], bool]) -> bool:
    """Whether ``work`` says so in a child of a fork."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def raises_gone(call: Callable[[], Any]) -> bool:
    try:
        call()
    except Gone:
        return True
    return False


def delete(path: Path) -> None:
    """Delete a log under its handles, whose threads may create files meanwhile."""
    while path.exists():
        shutil.rmtree(path, ignore_errors=True)


def append_until_refused(log: penstock.Log) -> None:
    """Append single events; a look at the directory is due every 100 us."""
    for _ in range(1_000_000):
        log.append(b"lost")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: "one"; beside it is "two", which has a log "log" as well."""
    make(tmp_path / "two" / "log", "other")
    (tmp_path / "one").mkdir()
    monkeypatch.chdir(tmp_path / "one")
    return tmp_path


def use_everything(log: penstock.Log, target: Path, name: str) -> list[bytes]:
    """Call all that touches files; what was appended."""
    added = fill(log, name)
    log.steward.roll()
    log.configure(segment_size="128KiB")
    loaded = [b"%s-load-%d-" % (name.encode(), i) + LONG for i in range(40)]
    log.load(loaded)
    log.append(b"durable", durable=True)
    log.sync()
    added += [*loaded, b"durable"]
    assert log.verify().ok
    assert log.repair().steps == ()
    assert log.backup(target) == log.last_seq
    assert len(log) == log.last_seq
    assert log.stats().segments > 3
    assert log.scan(columns=["seq"]).to_arrow().num_rows == log.last_seq
    assert [e.seq for e in reversed(log)] == list(range(log.last_seq, 0, -1))
    return added


def test_chdir_redirects_nothing(here: Path) -> None:
    """A log opened by a relative path stays where it is after chdir; a namesake is not touched."""
    before = contents(here / "two" / "log")
    with penstock.open("log", segment_size=SIZE) as log:
        assert log.path == str(here / "one" / "log")
        log.append(b"first")
        os.chdir(here / "two")
        added = use_everything(log, here / "backup", "own")
        assert values(log) == [b"first", *added]
    assert contents(here / "two" / "log") == before
    assert sorted(os.listdir(here / "two")) == ["log"]
    for path in (here / "one" / "log", here / "backup"):
        assert penstock.verify(path).ok
        with penstock.open(path, mode="r") as again:
            assert values(again) == [b"first", *added]


@pytest.mark.parametrize("kind", ["log", "ring"])
def test_chdir_redirects_no_target(here: Path, kind: str) -> None:
    """A copy goes to where its path led when it was asked for, whatever `progress` does."""
    path = "b.ring" if kind == "ring" else "b"
    options: dict[str, Any] = {"ring": SIZE} if kind == "ring" else {}

    def leave(*_: int) -> None:
        os.chdir(here / "two")

    with penstock.create(path, **options) as log:
        log.append(b"x")
        calls: list[Callable[[], object]] = [
            lambda: penstock.repair(path, to="mended", progress=leave),
            lambda: log.repair(to="mended too", progress=leave),
            lambda: log.backup("copy", progress=leave),
        ]
        for call in calls:
            os.chdir(here / "one")
            call()
            assert os.getcwd() == str(here / "two")
    for copy in ("mended", "mended too", "copy"):
        assert penstock.verify(here / "one" / copy).events == 1
    assert os.listdir(here / "two") == ["log"]


def test_chdir_redirects_no_child(here: Path) -> None:
    """A child forked after chdir appends to its parent's log, and to no other of that name."""
    before = contents(here / "two" / "log")
    with penstock.open("log", segment_size=SIZE) as log:
        log.append(b"first")
        os.chdir(here / "two")
        assert in_child(lambda: log.append(b"child") == 2 and bool(fill(log, "child")))
        assert log.last_seq == 32
    assert contents(here / "two" / "log") == before


@pytest.mark.parametrize("live", [True, False], ids=["beside-a-writer", "alone"])
def test_chdir_redirects_no_reader(here: Path, live: bool) -> None:
    """A reader by a relative path reads the log that it opened, wherever it goes."""
    with penstock.open("log", segment_size=SIZE) as log:
        added = fill(log, "own")
        if not live:
            log.close()
        with penstock.open("log", mode="r") as reader:
            os.chdir(here / "two")
            assert values(reader) == added
            assert reader.verify().ok
            assert in_child(lambda: values(reader) == added)
            if not live:
                penstock.open(here / "one" / "log").append(b"more")
                assert reader[31].value == b"more"


def test_a_renamed_log_goes_on(tmp_path: Path) -> None:
    """A log that is renamed under its handle goes on in its directory, in children too."""
    path, moved = tmp_path / "log", tmp_path / "moved"
    with penstock.open(path, segment_size=SIZE) as log:
        log.append(b"first")
        path.rename(moved)
        added = use_everything(log, tmp_path / "backup", "own")
        assert in_child(lambda: bool(fill(log, "child", 9)))
        with penstock.open(moved) as other:
            assert other.append(b"other") == log.last_seq
        assert values(log)[:72] == [b"first", *added]
        assert log.last_seq == 82
    assert not path.exists()
    assert penstock.verify(moved).ok


def test_rotation_by_rename(tmp_path: Path) -> None:
    """After `mv log old`, old handles write to old and new ones to log; neither loses an event."""
    path, old = tmp_path / "log", tmp_path / "old"
    first = penstock.open(path, segment_size=SIZE)
    given: dict[Path, list[bytes]] = {old: [], path: []}

    def write(log: penstock.Log, to: Path, i: int) -> None:
        value = b"%s-%d-" % (to.name.encode(), i) + LONG
        log.append(value, durable=True)
        given[to].append(value)

    for i in range(10):
        write(first, old, i)
    path.rename(old)
    second = penstock.open(path, segment_size=SIZE)
    for i in range(10, 60):
        write(first, old, i)
        write(second, path, i)
    with first, second:
        assert first.stats().uuid != second.stats().uuid
    for place, wanted in given.items():
        assert penstock.verify(place).ok
        assert not [p for p in penstock.verify(place).problems if p.kind == "spurious"]
        with penstock.open(place) as log:
            assert values(log) == wanted


def refused_in_child(log: penstock.Log) -> None:
    assert in_child(lambda: raises_gone(lambda: log.append(b"x")))
    log.sync()


WRITES: dict[str, Callable[[penstock.Log], object]] = {
    "append": append_until_refused,
    "append-durable": lambda log: log.append(b"x", durable=True),
    "append-long": lambda log: log.append(bytes(40_000)),
    "extend-durable": lambda log: log.extend([b"x", b"y"], durable=True),
    "sync": lambda log: log.sync(),
    "sync-later": lambda log: log.sync(wait=False),
    "roll": lambda log: log.steward.roll(),
    "load": lambda log: log.load([LONG] * 40),
    "load-little": lambda log: log.load([b"x"]),
    "configure": lambda log: log.configure(segment_size="128KiB"),
    "child": refused_in_child,
}
READS: dict[str, Callable[[penstock.Log], object]] = {
    "read": list,
    "read-backwards": lambda log: list(reversed(log)),
    "len": len,
    "scan": lambda log: log.scan().to_arrow(),
    "follow": lambda log: list(log.follow("end")),
    "stats": lambda log: log.stats(),
    "verify": lambda log: log.verify(),
    "repair": lambda log: log.repair(),
}
USES = WRITES | READS


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("replaced", [False, True], ids=["deleted", "replaced"])
def test_a_deleted_log_is_gone(tmp_path: Path, use: str, replaced: bool) -> None:
    """With the log deleted, or another in its place, every use raises Gone and writes nowhere."""
    path = tmp_path / "log"
    with penstock.open(path, segment_size=SIZE) as log:
        fill(log, "own", 20)
        delete(path)
        before = {}
        if replaced:
            make(path, "other")
            before = contents(path)
        for _ in range(2):
            with pytest.raises(Gone) as caught:
                USES[use](log)
            assert caught.value.errno == errno.ESTALE
            assert caught.value.filename == str(path)
            assert str(path) in str(caught.value)
        if replaced:
            assert contents(path) == before
        else:
            assert os.listdir(tmp_path) == []
    if replaced:
        with penstock.open(path) as log:
            assert values(log) == [b"other-%d" % i for i in range(3)]
            assert log.append(b"more") == 4
        assert penstock.verify(path).ok


@pytest.mark.parametrize("use", [use for use in WRITES if use != "child"])
def test_a_deleted_active_segment(tmp_path: Path, use: str) -> None:
    """With the segment deleted that takes appends, none is acknowledged into nowhere."""
    path = tmp_path / "log"
    with penstock.open(path, segment_size=SIZE) as log:
        fill(log, "own", 20)
        log.append(b"mapped")
        max(path.glob("*.seg")).unlink()
        before = sorted(path.glob("*.seg"))
        with pytest.raises(Gone):
            WRITES[use](log)
        assert sorted(path.glob("*.seg")) == before


@pytest.mark.parametrize("use", WRITES)
def test_another_log_in_the_same_directory(tmp_path: Path, use: str) -> None:
    """With its files exchanged for another log's, a handle is Gone; it never adopts that log."""
    path, other = tmp_path / "log", tmp_path / "other"
    make(other, "other")
    with penstock.open(path, segment_size=SIZE) as log:
        log.append(b"own")
        for name in os.listdir(path):
            path.joinpath(name).unlink()
        for name in os.listdir(other):
            shutil.copy(other / name, path)
        before = contents(path)
        with pytest.raises(Gone):
            WRITES[use](log)
        assert values(log) == [b"own"], "what is mapped stays readable"
        assert contents(path) == before
    with penstock.open(path) as again:
        assert values(again) == [b"other-%d" % i for i in range(3)]


def test_what_is_mapped_stays_readable(tmp_path: Path) -> None:
    """A reader of a log that is deleted reads the segment that it is in, then raises Gone."""
    path = tmp_path / "log"
    with penstock.open(path, segment_size=SIZE) as log:
        added = fill(log, "own", 20)
        reader = log.read()
        seen = [next(reader).value]
        delete(path)
        with pytest.raises(Gone):
            for event in reader:
                seen.append(event.value)
        assert seen == added[: len(seen)] and len(seen) > 1


def test_a_child_without_descriptors(tmp_path: Path) -> None:
    """A child that closed every descriptor is told so, and uses none that got the same number."""
    make(tmp_path / "other", "other")
    before = contents(tmp_path / "other")

    def close_all_and_append() -> bool:
        os.closerange(3, 256)
        for _ in range(64):
            os.open(tmp_path / "other", os.O_RDONLY)
        return raises_gone(lambda: log.append(b"x"))

    with penstock.open(tmp_path / "log") as log:
        log.append(b"first")
        assert in_child(close_all_and_append)
        assert log.append(b"second") == 2
    assert contents(tmp_path / "other") == before


def test_a_rename_amid_a_load(tmp_path: Path) -> None:
    """A load whose log is renamed meanwhile ends in that log, and a namesake gets nothing of it."""
    path, moved = tmp_path / "log", tmp_path / "moved"

    def rows() -> Iterator[bytes]:
        for i in range(200):
            if i == 100:
                path.rename(moved)
                make(path, "other")
            yield b"%d-" % i + LONG

    with penstock.open(path, segment_size=SIZE) as log:
        assert log.load(rows(), durable=True) == range(1, 201)
        assert values(log) == [b"%d-" % i + LONG for i in range(200)]
    assert not [n for n in os.listdir(moved) if n.startswith("load.")]
    assert penstock.verify(moved).ok
    with penstock.open(path) as other:
        assert values(other) == [b"other-%d" % i for i in range(3)]


def test_a_deletion_amid_a_load(tmp_path: Path) -> None:
    """A load whose log is deleted and made again meanwhile is Gone, and leaves nothing anywhere."""
    path = tmp_path / "log"

    def rows() -> Iterator[bytes]:
        for i in range(200):
            if i == 100:
                delete(path)
                make(path, "other")
            yield b"%d-" % i + LONG

    with penstock.open(path, segment_size=SIZE) as log, pytest.raises(Gone):
        log.load(rows())
    assert not [n for n in os.listdir(path) if n.startswith("load.")]
    with penstock.open(path) as other:
        assert values(other) == [b"other-%d" % i for i in range(3)]


def stray_into(path: Path, base: int) -> Path:
    """A segment of another log under the name that ``path`` will want for its seq ``base``."""
    other = path.with_name(f"stray-{base}")
    make(other, "stray")
    return Path(shutil.copy(other / file_name(1), path / file_name(base)))


@pytest.mark.parametrize("use", ["roll", "load"])
def test_a_foreign_file_is_never_displaced(tmp_path: Path, use: str) -> None:
    """A file where the next segment must go is named in the error, and stays as it is."""
    path = tmp_path / "log"
    with penstock.open(path, segment_size=SIZE) as log:
        log.extend([b"a", b"b", b"c"])
        stray = stray_into(
            path, 4 if use == "roll" else 5
        )  # a load begins with an event of its own
        before = stray.read_bytes()
        for _ in range(2):
            with pytest.raises(AlreadyExists, match="move it away") as caught:
                WRITES[use](log)
            assert (caught.value.errno, caught.value.filename) == (errno.EEXIST, str(stray))
            assert stray.read_bytes() == before
            assert values(log) == [b"a", b"b", b"c"]
        assert sorted(path.glob("*.seg*")) == [path / file_name(1), stray]
        assert not list(path.glob("load.*"))
        stray.unlink()
        WRITES[use](log)
        assert log.append(b"last") == (4 if use == "roll" else 44)
    assert penstock.verify(path).ok


def test_recovery_displaces_nothing(tmp_path: Path) -> None:
    """A roll that a killed process began is not finished over a foreign file; it says which."""
    path = tmp_path / "log"
    make(path, "own")
    pid = os.fork()
    if pid == 0:
        log = penstock.open(path)
        _core.fail_arm("roll.committed", 1, signal.SIGKILL)
        log.steward.roll()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    stray = stray_into(path, 4)
    before = stray.read_bytes()
    with pytest.raises(AlreadyExists) as caught:
        penstock.open(path)
    assert caught.value.filename == str(stray)
    assert stray.read_bytes() == before
    stray.unlink()
    with penstock.open(path) as log:
        assert values(log) == [b"own-%d" % i for i in range(3)]
        assert log.append(b"more") == 4


def test_a_majority_decides_nothing(tmp_path: Path) -> None:
    """Whose a directory is, its control says; more and newer segments of another log do not."""
    path, other = tmp_path / "log", tmp_path / "other"
    make(path, "own")
    with penstock.open(other, segment_size=SIZE) as log:
        fill(log, "other")
    strays = sorted(p.name for p in other.glob("*.seg"))[1:]
    assert len(strays) > 2
    for name in strays:
        shutil.copy(other / name, path)
    before = contents(path)
    for mode in ("r", "rw"):
        with penstock.open(path, mode="r" if mode == "r" else "rw") as log:
            assert values(log) == [b"own-%d" % i for i in range(3)]
            assert sorted(log.stats().spurious) == strays
    assert {n: contents(path)[n] for n in strays} == {n: before[n] for n in strays}
    report = penstock.verify(path)
    assert (report.segments, report.events) == (1, 3)
    path.joinpath("control").unlink()
    assert penstock.open(path, mode="r").last_seq > 3, "roll frames lead through the other's"


def test_nothing_decides(tmp_path: Path) -> None:
    """Where neither control nor a roll frame says whose a directory is, both logs are named."""
    path, other = tmp_path / "log", tmp_path / "other"
    uuids = []
    for place in (path, other):
        with penstock.open(place, segment_size=SIZE) as log:
            fill(log, place.name, 20)
            uuids.append(log.stats().uuid)
    for name in [p.name for p in path.glob("*.seg")][:]:
        if name != file_name(1):
            path.joinpath(name).unlink()
    shutil.copy(max(other.glob("*.seg")), path)
    path.joinpath("control").unlink()
    for call in (lambda: penstock.open(path), lambda: penstock.repair(path, in_place=True)):
        with pytest.raises(penstock.Corrupt) as caught:
            call()
        assert all(uuid in str(caught.value) for uuid in uuids)
    assert not penstock.verify(path).ok
