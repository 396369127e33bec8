"""`spillway key`: API keys, written straight into the database: no broker, no key needed."""

import asyncio
import re
import sys
from typing import Annotated, Any

import typer

from spillway.cli.database import Data, DatabaseUrl, database
from spillway.cli.outcome import say
from spillway.cli.output import print_json, print_json_lines, print_table
from spillway.cli.session import Session, with_session

KEPT_S = 10
"""How long a broker remembers a key (broker.keys.REMEMBERED_S; a test compares them)."""
DEFAULT_ORG = "default"

app = typer.Typer(
    help="API keys: create, list, revoke; in the database itself, broker or no broker.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(help="Names the key; the audit shows it as the actor.")]


def _checked(what: str, name: str) -> str:
    from spillway.wire import NAME_PATTERN  # noqa: PLC0415

    if re.match(NAME_PATTERN, name) is None:
        raise typer.BadParameter(
            f"{name!r} is no name of {what}: [A-Za-z0-9][A-Za-z0-9._-]{{0,127}}"
        )
    return name


def _org(session: Session) -> str:
    return _checked("an org", session.org or DEFAULT_ORG)


@app.command("create")
@with_session
def create(
    session: Session, name: Name, *, data: Data = None, database_url: DatabaseUrl = None
) -> None:
    """Make a key of an org (--org; `default` if not given) and print it, this once.

    The database keeps only its digest: a lost key is revoked and replaced. The org is made if it
    is new. Send the key as `Authorization: Bearer KEY`, --api-key or SPILLWAY_API_KEY; a broker
    asks everybody for one with SPILLWAY_REQUIRE_API_KEY=true. With --json: one JSON document.
    """
    from spillway.log import keys  # noqa: PLC0415

    org, name = _org(session), _checked("a key", name)
    with database(data, database_url) as url:
        key = asyncio.run(keys.create(url, org, name))
    if session.json_:
        print_json({"org": org, "name": name, "key": key})
    else:
        sys.stdout.write(key + "\n")
    say(f"key {name} of org {org}: keep it now, it is not shown again")


@app.command("list")
@with_session
def list_keys(
    session: Session,
    *,
    revoked: Annotated[bool, typer.Option("--revoked", help="Revoked ones too.")] = False,
    data: Data = None,
    database_url: DatabaseUrl = None,
) -> None:
    """List the keys of every org, or of --org; a key itself is nowhere to be read.

    DIGEST begins the sha256 of the key: `printf %s KEY | sha256sum`. With --json: a JSON line each.
    """
    from spillway.log import keys  # noqa: PLC0415

    with database(data, database_url) as url:
        found = asyncio.run(keys.list_keys(url, session.org, revoked=revoked))
    if session.json_:
        print_json_lines(found)
        return
    print_table(("ORG", "NAME", "DIGEST", "CREATED", "REVOKED"), map(_row, found))


def _row(key: Any) -> tuple[object, ...]:  # noqa: ANN401 (keys.ApiKey, imported late)
    ended = None if key.revoked_at is None else f"{key.revoked_at:%Y-%m-%d %H:%M:%S}"
    return key.org, key.name, key.digest[:12], f"{key.created_at:%Y-%m-%d %H:%M:%S}", ended


@app.command("revoke")
@with_session
def revoke(
    session: Session, name: Name, *, data: Data = None, database_url: DatabaseUrl = None
) -> None:
    """End a key for good. A running broker may take it for 10 more seconds, no longer.

    To change a key without a gap: create one of another name, hand it out, revoke the old one.
    With --json: one JSON document.
    """
    from spillway.log import keys  # noqa: PLC0415

    org = _org(session)
    with database(data, database_url) as url:
        asyncio.run(keys.revoke(url, org, name))
    if session.json_:
        print_json({"org": org, "name": name, "revoked": True})
    say(f"key {name} of org {org} is revoked; brokers stop taking it within {KEPT_S} s")
