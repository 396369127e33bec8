"""The options of every command that talks to a broker, wherever on the line they stand."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spillway.cli.signature import Options, expanded

if TYPE_CHECKING:
    from spillway.client.sync_client import Client

PANEL = "Connection and output"
DEFAULT_URL = "http://127.0.0.1:6632"
DEFAULT_TIMEOUT_S = 10.0
TIMEOUT_S_MIN = 0.001
RETRIES = 3

TEXTS = {
    "url": f"The broker; {DEFAULT_URL} if not given (env SPILLWAY_URL).",
    "org": "The org (tenant) (env SPILLWAY_ORG).",
    "api_key": "The API key, where one is asked for (env SPILLWAY_API_KEY).",
    "actor": "Who you are, for the audit (env SPILLWAY_ACTOR).",
    "timeout": "Seconds that a call may take, its retries included; 10 if not given "
    "(env SPILLWAY_TIMEOUT).",
    "json_": "Print JSON instead of columns (env SPILLWAY_JSON).",
}


def _option(
    name: str,
    kind: Any,  # noqa: ANN401
    default: Any = None,  # noqa: ANN401
    least: float | None = None,
) -> tuple[Any, Any]:
    word = name.strip("_")
    info = typer.Option(
        f"--{word.replace('_', '-')}",
        help=TEXTS[name],
        min=least,
        envvar=f"SPILLWAY_{word.upper()}",
        show_envvar=False,
        show_default=False,
        rich_help_panel=PANEL,
    )
    return Annotated[kind, info], default


OPTIONS: Options = {
    "url": _option("url", str | None),
    "org": _option("org", str | None),
    "api_key": _option("api_key", str | None),
    "actor": _option("actor", str | None),
    "timeout": _option("timeout", float | None, least=TIMEOUT_S_MIN),
    "json_": _option("json_", bool, default=False),
}


@dataclass(frozen=True, slots=True)
class Session:
    """Which broker to talk to, as whom, and how to print."""

    url: str | None = None
    org: str | None = None
    api_key: str | None = None
    actor: str | None = None
    timeout: float | None = None
    json_: bool = False

    def client(self, retries: int = RETRIES) -> "Client":
        """A client; imported only now, so that help and usage errors stay instant."""
        from spillway.client.sync_client import Client  # noqa: PLC0415

        return Client(
            self.url or DEFAULT_URL,
            org=self.org,
            api_key=self.api_key,
            actor=self.actor,
            timeout_s=self.timeout or DEFAULT_TIMEOUT_S,
            retries=retries,
        )


def with_session(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's `session` by the shared options."""
    return expanded(command, "session", OPTIONS, session_of)


def session_of(ctx: typer.Context, given: dict[str, Any]) -> Session:
    """A flag at the command outranks one at the root, and both outrank the environment."""
    root = ctx.find_root().obj
    base = root if isinstance(root, Session) else Session()
    chosen = {
        name: value
        for name, value in given.items()
        if value not in (None, False) and (_typed(ctx, name) or not getattr(base, name))
    }
    return replace(base, **chosen)


def _typed(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
