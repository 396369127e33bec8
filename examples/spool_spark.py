"""What waits in a spool, read with PySpark: `python examples/spool_spark.py FOLDER`."""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

SCHEMA = """
    queue STRING, partition STRING, payload STRING, transaction_id STRING, trace_id STRING,
    namespace STRING, task STRING, org STRING, key STRING, headers MAP<STRING, STRING>,
    priority INT, deliver_at TIMESTAMP, expires_at TIMESTAMP, accepted_at TIMESTAMP,
    seq BIGINT, doubt BOOLEAN, crc BIGINT
"""
CRC = r'^(.*),"crc":(\d{1,10})\}$'
FILES = {"pathGlobFilter": "*_*.buf{,.tmp}", "lineSep": "\n"}


def events(spark: SparkSession, folder: str, schema: str = SCHEMA) -> DataFrame:
    """The events of all files; their order is by (file, seq)."""
    found = spark.read.schema(schema).options(**FILES).json(folder)
    return found.withColumn("file", F.col("_metadata.file_name"))


def waiting(found: DataFrame) -> DataFrame:
    """How many events of each queue wait, by the hour in which they were accepted."""
    hour = F.date_trunc("hour", "accepted_at").alias("hour")
    counted = found.groupBy("org", "queue", hour).agg(F.count("*").alias("events"))
    return counted.orderBy("org", "queue", "hour")


def damaged(spark: SparkSession, folder: str) -> DataFrame:
    """The lines whose checksum does not hold; blank ones were taken out on purpose."""
    texts = spark.read.options(**FILES).text(folder).where(F.trim("value") != "")
    before = F.regexp_extract("value", CRC, 1)
    told = F.regexp_extract("value", CRC, 2).try_cast("BIGINT")
    is_whole = F.crc32(F.encode(before, "UTF-8")).eqNullSafe(told)
    return texts.where(~is_whole).select(F.col("_metadata.file_name").alias("file"), "value")


def main(folder: str) -> None:
    spark = SparkSession.builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    waiting(events(spark, folder)).show(truncate=False)
    print(damaged(spark, folder).count(), "damaged lines")


if __name__ == "__main__":
    main(sys.argv[1] if sys.argv[1:] else "spillway-data/spool")
