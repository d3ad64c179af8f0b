"""Read the demo's collection in plain PySpark.

``make demo``, then ``python examples/flights_on_spark.py``.
Nothing of tidelog is imported: that it is installed is enough, where Spark's workers find it. They
run PATH's ``python3`` unless PYSPARK_PYTHON says otherwise, so activate the virtual environment,
or set that.
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
