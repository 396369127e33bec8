"""API keys: whose request it is, also while PostgreSQL is away."""

import asyncio
import time
from pathlib import Path

import msgspec
import structlog

from spillway.broker.breaker import Breaker
from spillway.core.errors import DatabaseUnavailableError, UnauthorizedError
from spillway.log.database import Database
from spillway.log.keys import digest_of
from spillway.spool.folder import write_whole

log = structlog.get_logger(__name__)

REMEMBERED_S = 10.0
"""How long a revoked API key may still be taken, and how often a busy one is looked up."""
KEYS_MAX = 10_000

Owner = tuple[str, str]
"""The org of a key, and the name that the key has there."""


class Keys:
    """Asks PostgreSQL for keys, and remembers its last word for when it is away.

    They are kept in a file too, as digests: a broker that starts during an outage knows its
    producers.
    """

    def __init__(self, database: Database, breaker: Breaker, path: Path) -> None:
        self._database = database
        self._breaker = breaker
        self._path = path
        self._owners: dict[str, Owner] = {}
        """By digest; those that were confirmed last are at the end."""
        self._confirmed_s: dict[str, float] = {}
        self._unsaved = False
        self._saving: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Know what was known before the start."""
        try:
            text = await asyncio.to_thread(self._path.read_bytes)
            self._owners = msgspec.json.decode(text, type=dict[str, Owner])
        except FileNotFoundError:
            pass
        except (OSError, msgspec.DecodeError) as error:
            log.warning("keys_unreadable", file=str(self._path), error=str(error))

    async def close(self) -> None:
        """Let what is being written be finished."""
        if self._saving is not None:
            await self._saving

    async def authenticate(self, key: str) -> Owner:
        """Whose key this is. While PostgreSQL is away its last word holds."""
        digest = digest_of(key).hex()
        owner = self._owners.get(digest)
        since_s = time.monotonic() - self._confirmed_s.get(digest, float("-inf"))
        if owner is not None and (since_s < REMEMBERED_S or self._breaker.is_open):
            return owner
        if self._breaker.is_open:
            raise DatabaseUnavailableError
        try:
            found = await self._breaker.patient(self._look_up(digest))
        except DatabaseUnavailableError as error:
            if owner is None:
                raise  # a stranger opens no breaker
            self._breaker.trip(error)
            return owner
        self._learn(digest, found)
        if found is None:
            raise UnauthorizedError
        return found

    async def _look_up(self, digest: str) -> Owner | None:
        row = await self._database.row("api_key_find", digest=bytes.fromhex(digest))
        return None if row is None else (row[0], row[1])

    def _learn(self, digest: str, owner: Owner | None) -> None:
        before = self._owners.pop(digest, None)
        self._confirmed_s.pop(digest, None)
        if owner is not None:
            if len(self._owners) >= KEYS_MAX:
                oldest = next(iter(self._owners))
                del self._owners[oldest]
                self._confirmed_s.pop(oldest, None)
            self._owners[digest] = owner
            self._confirmed_s[digest] = time.monotonic()
        if owner != before:
            self._unsaved = True
            if self._saving is None or self._saving.done():
                self._saving = asyncio.get_running_loop().create_task(self._save())

    async def _save(self) -> None:
        """Nobody waits for it; what changes meanwhile is in the next file."""
        while self._unsaved:
            self._unsaved = False
            try:
                await asyncio.to_thread(
                    write_whole, self._path, msgspec.json.encode(self._owners) + b"\n"
                )
            except OSError as error:
                log.warning("keys_not_saved", file=str(self._path), error=str(error))
