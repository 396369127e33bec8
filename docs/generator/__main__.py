# ruff: noqa: INP001 (scripts beside their pages, not a package)
"""Write the reference pages and the index of the decisions from what they describe.

`make docs` runs this. With --check it writes nothing, names the stale pages and fails, which is how
tests/unit/test_docs_reference.py asks.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import commandline
import facts
import library
import protocol
from markdown import head, table

from spillway.testing import diagram

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent

ADR_HEAD = """\
An ADR keeps one decision: what it was about, what was decided, what follows, and what would
change our mind. It is at most a page. A decision that is replaced keeps its page and names the
one that replaced it.

A new one takes the next number, a noun for its name, and the headings of its neighbours; then
`make docs`.
"""


def adr() -> str:
    rows = []
    for path in sorted((DOCS / "adr").glob("[0-9]*.md")):
        text = path.read_text()
        title = text.partition("\n")[0].removeprefix("# ")
        status = re.search(r"^Status: (.+)$", text, re.MULTILINE)
        rows.append((f"[{title}]({path.name})", status[1] if status else "none"))
    source = "the first lines of the files beside it"
    return "\n".join([head("Decisions", source), ADR_HEAD, table(("decision", "status"), rows)])


PAGES: dict[str, Callable[[], str]] = {
    "docs/reference/cli.md": commandline.cli,
    "docs/reference/http.md": protocol.http,
    "docs/reference/client.md": library.client,
    "docs/reference/settings.md": facts.settings,
    "docs/reference/errors.md": facts.errors,
    "docs/reference/metrics.md": facts.metrics,
    "docs/reference/events.md": facts.events,
    "docs/reference/states.md": diagram.render,
    "docs/adr/README.md": adr,
}


def stale() -> dict[str, str]:
    """The pages that are not what they should be, with what they should be."""
    fresh = {name: render() for name, render in PAGES.items()}
    return {name: text for name, text in fresh.items() if text != _found(ROOT / name)}


def _found(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def main(arguments: list[str]) -> int:
    """Write what is stale; with --check only name it, and fail if there is any."""
    pages = stale()
    for name, text in pages.items():
        sys.stdout.write(f"{name}\n")
        if arguments != ["--check"]:
            (ROOT / name).write_text(text)
    return 1 if pages and arguments == ["--check"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
