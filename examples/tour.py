"""Four writers, one follower and one kill on a single log; the counts must agree at the end.

    python examples/tour.py [--events N] [--dir PATH]

Every writer is a separate process that appends as fast as it can and counts acknowledged events
in shared memory. Half-way one of them is killed with SIGKILL and replaced. A follower sees
every event as it comes. Then all counts are compared with the log.
"""

from __future__ import annotations

import argparse
import mmap
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import penstock

WRITERS = 4
VICTIM = 2
FOLLOWED = WRITERS + 1  # the slot after those of the writers and of the replacement


class Board:
    """Counters that the processes share: one word for each writer, one for the follower."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if create:
            path.write_bytes(bytes(8 * (FOLLOWED + 1)))
        with path.open("r+b") as file:
            self._words = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")

    def get(self, slot: int) -> int:
        """The counter in ``slot``."""
        return self._words[slot]

    def put(self, slot: int, count: int) -> None:
        """Set the counter in ``slot``."""
        self._words[slot] = count


def write(where: Path, writer: int, events: int) -> None:
    """Append ``events`` events one by one, and count each one that was acknowledged."""
    board = Board(where / "board")
    topic = f"writer-{writer}"
    with penstock.open(where / "log", segment_size="8MiB") as log:
        for n in range(events):
            log.append(b"%d %d " % (writer, n) + b"." * (n % 200), topic=topic)
            board.put(writer, n + 1)


def follow(where: Path) -> None:
    """Count every event as it comes, and check that those of each writer come in order."""
    board = Board(where / "board")
    seen: Counter[bytes] = Counter()
    with penstock.open(where / "log", mode="r") as log:
        for count, event in enumerate(log.follow("start"), 1):
            assert event.value is not None
            writer, n, _ = event.value.split(b" ", 2)
            if int(n) != seen[writer]:
                sys.exit(f"seq {event.seq}: writer {writer!r} skipped from {seen[writer]} to {n!r}")
            seen[writer] += 1
            board.put(FOLLOWED, count)


def start(role: str, where: Path, *arguments: int) -> subprocess.Popen[bytes]:
    """Run this file again as a writer or as the follower."""
    words = [sys.executable, __file__, "--role", role, "--dir", str(where), *map(str, arguments)]
    return subprocess.Popen(words)


class Display:
    """One live line on a terminal; a line every second elsewhere."""

    def __init__(self) -> None:
        self._live = sys.stdout.isatty()
        self._began = time.monotonic()
        self._shown = 0.0
        self._last = (self._began, 0)

    def show(self, acknowledged: int, followed: int, total: int, note: str) -> None:
        """Show the progress."""
        now = time.monotonic()
        if not self._live and now - self._shown < 1:
            return
        before, count = self._last
        rate = (acknowledged - count) / max(now - before, 1e-9)
        self._shown = now
        self._last = (now, acknowledged)
        share = acknowledged / total
        bar = ("#" * round(30 * share)).ljust(30, ".")
        line = (
            f"[{bar}] {acknowledged:>9,} acknowledged  {rate:>9,.0f}/s  "
            f"follower {followed:>9,}  {note}"
        )
        print(f"\r{line:<110}" if self._live else line, end="" if self._live else "\n", flush=True)

    def say(self, text: str) -> None:
        """Print a separate line."""
        print(f"\r{text:<110}" if self._live else text, flush=True)


def run(where: Path, events: int) -> bool:
    """Run the tour; returns whether all counts agree."""
    board = Board(where / "board", create=True)
    log = penstock.open(where / "log", segment_size="8MiB")
    follower = start("follow", where)
    writers = {n: start("write", where, n, events) for n in range(WRITERS)}
    display = Display()
    total = events * WRITERS
    killed_at = 0
    try:
        while any(w.poll() is None for w in writers.values()):
            acknowledged = sum(board.get(n) for n in writers)
            stats = log.stats()
            note = f"{stats.segments} segments, {stats.takeovers} take-overs"
            display.show(acknowledged, board.get(FOLLOWED), total, note)
            if not killed_at and board.get(VICTIM) > events // 2:
                writers[VICTIM].send_signal(signal.SIGKILL)
                writers[VICTIM].wait()
                killed_at = board.get(VICTIM)
                display.say(f"SIGKILL to writer {VICTIM} after {killed_at:,} acknowledged events")
                writers[WRITERS] = start("write", where, WRITERS, events - killed_at)
            time.sleep(0.1)
        while board.get(FOLLOWED) < log.last_seq and follower.poll() is None:
            display.show(total, board.get(FOLLOWED), total, "the follower catches up")
            time.sleep(0.02)
        display.say("")
        return compare(log, board, set(writers))
    finally:
        for process in (*writers.values(), follower):
            process.kill()
            process.wait()
        log.close()


def compare(log: penstock.Log, board: Board, writers: set[int]) -> bool:
    """Print all counts; returns whether they agree."""
    held = Counter(event.topic for event in log)
    agree = True
    print(f"{'':<18} {'acknowledged':>12} {'in the log':>12}")
    for n in sorted(writers):
        acknowledged, found = board.get(n), held[f"writer-{n}"]
        # The killed writer may have committed an event that it could not count any more.
        good = acknowledged <= found <= acknowledged + (n == VICTIM)
        agree = agree and good
        name = f"writer {n}" + (" (killed)" if n == VICTIM else "")
        print(f"{name:<18} {acknowledged:>12,} {found:>12,}  {'ok' if good else 'WRONG'}")
    followed = board.get(FOLLOWED)
    good = followed == len(log) == sum(held.values())
    print(f"{'the follower saw':<18} {followed:>25,}  {'ok' if good else 'WRONG'}")
    stats = log.stats()
    print(
        f"{stats.segments} segments, {stats.disk_bytes / 1e6:.1f} MB on disk, {stats.rolls} rolls, "
        f"{stats.takeovers} take-overs, {stats.repairs} repairs"
    )
    return agree and good


def main() -> int:
    """Parse the arguments and run one of the roles."""
    parser = argparse.ArgumentParser(description="Four writers, a follower and a killed writer.")
    parser.add_argument("--events", type=int, default=600_000, help="events of each writer")
    parser.add_argument("--dir", type=Path, help="keep the log in this new directory")
    parser.add_argument("--role", choices=("write", "follow"), help=argparse.SUPPRESS)
    parser.add_argument("numbers", type=int, nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role == "write":
        write(arguments.dir, *arguments.numbers)
        return 0
    if arguments.role == "follow":
        follow(arguments.dir)
        return 0
    where = arguments.dir or Path(tempfile.mkdtemp(prefix="penstock-tour-"))
    where.mkdir(parents=True, exist_ok=True)
    try:
        began = time.monotonic()
        agree = run(where, arguments.events)
        verdict = "all counts agree" if agree else "THE COUNTS DO NOT AGREE"
        print(f"{verdict}, after {time.monotonic() - began:.1f} s")
        return 0 if agree else 1
    except KeyboardInterrupt:
        print("\nstopped")
        return 130
    finally:
        if arguments.dir is None:
            shutil.rmtree(where, ignore_errors=True)
        else:
            print(f"the log is in {where / 'log'}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
