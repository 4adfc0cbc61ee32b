"""Control is disposable: whatever becomes of it, no event is lost and the log is never split."""

from __future__ import annotations

import os
import random
import shutil
import signal
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock import Busy, _core, layout
from tests.support.rings import RingScene
from tests.support.scene import Scene
from tests.support.workers import Crew

pytestmark = pytest.mark.process


def _delete(control: Path) -> None:
    control.unlink()


def _empty(control: Path) -> None:
    _replace(control, b"")


def _cut(control: Path) -> None:
    _replace(control, control.read_bytes()[:1000])


def _garbage(control: Path) -> None:
    _replace(control, random.Random(1).randbytes(layout.CONTROL_BYTES))


def _zeros(control: Path) -> None:
    _replace(control, bytes(layout.CONTROL_BYTES))


def _longer(control: Path) -> None:
    _replace(control, control.read_bytes() + bytes(9000))


def _copy(control: Path) -> None:
    _replace(control, control.read_bytes())


def _link(control: Path) -> None:
    control.rename(control.with_name("elsewhere"))
    control.symlink_to("elsewhere")


def _replace(control: Path, data: bytes) -> None:
    new = control.with_name("control.new")
    new.write_bytes(data)
    new.rename(control)


def _other_boot(control: Path) -> None:
    _patch_fixed(control, layout.C_BOOT_ID, bytes(range(16)))


def _other_version(control: Path) -> None:
    _patch_fixed(control, layout.C_VERSION, struct.pack("<I", layout.CONTROL_VERSION + 1))


def _other_kind(control: Path) -> None:
    _patch_fixed(control, layout.C_KIND, struct.pack("<I", 77))


def _other_log(control: Path) -> None:
    _patch_fixed(control, layout.C_UUID, bytes(16))


def _patch_fixed(control: Path, at: int, data: bytes) -> None:
    """Change a field in place and make the checksum match."""
    page = bytearray(control.read_bytes())
    page[at : at + len(data)] = data
    struct.pack_into("<I", page, layout.C_CRC, _core.crc32c(bytes(page[: layout.C_CRC])))
    with control.open("r+b") as file:
        file.write(page)


Harm = Callable[[Path], None]
REPLACED: list[Harm] = [_delete, _empty, _cut, _garbage, _zeros, _longer, _copy, _link]
IN_PLACE: list[Harm] = [_other_boot, _other_version, _other_kind, _other_log]


def name_of(harm: Harm) -> str:
    """For the test's id."""
    return harm.__name__.strip("_")


@pytest.mark.parametrize("harm", [*REPLACED, *IN_PLACE], ids=name_of)
def test_bad_control_after_a_clean_close(scene: Scene, harm: Harm) -> None:
    """A control file that cannot be used is made again, and every event is there."""
    scene.seed(more=[[60_000]] * 6)
    harm(scene.path / "control")
    scene.check()
    scene.check_goes_on()


@pytest.mark.parametrize("harm", [*REPLACED, *IN_PLACE], ids=name_of)
def test_bad_control_after_a_death(scene: Scene, harm: Harm) -> None:
    """Without a usable control the tail of a dead batch is found and removed all the same."""
    scene.seed(more=[[60_000]] * 2)
    scene.start(
        "write",
        "victim",
        warm=[[10]],
        operations=[[300, 5000, 9000, 100]],
        fail=["publish.batch_body", 3, signal.SIGKILL],
    ).died()
    harm(scene.path / "control")
    scene.check()
    scene.check_goes_on()


@pytest.mark.parametrize("word", range(layout.C_LOCK, layout.C_ALLOCATIONS + 8, 8))
@pytest.mark.parametrize("value", [0, 1, 0x0123456789ABCDEF, (1 << 64) - 1])
def test_bad_word_in_control(scene: Scene, word: int, value: int) -> None:
    """A control file that nobody uses and that holds nonsense in a word costs no data."""
    scene.seed(more=[[60_000]] * 4)
    with (scene.path / "control").open("r+b") as file:
        file.seek(word)
        file.write(struct.pack("<Q", value))
    scene.check_goes_on()


@pytest.mark.parametrize("word", range(layout.C_LOCK, layout.C_ROOM_NOTIFY + 8, 8))
def test_bad_word_in_control_of_a_ring(crew: Crew, tmp_path: Path, word: int) -> None:
    """Nonsense in a word of a ring's control that nobody uses costs no data either."""
    for number, value in enumerate([0, 1, 0x0123456789ABCDE8, 0x0123456789ABCDEF, (1 << 64) - 1]):
        directory = tmp_path / str(number)
        directory.mkdir()
        scene = RingScene(crew, directory)
        scene.seed()
        with scene.path.open("r+b") as file:
            file.seek(layout.RING_CONTROL_OFFSET + word)
            file.write(struct.pack("<Q", value))
        prints = scene.check()
        scene.check_goes_on()
        assert len(prints) > 5


@pytest.mark.parametrize("harm", REPLACED, ids=name_of)
def test_control_gone_while_in_use(scene: Scene, harm: Harm) -> None:
    """Who has the log open goes on; a new writer gets Busy, and never a control of its own."""
    scene.seed()
    go, end = scene.file("go"), scene.file("end")
    workers = [
        scene.start("write", f"w{i}", warm=[[9]], operations=[[10], [20, 30], [70_000]] * 5, go=go)
        for i in range(2)
    ]
    idle = scene.run("hold_open", path=scene.path, go=end)
    for worker in (*workers, idle):
        worker.wait_report("ready")
    harm(scene.path / "control")
    there = os.path.lexists(scene.path / "control")
    for _ in range(2):
        with pytest.raises(Busy):
            penstock.open(scene.path, timeout=0.1)
        assert os.path.lexists(scene.path / "control") == there
    scene.check()
    go.touch()
    for worker in workers:
        worker.done()
    with pytest.raises(Busy):
        penstock.open(scene.path, timeout=0.1)
    end.touch()
    idle.done()
    assert idle.wait_report("read") == len(scene.check())
    scene.check_goes_on()


def test_openers_race_where_control_was_deleted(scene: Scene) -> None:
    """Processes that wait for control get it as soon as the last user of the old one is gone."""
    scene.seed()
    end = scene.file("end")
    idle = scene.run("hold_open", path=scene.path, go=end)
    idle.wait_report("ready")
    (scene.path / "control").unlink()
    workers = [scene.start("write", f"w{i}", operations=[[10], [20, 30]] * 20) for i in range(4)]
    end.touch()
    for worker in (idle, *workers):
        worker.done()
    scene.check_goes_on()


def test_first_openers_race(scene: Scene) -> None:
    """Processes that open a new log at the same time make one log, not several."""
    for number in range(6):
        workers = [
            scene.start("write", f"r{number}w{i}", operations=[[10], [20, 30]]) for i in range(4)
        ]
        for worker in workers:
            worker.done()
        scene.check()
    scene.check_goes_on()


@pytest.mark.parametrize("live", [True, False], ids=["live", "closed"])
def test_copied_log(scene: Scene, live: bool) -> None:
    """A copy made with cp -r, control and all, is a log of its own that opens and goes on."""
    scene.seed(more=[[60_000]] * 6)
    go = scene.file("go")
    if live:
        worker = scene.start("write", "live", warm=[[10]], operations=[[30]] * 3, go=go)
        worker.wait_report("ready")
    copy = Scene(scene.crew, scene.file("copy"))
    copy.directory.mkdir()
    shutil.copytree(scene.path, copy.path)
    for acks in scene.acks:
        copy.acks.append(Path(shutil.copy(acks, copy.directory)))
    copy.check_goes_on()
    if live:
        go.touch()
        worker.done()
    scene.check_goes_on()
    copy.check()
