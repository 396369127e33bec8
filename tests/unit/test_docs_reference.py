"""The generated pages of docs/ are what the code says today."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATOR = ROOT / "docs/generator"


def test_generated_pages_are_fresh():
    """No page is older than the code that it describes."""
    command = [sys.executable, str(GENERATOR), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    stale = checked.stdout.split()
    assert checked.returncode in {0, 1}, checked.stderr
    assert stale == [], "these pages are stale; write them afresh with: make docs"


def test_the_generator_is_typed():
    """It stands outside src, and is held to the same strictness."""
    pytest.importorskip("mypy")
    sources = [path.name for path in sorted(GENERATOR.glob("*.py"))]
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *sources]
    checked = subprocess.run(command, cwd=GENERATOR, capture_output=True, text=True, check=False)
    assert checked.stdout == ""
