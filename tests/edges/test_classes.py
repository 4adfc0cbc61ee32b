"""No class of Penstock, public or private, crashes the process, however it is handled."""

from __future__ import annotations

import copy
import functools
import json
import multiprocessing
import pickle
import shutil
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import _core
from penstock.consumers.listing import Consumers
from penstock.steward import Steward
from tests.support import mishandle


@dataclass
class Order:
    """A schema."""

    total: int


@pytest.fixture(params=["log", "ring"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> penstock.Log:
    """A log of each kind, with three events."""
    ring = "64KiB" if request.param == "ring" else None
    made = penstock.create(tmp_path / f"a.{request.param}", ring=ring)
    made.extend([b"a", b"b", b"c"])
    return made


def by_hand(cls: Any) -> Callable[..., object]:
    """A class as something to call with any arguments, also ones that a type checker refuses."""
    called: Callable[..., object] = cls
    return called


@pytest.mark.process
def test_no_class_crashes_however_it_is_made_copied_pickled_subclassed_or_called(
    tmp_path: Path,
) -> None:
    """Every class, listed from the modules, and a live object of every compiled one, survives all
    of it: in a process of its own, with odd arguments, with nothing from any ``__del__``."""
    run = [sys.executable, "-m", "tests.support.mishandle", str(tmp_path)]
    done = subprocess.run(
        run, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    ends = json.loads(done.stdout.splitlines()[-1])
    assert {name: end for name, end in ends.items() if end} == {}
    assert len(ends) > 60


def test_live_objects_of_every_compiled_class_are_mishandled(tmp_path: Path) -> None:
    """The list of live objects has every compiled class that Python code can get hold of."""
    compiled = {name for name, cls in vars(_core).items() if isinstance(cls, type)}
    compiled = {n for n in compiled if getattr(_core, n).__module__ == "penstock._core"}
    listed = {name.partition(",")[0].split()[0] for name in mishandle.live(tmp_path)}
    hidden = {"Chunk", "Lines", "Values", "Window"}  # no call hands one out
    assert listed | hidden == compiled, "tell mishandle.live() how to get one of each class"
    assert not listed & hidden


@pytest.mark.parametrize(
    ("cls", "args", "says"),
    [
        (penstock.Log, ("x",), r"penstock\.open"),
        (penstock.Log, (), r"penstock\.open"),
        (penstock.Reader, (), r"log\.read\(\)"),
        (penstock.Reader, ("x", 1, 2), r"log\.read\(\)"),
        (penstock.Scan, (), r"log\.scan\(\)"),
        (penstock.Scan, ("x",), r"log\.scan\(\)"),
        (penstock.Merged, (), r"penstock\.merge\(a, b\)"),
        (penstock.Merged, ("x",), r"penstock\.merge\(a, b\)"),
        (penstock.Merged, (2**31 - 1,), r"penstock\.merge\(a, b\)"),
        (penstock.AsyncReader, (), r"log\.afollow\(\)"),
        (penstock.AsyncReader, ("x", 1), r"log\.afollow\(\)"),
        (penstock.Consumer, (), r"log\.consumer\(name\)"),
        (Consumers, (), r"log\.consumers\(\)"),
        (Consumers, ("x",), r"log\.consumers\(\)"),
        (penstock.Event, (), r"log\.read\(\)"),
        (penstock.Event, (b"x",), r"log\.read\(\)"),
        (functools.partial(by_hand(penstock.Event), value=b"x"), (), r"log\.read\(\)"),
        (functools.partial(by_hand(penstock.Reader), path="x"), (), r"log\.read\(\)"),
        (Steward, (), r"log\.steward"),
        (Steward, ("x", 1), r"log\.steward"),
        (functools.partial(by_hand(Steward), path="x"), (), r"log\.steward"),
        (_core.Given, (), "made by Penstock and cannot be made by other code"),
    ],
)
def test_a_class_that_is_not_called_says_what_to_call(
    cls: Callable[..., object],
    args: tuple[object, ...],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To make by hand what a log hands out is `Usage` with the right call, and nothing else."""
    noise: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: noise.append(args.exc_value))
    with pytest.raises(penstock.Usage, match=says):
        cls(*args)
    assert noise == []


def test_a_scan_of_a_log_by_hand_says_what_to_call(log: penstock.Log) -> None:
    """A log is not enough to make a scan by hand: that is `Usage` with the right call, too."""
    for args in ((log,), (log, None), (log, 1, 5)):
        with pytest.raises(penstock.Usage, match=r"log\.scan\(\)"):
            by_hand(penstock.Scan)(*args)


@pytest.mark.parametrize("ring", [None, "64KiB"])
def test_an_interrupted_open_leaves_nothing_behind(
    ring: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C at any line of opening a log raises KeyboardInterrupt, and nothing from ``__del__``;
    the log opens afterwards."""
    noise: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: noise.append(args.exc_value))
    path = tmp_path / "log"
    penstock.create(path, ring=ring).close()
    stop_at = 0
    finished = False
    while not finished:
        finished = _open_interrupted(path, stop_at)
        stop_at += 1 + stop_at // 20
    assert [n for n in noise if not isinstance(n, KeyboardInterrupt)] == []  # that came to one
    assert stop_at > 40
    with penstock.open(path) as log:
        log.append(b"a")


def _open_interrupted(path: Path, lines: int) -> bool:
    """Open the log, with Ctrl-C after so many lines of handles; whether there are not so many."""
    left = lines

    def trace(frame: types.FrameType, event: str, arg: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(("handle.py", "log.py")):
            return None
        if event == "line":
            left -= 1
            if left < 0:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return trace

    sys.settrace(trace)
    try:
        penstock.open(path, sync_seconds=1).close()
    except KeyboardInterrupt:
        assert left < 0
    finally:
        sys.settrace(None)
    return left >= 0


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_log_is_the_same_log_opened_again(log: penstock.Log, protocol: int) -> None:
    """A log that was pickled opens the same log, in the mode and with the options it had."""
    with penstock.open(log.path, "r", timeout=3.5) as reading:
        for original in (log, reading):
            with pickle.loads(pickle.dumps(original, protocol)) as again:
                assert again is not original
                assert [e.value for e in again] == [b"a", b"b", b"c"]
                assert again._options == original._options
    seq = log.append(b"d")
    with pickle.loads(pickle.dumps(log, protocol)) as again:
        assert again[seq].value == b"d"
        assert again.append(b"e") == seq + 1


def test_a_pickled_log_takes_its_schema_along(tmp_path: Path) -> None:
    """The schema of a handle goes with it; one that cannot be pickled is pickle's own error."""
    with penstock.open(tmp_path / "log", codec="json", schema=Order) as log:
        log.append(Order(5))
        with pickle.loads(pickle.dumps(log)) as again:
            assert again[1].data == Order(5)

    @dataclass
    class Local:
        total: int

    with (
        penstock.open(tmp_path / "log", schema=Local) as local,
        pytest.raises((pickle.PicklingError, AttributeError)),
    ):
        pickle.dumps(local)


@pytest.mark.process
def test_a_log_can_be_sent_to_worker_processes(log: penstock.Log) -> None:
    """Workers that were started afresh get a log as an argument, and append to it."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        seqs = pool.starmap(_append_there, [(log, b"%d" % i) for i in range(4)])
    assert sorted(seqs) == [4, 5, 6, 7]
    assert sorted(e.value or b"" for e in log.read(4)) == [b"0", b"1", b"2", b"3"]


def _append_there(log: penstock.Log, value: bytes) -> int:
    return log.append(value)


def test_a_log_that_cannot_be_opened_again_is_not_pickled(
    log: penstock.Log, tmp_path: Path
) -> None:
    """A closed log, one that is gone and one whose path has another log by now say so."""
    data = pickle.dumps(log)
    is_ring = log.stats().ring is not None
    log.close()
    for use in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(penstock.Closed):
            use(log)
    Path(log.path).rename(tmp_path / "elsewhere")
    with pytest.raises(penstock.PenstockError, match="no log here"):
        pickle.loads(data)
    penstock.create(log.path, ring="64KiB" if is_ring else None).close()
    with pytest.raises(penstock.PenstockError, match="this is not the log that was pickled"):
        pickle.loads(data)


def test_a_log_whose_path_leads_elsewhere_is_not_pickled(tmp_path: Path) -> None:
    """A log that was moved or deleted while it is open says so when it is pickled; a symbolic link
    to it will do."""
    (tmp_path / "link").symlink_to(tmp_path / "log")
    for change in (lambda: (tmp_path / "log").rename(tmp_path / "other"), lambda: None):
        penstock.create(tmp_path / "log").close()
        log = penstock.open(tmp_path / "link")
        pickle.loads(pickle.dumps(log)).close()
        change()
        shutil.rmtree(tmp_path / "log", ignore_errors=True)
        with pytest.raises(penstock.Gone):
            pickle.dumps(log)


def test_a_copy_of_a_log_is_a_handle_of_its_own(log: penstock.Log) -> None:
    """copy.copy and copy.deepcopy open the log again; the copy is closed by itself."""
    for again in (copy.copy(log), copy.deepcopy(log)):
        assert again.last_seq == log.last_seq
        again.close()
        assert not log.closed


def test_scans_and_stewards_are_pickled_with_their_log(log: penstock.Log) -> None:
    """A scan that was pickled or copied gives what the original gives."""
    scan = log.scan(2, columns=["seq", "value"], batch_rows=1)
    wanted = scan.to_arrow().to_pylist()
    assert [row["value"] for row in wanted] == [b"b", b"c"]
    for again in (pickle.loads(pickle.dumps(scan)), copy.copy(scan), copy.deepcopy(scan)):
        assert again.to_arrow().to_pylist() == wanted
    assert pickle.loads(pickle.dumps(log.steward))._log.path == log.path


def test_a_reader_refuses_to_be_copied(log: penstock.Log) -> None:
    """A reader says that the log and its position can be sent instead, and goes on unharmed."""
    reader = log.read()
    next(reader)
    refused: list[Callable[[object], object]] = [copy.copy, copy.deepcopy]
    refused += [functools.partial(pickle.dumps, protocol=p) for p in range(6)]
    for use in refused:
        with pytest.raises(penstock.WrongType, match=r"reader\.position, now 2"):
            use(reader)
    assert [e.seq for e in reader] == [2, 3]


def test_in_asks_for_a_seq(log: penstock.Log) -> None:
    """``seq in log`` says whether an event has that seq, for anything that is an index."""
    assert [n for n in range(6) if n in log] == [1, 2, 3]
    assert 2**63 not in log
    assert 2**64 not in log
    assert 2**2000 not in log
    with pytest.raises(penstock.Usage, match="-1"):
        assert -1 in log
    for other in ("a", b"a", None, 1.0, True, [1], object()):
        with pytest.raises(penstock.WrongType):
            assert other in log


def test_in_asks_for_an_event(log: penstock.Log, tmp_path: Path) -> None:
    """An event is in the log that it came from; another log's with the same seq is not."""
    assert log[2] in log
    assert pickle.loads(pickle.dumps(log[2])) in log
    with penstock.create(tmp_path / "other") as other:
        other.extend([b"x", b"y"])
        assert other[2] not in log


def test_in_knows_what_is_gone(tmp_path: Path) -> None:
    """What a ring has overwritten, and what is in a segment that is missing, is not there."""
    with penstock.create(tmp_path / "a.ring", ring="64KiB") as ring:
        ring.extend([b"v" * 50] * 200)
        for _ in range(20):
            ring.extend([b"v" * 50] * 100)
        first, last = ring.first_seq, ring.last_seq
        assert first > 1
        for seq in (1, first - 1, last + 1):
            assert seq not in ring
        for seq in (first, (first + last) // 2, last):
            assert seq in ring
    with penstock.create(tmp_path / "log", segment_size="64KiB") as log:
        for _ in range(3):
            log.extend([b"v"] * 10)
            log.steward.roll()
    middle = sorted((tmp_path / "log").glob("*[0-9].*"))[1:2] or [_second(tmp_path / "log")]
    middle[0].unlink()
    with penstock.open(tmp_path / "log", "r") as log:
        assert [n for n in range(32) if n in log] == [*range(1, 11), *range(21, 31)]


def _second(path: Path) -> Path:
    return sorted(p for p in path.iterdir() if p.suffix == ".seg")[1]


def test_in_does_not_walk_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``in`` finds its answer by the index: no reader goes over the events."""
    with penstock.create(tmp_path / "log") as log:
        log.extend([b"v"] * 1000)

        def walk(*_: object, **__: object) -> None:
            raise AssertionError("the log was walked")

        monkeypatch.setattr(type(log), "read", walk)
        monkeypatch.setattr(type(log), "__iter__", walk)
        assert 500 in log
        assert 5000 not in log
