"""Making the data source known to a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqstore.spark._session import require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Makes the format ``mqstore`` known to a session.

    Only needed where Spark does not find it by itself: it looks for modules called ``pyspark_*`` on the driver's path.

    Args:
        spark: the session.
    """
    from pyspark_mqstore import DefaultSource

    require(spark)
    spark.dataSource.register(DefaultSource)


register.__module__ = "mqstore.spark"
