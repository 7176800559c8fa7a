"""Registers the data source ``mqstore`` with Spark, which imports every module called ``pyspark_*``.

Importing it imports nothing of mqstore: a module of this kind that fails to import takes all others with it.
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
    """``spark.read.format("mqstore")`` and its kin; what they take stands in ``docs/spark.md``."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "mqstore"

    def schema(self) -> StructType:
        """The columns that the options ask for."""
        from mqstore.spark import _source

        return _source.schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """What reads a store as it is now."""
        from mqstore.spark import _source

        return _source.reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """What reads a store as it grows."""
        from mqstore.spark import _source

        return _source.stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """What appends rows to a store."""
        from mqstore.spark import _source

        return _source.writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """What appends the rows of a stream to a store, each batch once."""
        from mqstore.spark import _source

        return _source.stream_writer(self.options, schema, overwrite)
