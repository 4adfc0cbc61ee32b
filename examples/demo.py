"""A year of flights through logs into a lake, while a writer is killed; all counts must agree.

    python -m examples.demo [--dir PATH] [--flights N]

The 336 776 flights that left New York in 2013 are events here. Four writers append them to two
logs at full speed; one of them is killed with SIGKILL half-way and replaced by another, which
continues where it stopped. Meanwhile Spark reads them from the logs, each exactly once, into a
directory of Parquet files, and into a table of delays by airport and hour. At the end everything
is counted again by other means, and must agree.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

import penstock
from examples import checks, flights, streams, writers
from penstock.spark import lake

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

ROOT = Path(__file__).parents[1]
VICTIM = 2
MARK = ".penstock-demo"  # marks a directory that a demo made and may delete


class Display:
    """One live line on a terminal; elsewhere a line every two seconds."""

    def __init__(self) -> None:
        self._live = sys.stdout.isatty()
        self._began = time.monotonic()
        self._shown = 0.0

    def show(self, line: str) -> None:
        """Show the progress."""
        now = time.monotonic()
        if self._live:
            print(f"\r\033[K{line[: shutil.get_terminal_size().columns - 1]}", end="", flush=True)
        elif now - self._shown >= 2:
            print(line, flush=True)
            self._shown = now

    def say(self, text: str) -> None:
        """Print a separate line, with the seconds since the beginning."""
        start = "\r\033[K" if self._live else ""
        print(f"{start}{time.monotonic() - self._began:5.1f} s  {text}", flush=True)


class Demo:
    """The demo: what runs, and where it stores its files."""

    def __init__(self, where: Path, table: pa.Table, display: Display) -> None:
        self.where = where
        self.table = table
        self.display = display
        self.logs = [writers.log_path(where, n) for n in range(writers.LOGS)]
        self.notes = writers.Notes(where / "notes", create=True)
        self.lake = streams.Lake(where / "lake")
        self.delays = streams.Delays(where / "delays.parquet")
        self.writers: dict[int, subprocess.Popen[bytes]] = {}
        self.write_seconds = 0.0
        self.spark_seconds = 0.0
        self.interrupted = False

    def run(self) -> None:
        """Write and stream at the same time, until all events have been processed."""
        flights.save(self.table, self.where / "flights.arrow")
        for path in self.logs:
            penstock.open(path).close()
        self.display.say("starting Spark…")
        spark = streams.session(self.where / "scratch", self.where / "spark.log")
        # Ctrl-C is noted and not raised, so that it never interrupts a call to Java.
        signal.signal(signal.SIGINT, self._interrupt)
        queries: list[StreamingQuery] = []
        try:
            queries.append(self.lake.start(spark, self.where / "flights"))
            checkpoint = self.where / "delays.checkpoint"
            queries.append(self.delays.start(spark, self.where / "flights", checkpoint))
            self._wait(
                queries,
                lambda: all(_is_waiting(query) for query in queries),
                lambda: "         the streams begin…",
            )
            self.display.say(f"two streams wait for events; {writers.WRITERS} writers begin")
            self._write_and_follow(queries)
        finally:
            for process in self.writers.values():
                process.kill()
                process.wait()
            logging.disable(logging.ERROR)  # hides that a stream was stopped in a batch
            for query in queries:
                query.stop()
            streams.end(spark)
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _interrupt(self, *_: object) -> None:
        self.interrupted = True

    def _write_and_follow(self, queries: list[StreamingQuery]) -> None:
        total: int = self.table.num_rows
        began = 0.0
        half = total // writers.WRITERS // 2
        for n in range(writers.WRITERS):
            self.writers[n] = writers.start(self.where, n, half if n == VICTIM else None)

        def is_through() -> bool:
            nonlocal began
            now = time.monotonic()
            if self.notes.total():
                began = began or now
            if self._are_writing():
                self.write_seconds = now - (began or now)
            self.spark_seconds = now - (began or now)
            return self.lake.rows >= total and self.delays.flights >= total

        self._wait(queries, is_through, self._state)

    def _are_writing(self) -> bool:
        """Whether writers are running; one that was killed is replaced."""
        victim = self.writers[VICTIM]
        if victim.poll() == -signal.SIGKILL:
            done = self.notes[VICTIM]
            self.display.say(
                f"writer {VICTIM} was killed with SIGKILL after {done:,} acknowledged events; "
                "another continues there"
            )
            self.writers[VICTIM] = writers.start(self.where, VICTIM)
        for n, process in self.writers.items():
            if process.poll() and not self.interrupted:  # Ctrl-C may reach a new one
                raise SystemExit(f"writer {n} failed with exit code {process.returncode}")
        return any(process.poll() is None for process in self.writers.values())

    def _state(self) -> str:
        return (
            f"         {self.notes.total():>9,} written   {self.lake.rows:>9,} in the lake   "
            f"{self.delays.flights:>9,} in the delays"
        )

    def _wait(
        self, queries: list[StreamingQuery], is_over: Callable[[], bool], state: Callable[[], str]
    ) -> None:
        """Show the progress until the end."""
        while not is_over():
            if self.interrupted:
                raise KeyboardInterrupt
            for query in queries:
                if (error := query.exception()) is not None:
                    raise SystemExit(f"a stream failed; see {self.where / 'spark.log'}\n{error}")
            self.display.show(state())
            time.sleep(0.05)

    def report(self) -> bool:
        """Print all counts, and whether they agree."""
        total = self.table.num_rows
        done = lake.compact(self.lake.path)
        self.display.say(f"compacted {done.files_before} files of the lake into {done.files_after}")
        agree = True
        print(f"\n{'flights in the file':<32} {total:>9,}")
        for check in checks.checks(
            self.table, self.notes.total(), self.logs, self.lake.path, self.delays.path
        ):
            agree = agree and check.good
            print(f"{check.what:<32} {check.found:>9,}  {'ok' if check.good else 'WRONG'}")
        print("\nThe ten longest delays")
        for row in checks.worst(checks.read_lake(self.lake.path), 10):
            print(
                f"  {row['dep_delay']:>5} min  {row['carrier']} {row['flight']:<5} {row['origin']} "
                f"to {row['dest']}  {row['timestamp']:%Y-%m-%d %H:%M} UTC"
            )
        rates = total / max(self.write_seconds, 0.001), total / max(self.spark_seconds, 0.001)
        print(f"\nwritten at {rates[0]:,.0f} events/s, by processes that make the JSON too")
        print(f"through two streams at {rates[1]:,.0f} rows/s, in {len(self.lake.batches)} batches")
        print(f"\nlogs    {self.where / 'flights'}\nlake    {self.lake.path}")
        print(f"delays  {self.delays.path}\n")
        return agree


def _is_waiting(query: StreamingQuery) -> bool:
    return "Waiting for data" in str(query.status["message"])


def prepare(where: Path) -> None:
    """Make the directory, replacing that of an earlier run."""
    if where.exists() and any(where.iterdir()):
        if not (where / MARK).exists():
            raise SystemExit(
                f"{where}: must be empty or from an earlier demo; choose another --dir"
            )
        shutil.rmtree(where)
    where.mkdir(parents=True, exist_ok=True)
    (where / MARK).touch()


def main() -> int:
    """Run the demo; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--dir", type=Path, default=ROOT / "build" / "demo", help="where results go (%(default)s)"
    )
    parser.add_argument("--flights", type=int, metavar="N", help="only the first N flights")
    given = parser.parse_args()
    missing = streams.why_no_spark()
    if missing is not None:
        print(missing, file=sys.stderr)
        return 1
    where = given.dir.absolute()
    prepare(where)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    display = Display()
    try:
        table = flights.read()[: given.flights]
        display.say(f"{table.num_rows:,} flights are read from the file")
        demo = Demo(where, table, display)
        demo.run()
        agree = demo.report()
    except KeyboardInterrupt:
        print("\nstopped")
        return 130
    finally:
        for name in ("scratch", "delays.checkpoint"):
            shutil.rmtree(where / name, ignore_errors=True)
        for name in ("notes", "flights.arrow"):
            (where / name).unlink(missing_ok=True)
    display.say("all counts agree" if agree else "THE COUNTS DO NOT AGREE")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
