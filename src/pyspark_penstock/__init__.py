"""Where Spark finds the data source ``penstock`` by itself.

Spark imports every top-level module whose name begins with ``pyspark_`` and registers its
``DefaultSource``. If one of them fails to import, all are lost. So this module imports only Spark's
base class; everything else is imported when the source is used.
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
        """The name for ``format()``."""
        return "penstock"

    def schema(self) -> StructType:
        """The columns of a read without a schema of the user."""
        from penstock.spark.quirks import prepare_worker
        from penstock.spark.read.source import schema

        prepare_worker()
        return schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``."""
        from penstock.spark.quirks import prepare_worker
        from penstock.spark.read.source import table_reader

        prepare_worker()
        return table_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For ``spark.readStream``."""
        from penstock.spark.read.stream import StreamReader

        return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """For ``df.write``."""
        from penstock.spark.quirks import prepare_worker
        from penstock.spark.write.sink import TableWriter

        prepare_worker()
        return TableWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """For ``df.writeStream``."""
        from penstock.spark.quirks import prepare_worker
        from penstock.spark.write.sink import StreamWriter

        prepare_worker()
        return StreamWriter(self.options, schema, overwrite)
