"""Registration of the data source with a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqstore.spark._session import require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Registers the format ``mqstore`` with a session, and makes the session the active one of this thread.

    This is needed only if Spark does not find the format. Spark searches the driver's path for modules named
    ``pyspark_*``, but ``DataFrame.write.save`` in a thread of your own looks only in the active session of the thread.
    Such a thread calls this function first.

    Args:
        spark: the session.
    """
    from pyspark_mqstore import DefaultSource

    require(spark)
    spark.dataSource.register(DefaultSource)
    # The public method that makes a classic session active in the JVM's thread.
    spark.createDataFrame([], "none int")


register.__module__ = "mqstore.spark"
