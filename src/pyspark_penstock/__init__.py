"""Where Spark finds the data source ``penstock`` by itself.

Spark imports every top-level module called ``pyspark_…`` and registers its ``DefaultSource``. One
that fails to import takes all others with it, so this imports nothing but Spark's own base class;
all else is imported when the source is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """The format "penstock": logs as a table, as a stream, and as a sink."""

    @classmethod
    def name(cls) -> str:
        """What is given to ``format()``."""
        return "penstock"

    def schema(self) -> StructType:
        """The columns, if the user gives none."""
        from penstock.spark.read.source import schema
        from penstock.spark.workers import settle

        settle()
        return schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``."""
        from penstock.spark.read.source import TableReader
        from penstock.spark.workers import settle

        settle()
        return TableReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For ``spark.readStream``."""
        from penstock.spark.read.stream import StreamReader

        return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """For ``df.write``."""
        from penstock.spark.workers import settle
        from penstock.spark.write.sink import TableWriter

        settle()
        return TableWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """For ``df.writeStream``."""
        from penstock.spark.workers import settle
        from penstock.spark.write.sink import StreamWriter

        settle()
        return StreamWriter(self.options, schema, overwrite)
