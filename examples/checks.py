"""The final checks of the demo, by other means than those that made the results.

The flights come from the file again, the logs are read with Penstock, the lake and the delays with
pyarrow: Spark is not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
from pyarrow import parquet

import penstock
from examples import flights


@dataclass(frozen=True)
class Check:
    """A number that was found, and the number that it must be."""

    what: str
    found: int
    wanted: int

    @property
    def good(self) -> bool:
        """Whether both are equal."""
        return self.found == self.wanted


def checks(
    wanted: pa.Table, acknowledged: int, logs: list[Path], lake: Path, delays: Path
) -> Iterator[Check]:
    """Every number that must agree."""
    count = wanted.num_rows
    yield Check("flights acknowledged", acknowledged, count)
    held = 0
    problems = 0
    for path in logs:
        with penstock.open(path, mode="r") as log:
            held += len(log)
            problems += not log.verify().ok
    yield Check("events in the logs", held, count)
    yield Check("logs with damage", problems, 0)

    rows = read_lake(lake)
    yield Check("rows in the lake", rows.num_rows, count)
    yield Check("bad records aside", _rows_below(lake.parent / f"_{lake.name}" / "bad"), 0)
    yield Check("events twice in the lake", count_twice(rows, ["log", "offset"]), 0)
    yield Check("flights twice in the lake", count_twice(rows, flights.IDENTITY), 0)
    yield Check("flights not in the lake", count_missing(wanted, rows, flights.IDENTITY), 0)
    yield Check(
        "rows unlike their flight", count_missing(_comparable(wanted), _comparable(rows)), 0
    )

    table = parquet.read_table(delays)
    yield Check("flights in the table of delays", pc.sum(table["flights"]).as_py() or 0, count)
    yield Check("its rows that differ", count_missing(by_hour(wanted), without_nulls(table)), 0)


def read_lake(path: Path) -> pa.Table:
    """The lake as any reader sees it: a directory of Parquet files."""
    return pyarrow.dataset.dataset(path, partitioning="hive").to_table()


def _rows_below(path: Path) -> int:
    return int(pyarrow.dataset.dataset(path).count_rows()) if any(path.glob("*.parquet")) else 0


def count_twice(table: pa.Table, names: list[str]) -> int:
    """The number of rows that have the same values in these columns as another row."""
    return int(table.num_rows - table.group_by(names).aggregate([]).num_rows)


def count_missing(wanted: pa.Table, found: pa.Table, names: list[str] | None = None) -> int:
    """Rows of ``wanted`` that ``found`` does not have, by these columns or by all."""
    names = names or wanted.column_names
    target = wanted.select(names).schema
    return int(
        wanted.select(names)
        .join(found.select(names).cast(target), keys=names, join_type="left anti")
        .num_rows
    )


def _comparable(table: pa.Table) -> pa.Table:
    """The columns of the file, in the types of the file."""
    names = [field.split()[0] for field in flights.SCHEMA.split(",")]
    columns = {
        name: table[name].cast(pa.timestamp("s", "UTC"))
        if name == "time_hour"
        else table[name].cast(pa.string())
        for name in names
    }
    return without_nulls(pa.table(columns))


def without_nulls(table: pa.Table) -> pa.Table:
    """The table with other values instead of nulls, which a join considers equal to nothing."""
    instead = {True: "none", False: -9999}
    for n, name in enumerate(table.column_names):
        if table[name].null_count:
            other = instead[pa.types.is_string(table[name].type)]
            table = table.set_column(n, name, pc.fill_null(table[name], other))
    return table


def by_hour(table: pa.Table) -> pa.Table:
    """Delays by airport and hour, computed from the flights themselves."""
    found = table.group_by(["origin", "time_hour"]).aggregate(
        [
            ([], "count_all"),
            ("dep_delay", "count"),
            ("dep_delay", "sum"),
            ("dep_delay", "max"),
        ]
    )
    names = ["airport", "hour", "flights", "departed", "delay_sum", "delay_max"]
    return without_nulls(found.rename_columns(names))


def worst(rows: pa.Table, count: int) -> list[dict[str, object]]:
    """The flights that left latest."""
    order = [("dep_delay", "descending"), ("time_hour", "ascending")]
    late = rows.filter(pc.is_valid(rows["dep_delay"])).sort_by(order)
    found: list[dict[str, object]] = late.slice(0, count).to_pylist()
    return found
