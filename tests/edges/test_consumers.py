"""A consumer belongs to its log, and what is appended by it is stored as it was given."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Entry, Gone, Log, Usage, WrongType
from penstock import layout as L

KINDS: dict[str, dict[str, Any]] = {"log": {"segment_size": "64KiB"}, "ring": {"ring": "64KiB"}}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """A kind of log."""
    return str(request.param)


def path_in(place: Path, kind: str) -> Path:
    return place / ("log" if kind == "log" else "a.ring")


def make(path: Path, kind: str, *given: bytes) -> Log:
    """A log of that kind with these values."""
    log = penstock.create(path, **KINDS[kind])
    log.extend(given or [b"a", b"b", b"c"])
    return log


def folder_of(path: Path, kind: str) -> Path:
    """Where the files of a log's consumers are."""
    return (path if kind == "log" else path.with_name(f"{path.name}.d")) / "consumers"


def contents(place: Path) -> dict[str, bytes]:
    """Every file below a directory, but for control."""
    found = [p for p in sorted(place.rglob("*")) if p.is_file() and p.name != "control"]
    return {str(p.relative_to(place)): p.read_bytes() for p in found}


def remove(path: Path, kind: str) -> None:
    """Delete a log with its consumers, as other programs would."""
    if kind == "log":
        shutil.rmtree(path)
    else:
        path.unlink()
        shutil.rmtree(path.with_name(f"{path.name}.d"), ignore_errors=True)


USES: dict[str, Callable[[Log], object]] = {
    "open one": lambda log: log.consumer("billing"),
    "open one that is there": lambda log: log.consumer("theirs"),
    "wait for one": lambda log: log.consumer("theirs", standby=True),
    "names": lambda log: log.consumers().names(),
    "list": lambda log: list(log.consumers()),
    "look at one": lambda log: log.consumers()["theirs"],
    "delete": lambda log: log.consumers().delete("theirs"),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("replaced", [False, True], ids=["deleted", "replaced"])
def test_the_consumers_of_a_log_that_is_gone(
    tmp_path: Path, kind: str, use: str, replaced: bool
) -> None:
    """A handle of a deleted log makes, lists and deletes no consumer where another log is now."""
    path = path_in(tmp_path, kind)
    with make(path, kind) as log:
        remove(path, kind)
        if replaced:
            with make(path, kind, b"other") as other:
                other.consumer("theirs").close()
        before = contents(tmp_path)
        with pytest.raises(Gone) as caught:
            USES[use](log)
        assert (caught.value.errno, caught.value.filename) == (errno.ESTALE, str(path))
        assert contents(tmp_path) == before


@pytest.mark.parametrize("use", USES)
def test_the_consumers_of_a_ring_that_was_renamed(tmp_path: Path, use: str) -> None:
    """The consumers beside a ring are those of the ring that has the name, and of no older one."""
    path = tmp_path / "a.ring"
    with make(path, "ring") as ring:
        path.rename(tmp_path / "old.ring")
        with make(path, "ring", b"other") as other:
            other.consumer("theirs").close()
        before = contents(tmp_path)
        with pytest.raises(Gone, match="open it by its name"):
            USES[use](ring)
        assert contents(tmp_path) == before
    with penstock.open(tmp_path / "old.ring") as ring, ring.consumer("billing") as billing:
        assert [event.value for event in billing.poll()] == [b"a", b"b", b"c"]


def test_a_consumer_goes_on_in_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Neither chdir nor a rename takes a consumer from its log to a namesake."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    with make(path_in(there, kind), kind, b"other") as other:
        other.consumer("billing").close()
    monkeypatch.chdir(here)
    path = path_in(Path(), kind)
    with make(path, kind) as log, log.consumer("billing") as billing:
        os.chdir(there)
        billing.poll(1)
        billing.commit(durable=True)
        before = contents(there)
        here.rename(tmp_path / "moved")
        shutil.copytree(there, here)
        billing.poll(1)
        billing.commit(durable=True)
        log.consumer("second", start="end").close()
        assert log.consumers().names() == ["billing", "second"]
        assert log.consumers()["billing"].committed == 3
        log.consumers().delete("second")
    assert contents(there) == contents(here) == before
    with (
        penstock.open(path_in(tmp_path / "moved", kind)) as log,
        log.consumer("billing") as billing,
    ):
        assert [event.value for event in billing.poll()] == [b"c"]


@pytest.mark.parametrize("what", ["log", "folder", "file"])
def test_a_durable_commit_never_goes_nowhere(tmp_path: Path, kind: str, what: str) -> None:
    """A consumer whose file was deleted, alone or with its log, is told when it asks for more than
    memory: a durable commit raises Gone."""
    path = path_in(tmp_path, kind)
    with make(path, kind) as log, log.consumer("billing") as billing:
        billing.poll(1)
        billing.commit(durable=True)
        if what == "log":
            remove(path, kind)
        elif what == "folder":
            shutil.rmtree(folder_of(path, kind))
        else:
            (folder_of(path, kind) / "billing").unlink()
        for _ in range(2):
            with pytest.raises(Gone) as caught:
                billing.commit(durable=True)
            assert caught.value.filename == str(folder_of(path, kind) / "billing")


def test_a_consumer_survives_a_resize(tmp_path: Path) -> None:
    """A resized ring is the same ring: its consumers stay, in the handle that resized it too."""
    path = tmp_path / "a.ring"
    with make(path, "ring") as ring, ring.consumer("billing") as billing:
        billing.poll(1)
        billing.commit()
        ring.resize("128KiB")
        ring.append(b"d")
        assert [event.value for event in billing.poll()] == [b"b", b"c", b"d"]
        billing.commit(durable=True)
        ring.consumer("second", start="end").close()
        assert ring.consumers().names() == ["billing", "second"]


def test_consumers_are_opened_while_another_thread_resizes(tmp_path: Path) -> None:
    """However often a thread moves a ring to another file, others open its consumers and commit."""
    with make(tmp_path / "a.ring", "ring") as ring:
        resized = threading.Event()

        def resize() -> None:
            for n in range(30):
                ring.resize("128KiB" if n % 2 else "64KiB")
            resized.set()

        thread = threading.Thread(target=resize)
        thread.start()
        while not resized.is_set() and thread.is_alive():
            with ring.consumer("billing", on_gap="skip") as billing:
                billing.poll(1)
                billing.commit()
            assert ring.consumers().names() == ["billing"]
        thread.join()
        assert resized.is_set()


def test_a_backup_has_the_consumers_of_its_log_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Consumers of another ring, which has the name by now, are left out of a backup, and named."""
    path = tmp_path / "a.ring"
    with make(path, "ring") as ring:
        path.rename(tmp_path / "old.ring")
        with make(path, "ring", b"other") as other:
            other.consumer("theirs").close()
        ring.backup(tmp_path / "copy.ring")
    with penstock.open(tmp_path / "copy.ring") as copy:
        assert len(copy) == 3
        assert copy.consumers().names() == []
    assert "theirs: is of another log" in caplog.text


def test_files_of_others_among_consumers_are_kept(tmp_path: Path, kind: str) -> None:
    """A file that is only called like an unfinished consumer is kept; what is one is swept."""
    path = path_in(tmp_path, kind)
    with make(path, kind) as log:
        log.consumer("first").close()
        folder = folder_of(path, kind)
        begun = (folder / "first").read_bytes()
        ours = {
            f".new-{'a' * 16}": b"",
            f".new-{'b' * 16}": begun,
            f".new-{'c' * 16}": bytes(L.CONSUMER_BYTES),
        }
        others = {
            ".new-customers.csv": b"name,town\n",
            f".new-{'d' * 16}": b"name,town\n",
            f".new-{'e' * 16}": begun + b"more",
        }
        for name, data in {**ours, **others}.items():
            (folder / name).write_bytes(data)
        log.consumer("second").close()
        assert {n: (folder / n).read_bytes() for n in others} == others
        assert not [n for n in ours if (folder / n).exists()]


RESULTS: dict[str, tuple[str, Callable[[], Iterator[Any]]]] = {}


def results(codec: str) -> Callable[[Callable[[], Iterator[Any]]], Callable[[], Iterator[Any]]]:
    """Have results of which each changes when the next is made take part in the test below."""

    def add(make: Callable[[], Iterator[Any]]) -> Callable[[], Iterator[Any]]:
        RESULTS[make.__name__] = (codec, make)
        return make

    return add


@results("bytes")
def one_bytearray() -> Iterator[Any]:
    memory = bytearray(1)
    for n in b"xyz":
        memory[0] = n
        yield memory


@results("bytes")
def one_view_and_key() -> Iterator[Any]:
    memory, key = bytearray(b"-1-"), bytearray(b"k")
    for n in b"xyz":
        memory[1] = key[0] = n
        yield Entry(memoryview(memory)[1:2], key=key, headers={"h": memoryview(memory)})


@results("json")
def one_dict() -> Iterator[Any]:
    document: dict[str, Any] = {"list": []}
    for n in "xyz":
        document["list"].append(n)
        yield document


@results("json")
def one_dict_in_entries() -> Iterator[Any]:
    document: dict[str, Any] = {}
    tags: list[str] = []
    for n in "xyz":
        document["n"] = n
        tags.append(n)
        yield Entry(document, tags=tags)


@pytest.mark.parametrize("call", ["append", "extend"])
@pytest.mark.parametrize("name", RESULTS)
def test_results_are_stored_as_they_were_given(
    tmp_path: Path, kind: str, name: str, call: str
) -> None:
    """A step of `into` takes each result as it is then, also if it is changed for the next one."""
    codec, produce = RESULTS[name]
    with (
        make(path_in(tmp_path, kind), kind) as log,
        penstock.create(tmp_path / "out", codec=codec) as out,
        penstock.create(tmp_path / "wanted", codec=codec) as wanted,
    ):
        for value in produce():
            wanted.append(value)
        with log.consumer("c") as consumer, consumer.into(out) as step:
            consumer.poll()
            if call == "append":
                for value in produce():
                    step.append(value)
            else:
                step.extend(produce())
        assert [facts(event) for event in out] == [facts(event) for event in wanted]
        assert len({event.value for event in out}) == 3


def facts(event: penstock.Event) -> tuple[Any, ...]:
    headers = [(name, value) for name, value in event.headers if name != "penstock.producer"]
    return event.value, event.key, event.topic, headers, event.tags, event.deletes


def test_a_step_takes_events_and_entries_as_they_are(tmp_path: Path) -> None:
    """What a step appends of an event or an entry has everything that it had."""
    given: dict[str, Any] = {"key": b"k", "topic": "t", "headers": {"h": b"1"}, "tags": ["x"]}
    with penstock.create(tmp_path / "log") as log, penstock.create(tmp_path / "out") as out:
        log.append(b"v", **given, time=5)
        log.append(None, key=b"gone")
        with log.consumer("c") as consumer, consumer.into(out) as step:
            for event in consumer.poll():
                step.append(event)
            step.append(Entry(b"entry", **given))
            for both in (log[1], Entry(b"v", topic="t")):
                with pytest.raises(Usage, match="given twice"):
                    step.append(both, topic="other")
            for one in (b"abc", "abc", log[1], {"a": 1}, Entry(b"v"), 5, None):
                with pytest.raises(WrongType, match="extend needs many values"):
                    step.extend(one)  # type: ignore[arg-type]
            with pytest.raises(WrongType, match="encode it first"):
                step.append("text")
        assert [facts(event) for event in out.read(1, 3)] == [facts(event) for event in log]
        assert out[1].time_ns == 5
        assert facts(out[3]) == (b"entry", *facts(log[1])[1:])


def test_a_place_beyond_the_end_whatever_a_folder_holds(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Foreign files among the consumers keep no log from opening, and stay as they are."""
    path = path_in(tmp_path, kind)
    with make(path, kind) as log:
        log.consumer("first").close()
    folder = folder_of(path, kind)
    (folder / "notes.txt").write_bytes(b"mine")
    (folder / "directory").mkdir()
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(folder / "pipe")
    if kind == "log":
        (path / "control").unlink()
    with caplog.at_level(logging.WARNING), penstock.open(path) as log:
        assert log.append(b"d") == 4
        found = {info.name: info.problem for info in log.consumers()}
    assert found.pop("first") is None
    assert set(found) <= {"notes.txt", "directory", "link", "pipe"} and all(found.values())
    assert (folder / "notes.txt").read_bytes() == b"mine"
