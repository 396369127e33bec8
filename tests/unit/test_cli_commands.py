"""The command line as a whole: help everywhere, quick start, exit codes."""

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from spillway.cli import main
from spillway.cli.lazy import load
from spillway.cli.outcome import exit_code
from spillway.cli.root import SpillwayGroup, app
from spillway.client.errors import BrokerUnreachableError, PushFailedError, RequestTimeoutError
from spillway.core import errors

HEAVY = {"pyspark", "uvicorn", "psycopg", "httpx", "pydantic", "msgspec", "asyncio", "uvloop"}
OURS = sorted(SpillwayGroup.entries.keys() - {"serve", "bench"})

runner = CliRunner()


def leaves(name, command):
    """Every command that does something, by its words."""
    found = getattr(command, "commands", None)
    if not found:
        yield name, command
    for word, child in (found or {}).items():
        yield from leaves(f"{name} {word}", child)


LEAVES = [leaf for name in OURS for leaf in leaves(name, load(name, SpillwayGroup.entries[name]))]


@pytest.mark.parametrize("name", sorted(SpillwayGroup.entries))
def test_every_command_of_the_table_is_there(name):
    """The table of commands points at commands, and each tells what it does."""
    result = runner.invoke(app, [name, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.stdout


@pytest.mark.parametrize(("name", "command"), LEAVES, ids=[name for name, _ in LEAVES])
def test_every_flag_and_argument_has_help(name, command):
    """No command, flag or argument is left unexplained."""
    assert command.help
    assert [one.name for one in command.params if not getattr(one, "help", None)] == []


@pytest.mark.parametrize(("name", "command"), LEAVES, ids=[name for name, _ in LEAVES])
def test_every_variable_is_named_in_help(name, command):
    """A flag that reads a variable names it."""
    for one in command.params:
        if one.envvar is not None:
            shown = runner.invoke(app, [*name.split(), "--help"], env={"COLUMNS": "300"}).stdout
            assert one.envvar in shown.replace("\n", "")


READS = ["lease", "tail", "top", "doctor", "audit", "queue list", "queue show", "queue groups"]
READS += ["dead list", "dead show", "blocked list"]
READS += ["spool status", "spool list", "spool show", "spool verify"]


@pytest.mark.parametrize("name", READS)
def test_every_read_speaks_json(name):
    """Each read has --json and says whether it prints a document or lines."""
    command = dict(LEAVES)[name]
    assert "json_" in {one.name for one in command.params}
    assert "--json" in command.help
    assert "line" in command.help or "document" in command.help


def test_root_help_names_exit_codes_and_commands():
    """The first help page tells what a script needs."""
    result = runner.invoke(app, ["--help"])
    assert result.exit_code == 0
    assert "Exit codes: 0 done" in " ".join(result.stdout.split())
    assert all(name in result.stdout for name in SpillwayGroup.entries)


def test_help_imports_nothing_heavy():
    """`spillway --help` reads a table: no server, no driver, no client."""
    code = (
        "import sys\n"
        "from spillway.cli.root import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        f"print('LOADED', sorted({HEAVY!r} & set(sys.modules)))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    ).stdout
    assert output.splitlines()[-1] == "LOADED []"


def test_importing_spillway_is_cheap():
    """`import spillway` loads none of its rooms."""
    code = "import sys, spillway; print(sorted(m for m in sys.modules if 'spillway' in m))"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    ).stdout
    assert output.strip() == "['spillway']"


def test_version():
    """--version prints the version and nothing else."""
    assert runner.invoke(app, ["--version"]).stdout.startswith("spillway 0.")


def test_no_command_is_a_usage_error_with_help():
    """Without a command the help is shown, and the exit code says that nothing was done."""
    assert runner.invoke(app, []).exit_code == 2


def test_a_typo_gets_a_suggestion():
    """An unknown command is a usage error that names the likely one."""
    result = runner.invoke(app, ["qeue", "list"])
    assert result.exit_code == 2
    assert "queue" in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidNameError(), 2),
        (errors.SelectionRequiredError(), 2),
        (errors.QueueNotFoundError(), 4),
        (errors.UnauthorizedError(), 4),
        (errors.TransactionConflictError(), 4),
        (errors.QueueFullError(), 4),
        (errors.DatabaseUnavailableError(), 3),
        (BrokerUnreachableError(), 3),
        (RequestTimeoutError(), 3),
        (PushFailedError([]), 1),
        (errors.SpillwayError(), 1),
    ],
)
def test_exit_codes(error, code):
    """Each kind of error has its documented exit code."""
    assert exit_code(error) == code


def test_no_broker_is_exit_code_3_with_code_and_hint():
    """A broker that is not there is told on stderr, with its code and the next step."""
    result = runner.invoke(app, ["--url", "http://127.0.0.1:1", "queue", "list"])
    assert result.exit_code == 3
    assert result.stdout == ""
    assert "error[broker_unreachable]" in result.stderr
    assert "hint:" in result.stderr


def test_ctrl_c_is_130(monkeypatch):
    """An interrupted command says so with its exit code."""

    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr("spillway.cli.session.Session.client", interrupted)
    result = runner.invoke(app, ["queue", "list"])
    assert result.exit_code == 130
    assert "interrupted" in result.stderr


def test_ctrl_c_while_it_loads_is_130_without_a_traceback(monkeypatch, capsys):
    """The console script imports nothing before it listens to Ctrl-C."""

    class Interrupting:
        def find_spec(self, name, path=None, target=None):
            if name == "spillway.cli.root":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "spillway.cli.root")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == ""


def test_a_full_disk_behind_stdout_is_one_line():
    """No traceback, not even from the end of the process."""
    command = [sys.executable, "-c", "from spillway.cli.main import main; main()"]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*command, "schema", "print"],
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=30,
        )
    assert ended.returncode == 1
    assert ended.stderr == "error: the output cannot be written: No space left on device\n"


def test_the_root_is_one_typer_app():
    """`app` is what the console script and the tests run."""
    assert isinstance(app, typer.Typer)
