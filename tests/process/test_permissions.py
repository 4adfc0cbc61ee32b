"""Who may do what: refused with a typed error, and nothing that is not the log's is touched."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Permission
from tests.support import jobs
from tests.support.acks import Acks
from tests.support.attempts import Attempts
from tests.support.scene import SEGMENT, Scene
from tests.support.workers import Crew, Worker

pytestmark = pytest.mark.process

NOBODY, SOMEBODY = 65534, 65533
GROUP, OTHER_GROUP = 64001, 64002
FIRST = "00000000000000000001.seg"


@pytest.fixture
def place(crew: Crew) -> Iterator[Scene]:
    """A scene that every user can come to."""
    if os.geteuid() != 0:
        pytest.skip("taking another user's place needs root")
    directory = Path(tempfile.mkdtemp(prefix="penstock-"))
    directory.chmod(0o777)
    yield Scene(crew, directory)
    crew.clear()
    shutil.rmtree(directory)


def as_user(
    uid: int, gid: int, groups: list[int], umask: int, job: str, args: dict[str, Any]
) -> None:
    """The worker's part: become another user, then do a job."""
    os.umask(umask)
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    (getattr(jobs, job, None) or globals()[job])(**args)


def run_as(
    place: Scene,
    uid: int,
    job: str,
    *,
    gid: int = NOBODY,
    groups: tuple[int, ...] = (),
    umask: int = 0o022,
    **args: Any,
) -> Worker:
    """Run a job as another user."""
    plain = {k: str(v) if isinstance(v, Path) else v for k, v in args.items()}
    return place.run(
        "run_in_worker",
        module=__name__,
        function="as_user",
        args={
            "uid": uid,
            "gid": gid,
            "groups": list(groups),
            "umask": umask,
            "job": job,
            "args": plain,
        },
    )


def try_to_open(path: str) -> None:
    """Report how opening in each mode ends."""
    for mode in ("r", "rw"):
        try:
            with penstock.open(path, mode="r" if mode == "r" else "rw", timeout=0) as log:
                if mode == "rw":
                    log.append(b"", key=b"('anybody', 1, 0, 1, 0)")
                jobs.report(**{mode: [e.seq for e in log]})
        except penstock.PenstockError as error:
            jobs.report(**{mode: type(error).__name__, "text": str(error)})


def outcome(worker: Worker, mode: str) -> Any:
    """What ``try_to_open`` reported for that mode."""
    worker.done()
    return worker.wait_report(mode)


def snapshot(path: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything of a directory's files that one without permission must not change."""
    return {
        p.name: (p.stat().st_mtime_ns, p.stat().st_ino, p.read_bytes())
        for p in sorted(path.iterdir())
    }


def give(path: Path, uid: int, dir_mode: int, file_mode: int, gid: int = NOBODY) -> None:
    """Give a log and all in it to a user."""
    for each in (path, *path.iterdir()):
        os.chown(each, uid, gid)
        each.chmod(dir_mode if each == path else file_mode)


@pytest.mark.parametrize("live", [True, False], ids=["beside-a-writer", "alone"])
def test_private_by_default(place: Scene, live: bool) -> None:
    """Without a mode given, nobody but the owner gets at a log, whatever the umask is."""
    before = os.umask(0)
    try:
        place.seed()
        with penstock.open(place.path) if live else contextlib.nullcontext():
            modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in place.path.iterdir()}
            assert modes == {FIRST: 0o600, "control": 0o600, "writers.lock": 0o600}
            assert stat.S_IMODE(place.path.stat().st_mode) == 0o700
            stranger = run_as(place, NOBODY, "try_to_open", path=place.path)
            assert outcome(stranger, "r") == outcome(stranger, "rw") == "Permission"
    finally:
        os.umask(before)
    place.check_goes_on()


@pytest.mark.parametrize("live", [True, False], ids=["beside-a-writer", "alone"])
def test_unreadable_segment(place: Scene, live: bool) -> None:
    """A segment that a user may not read is Permission, and names that segment."""
    place.seed(more=[[60_000]] * 6)
    give(place.path, NOBODY, 0o755, 0o644)
    os.chown(place.path / FIRST, 0, 0)
    (place.path / FIRST).chmod(0o600)
    with penstock.open(place.path) if live else contextlib.nullcontext():
        if live:
            os.chown(place.path / "control", NOBODY, NOBODY)
        stranger = run_as(place, NOBODY, "try_to_open", path=place.path)
        assert outcome(stranger, "r") == "Permission"
        assert f"{place.path / FIRST}: Permission denied" in stranger.wait_report("text")


@pytest.mark.parametrize("live", [True, False], ids=["beside-a-writer", "alone"])
def test_unreadable_control(place: Scene, live: bool) -> None:
    """Without permission for control a log can be read all the same, but not written."""
    place.seed()
    give(place.path, 0, 0o755, 0o644, gid=0)
    (place.path / "control").chmod(0o600)
    with penstock.open(place.path) if live else contextlib.nullcontext():
        before = snapshot(place.path)
        stranger = run_as(place, NOBODY, "try_to_open", path=place.path)
        assert outcome(stranger, "r") == [1, 2, 3, 4]
        assert outcome(stranger, "rw") == "Permission"
        assert snapshot(place.path) == before
    place.check_goes_on()


def test_follower_that_may_only_read(place: Scene) -> None:
    """A user who may read but not write follows a live writer, and leaves every file as it is."""
    place.seed()
    give(place.path, 0, 0o755, 0o644, gid=0)
    out = place.file("followed")
    with penstock.open(place.path) as log:
        log.configure(file_mode=0o644)
        (place.path / "control").chmod(0o644)
        follower = run_as(place, NOBODY, "follow", path=place.path, out=out)
        follower.wait_report("ready")
        mine = Acks(str(place.acks_of("writer")), "writer")
        for size in (10, 5000, 100_000, 100_000, 100_000):
            mine.append(log, [size])
        mine.close()
        stop = Acks(str(place.acks_of("stop")), "stop")
        stop.append(log, [0])
        stop.close()
        follower.done()
    with penstock.open(place.path, mode="r") as log:
        assert [int(line.split()[0]) for line in out.read_text().splitlines()] == [
            e.seq for e in log
        ]


def test_directory_that_may_not_be_searched(place: Scene) -> None:
    """A log in a directory that a user may not enter is Permission, for readers as well."""
    place.seed()
    closed = place.directory / "closed"
    closed.mkdir(mode=0o700)
    stranger = run_as(place, NOBODY, "try_to_open", path=closed / "log")
    assert outcome(stranger, "rw") == "Permission"
    assert outcome(stranger, "r") == "Permission"
    assert not list(closed.iterdir())


def test_read_only_directory(place: Scene) -> None:
    """In a directory that its owner made read-only, a log is read in full and refuses a writer."""
    place.seed(more=[[60_000]] * 6)
    give(place.path, NOBODY, 0o555, 0o444)
    before = snapshot(place.path)
    owner = run_as(place, NOBODY, "try_to_open", path=place.path)
    assert outcome(owner, "r") == list(range(1, 11))
    assert outcome(owner, "rw") == "Permission"
    assert snapshot(place.path) == before
    give(place.path, NOBODY, 0o755, 0o644)
    place.check_goes_on()


def roll_when_allowed(path: str, acks: str, go: str) -> None:
    """Append until a roll is refused, wait for leave, and go on on the same handle."""
    log = penstock.open(path)
    mine = Acks(acks, "owner")
    jobs.report(ready=True)
    jobs.wait_file(f"{go}-1")
    refused = 0
    for _ in range(10):
        try:
            mine.append(log, [60_000])
        except Permission:
            refused += 1
    jobs.report(refused=refused, read=sum(1 for _ in log) == log.last_seq)
    jobs.wait_file(f"{go}-2")
    for _ in range(10):
        mine.append(log, [60_000])
    log.close()


def test_directory_that_becomes_read_only(place: Scene) -> None:
    """Where no file can be made any more, appends go on to the segment's end, then Permission."""
    place.seed()
    give(place.path, NOBODY, 0o755, 0o600)
    go = place.file("go")
    owner = run_as(
        place, NOBODY, "roll_when_allowed", path=place.path, acks=place.acks_of("owner"), go=go
    )
    owner.wait_report("ready")
    place.path.chmod(0o555)
    Path(f"{go}-1").touch()
    assert 0 < owner.wait_report("refused") < 10
    assert owner.reports()[-1]["read"]
    place.check()
    place.path.chmod(0o755)
    Path(f"{go}-2").touch()
    owner.done()
    place.check_goes_on()


def test_writer_on_a_read_only_mount_beside_another(place: Scene) -> None:
    """A writer that sees the log read-only is refused, though others write the same log."""
    place.seed()
    mine = Acks(str(place.acks_of("writer")), "writer")
    with penstock.open(place.path) as log:
        mine.append(log, [100])
        seen = place.run(
            "read_only_mount",
            path=place.path,
            inner="run_in_worker",
            args={
                "module": __name__,
                "function": "try_to_open",
                "args": {"path": str(place.path)},
            },
        )
        assert outcome(seen, "r") == [1, 2, 3, 4, 5]
        assert outcome(seen, "rw") == "Permission"
        mine.append(log, [100])
    mine.close()
    place.check_goes_on()


LINKS = [
    "control",
    "control.tmp",
    "writers.lock",
    "next.tmp",
    "next.1.tmp",
    FIRST,
    "00000000000000000007.seg",
]


def check_without(link: Path, *, seeded: bool) -> None:
    """With the obstacle out of the way, the log has what it had, and goes on."""
    path = link.parent
    if link.is_dir() and not link.is_symlink():
        link.rmdir()
    elif link.is_symlink() or link.is_fifo():
        link.unlink()
    if seeded and link.name != FIRST:
        with penstock.open(path) as log:
            assert [e.value for e in log][:2] == [b"a", b"b"]
            log.append(b"more")
            assert log[log.last_seq].value == b"more"
            assert len(list(log)) == log.last_seq


def work(path: Path, attempt: Attempts) -> None:
    """Open, read, append and roll, whatever is refused."""

    def read() -> None:
        with penstock.open(path, mode="r", timeout=0) as log:
            list(log)

    def write() -> None:
        with penstock.open(path, timeout=0) as log:
            log.extend([b"x" * 1000] * 4)
            log.steward.roll()
            log.append(b"y" * 20_000)
            log.steward.roll()
            list(log)

    attempt("read", read)
    attempt("write", write)


@contextlib.contextmanager
def left_open(path: Path, attempt: Attempts) -> Iterator[None]:
    """Somebody has the log open all along."""
    log = penstock.open(path)
    yield
    attempt("close", log.close)


@pytest.mark.parametrize("state", ["new", "closed", "live"])
@pytest.mark.parametrize("dangling", [True, False], ids=["dangling", "to-a-file"])
@pytest.mark.parametrize("name", LINKS)
def test_links_are_not_followed(tmp_path: Path, name: str, dangling: bool, state: str) -> None:
    """A symbolic link under a name that the log uses is never written, or made, through."""
    path, victim = tmp_path / "log", tmp_path / "victim"
    if not dangling:
        victim.write_bytes(b"PENSTOCK" * 6000)
        victim.chmod(0o640)
    link = path / name
    if state == "new":
        path.mkdir()
    else:
        with penstock.open(path, segment_size="64KiB") as log:
            log.extend([b"a", b"b"])
    attempt = Attempts()
    with left_open(path, attempt) if state == "live" else contextlib.nullcontext():
        link.unlink(missing_ok=True)
        link.symlink_to(victim)
        before = victim.stat() if not dangling else None
        work(path, attempt)
    typed = {"Io", "NoSuchLog", "NotFound", "Busy", "Corrupt", "AlreadyExists", "Usage"}
    assert attempt.kinds() <= typed
    if before is None:
        assert not victim.exists()
    else:
        after = victim.stat()
        assert victim.read_bytes() == b"PENSTOCK" * 6000
        assert (before.st_mode, before.st_mtime_ns) == (after.st_mode, after.st_mtime_ns)
    check_without(link, seeded=state != "new")


@pytest.mark.parametrize("kind", ["fifo", "directory"])
@pytest.mark.parametrize("state", ["closed", "live"])
@pytest.mark.parametrize("name", LINKS)
@pytest.mark.timeout(30)
def test_other_kinds_of_files(tmp_path: Path, name: str, state: str, kind: str) -> None:
    """A pipe or a directory under a name that the log uses is an error, and nobody waits on it."""
    path = tmp_path / "log"
    with penstock.open(path, segment_size="64KiB") as log:
        log.extend([b"a", b"b"])
    attempt = Attempts()
    with left_open(path, attempt) if state == "live" else contextlib.nullcontext():
        (path / name).unlink(missing_ok=True)
        if kind == "fifo":
            os.mkfifo(path / name)
        else:
            (path / name).mkdir()
        work(path, attempt)
    assert attempt.kinds() <= {"Io", "Busy", "Corrupt", "Permission", "AlreadyExists"}
    check_without(path / name, seeded=True)


def test_log_behind_a_link(tmp_path: Path) -> None:
    """A log can be opened through a link to its directory; a link to nothing makes none."""
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    with pytest.raises(penstock.NoSuchLog):
        penstock.open(link)
    assert not (tmp_path / "real").exists()
    (tmp_path / "real").mkdir()
    with penstock.open(link, segment_size="64KiB") as log, penstock.open(tmp_path / "real") as same:
        for _ in range(10):
            log.append(b"x" * 10_000)
            same.append(b"y" * 10_000)
        assert len(log) == len(same) == 20
    with penstock.open(link, mode="r") as log:
        assert len(list(log)) == 20


SHARED = {"primary": (GROUP, ()), "supplementary": (OTHER_GROUP, (GROUP,))}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077], ids=oct)
@pytest.mark.parametrize("membership", SHARED)
def test_log_of_a_group(place: Scene, membership: str, umask: int) -> None:
    """Two users of one group write one log of mode 0660 in turn and together; others have none."""
    gid, groups = SHARED[membership]
    shared = place.directory / "shared"
    shared.mkdir()
    os.chown(shared, 0, GROUP)
    shared.chmod(0o2770 if membership == "supplementary" else 0o770)
    place.path = shared / "log"
    acks = {uid: place.acks_of(f"user-{uid}") for uid in (NOBODY, SOMEBODY)}
    go = place.file("go")

    def start(uid: int, turn: str, wait: bool) -> Worker:
        return run_as(
            place,
            uid,
            "share",
            gid=gid,
            groups=groups,
            umask=umask,
            path=place.path,
            acks=acks[uid],
            writer=f"u{uid}{turn}",
            go=go if wait else "",
        )

    start(NOBODY, "a", wait=False).done()
    start(SOMEBODY, "a", wait=False).done()
    together = [start(uid, "b", wait=True) for uid in (SOMEBODY, NOBODY)]
    for worker in together:
        worker.wait_report("ready")
    go.touch()
    for worker in together:
        worker.done()
    start(NOBODY, "c", wait=False).done()
    modes = {stat.S_IMODE(p.stat().st_mode) for p in place.path.iterdir()}
    assert modes == {0o660}
    assert {p.stat().st_gid for p in place.path.iterdir()} == {GROUP}
    assert {p.stat().st_uid for p in place.path.glob("*.seg")} == {NOBODY, SOMEBODY}
    stranger = run_as(place, NOBODY, "try_to_open", gid=OTHER_GROUP, path=place.path)
    assert outcome(stranger, "rw") == "Permission"
    with penstock.open(place.path, mode="r") as log:
        assert len(log) == 5 * 12


def share(path: str, acks: str, writer: str, go: str) -> None:
    """Append enough for several segments, alone or together with another user."""
    with penstock.open(path, file_mode=0o660, segment_size=SEGMENT) as log:
        mine = Acks(acks, writer)
        jobs.report(ready=True)
        if go:
            jobs.wait_file(go)
        for _ in range(12):
            mine.append(log, [60_000])


def test_dead_writer_of_another_user(place: Scene) -> None:
    """A user takes over from another user's writer that died with the lock held."""
    place.path.mkdir()
    os.chown(place.path, 0, GROUP)
    place.path.chmod(0o770)
    penstock.open(place.path, file_mode=0o660, segment_size=SEGMENT).close()
    for file in place.path.iterdir():
        os.chown(file, 0, GROUP)
    go = place.file("go")
    survivor = run_as(
        place,
        SOMEBODY,
        "write",
        gid=GROUP,
        path=place.path,
        acks=place.acks_of("survivor"),
        writer="survivor",
        warm=[[10]],
        operations=[[10], [5, 5]],
        go=go,
    )
    survivor.wait_report("ready")
    victim = run_as(
        place,
        NOBODY,
        "write",
        gid=GROUP,
        path=place.path,
        acks=place.acks_of("victim"),
        writer="victim",
        operations=[[10, 20, 30]],
        fail=["publish.batch_body", 1, int(signal.SIGKILL)],
    )
    victim.died()
    go.touch()
    survivor.done()
    with penstock.open(place.path, mode="r") as log:
        assert len(log) == 4


def test_refusal_says_what_and_where(place: Scene) -> None:
    """Permission is a PermissionError, carries the system's errno, and says which path it was."""
    place.seed()
    worker = run_as(place, NOBODY, "report_refusal", path=place.path)
    worker.done()
    assert worker.wait_report("errno") == errno.EACCES
    assert str(place.path) in worker.wait_report("text")


def report_refusal(path: str) -> None:
    """Report what a refusal carries."""
    try:
        penstock.open(path)
    except PermissionError as error:
        jobs.report(errno=error.errno, text=str(error))
