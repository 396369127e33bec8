"""One Spark for all tests of this folder: local, small, on the Java of the test run."""

from collections.abc import Iterator

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


@pytest.fixture(scope="session")
def spark(
    spark_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """The session of this run; to start a second one would cost as many seconds again."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in spark_environment.items():
            patch.setenv(name, value)
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
