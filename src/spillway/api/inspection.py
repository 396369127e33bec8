"""Looking without leasing: browse, a message's story, dead letters, what is blocked."""

from typing import Annotated, Literal

from msgspec import Meta

from spillway.api.call import Call
from spillway.api.payloads import dress
from spillway.api.response import Response
from spillway.core.errors import BadRequestError
from spillway.wire import DeadId, Name, Request, Text, Timestamp, Version

State = Literal["ready", "deferred", "leased", "settled", "parked", "blocked", "dropped"]
PageSize = Annotated[int, Meta(ge=1, le=1000)]

VERSION_MAX = 2**63 - 1


class BrowseQuery(Request):
    """Which messages to show; `state` is meant for `group`."""

    partition: Text | None = None
    from_version: Version | None = None
    limit: PageSize = 100
    state: State | None = None
    group: Name = "default"
    next: str | None = None


class StoryQuery(Request):
    """For which group the state is told."""

    group: Name = "default"


class DeadQuery(Request):
    """Which dead letters to show; filters are joined by AND."""

    group: Name | None = None
    partition: Text | None = None
    key: Text | None = None
    error_contains: Text | None = None
    before: Timestamp | None = None
    limit: PageSize = 100
    after: DeadId | None = None


class BlockedQuery(Request):
    """Of which group; of all where none is named."""

    group: Name | None = None
    limit: PageSize = 100
    next: Text | None = None


async def browse(call: Call) -> Response:
    query = call.query(BrowseQuery)
    reply = await call.broker.insights.browse(
        call.org,
        call.params["queue"],
        partition=query.partition,
        from_version=query.from_version,
        limit=query.limit,
        state=query.state,
        group=query.group,
        next=query.next,
    )
    dress(reply.messages, call.reply_media)
    return call.reply(reply)


async def story(call: Call) -> Response:
    group, params = call.query(StoryQuery).group, call.params
    version = _version(params["version"])
    reply = await call.broker.insights.story(
        call.org, params["queue"], params["partition"], version, group
    )
    dress([reply.message], call.reply_media)
    return call.reply(reply)


def _version(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise BadRequestError(f"{text[:50]!r} is no version", hint="versions count from 1")
    version = int(text)
    if not 1 <= version <= VERSION_MAX:
        raise BadRequestError(f"{version} is no version", hint="versions count from 1")
    return version


async def dead(call: Call) -> Response:
    query = call.query(DeadQuery)
    reply = await call.broker.insights.dead(
        call.org,
        call.params["queue"],
        group=query.group,
        partition=query.partition,
        key=query.key,
        error_contains=query.error_contains,
        before=query.before,
        limit=query.limit,
        after=query.after,
    )
    dress(reply.dead, call.reply_media)
    return call.reply(reply)


async def blocked(call: Call) -> Response:
    query = call.query(BlockedQuery)
    return call.reply(
        await call.broker.insights.blocked(
            call.org,
            call.params["queue"],
            group=query.group,
            limit=query.limit,
            next=query.next,
        )
    )
