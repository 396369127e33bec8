"""Who reads the files of a spool: the broker whose they are, or this process, in the folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import typer

from spillway.cli.session import Session
from spillway.core.errors import SpoolFolderError

if TYPE_CHECKING:
    from spillway.client.sync_client import Client
    from spillway.wire import (
        SpoolEvent,
        SpoolEventsReply,
        SpoolFile,
        SpoolFilesReply,
        SpoolVerifyReply,
    )

PAGE = 500
Place = Literal["waiting", "failed"]


class Pages(Protocol):
    """One page at a time."""

    def files(self, place: Place, after: str | None, limit: int) -> "SpoolFilesReply": ...
    def events(self, name: str, place: Place, line: int, limit: int) -> "SpoolEventsReply": ...
    def verify(self, name: str | None) -> "SpoolVerifyReply": ...


class Reader:
    """All that is wanted, page by page."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self.verify = pages.verify
        self.more_files = False
        """Whether there are more than were asked for."""
        self.next_line: int | None = None
        """Where the events go on, if there are more than were asked for."""

    def files(self, place: Place, limit: int) -> "Iterator[SpoolFile]":
        after: str | None = None
        while limit > 0:
            page = self._pages.files(place, after, min(limit, PAGE))
            yield from page.files
            limit -= len(page.files)
            after = page.next
            if after is None:
                return
        self.more_files = True

    def events(self, name: str, place: Place, first: int, limit: int) -> "Iterator[SpoolEvent]":
        line: int | None = first
        while limit > 0 and line is not None:
            page = self._pages.events(name, place, line, min(limit, PAGE))
            yield from page.events
            limit -= len(page.events)
            line = page.next
        self.next_line = line


@contextmanager
def reader(session: Session, folder: Path | None) -> Iterator[Reader]:
    """The broker, or the folder where one is named."""
    if folder is None:
        with session.client() as client:
            yield Reader(_Broker(client))
        return
    try:
        if not _is_spool(folder):
            raise typer.BadParameter(
                f"{folder} is no spool folder: it has neither `spool.lock` nor buffer files"
                " (`spillway spool status` names the folder)"
            )
        yield Reader(_Folder(folder))
    except OSError as error:
        raise SpoolFolderError(
            f"{folder} cannot be read: {error}", hint="read it as the user of the broker"
        ) from error


def _is_spool(folder: Path) -> bool:
    from spillway.spool.folder import is_spool  # noqa: PLC0415

    return is_spool(folder)


class _Broker:
    """Asks the broker."""

    def __init__(self, client: "Client") -> None:
        self._client = client

    def files(self, place: Place, after: str | None, limit: int) -> "SpoolFilesReply":
        return self._client.spool_files(state=place, after=after, limit=limit)

    def events(self, name: str, place: Place, line: int, limit: int) -> "SpoolEventsReply":
        return self._client.spool_file(name, state=place, from_line=line, limit=limit)

    def verify(self, name: str | None) -> "SpoolVerifyReply":
        return self._client.spool_verify(name)


class _Folder:
    """Looks by itself; it changes nothing, so a broker may run beside it."""

    def __init__(self, folder: Path) -> None:
        from spillway.broker.spoolpages import SpoolPages  # noqa: PLC0415

        self._pages = SpoolPages(folder)

    def files(self, place: Place, after: str | None, limit: int) -> "SpoolFilesReply":
        return self._pages.files(place, after=after, limit=limit)

    def events(self, name: str, place: Place, line: int, limit: int) -> "SpoolEventsReply":
        return self._pages.events(name, place, from_line=line, limit=limit)

    def verify(self, name: str | None) -> "SpoolVerifyReply":
        return self._pages.verify(name)
