"""Events as Arrow or Parquet, written as a stream: memory does not grow with the log."""

from __future__ import annotations

import argparse
from typing import Any

from penstock.cli import options
from penstock.cli.out import Out
from penstock.errors import Usage
from penstock.system.needs import pyarrow


class ColumnForm:
    """Prints a scan as an Arrow stream or a Parquet file."""

    takes_scan = True

    def __init__(self, out: Out, name: str) -> None:
        if out.terminal:
            raise Usage(f"-o {name} is not for a terminal: send it to a file")
        self._out = out
        self._name = name
        pyarrow()  # an error here is better than one half-way

    def write(self, events: list[Any], source: str | None = None) -> None:
        raise Usage(f"-o {self._name} is for cat")

    def close(self) -> None:
        pass

    def write_scan(self, log: Any, given: argparse.Namespace) -> int | None:
        """Print what is selected."""
        if given.grep is not None or given.where is not None:
            raise Usage(f"--grep and --where are not for -o {self._name}; penstock sql can select")
        if given.reverse:
            raise Usage(f"-r is not for -o {self._name}")
        scan = log.scan(
            **options.seq_range(given, log),
            **options.time_options(given),
            **options.read_options(given),
            limit=options.limit_of(given),
        )
        rows = write_batches(self._name, scan.schema, scan.to_batches(), ByteSink(self._out))
        self._out.skip(scan.skipped, "events that are damaged or gone")
        return 3 if given.one and not rows else None


def write_batches(name: str, schema: Any, batches: Any, sink: Any) -> int:
    """Write record batches to a file object; returns how many rows."""
    pa = pyarrow()
    rows = 0
    if name == "arrow":
        with pa.ipc.new_stream(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
                rows += batch.num_rows
        return rows
    import pyarrow.parquet as pq

    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


class ByteSink:
    """A file for pyarrow that passes bytes on to stdout."""

    def __init__(self, out: Out) -> None:
        self._out = out
        self._at = 0
        self.closed = False

    def write(self, data: Any) -> int:
        raw = bytes(data)
        self._out.write(raw)
        self._at += len(raw)
        return len(raw)

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        self._out.flush()

    def close(self) -> None:
        self.closed = True

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False
