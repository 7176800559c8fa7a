"""Registers the data source ``mqstore`` with Spark, which imports every module named ``pyspark_*``.

This module imports nothing of mqstore, because a failed import of one such module stops all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """The data source ``spark.read.format("mqstore")``; ``docs/spark.md`` lists its options."""

    @classmethod
    def name(cls) -> str:
        """Returns the name of the format."""
        return "mqstore"

    def schema(self) -> StructType:
        """Returns the columns that the options select."""
        from mqstore.spark import _source

        return _source.schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Returns the reader of a store at its current end."""
        from mqstore.spark import _source

        return _source.reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Returns the reader of a growing store."""
        from mqstore.spark import _source

        return _source.stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Returns the writer that appends rows to a store."""
        from mqstore.spark import _source

        return _source.writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Returns the writer that appends the rows of a stream to a store, each batch once."""
        from mqstore.spark import _source

        return _source.stream_writer(self.options, schema, overwrite)
