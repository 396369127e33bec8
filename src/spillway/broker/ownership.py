"""Ownership: take shards that nobody holds, keep those that are held. PostgreSQL's clock judges."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from spillway.broker.breaker import Breaker
from spillway.broker.duty import Duty
from spillway.broker.shard import Shard
from spillway.core.errors import DatabaseUnavailableError, SpillwayError
from spillway.log.connect import classify
from spillway.log.database import Database

log = structlog.get_logger(__name__)

HOLD_TIMEOUT_S = 3.0
"""One shard whose row is locked by a frozen backend must not cost the leases of the others."""
AT_ONCE = 4
AWAY_INTERVAL_S = 0.1
SEEN_S = 5.0
PREPARE_TIMEOUT_S = 60.0


class Ownership(Duty):
    """Acquires and renews the leases on shards, and says that this broker lives."""

    name = "ownership"

    def __init__(
        self,
        shards: list[Shard],
        database: Database,
        breaker: Breaker,
        prepare: Callable[[], Awaitable[None]],
        *,
        broker_id: str,
        address: str,
        secret: str,
        lease_s: float,
    ) -> None:
        """The database is a door of its own: a lease is not lost because others ask a lot."""
        super().__init__(interval_s=min(0.5, lease_s / 4))
        self._shards = shards
        self._breaker = breaker
        self._prepare = prepare
        self._database = database
        self._broker_id = broker_id
        self.address = address
        self._secret = secret
        self._lease_s = lease_s
        self._kept_at: dict[int, float] = {}
        self._seen_at = float("-inf")
        self._seen_as = ""
        self._turns = asyncio.Semaphore(AT_ONCE)
        self.database_answers = False
        self.trouble: SpillwayError | None = None
        """Why the last round failed."""

    async def run_once(self) -> int:
        """Returns how many shards are held after the round."""
        try:
            held = await self._round()
        except SpillwayError as exc:
            self.trouble = exc
            self.database_answers = not exc.transient
            # Whatever keeps every shard from us is not the fault of those who push.
            if exc.transient or not any(shard.owned for shard in self._shards):
                self._breaker.trip(exc)
            raise
        self.trouble = None
        return held

    @property
    def stands_by(self) -> bool:
        """Whether PostgreSQL answers, and other brokers hold every shard."""
        return self.database_answers and not any(shard.owned for shard in self._shards)

    def wait_s(self) -> float:
        """While PostgreSQL is away it is asked often: pushes wait in files for its answer."""
        return AWAY_INTERVAL_S if self._breaker.is_open else self.interval_s

    async def _round(self) -> int:
        if not self._shards:
            async with asyncio.timeout(PREPARE_TIMEOUT_S):
                await self._prepare()
        if self._breaker.is_open:
            self._kept_at.clear()  # whoever was not asked has not answered
        errors = await self._hold_all()
        refused = [error for error in errors if error is not None]
        away = next((e for e in refused if isinstance(e, DatabaseUnavailableError)), None)
        if away is not None:
            raise away
        if len(refused) == len(errors):
            raise classify(refused[0])  # nobody answered, or nobody let us in
        if any(shard.released for shard in self._shards):
            return sum(shard.owned for shard in self._shards)  # on the way out it is not asked
        self.database_answers = True
        self._breaker.reset()
        if time.monotonic() - self._seen_at > SEEN_S or self._seen_as != self.address:
            await self._be_seen()
        return sum(shard.owned for shard in self._shards)

    async def _be_seen(self) -> None:
        """Other brokers find this one by it."""
        address = self.address
        await self._database.rows(
            "broker_seen", broker_id=self._broker_id, address=address, secret=self._secret
        )
        await self._database.rows("brokers_forget")
        self._seen_at, self._seen_as = time.monotonic(), address

    async def _hold_all(self) -> list[Exception | None]:
        """All shards or none: a request may need several, and nobody hands it over."""
        first, *others = self._shards
        error = await self._try_hold(first)
        if error is None and not first.owned:
            for shard in others:
                shard.depose("another broker holds the first shard")
            return [None]
        return [error, *await asyncio.gather(*map(self._try_hold, others))]

    async def _try_hold(self, shard: Shard) -> Exception | None:
        try:
            async with self._turns, asyncio.timeout(HOLD_TIMEOUT_S):
                await self._hold(shard)
        except (SpillwayError, OSError) as exc:
            log.debug("shard_not_held", shard=shard.shard_id, error=str(exc))
            return exc
        return None

    async def _hold(self, shard: Shard) -> None:
        now = time.monotonic()
        if not shard.owned:
            if await shard.acquire():
                self._kept_at[shard.shard_id] = now
            return
        if self._breaker.is_open:
            await shard.flush()  # its own connection may be dead though others answer
        if now - self._kept_at.get(shard.shard_id, 0.0) > self._lease_s / 3:
            await shard.renew(self._database)
            self._kept_at[shard.shard_id] = now
