"""Makes, copies, pickles, subclasses and calls every class of Penstock wrongly, each in a process.

``python -m tests.support.mishandle`` prints one JSON object: for every class how its process ended,
and what it said outside of exceptions.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib
import itertools
import json
import logging
import operator
import os
import pickle
import pkgutil
import random
import resource
import signal
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import penstock
from penstock import _core
from penstock.handle import handle
from tests.support.odd import ODD

PATIENCE = 60.0  # seconds for one class
CALL_SECONDS = 0.02  # for one call, which may wait if it is told to
AGAIN_SECONDS = 0.5  # until it is told once more: an alarm that another thread gets wakes nobody
MEMORY = 1 << 30  # bytes that a child may take beyond what it has: a tuple * 2**31 is 16 GiB


class _Late(BaseException):
    pass


class _Calling:
    """Whether a call is under way, which an alarm may end."""

    now = False


def _late(_: int, frame: types.FrameType | None) -> None:
    """End the call that is under way; one inside a ``__del__`` when the alarm comes again."""
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return  # nobody could catch it, and what a slow machine did would look like noise
        frame = frame.f_back
    if _Calling.now:
        raise _Late


def classes() -> dict[str, type]:
    """Every class that a module of Penstock defines, but for those that need Spark."""
    names = ["penstock", "penstock._core"]
    names += [m.name for m in pkgutil.walk_packages(penstock.__path__, "penstock.")]
    found = {}
    for name in names:
        if name.startswith("penstock.spark") or name.endswith("__main__"):
            continue
        module = importlib.import_module(name)
        for cls in vars(module).values():
            if isinstance(cls, type) and cls.__module__.startswith("penstock"):
                found[f"{cls.__module__}.{cls.__qualname__}"] = cls
    return found


LATE = object()  # what a call gives that waits


def _attempt(call: Callable[..., Any], *args: Any) -> Any:
    """What a call gives, however it fails; None if it raises."""
    try:
        try:
            _Calling.now = True
            signal.setitimer(signal.ITIMER_REAL, CALL_SECONDS, AGAIN_SECONDS)
            return call(*args)
        finally:
            _Calling.now = False
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _Late:
        _Calling.now = False  # it may have come before that was said
        signal.setitimer(signal.ITIMER_REAL, 0)
        return LATE
    except (Exception, SystemExit, GeneratorExit):
        return None


def _some_odd(rng: random.Random, count: int) -> list[Any]:
    return [ODD[name]() for name in rng.choices(list(ODD), k=count)]


def made(cls: Any, rng: random.Random) -> Iterator[Any]:
    """Instances of a class, by every way to make one that lets them be."""
    yield _attempt(cls)
    for base in cls.__mro__:
        yield _attempt(base.__new__, cls)
    for count in (1, 1, 1, 2, 2, 3, 4, 9):
        args = _some_odd(rng, count)
        yield _attempt(cls, *args)
        yield _attempt(cls.__new__, cls, *args)
    with contextlib.suppress(TypeError):  # some may not be subclassed
        careless: Any = type("Careless", (cls,), {"__init__": lambda self, *args: None})
        yield _attempt(careless)
        yield _attempt(careless.__new__, careless)


def _pickled(it: Any, protocol: int) -> None:
    pickle.loads(pickle.dumps(it, protocol))


def _entered(it: Any) -> None:
    with it:
        pass


LOOKS = (repr, str, hash, bool, len, bytes, memoryview, iter, dir, vars, copy.copy, copy.deepcopy)
NOT_CALLED = ("__class__", "__init_subclass__", "__subclasshook__")


def use(it: Any, rng: random.Random, names: list[str], rounds: int) -> None:
    """Copy, pickle and look at an object, and call all of its methods with odd arguments."""
    for look in LOOKS:
        _attempt(look, it)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        _attempt(_pickled, it, protocol)
    _attempt(operator.eq, it, it)
    _attempt(lambda: list(itertools.islice(it, 3)))
    _attempt(_entered, it)
    for name in names:
        found = _attempt(getattr, it, name)
        if not callable(found) or name in NOT_CALLED:
            continue
        for turn in range(rounds):
            if _attempt(found, *_some_odd(rng, turn % 4)) is LATE:
                break


def _names(cls: type) -> list[str]:
    return [n for n in dir(cls) if n not in dir(object) or n in vars(cls)]


def live(place: Path) -> dict[str, Callable[[], Any]]:
    """How to get an honest object of every compiled class that Python code can get at."""

    numbers = itertools.count()

    def log() -> Any:
        made = penstock.open(place / f"log{next(numbers)}", segment_size="64KiB")
        for _ in range(3):
            made.extend([b"v" * 100] * 300, key=b"k", topic="t")
        return made

    def ring_log() -> Any:
        made = penstock.open(place / f"{next(numbers)}.ring", ring="64KiB", when_full="block")
        made.extend([b"v" * 100] * 100, key=b"k", topic="t")
        return made

    def sealed() -> Any:
        made = log()
        return made._storage.segment_for(made, 1)

    def held() -> Any:
        made = ring_log()
        return made._storage.take_hold(made, 1)

    def ring_map() -> Any:
        made = ring_log()
        return made._storage.finder.map

    def reading() -> Any:
        return penstock.open(log().path, "r")

    def table() -> Any:
        return pa.table({"value": [b"a", b"b", None], "key": [b"1", b"2", b"3"]})

    def intake() -> Any:
        return log()._intake(table(), *[None] * 9)

    def staged() -> Any:
        given = _core.rows_to_stage(table(), "x", None, None, None, None, None, 0)
        data, _, digest = _core.stage_frames(given, 1, 0, 0)
        frames = _core.StagedFrames()
        frames.add(data, 3, digest, "x")
        return frames

    def rows() -> Any:
        scan = log().scan()
        return scan._reader(*scan._begin(), 10, 1000)

    def frames() -> Any:
        made = log()
        m = made._active_map
        scan = _core.FrameScan(m.data_offset, m.base_seq, m.file_bytes, copy_to=m.data_offset)
        scan.feed(m.bytes_at(m.data_offset, 4096))
        scan.run()
        return scan

    def survey() -> Any:
        m = log()._active_map
        found = _core.KeySurvey(1 << 20, bytearray(1 << 16), b"s" * 16, print)
        found.take(m, 0, m.data_offset, 0)
        return found

    def living() -> Any:
        m = log()._active_map
        return _core.LiveFrames(m, m.data_offset, key=b"k", out_at=m.data_offset)

    writers: list[Any] = []

    def kept() -> Any:
        writers.append(log())
        return writers[-1]

    def beside_a_writer() -> Any:
        return penstock.open(kept().path, "r")

    def gathering() -> Any:
        return log()._gathering([b"a", b"b"], 1000, 10, b"k", *[None] * 7)

    def watching() -> Any:
        waits = _core.Waits()
        waits.watch(log())
        return waits

    core: Any = _core  # also what its stub leaves out
    coder = core.Coder("bytes")
    columns = [(name, name) for name in _core.COLUMNS]
    return {
        "EventHeaders": lambda: core.EventHeaders((("a", b"1"), ("b", None))),
        "Ns": lambda: core.Ns(5),
        "ColumnBatch": lambda: rows().batch(),
        "BatchStream": lambda: _core.BatchStream(_core.Columns(columns), rows()),
        "Calls": lambda: handle._calls(penstock.Log, log()._storage),
        "Coder": lambda: log()._coder,
        "Columns": lambda: _core.Columns(columns),
        "ConsumerCore": lambda: log().consumer("c", timeout=0),
        "ConsumerCore of a ring": lambda: ring_log().consumer("c", hold=True, timeout=0),
        "ConsumerFile": lambda: log().consumer("c")._file,
        "Cursor": core.Cursor,
        "Control": lambda: log()._ctl,
        "Control of a reader": lambda: beside_a_writer()._ctl,
        "Event": lambda: log()[5],
        "Event of a ring": lambda: ring_log()[5],
        "Finder": core.Finder,
        "FrameScan": frames,
        "FrameScan, fresh": lambda: _core.FrameScan(4096, 1, 65536),
        "KeySurvey": survey,
        "LiveFrames": living,
        "Walked": _core.Walked,
        "StagedFrames": staged,
        "Gathered": lambda: next(gathering()),
        "Gatherer": lambda: core.Gatherer("x", coder, coder, *[None] * 7),
        "Gathering": gathering,
        "Given": lambda: next(intake()),
        "Guard": _core.Guard,
        "HandleCore": _core.HandleCore,
        "Hold": held,
        "Intake": intake,
        "Locked": lambda: log()._ctl.locked(0.01),
        "LogCore": log,
        "LogCore of a ring": ring_log,
        "LogCore, reading": reading,
        "Produced": core.Produced,
        "Query": lambda: core.Query(2, 5, topic=b"t", until_ns=1),
        "Merging": lambda: penstock.merge(log(), log()),
        "Waits": watching,
        "FlockBlock": lambda: _core.FlockBlock(kept()._ctl.held_fd),
        "Reader": lambda: log().read(),
        "Reader that follows": lambda: log().follow(1, timeout=0),
        "Reader that holds": lambda: ring_log().follow("start", hold=True, timeout=0),
        "Reader, reverse": lambda: ring_log().read(reverse=True),
        "RingFile": lambda: ring_log()._storage.finder,
        "RingCursor": core.RingCursor,
        "RingMap": ring_map,
        "RingWalk": ring_map,
        "RowReader": rows,
        "SegmentCursor": core.SegmentCursor,
        "SegmentFinder": core.SegmentFinder,
        "SegmentMap": lambda: log()._active_map,
        "SegmentMap, sealed": sealed,
        "StagedRows": lambda: staged().rows(),
    }


def _misuse_methods(cls: type, rng: random.Random) -> None:
    """Call the methods that a class has in itself with objects of other types as ``self``."""
    for name, found in vars(cls).items():
        if name in NOT_CALLED or name == "__new__":
            continue
        call = found if callable(found) else getattr(found, "__get__", None)
        if call is None or isinstance(found, (classmethod, staticmethod)):
            continue
        for it in (None, 1, object(), cls, *_some_odd(rng, 4)):
            for count in range(4):
                _attempt(call, it, *_some_odd(rng, count))


def _misuse_class(cls: type) -> None:
    rng = random.Random(cls.__qualname__)
    if cls.__module__ == "penstock._core":
        _misuse_methods(cls, rng)
    rounds = 6 if cls.__module__ == "penstock._core" else 3
    for it in made(cls, rng):
        if it is not None and it is not LATE:
            use(it, rng, _names(cls), rounds)


def _misuse_live(name: str, make: Callable[[], Any]) -> None:
    rng = random.Random(name)
    it = make()
    cls = getattr(_core, name.partition(",")[0].split()[0])
    assert isinstance(it, cls), (it, cls)
    # What ends an object comes last, and every few methods get a fresh one: it costs a log.
    methods = [m for m in _names(cls) if callable(_attempt(getattr, it, m))]
    methods.sort(key=lambda m: any(word in m for word in ("close", "exit", "stop", "end")))
    for i in range(0, len(methods), 8):
        use(make(), rng, methods[i : i + 8], 24)


def _unraisable(args: Any) -> list[str]:
    """What an exception says that nobody can catch; one that ends a thread of an odd name not."""
    if args.err_msg and "thread started" in args.err_msg:
        return []
    return [f"{args.err_msg} {args.object!r}: {args.exc_value!r}"]


def _limit_memory() -> None:
    """Have what wants gigabytes fail at once."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _in_child(work: Callable[..., None], *given: Any) -> str:
    """How a child ends that does the work: "" if well; else what happened."""
    sys.stdout.flush()
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(out)
        into = os.dup2(into, 200)  # where no odd number closes it
        said: list[str] = []
        sys.unraisablehook = lambda args: said.extend(_unraisable(args))
        logging.disable()
        signal.signal(signal.SIGALRM, _late)
        _limit_memory()
        try:
            work(*given)
            gc.collect()
        except BaseException as error:
            said.append(f"raised {error!r}")
        os.write(into, "\n".join(said)[:4000].encode(errors="replace"))
        os._exit(0)
    os.close(into)
    deadline = time.monotonic() + PATIENCE
    ended = 0
    while not ended and time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if not ended:
            time.sleep(0.002)
    if not ended:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(out)
        return f"did not end within {PATIENCE} s"
    with os.fdopen(out, "rb") as pipe:
        said_there = pipe.read().decode()
    if os.WIFSIGNALED(status):
        return f"died of signal {os.WTERMSIG(status)} {said_there}"
    return said_there or ("" if os.WEXITSTATUS(status) == 0 else f"exit status {status}")


def main() -> None:
    """Mishandle them all, below the directory given."""
    ends = {}
    with tempfile.TemporaryDirectory(dir=sys.argv[1]) as there:
        for i, (name, cls) in enumerate(classes().items()):
            place = Path(there) / str(i)
            place.mkdir()
            os.chdir(place)
            ends[name] = _in_child(_misuse_class, cls)
        for i, name in enumerate(live(Path(there))):
            place = Path(there) / f"live-{i}"
            place.mkdir()
            os.chdir(place)
            ends[f"live {name}"] = _in_child(_misuse_live, name, live(place)[name])
        os.chdir(sys.argv[1])
    print(json.dumps(ends))


if __name__ == "__main__":
    main()
