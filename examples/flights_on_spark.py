"""Read the demo's collection in plain PySpark: ``make demo``, then ``python examples/flights_on_spark.py``.

Nothing of tidelog is imported: that it is installed is enough.
"""

from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

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
