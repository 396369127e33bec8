"""A group that knows its commands by name and help line, and imports one only when it runs.

So `spillway --help` reads a table, and no command pays for the imports of another.
"""

import errno
import os
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from spillway.cli.outcome import FAILED, INTERRUPTED, exit_code, say, tell
from spillway.core.errors import SpillwayError

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a command lives: `attribute` of `spillway.cli.<module>`, a function or a Typer app."""

    module: str
    attribute: str
    help: str
    panel: str


def load(name: str, entry: Entry) -> Any:  # noqa: ANN401 (typer's command classes are private)
    """The command itself."""
    found = getattr(import_module(f"spillway.cli.{entry.module}"), entry.attribute)
    command: Any
    if isinstance(found, typer.Typer):
        command = typer.main.get_group(found)
    else:
        app = typer.Typer(add_completion=False)
        app.command(name)(found)
        command = typer.main.get_command(app)
    command.name = name
    return command


class LazyGroup(TyperGroup):
    """The root: help from the table, commands on demand, errors as exit codes."""

    entries: ClassVar[dict[str, Entry]] = {}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: _sign(name, entry) for name, entry in self.entries.items()}
        self._loaded: set[str] = set()

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401
        """Load what is about to run (or to complete its own words)."""
        name = args[0] if args else ""
        if name in self.entries and name not in self._loaded:
            self.commands[name] = load(name, self.entries[name])
            self._loaded.add(name)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401
        """Run; every failure is told once, on stderr, and becomes a documented exit code."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except SpillwayError as error:
            tell(error)
            raise typer.Exit(exit_code(error)) from error
        except KeyboardInterrupt:
            say("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            # What could not be written is still in the buffer: the end of the process tries again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            say(f"error: the output cannot be written: {error.strerror}")
            raise typer.Exit(FAILED) from None
        return result


def _sign(name: str, entry: Entry) -> TyperCommand:
    """What the help of the group shows for a command that is not loaded."""
    return TyperCommand(name, help=entry.help, rich_help_panel=entry.panel)
