"""Shared by all benchmarks: rounds of two sides in turn, rows of results, child processes.

A figure is never taken alone. Both sides run in the same round, A B A B, and the result is
the median of the rounds' ratios, so that a machine that slows down slows both.
"""

from __future__ import annotations

import gc
import json
import mmap
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

ROOT = Path(__file__).resolve().parent.parent
VALUE_BYTES = 100

Better = Literal["higher", "lower"]
Verdict = Literal["ok", "aim reached", "BELOW BAR", "info", "skipped", "failed"]


@dataclass(frozen=True, slots=True)
class Bench:
    """One run: where to work, how long to measure, how to report."""

    directory: Path
    quick: bool = False

    @property
    def rounds(self) -> int:
        """The number of turns of each side."""
        return 3 if self.quick else 7

    def pick(self, full: int, quick: int) -> int:
        """An amount of work: the full one, or the one for a short run."""
        return quick if self.quick else full

    def say(self, text: str) -> None:
        """Report progress, separately from the results."""
        print(f"  {text}", file=sys.stderr, flush=True)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A temporary directory that is always deleted."""
        path = Path(tempfile.mkdtemp(prefix="bench-", dir=self.directory))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Row:
    """One result: what was done, how it compares, and what it should be."""

    work: str
    beside: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = "x"
    better: Better = "higher"
    bar: float | None = None
    aim: float | None = None
    ours: str = ""
    theirs: str = ""
    pages: str = ""
    note: str = ""
    problem: Verdict | None = None  # "skipped" or "failed"; then `note` says why
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """Compare the value with bar and aim."""
        if self.problem is not None or self.value is None:
            return self.problem or "failed"
        if self.bar is None:
            return "info"
        if self.aim is not None and self._reaches(self.aim):
            return "aim reached"
        return "ok" if self._reaches(self.bar) else "BELOW BAR"

    def _reaches(self, mark: float) -> bool:
        assert self.value is not None
        return self.value >= mark if self.better == "higher" else self.value <= mark


Side = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Pairs:
    """What both sides measured, round by round."""

    ours: list[float]
    theirs: list[float]

    @property
    def ratios(self) -> list[float]:
        """The ratio of ours to theirs in each round."""
        return [a / b for a, b in zip(self.ours, self.theirs, strict=True)]

    def row(self, work: str, beside: str, show: Callable[[float], str], **rest: Any) -> Row:
        """The row of these rounds: median ratio, and its range."""
        ratios = self.ratios
        return Row(
            work,
            beside,
            statistics.median(ratios),
            min(ratios),
            max(ratios),
            ours=show(statistics.median(self.ours)),
            theirs=show(statistics.median(self.theirs)),
            detail={"ours": self.ours, "theirs": self.theirs},
            **rest,
        )


def take_turns(bench: Bench, what: str, ours: Side, theirs: Side) -> Pairs:
    """Run both sides in turn, without the garbage collector, and note what each returns."""
    pairs = Pairs([], [])
    with no_gc():
        for i in range(bench.rounds):
            for side, results in ((ours, pairs.ours), (theirs, pairs.theirs)):
                gc.collect()
                claim_memory(bench)
                results.append(side())
            bench.say(f"{what}: round {i + 1} of {bench.rounds}, ratio {pairs.ratios[-1]:.2f}")
    return pairs


def claim_memory(bench: Bench) -> None:
    """Touch as much memory as a turn may need, and free it.

    The host of a virtual machine may have taken back free memory. The first access then waits for
    the host, five times as long as for the page itself; neither side should wait.
    """
    with mmap.mmap(-1, bench.pick(1 << 30, 512 << 20)) as area:
        for at in range(0, len(area), mmap.PAGESIZE):
            area[at] = 1


@contextmanager
def no_gc() -> Iterator[None]:
    """Disable the cyclic garbage collector while the clock runs, for both sides."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def some_values(count: int, nbytes: int = VALUE_BYTES) -> list[bytes]:
    """Distinct values, the same in every run."""
    source = random.Random(7)
    return [source.randbytes(nbytes) for _ in range(count)]


def million_per_s(rate: float) -> str:
    """A rate in events a second, as text."""
    return f"{rate / 1e6:.2f} M/s"


def gib_per_s(rate: float) -> str:
    """A rate in bytes a second, as text."""
    return f"{rate / 2**30:.2f} GiB/s"


def microseconds(ns: float) -> str:
    """A duration given in nanoseconds, as text."""
    return f"{ns / 1e3:.2f} µs"


def percentile(ordered: Sequence[int], share: float) -> int:
    """The value below which ``share`` of ``ordered`` is."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def own_bytes(file: str, field: str) -> int:
    """A field of a file of /proc/self about this process's memory."""
    for line in Path("/proc/self", file).read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/{file} has no line {field}")


def command(module: str, *arguments: object) -> list[str]:
    """The command line that runs one of these modules alone."""
    return [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]


class ToolRefused(Exception):
    """The tool that should have watched a program cannot work on this machine."""


def run_under(tool: Sequence[str], module: str, *arguments: object) -> str:
    """Run one of these modules to its end under a tool; returns what it wrote to stderr.

    A program that fails is an error. Only a tool that cannot do its work is `ToolRefused`.
    """
    done = subprocess.run(
        [*tool, *command(module, *arguments)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return done.stderr
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    name = Path(tool[0]).name
    for line in lines:
        if line.startswith(f"{name}: ") or "unhandled instruction" in line:
            raise ToolRefused(f"{name} cannot run here: {line}")
    raise RuntimeError(f"failed under {name}: {lines[-1]}")


@contextmanager
def child(module: str, *arguments: object, fds: Sequence[int] = ()) -> Iterator[Child]:
    """One of these modules as a process with pipes; killed at the end if it still runs.

    It has a separate session, so that Ctrl-C reaches it only through the parent.
    """
    process = subprocess.Popen(
        command(module, *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        pass_fds=fds,
        start_new_session=True,
    )
    try:
        yield Child(process)
    finally:
        process.kill()
        process.communicate()


@dataclass(frozen=True, slots=True)
class Child:
    """A child process that reads lines and answers in lines of JSON."""

    process: subprocess.Popen[str]

    def ask(self, line: str) -> None:
        """Send one line."""
        stdin = self._pipe(self.process.stdin)
        stdin.write(line + "\n")
        stdin.flush()

    def answer(self) -> Any:
        """Wait for one line of JSON."""
        line = self._pipe(self.process.stdout).readline()
        if not line:
            raise RuntimeError(f"a child ended early: {self.process.args!r}")
        return json.loads(line)

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe


def answer(data: object) -> None:
    """In a child: send one line of JSON to the parent."""
    print(json.dumps(data), flush=True)
