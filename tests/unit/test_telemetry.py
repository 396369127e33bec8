"""Logs: one JSON object a line on stderr, from the level that was asked for."""

import json

import pytest
import structlog

from spillway.telemetry import set_up_logs


@pytest.fixture(autouse=True)
def _leave_the_logs_as_they_were():
    before = structlog.get_config()
    yield
    structlog.configure(**before)
    structlog.contextvars.clear_contextvars()


def lines(capsys) -> list[dict[str, object]]:
    shown = capsys.readouterr()
    assert shown.out == ""
    return [json.loads(line) for line in shown.err.splitlines()]


def test_an_event_is_a_line_with_its_details(capsys):
    """Name, level, UTC time and details; stdout stays free for data."""
    set_up_logs("info")
    structlog.get_logger("t").info("shard_acquired", shard=3, path="Grüße")
    (line,) = lines(capsys)
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "shard_acquired", "level": "info", "shard": 3, "path": "Grüße"}


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("WARNING", ["warning", "error"]),
        ("error", ["error"]),
    ],
)
def test_what_is_below_the_level_is_not_shown(capsys, level, shown):
    """The level is a lower bound, whatever its case."""
    set_up_logs(level)
    log = structlog.get_logger("t")
    for name in ("debug", "info", "warning", "error"):
        getattr(log, name)("thing_happened")
    assert [line["level"] for line in lines(capsys)] == shown


def test_an_exception_stays_one_line(capsys):
    """A traceback is a detail of its event, so that a log can be read line by line."""
    set_up_logs("info")
    try:
        _ = 1 // 0
    except ZeroDivisionError:
        structlog.get_logger("t").exception("duty_failed")
    (line,) = lines(capsys)
    assert "ZeroDivisionError" in line["exception"]


def test_a_bound_detail_is_on_every_line(capsys):
    """What a request binds is told with every event until it ends."""
    set_up_logs("info")
    with structlog.contextvars.bound_contextvars(request_id="r1"):
        structlog.get_logger("t").info("asked")
    structlog.get_logger("t").info("done")
    assert [line.get("request_id") for line in lines(capsys)] == ["r1", None]


def test_a_terminal_gets_words_instead_of_json(capsys, monkeypatch):
    """A person reads the same event without braces."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    set_up_logs("info")
    structlog.get_logger("t").info("shard_acquired", shard=3)
    shown = capsys.readouterr().err
    assert "shard_acquired" in shown
    assert "{" not in shown
