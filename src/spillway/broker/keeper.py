"""The keeper: starts the embedded PostgreSQL, and starts it again when it died."""

import asyncio

import structlog

from spillway.broker.duty import Duty
from spillway.core.errors import EmbeddedPostgresError
from spillway.log.embedded import EmbeddedPostgres

log = structlog.get_logger(__name__)

LOOK_S = 0.25
RETRY_S = 2.0
"""Between two attempts with a server that does not start."""
START_PATIENCE_S = 2.5
"""A crash may have left minutes of recovery: pushes go to files meanwhile."""


class Keeper(Duty):
    """Looks after the server of our own data folder."""

    name = "keeper"

    def __init__(self, embedded: EmbeddedPostgres) -> None:
        super().__init__(LOOK_S)
        self._embedded = embedded
        self._starting: asyncio.Task[str] | None = None
        self._failed = False

    @property
    def url(self) -> str:
        """Where the server listens, or will."""
        return self._embedded.url

    async def start(self) -> None:
        """Start the server, or leave it to the rounds if it needs long or cannot.

        A first start that fails is told: there is nothing to wait for.
        """
        is_first = not self._embedded.has_cluster
        self._starting = asyncio.create_task(asyncio.to_thread(self._embedded.start))
        try:
            async with asyncio.timeout(None if is_first else START_PATIENCE_S):
                await asyncio.shield(self._starting)
        except TimeoutError:
            log.warning("postgres_starts_slowly", folder=str(self._embedded.data_dir))
        except EmbeddedPostgresError:
            if is_first:
                raise  # else the first round says so, and tries again

    @property
    def is_late(self) -> bool:
        """Whether the server is still starting: nobody need wait for its answer."""
        return self._starting is not None and not self._starting.done()

    async def run_once(self) -> bool:
        """Whether it had to be started again."""
        self._failed = True
        if self._starting is not None:
            starting, self._starting = self._starting, None
            await starting
        mended = False
        if not self._embedded.is_running():
            mended = await asyncio.to_thread(self._embedded.mend)
        if mended:
            log.warning("postgres_restarted", folder=str(self._embedded.data_dir))
        self._failed = False
        return mended

    def wait_s(self) -> float:
        """How long until the next look."""
        return RETRY_S if self._failed else self.interval_s
