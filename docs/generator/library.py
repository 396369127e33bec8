# ruff: noqa: INP001 (scripts beside their pages, not a package)
"""The page of the Python client."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from markdown import code, first_line, head, table, unwrapped

import spillway

CLIENT_HEAD = """\
`import spillway` gives these names. `Client` blocks and may be shared by threads; `AsyncClient`
has the same methods to await. Both try again by themselves what is safe to repeat: a push carries
a transaction id, and a settlement is fenced by its receipt, so neither happens twice. A lease is
repeated only when it cannot have happened. A call with all its attempts takes `timeout_s` at most;
`wait_ms`, where the broker is asked to wait for messages, comes on top.

`ack()`, `nack()`, `extend()` and `settle()` of a client take any number of receipts and raise
nothing for those that are refused: look at the `status` and `error` of each of `.results`. Those of
a message are about one receipt, and raise its error (`StaleReceiptError`).
"""
CLIENT_NAMES = (
    "Client",
    "AsyncClient",
    "Message",
    "AsyncMessage",
    "Producer",
    "AsyncProducer",
    "Worker",
)


def client() -> str:
    parts = [head("Python client", "src/spillway/client"), CLIENT_HEAD]
    for name in CLIENT_NAMES:
        kind = getattr(spillway, name)
        parts.append(f"## {name}\n\n{unwrapped(inspect.getdoc(kind) or '')}")
        parts.append(f"```text\n{name}{_signature(kind)}\n```\n")
        if name == "AsyncClient":
            parts.append("The methods are those of [Client](#client), to be awaited.\n")
            continue
        parts.append(table(("method", "what it does"), _methods(kind)))
    parts.append("## Beside them\n")
    others = sorted(set(spillway.__all__) - set(CLIENT_NAMES) - {"errors"})
    rows = ((code(name), first_line(getattr(spillway, name))) for name in others)
    parts.append(table(("name", "what it is"), rows))
    return "\n".join(parts)


def _methods(kind: type) -> Iterator[tuple[str, str]]:
    for owner in reversed(kind.__mro__[:-1]):
        for name, member in vars(owner).items():
            if name.startswith("_") or not _is_documented(member):
                continue
            shown = name if isinstance(member, property) else f"{name}{_signature(member)}"
            yield code(shown), first_line(member)


def _is_documented(member: object) -> bool:
    return bool(inspect.getdoc(member)) and (callable(member) or isinstance(member, property))


def _signature(thing: Callable[..., Any]) -> str:
    signature = inspect.signature(thing)
    kept = [
        one.replace(annotation=inspect.Parameter.empty)
        for name, one in signature.parameters.items()
        if name not in {"self", "transport", "clock", "sleep", "draw"}
    ]
    bare = signature.replace(parameters=kept, return_annotation=inspect.Signature.empty)
    return str(bare).replace("(/, ", "(").replace("(/)", "()")
