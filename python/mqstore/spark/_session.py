"""What is asked of a Spark session, without importing PySpark before it is needed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from mqstore.errors import MQStoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MISSING = 'mqstore.spark needs PySpark 4.1 or newer, pyarrow and pandas: pip install "mqstore[spark]"'


def require(spark: SparkSession) -> None:
    """Makes sure that the libraries are there and that ``spark`` is a session.

    Raises:
        ImportError: PySpark, pyarrow or pandas is missing.
        TypeError: ``spark`` is something else.
    """
    # Spark's mapInArrow asks for pandas on the driver.
    for name in ("pyspark", "pyarrow", "pandas"):
        if find_spec(name) is None:
            raise ImportError(_MISSING, name=name)
    if not callable(getattr(spark, "range", None)):
        msg = f"spark must be a SparkSession, not {type(spark).__name__}"
        raise TypeError(msg)


def begin(master: str) -> SparkSession:
    """A session for the command line.

    Raises:
        MQStoreError: PySpark is missing.
    """
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError:
        raise MQStoreError(_MISSING) from None
    builder = SparkSession.builder.master(master).appName("mqstore").config("spark.ui.showConsoleProgress", "false")
    return builder.getOrCreate()


def last_line(error: BaseException, mark: str) -> str | None:
    """What follows ``mark`` in the text of an error that came back from an executor, up to the end of that line."""
    lines = [line.partition(mark)[2].strip() for line in str(error).splitlines() if mark in line]
    return lines[-1] if lines else None


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
