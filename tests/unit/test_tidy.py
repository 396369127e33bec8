"""The house rules that can be executed, executed."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted(path for path in (ROOT / "tests").rglob("*.py") if "planted_bugs" not in path.parts)
CORE = sorted((ROOT / "src/spillway/core").rglob("*.py"))

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500
IMPURE_MODULES = {
    "asyncio", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets", "select",
    "selectors", "shutil", "signal", "socket", "subprocess", "tempfile", "threading", "time",
}  # fmt: skip
IMPURE_CALLS = {
    "date.today", "datetime.date.today", "datetime.datetime.now", "datetime.datetime.utcnow",
    "datetime.now", "datetime.utcnow", "input", "open", "print", "uuid.uuid1", "uuid.uuid4",
    "uuid1", "uuid4",
}  # fmt: skip
VAGUE_NAMES = {"common", "helper", "helpers", "manager", "managers", "misc", "util", "utils"}
PUT_OFF = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
BARE_WAIVER = re.compile(r"type: ignore(?!\[)|noqa(?!:)")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def functions(path: Path) -> Iterator[Function]:
    return (node for node in ast.walk(tree_of(path)) if isinstance(node, Function))


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or "."


def calls(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call):
            yield node.lineno, ast.unparse(node.func)


def is_impure(module: str) -> bool:
    top = module.partition(".")[0]
    return top in IMPURE_MODULES or (top not in sys.stdlib_module_names and not is_core(module))


def is_core(module: str) -> bool:
    return module == "spillway.core" or module.startswith("spillway.core.")


def test_core_imports_only_pure_modules():
    """The core imports itself and the standard library, and of that nothing that acts."""
    assert [
        f"{name_of(path)}:{line}: imports {module}"
        for path in CORE
        for line, module in imported_modules(path)
        if is_impure(module)
    ] == []


def test_core_calls_nothing_impure():
    """The core never asks for the time, an id or a file: they are handed to it."""
    assert [
        f"{name_of(path)}:{line}: calls {call}"
        for path in CORE
        for line, call in calls(path)
        if call in IMPURE_CALLS
    ] == []


def test_functions_fit_a_screen():
    """No function is longer than one screen."""
    assert [
        f"{name_of(path)}:{function.lineno}: {function.name} has {lines} lines"
        for path in SOURCES
        for function in functions(path)
        if (lines := function.end_lineno - function.lineno + 1) > FUNCTION_LINES_MAX
    ] == []


def test_files_fit_a_sitting():
    """No source file is longer than one sitting."""
    assert [
        f"{name_of(path)}: {lines} lines"
        for path in SOURCES
        if (lines := len(path.read_text().splitlines())) > FILE_LINES_MAX
    ] == []


@pytest.mark.parametrize("rule", [PUT_OFF, BARE_WAIVER], ids=["put-off work", "bare waivers"])
def test_nothing_is_put_off_or_waived_without_a_reason(rule):
    """No note for later stays in the code, and every waived check names what it waives."""
    assert [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in (*SOURCES, *TESTS)
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if rule.search(line)
    ] == []


def test_modules_are_named_for_what_they_know():
    """A module is named for a noun of the domain, never for being a drawer."""
    assert [
        name_of(path)
        for path in (*SOURCES, *TESTS)
        if VAGUE_NAMES & set(path.relative_to(ROOT).with_suffix("").parts)
    ] == []


def test_packages_say_what_goes_in_and_out():
    """Each package and module opens with a sentence about itself."""
    assert [name_of(path) for path in SOURCES if not ast.get_docstring(tree_of(path))] == []


def test_tests_state_a_behaviour():
    """Each test opens with the behaviour it proves, in a line."""
    assert [
        f"{name_of(path)}:{function.lineno}: {function.name}"
        for path in TESTS
        for function in functions(path)
        if function.name.startswith("test_") and not ast.get_docstring(function)
    ] == []


def test_tests_do_not_sleep():
    """Tests wait for a condition (see `eventually` in conftest.py), never for the clock."""
    assert [
        f"{name_of(path)}:{line}: {call}"
        for path in TESTS
        if path.name != "conftest.py"
        for line, call in calls(path)
        if call in {"time.sleep", "asyncio.sleep", "sleep"} and not sleeps_zero(path, line)
    ] == []


def sleeps_zero(path: Path, line: int) -> bool:
    """`await asyncio.sleep(0)` only lets the other tasks run."""
    return "sleep(0)" in path.read_text().splitlines()[line - 1]


def test_the_lock_names_no_registry():
    """The lock holds names, versions and hashes, and no address that only one network knows."""
    lock = (ROOT / "requirements.lock").read_text()
    assert not re.search(r"://|^--", lock, re.MULTILINE)
    assert lock.count("--hash=sha256:") >= lock.count("==")
