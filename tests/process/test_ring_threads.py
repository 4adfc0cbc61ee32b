"""Threads of one handle of a ring that is resized or closed under them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle

import pytest

import penstock
from penstock import Closed
from tests.support.fixtures import STORM
from tests.support.scene import Scene

pytestmark = pytest.mark.process

SECONDS = 20.0 if STORM else 2.5


def follow(log: penstock.Log) -> None:
    for _ in log.follow("start", timeout=0.01, on_gap="skip"):
        pass


def sync_all(log: penstock.Log) -> None:
    last = log.sync()
    assert log.durable_seq >= last


def look_up(log: penstock.Log) -> None:
    first, last = log.first_seq, log.last_seq
    assert first <= last + 1
    try:
        assert log[last].seq == last
        assert log[max(first, 1)].seq >= 1
    except penstock.NotFound:
        pass  # dropped, or there was none yet


def scan(log: penstock.Log) -> None:
    seqs = log.scan(columns=["seq"], on_gap="skip").to_arrow().column("seq").to_pylist()
    assert seqs == sorted(set(seqs))


WORK: dict[str, Callable[[penstock.Log], object]] = {
    "append": lambda log: log.append(b"x" * 300),
    "extend": lambda log: log.extend([b"y" * 100] * 20),
    "durable": lambda log: log.append(b"z", durable=True),
    "produce": lambda log: log.append(b"p", producer=("who", time.monotonic_ns())),
    "configure": lambda log: log.configure(file_mode=0o600),
    "sync": sync_all,
    "read": lambda log: sum(1 for _ in log.read(on_gap="skip")),
    "back": lambda log: sum(1 for _ in reversed(log)),
    "by time": lambda log: sum(1 for _ in log.read(since=1, on_gap="skip")),
    "follow": follow,
    "look up": look_up,
    "scan": scan,
    "stats": lambda log: (log.stats(), len(log), log.settings, log.durable_seq),
    "wait": lambda log: log.wait(0.001),
}


def keep_at(
    log: penstock.Log, kinds: list[str], meanwhile: Callable[[threading.Event], None]
) -> dict[str, BaseException]:
    """One thread for each kind of work, until it fails or is told to stop; how they failed."""
    ends: dict[str, BaseException] = {}
    stop = threading.Event()

    def run(kind: str) -> None:
        try:
            while not stop.is_set():
                WORK[kind](log)
        except BaseException as error:
            ends[kind] = error

    threads = [threading.Thread(target=run, args=(kind,)) for kind in kinds]
    for thread in threads:
        thread.start()
    meanwhile(stop)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return ends


def resize_under(path: str, kinds: list[str], seconds: float) -> None:
    """Resize a ring all the time while other threads of the handle use it."""
    sys.setswitchinterval(1e-5)
    deadline = time.monotonic() + seconds
    with penstock.create(path, ring="64KiB") as log:

        def resize(stop: threading.Event) -> None:
            try:
                for size in cycle(("40KiB", "128KiB", "64KiB")):
                    log.resize(size)
                    if time.monotonic() >= deadline:
                        break
            finally:
                stop.set()

        ends = keep_at(log, kinds, resize)
        assert not ends, ends
        log.append(b"last")
        seqs = [event.seq for event in log]
        assert seqs == list(range(log.first_seq, log.last_seq + 1))
    report = penstock.verify(path)
    assert report.ok and not report.problems, report
    with penstock.open(path) as log:
        assert [event.seq for event in log] == seqs


def close_under(path: str, kinds: list[str], nth: int) -> None:
    """Close a ring while other threads of the handle use it: they end with Closed."""
    sys.setswitchinterval(1e-5)
    log = penstock.create(path, ring="64KiB")
    log.extend([b"first"] * 50)

    def close(stop: threading.Event) -> None:
        time.sleep(0.001 * (nth % 7))
        log.close()

    ends = keep_at(log, kinds, close)
    assert {type(end) for end in ends.values()} == {Closed}, ends
    assert len(ends) == len(kinds)
    report = penstock.verify(path)
    assert report.ok and not report.problems, report


def in_worker(scene: Scene, function: str, **args: object) -> Callable[[], None]:
    return scene.run(
        "run_in_worker", module=__name__, function=function, args={"path": str(scene.path)} | args
    ).done


@pytest.mark.parametrize("share", [0, 1])
def test_resize_under_threads(scene: Scene, share: int) -> None:
    """Whatever threads of the handle do meanwhile goes on in the new file."""
    kinds = list(WORK)[share::2]
    in_worker(scene, "resize_under", kinds=kinds, seconds=SECONDS)()


def test_close_under_threads(scene: Scene) -> None:
    """Closing a handle that other threads use ends them with Closed and nothing worse."""
    for nth in range(60 if STORM else 6):
        run = partial(in_worker, scene, "close_under", kinds=list(WORK), nth=nth)
        scene.path = scene.file(f"ring{nth}")
        run()()
