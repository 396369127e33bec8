"""The generated page of states."""

from pathlib import Path

from spillway.core.group import TRANSITIONS
from spillway.core.state import STATES
from spillway.testing.diagram import COMMAND, PAGE, render

ROOT = Path(__file__).parents[2]


def test_the_page_of_states_is_fresh():
    """The page in the docs is what the transition table says today."""
    page = ROOT / PAGE
    assert page.exists(), f"missing; make it with: {COMMAND}"
    assert page.read_text() == render(), f"stale; make it afresh with: {COMMAND}"


def test_the_page_names_every_state_and_event():
    """Nothing of the table is left out."""
    page = render()
    assert all(f"| `{state}` |" in page for state in STATES)
    assert all(f"| `{event}` |" in page for event in TRANSITIONS)
