"""Column types in Spark, and the Arrow schemas that Spark accepts. Pure.

Spark has no unsigned integers: each is read as the next wider signed type, and those of 64 bits as
``decimal(20, 0)``. Other types do not change.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from tidelog.errors import UsageError

_PLAIN: Final[dict[pa.DataType, type[spark.DataType]]] = {
    pa.bool_(): spark.BooleanType,
    pa.int8(): spark.ByteType,
    pa.int16(): spark.ShortType,
    pa.int32(): spark.IntegerType,
    pa.int64(): spark.LongType,
    pa.uint8(): spark.ShortType,
    pa.uint16(): spark.IntegerType,
    pa.uint32(): spark.LongType,
    pa.float32(): spark.FloatType,
    pa.float64(): spark.DoubleType,
    pa.string(): spark.StringType,
    pa.binary(): spark.BinaryType,
    pa.date32(): spark.DateType,
    pa.timestamp("us"): spark.TimestampNTZType,
    pa.timestamp("us", tz="UTC"): spark.TimestampType,
}


def spark_schema(schema: pa.Schema) -> spark.StructType:
    """Return the Spark schema for columns of canonical types; every column is nullable.

    Raises:
        UsageError: Spark has no such type; the message names the column.
    """
    fields = [spark.StructField(f.name, _spark_type(f.type, column=f.name)) for f in schema]
    return spark.StructType(fields)


def arrow_schema(schema: spark.StructType) -> pa.Schema:
    """Return the exact Arrow schema that Spark requires of batches.

    Raises:
        UsageError: Arrow has no such type; the message names the column.
    """
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except PySparkException as error:
        for field in schema if len(schema) > 1 else ():
            arrow_schema(spark.StructType([field]))  # This names the column.
        raise UsageError(
            f"the column {schema[0].name!r} has the type {schema[0].dataType.simpleString()}, "
            "which tidelog cannot store: cast it first, for example to a string"
        ) from error


def _spark_type(dtype: pa.DataType, *, column: str) -> spark.DataType:
    if dtype in _PLAIN:
        return _PLAIN[dtype]()
    if pa.types.is_uint64(dtype):
        return spark.DecimalType(20, 0)
    if pa.types.is_decimal(dtype) and 0 <= dtype.scale <= dtype.precision <= 38:
        return spark.DecimalType(dtype.precision, dtype.scale)
    if pa.types.is_time(dtype):
        return spark.TimeType(6)
    if pa.types.is_list(dtype):
        return spark.ArrayType(_spark_type(dtype.value_type, column=column))
    if pa.types.is_struct(dtype):
        inner = [spark.StructField(f.name, _spark_type(f.type, column=column)) for f in dtype]
        return spark.StructType(inner)
    raise UsageError(
        f"Spark has no type for column {column!r} of type {dtype}: name the other columns in the "
        "option 'columns'"
    )
