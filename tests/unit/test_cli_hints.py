"""Hints: every command that any of them names is there to be typed."""

import re
from importlib import import_module
from pathlib import Path

import pytest

import spillway
from spillway.cli.hints import HINTS, hint_of
from spillway.cli.lazy import load
from spillway.cli.root import SpillwayGroup
from spillway.core.errors import QueueNotFoundError, SpillwayError

NAMED = re.compile(r"`spillway ([a-z-]+)(?: ([a-z-]+))?")
SOURCE = Path(spillway.__file__).parent


def kinds():
    """Every error that Spillway has, wherever it is written."""
    for path in SOURCE.rglob("*.py"):
        if "(SpillwayError)" in path.read_text():
            import_module(".".join(("spillway", *path.relative_to(SOURCE).with_suffix("").parts)))
    waiting = [SpillwayError]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.__module__.startswith("spillway."):
            yield kind


ALL = sorted(set(kinds()), key=lambda kind: kind.__qualname__)
TEXTS = {
    **{kind.code: kind.hint for kind in ALL},
    **{f"cli {code}": h for code, h in HINTS.items()},
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_a_named_command_exists(text):
    """A stranger types what the hint says."""
    for noun, verb in NAMED.findall(text):
        assert noun in SpillwayGroup.entries
        commands = getattr(load(noun, SpillwayGroup.entries[noun]), "commands", None)
        assert commands is None or not verb or verb in commands


def test_every_error_has_a_hint():
    """What, and then the next step."""
    assert [kind.__qualname__ for kind in ALL if not kind.hint] == []


def test_the_words_of_the_command_line_are_about_known_errors():
    """A code that is renamed is renamed here too."""
    assert HINTS.keys() <= {kind.code for kind in ALL}


def test_a_hint_for_the_very_case_stands():
    """Only the words that an error always has are replaced."""
    assert hint_of(QueueNotFoundError("no")) == HINTS["queue_not_found"]
    assert hint_of(QueueNotFoundError("no", hint="look here")) == "look here"
