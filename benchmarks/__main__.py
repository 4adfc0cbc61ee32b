"""The command line: which benchmarks to run, where, and where the results go."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import (
    aio,
    append,
    archive,
    arrow,
    cli,
    codecs,
    compaction,
    consumers,
    durable,
    groups,
    imports,
    instructions,
    latency,
    memory,
    merge,
    open,
    processes,
    read,
    recovery,
    report,
    retention,
    ring,
    sizes,
    spark,
    syscalls,
    verify,
)
from benchmarks.harness import ROOT, Bench, Row

BENCHMARKS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "append": append.append,
    "archive": archive.archive,
    "extend": append.extend,
    "entries": append.entries,
    "producers": append.producers,
    "given-back": append.given_back,
    "iterate": read.iterate,
    "lookup": read.lookup,
    "json": codecs.json,
    "writers": processes.writers,
    "round-trip": latency.round_trip,
    "tail": latency.tail,
    "merge": merge.merge,
    "async-idle": aio.idle,
    "async-wake-up": aio.wake_up,
    "open": open.opening,
    "import": imports.imports,
    "cli": cli.cli,
    "memory": memory.memory,
    "syscalls": syscalls.syscalls,
    "durable": durable.durable,
    "group-commit": durable.group_commit,
    "periodic": durable.periodic,
    "recovery": recovery.recovery,
    "verify": verify.verify,
    "ring": ring.ring,
    "commit": consumers.commit,
    "consume": consumers.batches,
    "wake-up": consumers.wake_up,
    "compaction": compaction.compaction,
    "latest": compaction.latest,
    "groups": groups.groups,
    "group-redelivery": groups.redelivery,
    "scan": arrow.scan,
    "select": arrow.select,
    "extend-arrow": arrow.extend_arrow,
    "stream-memory": arrow.stream_memory,
    "spark-table": spark.table,
    "spark-stream": spark.stream,
    "spark-batch": spark.micro_batch,
    "spark-sink": spark.sink,
    "spark-memory": spark.memory,
    "retention": retention.retention,
    "sizes": sizes.sizes,
    "instructions": instructions.instructions,
}


def arguments() -> argparse.Namespace:
    """The command line's arguments."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help="benchmarks to run; all of them if none is named")
    parser.add_argument("--list", action="store_true", help="list the benchmarks and stop")
    parser.add_argument("--quick", action="store_true", help="less work and fewer rounds")
    parser.add_argument("--dir", type=Path, help="work below this directory, not a temporary one")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench.json", metavar="PATH")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a bar is missed")
    wanted = parser.parse_args()
    if unknown := [name for name in wanted.names if name not in BENCHMARKS]:
        parser.error(f"names must be some of {', '.join(BENCHMARKS)}, got {unknown[0]!r}")
    return wanted


def work_below(chosen: Path | None) -> Path:
    """The chosen directory, else the first temporary one on a disk."""
    if chosen is not None:
        chosen.mkdir(parents=True, exist_ok=True)
        return chosen.resolve()
    candidates = [Path(tempfile.gettempdir()), Path("/var/tmp"), ROOT / "build"]
    for candidate in candidates:
        if candidate.is_dir() and report.file_system(candidate) not in ("tmpfs", "ramfs"):
            return candidate
    return candidates[0]


def run(bench: Bench, names: list[str], loads: list[float]) -> list[Row]:
    """Run them one after the other; a failure becomes a row that says so.

    ``loads`` gets the load average after each, which shows how busy the machine was otherwise.
    """
    rows: list[Row] = []
    for name in names:
        print(name, file=sys.stderr, flush=True)
        try:
            rows.extend(BENCHMARKS[name](bench))
        except Exception as error:
            rows.append(Row(name, "", problem="failed", note=f"{type(error).__name__}: {error}"))
            bench.say(f"failed: {error}")
        loads.append(os.getloadavg()[0])
    return rows


def main() -> int:
    """Run the chosen benchmarks; 0, or 1 if one failed or, with --strict, missed its bar."""
    wanted = arguments()
    if wanted.list:
        for name, function in BENCHMARKS.items():
            print(f"{name:14}{(function.__doc__ or '').splitlines()[0]}")
        return 0
    below = work_below(wanted.dir)
    about, used = report.machine(below), report.versions()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=below) as directory:
        loads = [os.getloadavg()[0]]
        rows = run(Bench(Path(directory), wanted.quick), wanted.names or list(BENCHMARKS), loads)
    about["load_average"] = f"{min(loads):.1f} to {max(loads):.1f}"
    report.print_setting(about, used)
    if wanted.markdown:
        report.print_markdown(rows)
    else:
        report.print_table(rows)
    report.write_json(wanted.json, rows, about, used, quick=wanted.quick)
    verdicts = {row.verdict for row in rows}
    return int("failed" in verdicts or (wanted.strict and "BELOW BAR" in verdicts))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nstopped; nothing was written", file=sys.stderr)
        sys.exit(130)
