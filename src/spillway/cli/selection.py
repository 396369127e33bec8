"""Which messages a verb means: the flags that every bulk change shares."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from spillway.cli.outcome import counted, say
from spillway.cli.signature import Options, expanded
from spillway.cli.span import moment
from spillway.core.errors import SelectionRequiredError

if TYPE_CHECKING:
    from spillway.client.operations import Selected
    from spillway.wire import VerbReply

PANEL = "Which messages (filters are joined by AND)"
FILTERS = ("partition", "key", "error_contains", "before", "messages")


def _option(kind: Any, *names: str, text: str, default: Any = None) -> tuple[Any, Any]:  # noqa: ANN401
    info = typer.Option(*names, help=text, rich_help_panel=PANEL, show_default=bool(default))
    return Annotated[kind, info], default


OPTIONS: Options = {
    "group": _option(str, "--group", "-g", text="The consumer group.", default="default"),
    "messages": _option(
        list[str] | None, "--message", "-m", text="One message: PARTITION/VERSION; repeatable."
    ),
    "partition": _option(str | None, "--partition", text="Only of this partition."),
    "key": _option(str | None, "--key", text="Only of this key."),
    "error_contains": _option(str | None, "--error", text="Only with this in their error."),
    "before": _option(str | None, "--before", text="Only older: a time, or a span such as 2h."),
    "all": _option(bool, "--all", text="All of them; needed without a filter.", default=False),
    "limit": _option(int | None, "--limit", text="At most so many."),
    "dry_run": _option(bool, "--dry-run", text="Only count them.", default=False),
    "reason": _option(str | None, "--reason", text="Why, for the audit."),
}


def with_selection(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's `selection` by the shared flags."""
    return expanded(command, "selection", OPTIONS, lambda _, given: selected(given))


def selected(given: dict[str, Any]) -> "Selected":
    """The flags as the client's keywords; the unset ones are left out."""
    known = {name: value for name, value in given.items() if value not in (None, False, [])}
    if "before" in known:
        known["before"] = moment(known["before"])
    if "messages" in known:
        known["messages"] = [_message_name(text) for text in known["messages"]]
    return cast("Selected", known)


def _message_name(text: str) -> Any:  # noqa: ANN401 (wire is imported late)
    from spillway.wire import MessageName  # noqa: PLC0415

    partition, _, version = text.rpartition("/")
    if not partition or not version.isdigit():
        raise typer.BadParameter(f"{text!r} is no message: write PARTITION/VERSION")
    return MessageName(partition=partition, version=int(version))


def require(selection: "Selected", *, named: object = None) -> None:
    """Refuse a bulk change that names nothing, filters nothing and does not say --all."""
    if named or selection.get("all") or any(name in selection for name in FILTERS):
        return
    raise SelectionRequiredError(hint="name messages, give a filter, or say --all")


def report(reply: "VerbReply", noun: str, did: str = "") -> None:
    """What a verb did, on stderr."""
    would = " (dry run: nothing changed)" if reply.dry_run else ""
    rest = f", {counted(reply.remaining, noun)} left" if reply.remaining else ""
    say(f"{reply.verb}: {counted(reply.affected, noun)}{did}{rest}{would}")
