"""What can be checked about the pages of docs/ without a broker: titles, links, decisions."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from spillway.bench.report import Report
from spillway.bench.workload import SCENARIOS
from spillway.core.routing import hash64, jump, partition_of, shard_of

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
DECISIONS = sorted((ROOT / "docs/adr").glob("[0-9]*.md"))
DECISION_LINES_MAX = 60
FENCE = re.compile(r"^(```+)[^\n]*\n.*?^\1$", re.DOTALL | re.MULTILINE)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(path: Path) -> str:
    """A page without its code blocks."""
    return FENCE.sub("", path.read_text())


def anchors(path: Path) -> set[str]:
    """The anchors that the headings of a page get."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


def links(path: Path) -> Iterator[str]:
    text = re.sub(r"`[^`\n]*`", "", prose(path))
    return (target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_has_one_title(page):
    """A page opens with its only title."""
    assert page.read_text().startswith("# ")
    assert len(re.findall(r"^# ", prose(page), re.MULTILINE)) == 1


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    """Every relative link names a file, and a heading of it where it says so."""
    broken = []
    for link in links(page):
        target, _, anchor = unquote(link).partition("#")
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(link)
    assert broken == []


def test_every_page_can_be_found():
    """docs/README.md, the reading order, leads to every page, or to an index that does."""
    start = ROOT / "docs/README.md"
    found, waiting = {start}, [start]
    while waiting:
        page = waiting.pop()
        for link in links(page):
            path = (page.parent / unquote(link).partition("#")[0]).resolve()
            if path.suffix == ".md" and path not in found:
                found.add(path)
                waiting.append(path)
    assert [name_of(page) for page in PAGES if page not in found] == []


@pytest.mark.parametrize("decision", DECISIONS, ids=name_of)
def test_a_decision_is_a_page_with_the_same_headings(decision):
    """Status, context, decision, consequences, what would change our mind; no more than a page."""
    text = decision.read_text()
    assert re.search(r"^Status: (accepted|replaced by \[\d{4})", text, re.MULTILINE)
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings == ["Context", "Decision", "Consequences", "What would change our mind"]
    assert len(text.splitlines()) <= DECISION_LINES_MAX


@pytest.mark.parametrize("decision", [*DECISIONS[1:5], *DECISIONS[12:15]], ids=name_of)
def test_a_decision_by_measurement_says_how_to_repeat_it(decision):
    """By a scenario of the bench that exists, or a script that does."""
    text = decision.read_text()
    assert "repeat it with" in text
    scripts = re.findall(r"\.venv/bin/python (\S+\.py)", text)
    scenarios = re.findall(r"spillway bench (\w+)", text)
    assert scripts + scenarios
    assert [script for script in scripts if not (ROOT / script).is_file()] == []
    assert set(scenarios) <= set(SCENARIOS)


def test_every_scenario_of_the_bench_is_explained():
    """In the table, and what its own fields mean."""
    text = (ROOT / "docs/reference/bench.md").read_text()
    assert [name for name in SCENARIOS if f"| `{name}` |" not in text] == []
    own = Report.__struct_fields__[Report.__struct_fields__.index("wal_bytes_per_message") :]
    assert [name for name in own if f"`{name}`" not in text] == []


def test_decisions_are_numbered_without_gaps():
    """NNNN-noun.md, from 0001 on, with the number in the title."""
    numbers = [path.name[:4] for path in DECISIONS]
    assert numbers == [f"{number:04}" for number in range(1, len(DECISIONS) + 1)]
    for path in DECISIONS:
        assert path.read_text().startswith(f"# {path.name[:4]} ")


@pytest.mark.parametrize(
    ("page", "program"), [("README.md", "orders.py"), ("docs/guides/spool.md", "spool_spark.py")]
)
def test_a_page_shows_its_example(page, program):
    """The code of the page is the file in examples/, word for word."""
    example = (ROOT / "examples" / program).read_text().split('"""', 2)[2].strip()
    assert f"```python\n{example}\n```" in (ROOT / page).read_text()


def test_the_routing_vectors_hold():
    """The table in the decision about routing is what the code computes."""
    (page,) = (path for path in DECISIONS if "routing" in path.name)
    rows = re.findall(r"^\| `([^`]*)` \| `(\d+)` \| `(.+)` \|$", page.read_text(), re.MULTILINE)
    assert len(rows) >= 12
    for level, hashed, told in rows:
        kind, value = level.split(" ", 1)
        value = value.strip('"').replace("\\0", "\0")
        assert hash64(kind, value) == int(hashed), level
        assert told == vector(kind, value), level


def vector(kind: str, value: str) -> str:
    """The last column of the table."""
    if kind == "partition":
        return " ".join(partition_of(value, count) for count in (2, 8, 64))
    if kind == "shard":
        queue_id, partition = value.split("\0")
        return " ".join(str(shard_of(int(queue_id), partition, count)) for count in (4, 16))
    return " ".join(str(jump(hash64(kind, value), count)) for count in (2, 8, 64))
