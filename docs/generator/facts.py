# ruff: noqa: INP001 (scripts beside their pages, not a package)
"""The pages of settings, errors, metrics and events."""

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, fields
from types import ModuleType
from typing import Any

from markdown import code, first_line, head, table

import spillway
from spillway.core.errors import SpillwayError
from spillway.core.events import TAGS
from spillway.core.group import TRANSITIONS
from spillway.core.metrics import DECLARED
from spillway.settings import Settings

# ---------------------------------------------------------------- settings

SETTINGS_HEAD = """\
A flag of `spillway serve` wins over the environment, the environment over the default. Settings
are read and checked once, at the start; a wrong one ends the start with its name and the limit it
breaks.

`database_url` is kept as a secret: no log line and no error shows it.
"""


def settings() -> str:
    rows = (
        (
            code(f"{Settings.model_config['env_prefix']}{name.upper()}"),
            "none" if field.default is None else code(field.default),
            _limits(field.metadata),
            field.description or "",
        )
        for name, field in Settings.model_fields.items()
    )
    headings = ("variable", "default", "limits", "meaning")
    return "\n".join(
        [head("Settings", "src/spillway/settings.py"), SETTINGS_HEAD, table(headings, rows)]
    )


def _limits(metadata: Iterable[object]) -> str:
    signs = {"gt": "> ", "ge": "≥ ", "lt": "< ", "le": "≤ ", "pattern": ""}
    found = [
        f"{sign}{value}"
        for constraint in metadata
        for name, sign in signs.items()
        if (value := getattr(constraint, name, None)) is not None
    ]
    return ", ".join(code(text) for text in found)


# ---------------------------------------------------------------- errors

ERRORS_HEAD = """\
An error says what went wrong, with which value and which limit; its hint is the next step. Its
`code` is stable: compare codes, not texts. In Python each code is a class, and the client raises
the class that the broker raised. **Retry** says whether the same request may succeed later; such
an answer carries `Retry-After`, and the client tries again by itself.
"""
AT_START = {
    "database_permission",
    "database_version",
    "embedded_postgres",
    "schema_mismatch",
    "settings",
    "spool_folder",
}
Kind = type[SpillwayError]
ERROR_GROUPS: dict[str, Callable[[Kind], bool]] = {
    "What the broker answers": lambda kind: (
        _room(kind) == "core" and kind.status != INTERNAL and kind.code not in AT_START
    ),
    "What the start may say": lambda kind: kind.code in AT_START,
    "What the client raises by itself": lambda kind: _room(kind) == "client",
    "What should not happen": lambda _: True,
}
INTERNAL = 500


def errors() -> str:
    parts = [head("Errors", "the error classes in src/spillway"), ERRORS_HEAD]
    left = _all_errors()
    for title, belongs in ERROR_GROUPS.items():
        some = [kind for kind in left if belongs(kind)]
        left = [kind for kind in left if kind not in some]
        rows = (_error(kind) for kind in sorted(some, key=lambda kind: (kind.status, kind.code)))
        headings = ("code", "status", "retry", "meaning", "hint", "class")
        parts += [f"## {title}\n", table(headings, rows)]
    return "\n".join(parts)


def _room(kind: Kind) -> str:
    return kind.__module__.split(".")[1]


def _error(kind: Kind) -> tuple[str, ...]:
    retry = "yes" if kind.transient else "no"
    status = str(kind.status) if kind.status != INTERNAL or _room(kind) == "core" else "-"
    return code(kind.code), status, retry, first_line(kind), kind.hint, code(kind.__name__)


def _all_errors() -> list[Kind]:
    for module in _modules(spillway):
        importlib.import_module(module)
    found: dict[str, Kind] = {}
    waiting: list[Kind] = [SpillwayError]
    while waiting:
        kind = waiting.pop(0)
        if kind.__module__.startswith("spillway."):
            found.setdefault(kind.code, kind)
        waiting.extend(kind.__subclasses__())
    return list(found.values())


def _modules(package: ModuleType) -> Iterator[str]:
    """Every module of the house but the bench and the test kit: their errors are no reference."""
    for found in pkgutil.walk_packages(package.__path__, "spillway."):
        if not re.match(r"spillway\.(bench|testing)\b|.*\.__main__$", found.name):
            yield found.name


# ---------------------------------------------------------------- metrics

METRICS_HEAD = """\
`GET /metrics` answers Prometheus text; with `Accept: application/json` the same facts as JSON.
Gauges are read from the state when they are asked for, so the series of a deleted queue is gone
with it. Counters begin at 0 when the process starts.

The first alert of every queue is `spillway_queue_oldest_ready_seconds`: it rises when work waits,
whatever the reason, and stays at 0 on a queue that is merely empty. The [operator's
guide](../guides/operate.md) says what to do then.

Each meaning names the trouble that a rise means.
"""


def metrics() -> str:
    rows = (
        (code(name), one.kind, ", ".join(map(code, one.labels)), one.help)
        for name, one in DECLARED.items()
    )
    headings = ("metric", "kind", "labels", "meaning")
    return "\n".join(
        [head("Metrics", "src/spillway/core/metrics.py"), METRICS_HEAD, table(headings, rows)]
    )


# ---------------------------------------------------------------- events

EVENTS_HEAD = """\
The control log holds the history of every (lane, group) as events, and nothing else moves a
message from one [state](states.md) to another. One row of `spillway.control_event` is what one
commit decided about one (lane, group): a MessagePack list of `[ms, tag, version, field, field,
…]`.

The tag names the event, the version its stored form. A tag is never used again. When a form
changes, its version grows and an upcaster leads from the old form to the new one, so every log
stays readable.

`ranges` are pairs of (first version, last version), `runs` are triples with the time at which
they are due. Times are milliseconds since 1970. `lease_id` 0 means that no lease held the
messages.
"""


def events() -> str:
    parts = [head("Events", "src/spillway/core/events.py"), EVENTS_HEAD]
    for tag, (kind, version) in TAGS.items():
        parts.append(f"## {kind.__name__}\n\n{first_line(kind)}\n")
        parts.append(f"Tag `{tag}`, version {version}.{_moves(kind.__name__)}\n")
        rows = ((code(one.name), code(_annotation(one.type)), _value(one)) for one in fields(kind))
        parts.append(table(("field", "type", "default"), rows))
    return "\n".join(parts)


def _moves(event: str) -> str:
    moves = TRANSITIONS.get(event)
    if moves is None:
        return " Moves no message by itself."
    told = (
        f"{code(before)} → {' or '.join(map(code, afters))}" for before, afters in moves.items()
    )
    return f" Moves {', '.join(told)}."


def _annotation(kind: object) -> str:
    text = kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
    return text.replace("typing.", "")


def _value(field: Any) -> str:  # noqa: ANN401 (dataclasses' own)
    return "" if field.default is MISSING else code(repr(field.default))
