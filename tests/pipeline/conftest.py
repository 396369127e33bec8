"""One Spark for all tests of this folder: local, small, on the Java of the test run."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Its life is short: what compiles quickly and with few threads costs it least."""


@pytest.fixture(scope="session")
def spark(java_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of this run; to start a second one would cost as many seconds again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(java_home))
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("SPARK_SUBMIT_OPTS", JVM)
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.delenv("SPARK_HOME", raising=False)
        warehouse = str(tmp_path_factory.mktemp("warehouse"))
        builder = SparkSession.builder.master("local[2]").appName("spillway")
        session = builder.config(
            map=SETTINGS | {"spark.sql.warehouse.dir": warehouse}
        ).getOrCreate()
    yield session
    gateway = SparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # at the end of its input the JVM goes
    gateway.proc.wait(30)
