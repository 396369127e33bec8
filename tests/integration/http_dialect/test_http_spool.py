"""The spool over HTTP: what waits, and what an operator may do about it."""

import msgspec
import pytest

from spillway.settings import Settings

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def drained(site, eventually_async):
    """Come back when the spool is empty."""

    async def is_empty():
        return not (await site.ask("GET", "/v1/spool"))["pending"]

    await eventually_async(is_empty)


async def test_a_hold_sends_pushes_to_files_and_a_release_brings_them_back(
    site, queue, eventually_async
):
    """In their order, behind what was stored before; who held, since when and why is told."""
    await site.push(queue, 1, 2)
    held = await site.ask("POST", "/v1/spool/hold", {"reason": "new disk"}, x_spillway_actor="ann")
    assert (held["hold"]["actor"], held["hold"]["reason"]) == ("ann", "new disk")
    results = await site.results(queue, 3, 4)
    assert [result["status"] for result in results] == ["buffered", "buffered"]
    status = await site.ask("GET", "/v1/spool")
    assert (status["pending"], status["hold"]) == (2, held["hold"])
    assert status["queues"] == [{"org": "default", "queue": queue, "events": 2}]
    assert await site.payloads(queue) == [1, 2]
    assert (await site.ask("POST", "/v1/spool/release"))["hold"] is None
    await drained(site, eventually_async)
    assert await site.payloads(queue) == [1, 2, 3, 4]


async def test_a_hold_outlives_a_restart(database_url, open_site, tmp_path, queue):
    """A broker that comes back goes on holding, and who did it is in the folder."""
    settings = Settings(num_shards=2, file_buffer_dir=tmp_path)
    async with open_site(database_url, settings) as site:
        before = await site.ask("POST", "/v1/spool/hold", {"reason": "r"}, x_spillway_actor="ann")
    async with open_site(database_url, settings) as site:
        after = await site.ask("GET", "/v1/spool")
        assert after["hold"] == before["hold"]
        assert [r["status"] for r in await site.results(queue, 1)] == ["buffered"]
        await site.ask("POST", "/v1/spool/release", x_spillway_actor="bob")
        assert after["foreign"] == []
    texts = (tmp_path / "actions.jsonl").read_bytes().splitlines()
    actions = [msgspec.json.decode(text) for text in texts]
    assert [(one["verb"], one["actor"]) for one in actions] == [("hold", "ann"), ("release", "bob")]
