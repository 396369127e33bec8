"""/metrics in both forms, and /health."""

import pytest

from spillway.api.metrics import as_text
from spillway.core.metrics import Family, Sample

DEPTH = Family(
    "spillway_queue_depth",
    "gauge",
    "Waiting.\nA rise means: too few \\ workers",
    (
        Sample({"org": "default", "queue": 'a"b\\c\nd'}, 3),
        Sample({}, 0.25),
    ),
)
LATENCY = Family(
    "spillway_push_seconds",
    "histogram",
    "How long pushes take",
    (
        Sample({"le": "0.1"}, 5, "_bucket"),
        Sample({"le": "+Inf"}, 6, "_bucket"),
        Sample({}, 0.5, "_sum"),
        Sample({}, 6, "_count"),
    ),
)
SPOOL = tuple(
    Family(f"spillway_spool_{name}", "gauge", "", (Sample({}, value),))
    for name, value in {"pending": 2, "flushed_total": 9, "failed": 0, "db_healthy": 1}.items()
)


def test_text_is_escaped():
    """Quotes, backslashes and line ends of labels cannot break a line."""
    assert as_text([DEPTH]) == (
        "# HELP spillway_queue_depth Waiting.\\nA rise means: too few \\\\ workers\n"
        "# TYPE spillway_queue_depth gauge\n"
        'spillway_queue_depth{org="default",queue="a\\"b\\\\c\\nd"} 3\n'
        "spillway_queue_depth 0.25\n"
    )


def test_histograms_have_their_suffixes():
    """One TYPE line, three kinds of series."""
    assert as_text([LATENCY]).splitlines()[2:] == [
        'spillway_push_seconds_bucket{le="0.1"} 5',
        'spillway_push_seconds_bucket{le="+Inf"} 6',
        "spillway_push_seconds_sum 0.5",
        "spillway_push_seconds_count 6",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(float("inf"), "+Inf"), (float("-inf"), "-Inf"), (float("nan"), "NaN"), (1e300, "1e+300")],
)
def test_odd_numbers_have_their_words(value, text):
    """As the format spells them."""
    assert as_text([Family("x", "gauge", "", (Sample({}, value),))]).endswith(f"x {text}\n")


async def test_prometheus_text_is_the_default(skin, broker):
    """Whatever a scraper prefers, 0.0.4 is what it gets."""
    broker.families = (DEPTH,)
    answer = await skin("GET", "/metrics", accept="application/openmetrics-text;q=0.8,*/*;q=0.1")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.body.startswith(b"# HELP spillway_queue_depth")


async def test_the_same_facts_as_json(skin, broker):
    """By name, with the file_buffer block where there is a spool."""
    broker.families = (DEPTH, LATENCY, *SPOOL)
    facts = (await skin("GET", "/metrics", accept="application/json")).json
    assert facts["metrics"]["spillway_queue_depth"]["samples"][0]["value"] == 3
    assert facts["metrics"]["spillway_push_seconds"]["samples"][2] == {
        "labels": {},
        "value": 0.5,
        "suffix": "_sum",
    }
    assert facts["file_buffer"] == {"pending": 2, "flushed": 9, "failed": 0, "db_healthy": True}


async def test_without_a_spool_there_is_no_block(skin):
    """Nothing is made up."""
    assert (await skin("GET", "/metrics", accept="application/json")).json == {"metrics": {}}


async def test_a_degraded_broker_is_alive_but_not_ready(skin, broker):
    """Live is for restarts, ready is for traffic, health tells."""
    broker.status = "degraded"
    assert (await skin("GET", "/health/live")).json == {"status": "ok"}
    assert (await skin("GET", "/health")).json["status"] == "degraded"
    ready = await skin("GET", "/health/ready")
    assert (ready.status, ready.headers["retry-after"]) == (503, "1")
    assert ready.json["status"] == "degraded"
