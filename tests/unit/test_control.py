"""Control in a page of a file that holds more, and that its openers lock."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock import Busy, Io, Usage, _core
from penstock import layout as L
from penstock._core import Control
from penstock.handle import control
from penstock.handle.control import ControlPlace
from penstock.system import files

UUID = bytes(range(16))
WORDS = {L.C_NEXT_SEQ: 7, L.C_HEAD: 1 << 32 | 4096}


@pytest.fixture
def place(tmp_path: Path) -> ControlPlace:
    """A page between two others."""
    file = tmp_path / "log"
    file.write_bytes(b"x" * 3 * L.PAGE)
    return ControlPlace(str(file), str(file), L.PAGE)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closes what a test attached."""
    with ExitStack() as stack:
        yield stack


def attach(place: ControlPlace, stack: ExitStack) -> Control:
    """Attach as a writer does; who is first builds control."""
    fd = files.open_file(place.file, write=True)
    _core.own_fd(fd)
    try:
        attached = control.attach_writer(
            place, fd, lambda: control.build_in_place(place, fd, UUID, WORDS), 0
        )
    except BaseException:
        _core.close_fd(fd)
        raise
    attached.held_fd = fd
    stack.callback(attached.close)
    return attached


def test_openers_share_the_page(place: ControlPlace, stack: ExitStack) -> None:
    """Who comes second attaches to what the first built; the pages around stay as they are."""
    first, second = attach(place, stack), attach(place, stack)
    assert (first.token, second.token) == (1, 2)
    assert first.uuid() == UUID
    first.put(L.C_NEXT_SEQ, 8)
    assert second.get(L.C_NEXT_SEQ) == 8
    found = control.peek(place)
    assert found is not None and found.live and found.words[L.C_NEXT_SEQ] == 8
    data = Path(place.file).read_bytes()
    assert data[: L.PAGE] == data[2 * L.PAGE :] == b"x" * L.PAGE


def test_words_are_as_wide_as_the_table_says(place: ControlPlace, stack: ExitStack) -> None:
    """Each word of live control can be stored and read alone; the ones beside it stay."""
    attached = attach(place, stack)
    wanted = {}
    for n, field in enumerate(L.CONTROL.fields.values(), 1):
        if L.C_HEAD <= field.at < L.C_NOTIFY:
            wanted[field.at] = (1 << 8 * field.nbytes) - n
    for at, value in reversed(wanted.items()):
        control.store(attached, at, value)
    assert control.words_of_log(attached) == wanted
    found = control.peek(place)
    assert found is not None and found.words.items() >= wanted.items()


def test_the_write_lock_beside_the_openers_locks(place: ControlPlace, stack: ExitStack) -> None:
    """Openers that hold the file together keep each other out of the write lock all the same."""
    first, second = attach(place, stack), attach(place, stack)
    for holder, other in ((first, second), (second, first)):
        with holder.locked(), ThreadPoolExecutor(1) as thread, pytest.raises(Busy):
            thread.submit(other.locked(0.01).__enter__).result()
        with holder.locked(), pytest.raises(Usage, match="already holds the write lock"):
            other.locked(0.01).__enter__()  # it would wait for itself
        with other.locked(0.01):
            pass


def test_a_reader_needs_a_writer(place: ControlPlace, stack: ExitStack) -> None:
    """Control that no writer has open is nobody's; with one, a reader attaches to it."""
    with ExitStack() as alone:
        attach(place, alone)
    fd = files.open_file(place.file, write=False)
    stack.callback(files.close, fd)
    assert control.attach_reader(place, fd, 0) is None
    assert control.old_words(place, UUID) is not None
    attach(place, stack)
    attached = control.attach_reader(place, fd, 0)
    assert attached is not None and attached.get(L.C_NEXT_SEQ) == 7
    attached.close()


@pytest.mark.parametrize("nth", [1, 2])
def test_a_death_while_building(
    place: ControlPlace, stack: ExitStack, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """Half a page is no control, even over an old one; the next opener builds it."""
    with ExitStack() as alone:
        attach(place, alone)
    writes = iter(range(9))
    write_at = files.write_at

    def failing(fd: int, data: bytes, offset: int, path: str) -> None:
        if next(writes) == nth:
            raise Io("no more")
        write_at(fd, data, offset, path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_at", failing)
        with pytest.raises(Io, match="no more"):
            attach(place, stack)
    assert control.peek(place) is None
    assert attach(place, stack).get(L.C_NEXT_SEQ) == 7


def test_a_copy_is_no_control(place: ControlPlace, stack: ExitStack) -> None:
    """The page says which file it is in."""
    attach(place, stack)
    copy = place.file + ".copy"
    shutil.copyfile(place.file, copy)
    assert control.peek(ControlPlace(copy, copy, L.PAGE)) is None
