"""What people did to the spool by hand, a JSON object a line: PostgreSQL may be away just then."""

from pathlib import Path
from typing import Any

import msgspec

from spillway.spool import folder as disk


class Action(msgspec.Struct):
    """Who did what, and why."""

    at: str
    actor: str
    verb: str
    what: dict[str, Any]
    reason: str | None


def record(folder: Path, action: Action) -> None:
    """Add an action, durably; blocking file work."""
    disk.append(folder / disk.ACTIONS, msgspec.json.encode(action) + b"\n")
