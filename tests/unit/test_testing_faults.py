"""The broker that dies where it is told to, as far as that can be seen from inside."""

import ast
import os
import signal
from pathlib import Path

import pytest

import spillway
from spillway.spool.faultpoints import POINTS
from spillway.testing.faults import Fault, main

SOURCES = sorted(Path(spillway.__file__).parent.rglob("*.py"))


@pytest.fixture
def deaths(monkeypatch):
    """What was sent to this process instead of killing it."""
    sent = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    return sent


def test_it_dies_at_the_nth_time(deaths):
    """Not before, not again, and not at any other place."""
    fault = Fault("mid_batch", 3)
    for point in ("mid_batch", "before_fsync", "mid_batch", "before_fsync"):
        fault(point)
    assert deaths == []
    for _ in range(3):
        fault("mid_batch")
    assert deaths == [(os.getpid(), signal.SIGKILL)]


def named(call: ast.Call) -> list[str]:
    """The place that a call names, if it is one."""
    function = ast.unparse(call.func).rpartition(".")[2]
    if function not in {"reached", "_reached"}:
        return []
    return [one.value for one in call.args if isinstance(one, ast.Constant)]


def test_the_source_comes_to_every_place():
    """Each is named once in the code, and the code names no other."""
    calls = (
        call
        for path in SOURCES
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
    )
    assert sorted(name for call in calls for name in named(call)) == sorted(POINTS)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--at", "nowhere", "--", "serve"], "invalid choice: 'nowhere'"),
        (["--at", "mid_batch", "--nth", "0", "--", "serve"], "--nth is 0"),
        (["--at", "mid_batch"], "command"),
    ],
)
def test_wrong_words_are_told(words, told, capsys):
    """With what would be right."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_the_command_line_behind_it_is_the_real_one(capsys):
    """Its output, its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(["--at", "mid_batch", "--", "--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("spillway ")
