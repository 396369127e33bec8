"""How values are typed in and printed out."""

import io
import signal
import sys
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
import typer

from spillway.cli.frames import Look, lines
from spillway.cli.interrupt import polite
from spillway.cli.output import age, duration, print_table, short, shown
from spillway.cli.span import moment, span_ms
from spillway.cli.spinner import spinning
from spillway.wire import GroupCounts, QueueOptions, QueueReply


@pytest.mark.parametrize(
    ("text", "ms"),
    [("500ms", 500), ("5s", 5000), ("1.5m", 90_000), ("2h", 7_200_000), ("1d", 86_400_000),
     ("250", 250), ("0", 0), (None, None)],
)  # fmt: skip
def test_spans(text, ms):
    """Spans are typed with a unit; a bare number is milliseconds."""
    assert span_ms(text) == ms


@pytest.mark.parametrize("text", ["soon", "5 weeks", "-1s", ""])
def test_bad_spans(text):
    """What is no span is refused with examples."""
    with pytest.raises(typer.BadParameter, match="500ms"):
        span_ms(text)


def test_moments():
    """A time without a zone is UTC; a span is that long ago."""
    assert moment("2026-01-31T12:00:00") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert moment("2026-01-31T12:00:00+02:00").utcoffset() == timedelta(hours=2)
    ago = datetime.now(UTC) - moment("1h")
    assert timedelta(minutes=59) < ago < timedelta(minutes=61)
    assert moment(None) is None
    with pytest.raises(typer.BadParameter):
        moment("yesterday")


def test_text_from_messages_cannot_drive_the_terminal():
    """Control characters are shown as escapes."""
    assert shown("a\x1b[31mb\n") == "a\\x1b[31mb\\n"
    assert shown(msgspec.Raw(b'"\xc3\xa4"')) == '"ä"'
    assert (shown(None), shown(True), shown(7)) == ("-", "yes", "7")


def test_tables_align_and_cut(capsys):
    """Columns align, long cells are cut, nothing trails."""
    print_table(("A", "B"), [("x", "y" * 100), ("long", None)])
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "A     B"
    assert second == "x     " + "y" * 59 + "…"
    assert third == "long  -"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (999, "999"), (1_000, "1.0k"), (9_999, "9.9k"), (25_000, "25k"),
     (999_999, "999k"), (1_234_567, "1.2M"), (12.7, "12")],
)  # fmt: skip
def test_short_numbers(number, text):
    """At most four characters, never more than there are."""
    assert short(number) == text


def test_ages():
    """Ages are short: seconds, then minutes, hours, days."""
    now = datetime(2026, 1, 2, tzinfo=UTC)
    assert age("2026-01-01T00:00:00Z", now) == "24h"
    assert age(None) == "-"
    assert [duration(s) for s in (0.5, 42, 300, 200_000)] == ["0.5s", "42s", "5m", "2d"]


def queue_of(tail, settled):
    group = GroupCounts(
        group="g", depth=1, ready=1, deferred=0, leased=0, blocked=0, parked=1, dropped=0,
        settled=settled, ack_hole_ranges=0, oldest_ready_at=None, paused=False,
    )  # fmt: skip
    return QueueReply(
        queue="q", org="o", created_at="", paused=False, options=QueueOptions(), lanes=1,
        tail=tail, groups=[group],
    )  # fmt: skip


def test_rates_come_from_two_looks():
    """Rates are differences over time; the first look has none, a reset counts as zero."""
    first, second = Look(10.0, [queue_of(100, 50)]), Look(12.0, [queue_of(300, 60)])
    assert lines(first, None)[0].in_per_s is None
    assert (lines(second, first)[0].in_per_s, lines(second, first)[0].out_per_s) == (100.0, 5.0)
    assert lines(Look(14.0, [queue_of(0, 0)]), second)[0].in_per_s == 0.0


def test_the_first_sigint_is_polite(capsys):
    """One signal asks, the second interrupts; afterwards all is as before."""
    before = signal.getsignal(signal.SIGINT)
    with polite("stopping") as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert capsys.readouterr().err == "stopping\n"
    assert signal.getsignal(signal.SIGINT) is before


class Terminal(io.StringIO):
    """Somebody looks at it."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("err", "shows"), [(Terminal(), True), (io.StringIO(), False)])
def test_a_spinner_turns_where_somebody_looks(monkeypatch, err, shows):
    """It says what takes so long; a pipe or a log file sees nothing of it."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", err)
    with spinning("redrive: [b]orders"):
        pass
    assert ("redrive: [b]orders" in err.getvalue()) == shows
    assert bool(err.getvalue()) == shows
