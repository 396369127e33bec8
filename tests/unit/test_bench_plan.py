"""What the load process and the scenarios accept."""

import msgspec
import pytest

from spillway.bench.control import Address
from spillway.bench.errors import BenchError
from spillway.bench.plan import LoadPlan
from spillway.bench.workload import TABLE, workload

GOOD = {"host": "127.0.0.1", "port": 6632, "queue": "q", "producers": 2, "messages": 10}


def test_a_plan_survives_its_way_through_json():
    """What is written to stdin is what is read from it."""
    plan = msgspec.convert(GOOD, LoadPlan)
    assert msgspec.json.decode(msgspec.json.encode(plan), type=LoadPlan) == plan


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"producers": 0}, "needs producers or consumers"),
        ({"messages": 0}, "never end"),
        ({"producers": 0, "consumers": 1}, "`waiting`"),
        (
            {"producers": 0, "consumers": 1, "waiting": [{"batches": 1}], "rate": 5.0},
            "rate needs producers",
        ),
        ({"batch": 0}, ">= 1"),
        ({"batch": 10_001}, "<= 10000"),
        ({"payload_bytes": 20}, ">= 64"),
        ({"port": 0}, ">= 1"),
        ({"typo": 1}, "typo"),
    ],
)
def test_a_plan_that_cannot_work_is_refused(change, complaint):
    """Each rule names what is wrong before any load is made."""
    with pytest.raises(msgspec.ValidationError, match=complaint):
        msgspec.convert({**GOOD, **change}, LoadPlan)


@pytest.mark.parametrize(("messages", "batches"), [(10, 4), (9, 3), (1, 1)])
def test_batches_are_whole(messages, batches):
    """The last batch may be more than was asked for, never less."""
    assert msgspec.convert({**GOOD, "batch": 3, "messages": messages}, LoadPlan).batches == batches


def test_given_options_take_the_place_of_defaults():
    """What was not given stays as the scenario has it."""
    work = workload("produce", batch=7, seconds=None)
    assert (work.batch, work.connections, work.seconds) == (7, 8, 10)


def test_a_number_of_messages_replaces_the_time():
    """--messages alone means exactly so many, not so many or ten seconds."""
    assert workload("produce", messages=500).seconds == 0.0


@pytest.mark.parametrize(
    "given", [{"batch": 0}, {"connections": 0}, {"payload_bytes": 1}, {"partitions": 2000}]
)
def test_a_workload_out_of_bounds_is_refused(given):
    """The complaint comes before a broker is started."""
    with pytest.raises(BenchError):
        workload("produce", **given)


def test_the_table_holds_every_scenario_of_the_issue():
    """`bench all` measures produce with both batch sizes and everything else once."""
    assert [(work.scenario, work.batch) for work in TABLE[:2]] == [
        ("produce", 1000),
        ("produce", 100),
    ]
    assert {work.scenario for work in TABLE} >= {"single", "drain", "wal", "recovery", "memory"}


def test_an_address_is_read_from_a_url():
    """The port of a broker is the default one."""
    assert Address.parse("http://broker:7000/") == Address("broker", 7000)
    assert Address.parse("http://broker").port == 6632


@pytest.mark.parametrize("url", ["broker:6632", "ftp://broker", "http://broker/v1", ""])
def test_what_is_no_broker_address_is_refused(url):
    """A wrong --url is named, not tried."""
    with pytest.raises(BenchError, match="address of a broker"):
        Address.parse(url)
