"""`spillway tail`: watch a queue go by, without consuming it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from spillway.cli.interrupt import polite
from spillway.cli.outcome import INTERRUPTED
from spillway.cli.output import print_json, shown
from spillway.cli.session import Session, with_session

if TYPE_CHECKING:
    from spillway.client.sync_client import Client
    from spillway.wire import BrowsedMessage

PAGE = 500
SEEN_MAX = 1_000_000

State = Literal["ready", "deferred", "leased", "settled", "parked", "blocked", "dropped"]


@with_session
def tail(
    session: Session,
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")],
    *,
    partition: Annotated[str | None, typer.Option(help="Only this partition.")] = None,
    from_version: Annotated[
        int, typer.Option("--from-version", min=1, help="Start at this version.")
    ] = 1,
    group: Annotated[str, typer.Option("--group", "-g", help="Whose state to show.")] = "default",
    state: Annotated[State | None, typer.Option(help="Only messages in this state.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is pushed, until Ctrl-C.")
    ] = False,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="At most.")] = None,
    interval: Annotated[float, typer.Option(min=0.05, help="Seconds between looks.")] = 0.5,
) -> None:
    """Print messages in the order of (partition, version). With --json: a JSON line for each."""
    with session.client() as client, polite("stopping") as stop:
        view = View(
            client,
            queue,
            partition=partition,
            group=group,
            state=state,
            from_version=from_version,
        )
        shown_count = 0
        while True:
            for message in view.news():
                _print(message, as_json=session.json_)
                shown_count += 1
                if shown_count == limit:
                    return
                if stop.is_set():
                    break
            if not follow:
                return
            while not stop.is_set() and not view.moved():
                stop.wait(interval)
            if stop.is_set():
                raise typer.Exit(INTERRUPTED)


class View:
    """What was shown already, and what is new."""

    def __init__(
        self,
        client: "Client",
        queue: str,
        *,
        partition: str | None,
        group: str,
        state: State | None,
        from_version: int,
    ) -> None:
        self._client = client
        self._queue = queue
        self._partition = partition
        self._group = group
        self._state = state
        self._from_version = from_version
        self._next: dict[str, int] = {}
        self._seen: dict[str, None] = {}
        self._tail = -1

    def moved(self) -> bool:
        """Whether anything was pushed since the last look: one cheap question."""
        return self._client.queue(self._queue).tail != self._tail

    def news(self) -> "Iterator[BrowsedMessage]":
        """What was not shown yet."""
        tail_then, seen_then = self._tail, len(self._seen)
        self._tail = self._client.queue(self._queue).tail
        for partition, version in list(self._next.items()):
            yield from self._new(partition, version)
        explained = len(self._seen) - seen_then == self._tail - tail_then
        if not self._next or not explained:
            yield from self._new(self._partition, self._from_version)

    def _new(self, partition: str | None, version: int) -> "Iterator[BrowsedMessage]":
        after: str | None = None
        while True:
            page = self._client.browse(
                self._queue,
                group=self._group,
                partition=partition,
                from_version=version,
                limit=PAGE,
                state=self._state,
                next=after,
            )
            yield from (message for message in page.messages if self._is_new(message))
            after = page.next
            if after is None:
                return

    def _is_new(self, message: "BrowsedMessage") -> bool:
        # Versions count within a lane, and a partition may have several: the id tells them apart.
        name = f"{message.partition}/{message.version}/{message.transaction_id}"
        if name in self._seen:
            return False
        self._seen[name] = None
        if len(self._seen) > SEEN_MAX:
            del self._seen[next(iter(self._seen))]
        known = self._next.get(message.partition, 0)
        self._next[message.partition] = max(known, message.version + 1)
        return True


def _print(message: "BrowsedMessage", *, as_json: bool) -> None:
    if as_json:
        print_json(message)
        return
    where = f"{message.partition}/{message.version}"
    key = f" key={shown(message.key)}" if message.key is not None else ""
    print(f"{message.enqueued_at} {shown(where)} {message.state}{key} {shown(message.payload)}")
