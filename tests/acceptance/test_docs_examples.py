"""Everything that the docs claim to be runnable is run, page by page, against a real broker.

A ```bash, ```python or ```sql block is executed; a ```output block right behind it is what it must
print. There `…` stands for anything in a line, a line of it alone for any lines; times, durations
and the numbers in receipts may differ. Blocks with another word, such as ```text, are not run.
"""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs/start.md", *sorted((ROOT / "docs/guides").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
RUNNABLE = {"bash", "python", "sql"}
DOCUMENTED = "http://127.0.0.1:6632"
BLOCK_S = 120
QUIET = "--conf spark.ui.enabled=false --conf spark.ui.showConsoleProgress=false pyspark-shell"
START_S = 60

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of a page that runs, and what it must print (None: anything)."""

    line: int
    kind: str
    text: str
    output: str | None


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    found = [(match.start(), match.end(), match[1], match[2]) for match in BLOCK.finditer(text)]
    blocks = []
    for at, (start, end, kind, body) in enumerate(found):
        if kind in RUNNABLE:
            after = found[at + 1] if at + 1 < len(found) else None
            is_shown = after and after[2] == "output" and not text[end : after[0]].strip()
            shown = after[3] if after and is_shown else None
            blocks.append(Block(text[:start].count("\n") + 1, kind, body, shown))
    return blocks


# ---------------------------------------------------------------- a broker and its surroundings


class Surroundings:
    """A folder with a broker in it, as a reader would have it: `spillway serve`, then the rest."""

    def __init__(self, folder: Path, spark_environment: dict[str, str]) -> None:
        self.folder = folder
        self.tools = folder / "tools"
        self.tools.mkdir()
        programs = [str(self.tools), str(Path(sys.executable).parent), os.environ["PATH"]]
        kept = {name: value for name, value in os.environ.items() if "SPILLWAY" not in name}
        self.environment = {
            **kept, "PATH": os.pathsep.join(programs), "NO_COLOR": "1", "COLUMNS": "200",
            **spark_environment, "PYSPARK_SUBMIT_ARGS": QUIET,
        }  # fmt: skip
        self._provide_curl()
        self._provide("jq", JQ)
        self.log = folder / "broker.log"
        self.url = DOCUMENTED
        with self.log.open("wb") as log:
            command = ["spillway", "serve", "--port", "0"]
            self.process = subprocess.Popen(command, cwd=folder, env=self.environment, stderr=log)

    def is_listening(self) -> bool:
        """Whether the broker has said where."""
        assert self.process.poll() is None, self.log.read_text()
        found = re.search(r"^listening on (\S+)$", self.log.read_text(), re.MULTILINE)
        if found:
            self.url = self.environment["SPILLWAY_URL"] = found[1]
        return found is not None

    def _provide_curl(self) -> None:
        """Old machines have no `curl --json`; the blocks are about the broker, not about curl."""
        if shutil.which("curl"):
            version = subprocess.run(["curl", "-V"], capture_output=True, text=True, check=False)
            found = re.match(r"curl (\d+)\.(\d+)", version.stdout)
            if found and (int(found[1]), int(found[2])) >= (7, 82):
                return
        self._provide("curl", CURL)

    def _provide(self, name: str, program: str) -> None:
        path = self.tools / name
        path.write_text(f"#!{sys.executable}\n{program}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def run(self, block: Block) -> str:
        """What a block prints, stdout and stderr as they come."""
        text = block.text.replace(DOCUMENTED, self.url)
        if block.kind == "sql":
            printed = self._query(text)
        else:
            command = (
                ["bash", "-euo", "pipefail", "-c"] if block.kind == "bash" else ["python", "-c"]
            )
            done = subprocess.run(
                [*command, text],
                cwd=self.folder,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                timeout=BLOCK_S,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"line {block.line} failed:\n{text}\n{done.stdout}"
            printed = done.stdout
        return printed.replace(self.url, DOCUMENTED)

    def _query(self, text: str) -> str:
        """As psql shows it, without its rules and its count."""
        url = (self.folder / "spillway-data/database-url").read_text()
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(text)
            while cursor.nextset():
                pass
            names = [column.name for column in cursor.description or ()]
            rows = [[shown(value) for value in row] for row in cursor.fetchall()]
        return "\n".join(" | ".join(line) for line in [names, *rows])

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(60)


def shown(value: object) -> str:
    """A value as psql would print it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, dict | list):
        return json.dumps(value)
    return str(value)


CURL = """
import json, sys, urllib.error, urllib.request
method, data, headers, words = None, None, {}, iter(sys.argv[1:])
for word in words:
    if word == "-X":
        method = next(words)
    elif word == "-H":
        headers.update([next(words).split(": ", 1)])
    elif word == "--json":
        data = next(words).encode()
        headers.update({"Content-Type": "application/json", "Accept": "application/json"})
    elif not word.startswith("-"):
        url = word
request = urllib.request.Request(url, data, headers, method=method)
try:
    sys.stdout.write(urllib.request.urlopen(request).read().decode())
except urllib.error.HTTPError as error:
    sys.stdout.write(error.read().decode())
"""


# jq itself, as far as the pages use its command line: the engine is jq's own, from a wheel.
JQ = r"""
import json, sys
import jq
flags, given, words = set(), {}, []
rest = iter(sys.argv[1:])
for word in rest:
    if word == "--arg":
        name = next(rest)
        given[name] = next(rest)
    elif word.startswith("-"):
        flags |= set(word[1:])
    else:
        words.append(word)
assert flags <= set("cRr"), f"the stand-in for jq does not know {flags}"
program = jq.compile(words[0], args=given)
texts = [open(name, encoding="utf-8").read() for name in words[1:]] or [sys.stdin.read()]
for text in texts:
    if "R" in flags:
        found = [out for line in text.splitlines() for out in program.input_value(line)]
    else:
        found = program.input_text(text)
    for value in found:
        if "r" in flags and isinstance(value, str):
            print(value)
        else:
            layout = {"separators": (",", ":")} if "c" in flags else {"indent": 2}
            print(json.dumps(value, ensure_ascii=False, **layout))
"""


@pytest.fixture
def surroundings(
    tmp_path: Path,
    spark_environment: dict[str, str],
    eventually: Callable[[Callable[[], object], float], None],
) -> Iterator[Surroundings]:
    """A broker for one page."""
    made = Surroundings(tmp_path, spark_environment)
    try:
        eventually(made.is_listening, START_S)
        yield made
    finally:
        made.stop()


# ---------------------------------------------------------------- shown, and printed

VARYING = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00(:00)?)?", "TIME"),
    (r"\b\d+(\.\d+)?(ms|s|m|h|d)\b(?! ago)", "SPAN"),
    (r"\b\d+~\d+~\d+~", "RECEIPT~"),
)


def lines_of(text: str) -> list[str]:
    """What counts of a text: its words, without what differs from run to run."""
    for pattern, word in VARYING:
        text = re.sub(pattern, word, text)
    lines = (" ".join(line.split()) for line in text.splitlines())
    return [line for line in lines if line and not re.fullmatch(r"[-+]+|\(\d+ rows?\)", line)]


def matches(expected: str, printed: str) -> bool:
    """Whether the shown lines are the printed ones."""
    pattern = "".join(
        r"(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*") + r"\n"
        for line in lines_of(expected)
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in lines_of(printed))) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_shows_is_what_happens(page, surroundings):
    """Every runnable block of the page runs, in order, and prints what the page shows."""
    wrong = []
    for block in blocks_of(page):
        printed = surroundings.run(block)
        if block.output is not None and not matches(block.output, printed):
            wrong.append(f"{page.relative_to(ROOT)}:{block.line} prints:\n{printed}")
    assert not wrong, "\n".join(wrong)
    assert surroundings.stop() == 0


def test_shown_output_is_compared():
    """The comparison lets times and elisions through, and nothing else."""
    assert matches("a …\n…\nz\n", "a b\nc\nd\nz\n")
    assert matches("2024-01-02T03:04:05.678Z 1~2~3~g~4", "2026-11-12T13:14:15.123Z 9~8~7~g~4")
    assert not matches("a\n", "a\nb\n")
    assert not matches("1 stored", "2 stored")
