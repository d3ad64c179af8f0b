"""Read the demo's collection in plain PySpark.

Run ``make demo`` first, then ``python examples/flights_on_spark.py``.

The program imports nothing of tidelog, but Spark's workers must find it installed. Without
PYSPARK_PYTHON they run the first ``python3`` of PATH. So activate the virtual environment, or set
that variable.
"""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
url = (Path("demo-data") / "lake").absolute().as_uri()
spark = SparkSession.builder.master("local[2]").getOrCreate()

flights = (
    spark.read.format("tidelog")
    .option("location", url)
    .option("asOf", "2013-01-15T14:00:00Z")
    .load("airborne")
)
flights.groupBy("origin").agg(f.count("*").alias("in_the_air")).orderBy("origin").show()
spark.stop()
