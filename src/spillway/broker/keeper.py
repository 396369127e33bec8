"""The keeper: an embedded PostgreSQL that died is started again."""

import asyncio

import structlog

from spillway.broker.duty import Duty
from spillway.log.embedded import EmbeddedPostgres

log = structlog.get_logger(__name__)

LOOK_S = 0.25


class Keeper(Duty):
    """Looks after the server of our own data folder."""

    name = "keeper"

    def __init__(self, embedded: EmbeddedPostgres) -> None:
        super().__init__(LOOK_S)
        self._embedded = embedded

    async def run_once(self) -> bool:
        """Whether it had to be started again."""
        if self._embedded.is_running():
            return False
        mended = await asyncio.to_thread(self._embedded.mend)
        if mended:
            log.warning("postgres_restarted", folder=str(self._embedded.data_dir))
        return mended
