"""Registration of the data source with a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqstore.spark._session import require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Registers the format ``mqstore`` with a session.

    This is needed only if Spark does not find it: Spark searches the driver's path for modules named ``pyspark_*``.

    Args:
        spark: the session.
    """
    from pyspark_mqstore import DefaultSource

    require(spark)
    spark.dataSource.register(DefaultSource)


register.__module__ = "mqstore.spark"
