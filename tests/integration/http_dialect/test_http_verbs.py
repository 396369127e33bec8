"""What operators do over HTTP: browse, story, dead letters, and every verb with its dry run."""

import asyncio

import pytest

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
async def verb(site, queue):
    """Do a verb on this test's queue: (affected, remaining)."""

    async def do(name, **request):
        reply = await site.ask(
            "POST", f"/v1/queues/{queue}/{name}", request, x_spillway_actor="ann"
        )
        assert (reply["verb"], reply["dry_run"]) == (name, request.get("dry_run", False))
        return reply["affected"], reply["remaining"]

    return do


async def shown(site, queue, **query):
    words = "&".join(f"{name}={value}" for name, value in query.items())
    return await site.ask("GET", f"/v1/queues/{queue}/messages?{words}")


async def test_browse_shows_every_state_and_takes_none(site, queue):
    """Browsing filters by partition, version and state, and leases nothing."""
    await site.make(queue, backoff_base_ms=60_000, backoff_cap_ms=60_000)
    await site.push(queue, *range(5))
    acked, nacked, parked, _ = await site.lease(queue, max=4)
    await site.ack(acked)
    await site.nack(nacked)
    await site.nack(parked, park=True)
    await site.push(queue, "elsewhere", partition="p")
    found = (await shown(site, queue))["messages"]
    states = ["settled", "deferred", "parked", "leased", "ready", "ready"]
    assert [message["state"] for message in found] == states
    for state in set(states):
        some = (await shown(site, queue, state=state))["messages"]
        assert [m for m in found if m["state"] == state] == some
    assert len((await shown(site, queue, partition="p"))["messages"]) == 1
    upper = (await shown(site, queue, partition="Default", from_version=4))["messages"]
    assert [message["version"] for message in upper] == [4, 5]
    assert [m["state"] for m in (await shown(site, queue, limit=2))["messages"]] == states[:2]


async def test_browse_pages_through_all(site, queue):
    """`next` leads through every message once, in the order of (partition, version)."""
    for partition in ("b", "a"):
        await site.push(queue, *range(5), partition=partition)
    seen, query = [], {"limit": 3}
    while True:
        page = await shown(site, queue, **query)
        seen += [(message["partition"], message["version"]) for message in page["messages"]]
        if page["next"] is None:
            break
        query["next"] = page["next"]
    assert seen == [(partition, n) for partition in "ab" for n in range(1, 6)]


async def test_a_story_tells_what_happened(site, queue):
    """Leased, nacked, leased again, parked: in this order, with the error."""
    await site.make(queue)
    await site.push(queue, "hero", "other")
    (hero,) = await site.lease(queue)
    await site.nack(hero, error="once")
    (hero,) = await site.lease(queue)
    await site.nack(hero, park=True, error="twice")
    path = f"/v1/queues/{queue}/messages/Default/1"
    told = await site.ask("GET", path)
    assert (told["message"]["payload"], told["message"]["state"]) == ("hero", "parked")
    events = [event["event"] for event in told["story"]]
    assert events == ["GroupCreated", "Leased", "Nacked", "Leased", "Parked"]
    assert [e["detail"].get("error") for e in told["story"]][2::2] == ["once", "twice"]
    missing = f"/v1/queues/{queue}/messages/Default/3"
    assert await site.refused("GET", missing) == (404, "message_not_found")


async def test_bulk_verbs_want_a_selection(site, queue):
    """Without a name, a filter or `all`, nothing is done."""
    await site.push(queue, 1)
    for name, request in {
        "redrive": {},
        "unblock": {"action": "skip"},
        "park": {"reason": "why not"},
        "purge": {"what": "waiting"},
    }.items():
        path = f"/v1/queues/{queue}/{name}"
        assert await site.refused("POST", path, request) == (400, "selection_required")
    assert await site.counts(queue) == {"ready": 1}


async def test_dead_letters_are_filtered_and_paged(site, queue):
    """By partition, key and error text; `next` goes on where the page ended."""
    for n, key in enumerate(["a", "b", "a"]):
        await site.push(queue, n, key=key, partition=f"p{n}")
        await site.nack(*await site.lease(queue), park=True, error=f"error {n}")
    path = f"/v1/queues/{queue}/dead"
    for query, wanted in {
        "": [0, 1, 2],
        "key=a": [0, 2],
        "partition=p1": [1],
        "error_contains=or%202": [2],
        "key=a&error_contains=1": [],
        "before=2000-01-01T00:00:00Z": [],
        "group=default": [0, 1, 2],
    }.items():
        page = await site.ask("GET", f"{path}?{query}")
        assert [letter["payload"] for letter in page["dead"]] == wanted
        assert page["total"] == len(wanted)
    page = await site.ask("GET", f"{path}?limit=2")
    rest = await site.ask("GET", f"{path}?limit=2&after={page['next']}")
    assert [letter["payload"] for letter in page["dead"] + rest["dead"]] == [0, 1, 2]
    assert rest["next"] is None


async def test_redrive_brings_dead_letters_back(site, queue, verb):
    """A dry run counts, a limit leaves the rest, the new message knows where it comes from."""
    await site.push(queue, "a", "b", transaction_id=None)
    await site.nack(*await site.lease(queue, max=2), park=True, error="poison")
    assert await verb("redrive", all=True, dry_run=True) == (2, 0)
    assert await site.counts(queue) == {"parked": 2}
    assert await verb("redrive", all=True, limit=1) == (1, 1)
    (message,) = await site.lease(queue, max=9)
    assert (message["payload"], message["version"], message["attempt"]) == ("a", 3, 1)
    assert message["headers"]["spillway-origin-version"] == "1"
    (letter,) = (await site.ask("GET", f"/v1/queues/{queue}/dead"))["dead"]
    assert await verb("redrive", ids=[letter["id"], 2**63 - 1]) == (1, 0)
    assert (await site.ask("GET", f"/v1/queues/{queue}/dead"))["total"] == 0


async def test_two_redrives_at_once_bring_it_back_once(site, queue, verb):
    """Operators who press the button together do not double the message."""
    await site.push(queue, *range(5))
    await site.nack(*await site.lease(queue, max=5), park=True)
    done = await asyncio.gather(*(verb("redrive", all=True) for _ in range(4)))
    assert sum(affected for affected, _ in done) == 5
    assert sorted(m["payload"] for m in await site.lease(queue, max=99)) == list(range(5))


@pytest.mark.parametrize(
    ("action", "left"),
    [("retry", {"ready": 1}), ("skip", {"settled": 1}), ("park", {"parked": 1})],
)
async def test_unblock_decides_about_blocked_messages(site, queue, verb, action, left):
    """Retry with fresh attempts, skip or park; before that the message is listed as blocked."""
    await site.make(queue, max_attempts=1, on_exhausted="block")
    await site.push(queue, "stone")
    await site.nack(*await site.lease(queue), error="hard")
    (blocked,) = (await site.ask("GET", f"/v1/queues/{queue}/blocked"))["blocked"]
    assert (blocked["version"], blocked["attempts"], blocked["error"]) == (1, 1, "hard")
    named = {"messages": [{"partition": "Default", "version": 1}], "action": action}
    assert await verb("unblock", **named, dry_run=True) == (1, 0)
    assert await verb("unblock", **named) == (1, 0)
    assert await verb("unblock", **named) == (0, 0)
    assert await site.counts(queue) == left
    assert (await site.ask("GET", f"/v1/queues/{queue}/blocked"))["blocked"] == []
    assert [message["attempt"] for message in await site.lease(queue)] == [1] * (action == "retry")


async def test_park_gives_up_by_hand(site, queue, verb):
    """Even what is leased: its receipt is stale then."""
    await site.push(queue, 1, 2, 3)
    (held,) = await site.lease(queue)
    assert await verb("park", all=True, limit=2, reason="recall") == (2, 1)
    assert await site.ack(held) == ["refused"]
    assert await site.counts(queue) == {"parked": 2, "ready": 1}


async def test_purge_settles_what_waits_or_deletes_the_dead(site, queue, verb):
    """`waiting` leaves what is leased alone; `dead` empties the dead letters."""
    await site.push(queue, 1, 2, 3, key="k")
    held, dead = await site.lease(queue, max=2)
    await site.nack(dead, park=True)
    assert await verb("purge", what="waiting", key="other") == (0, 0)
    assert await verb("purge", what="waiting", key="k", dry_run=True) == (1, 0)
    assert await verb("purge", what="waiting", all=True) == (1, 0)
    assert await verb("purge", what="dead", all=True) == (1, 0)
    assert await site.ack(held) == ["acked"]
    assert await site.counts(queue) == {"settled": 3}
    path = f"/v1/queues/{queue}/purge"
    assert await site.refused("POST", path, {"what": "all", "all": True}) == (400, "bad_request")


async def test_seek_beyond_the_end_is_refused(site, queue, verb):
    """A typing error must not skip everything; the end itself may be named."""
    await site.push(queue, *range(3))
    path, to = f"/v1/queues/{queue}/seek", {"to": 99_999, "partition": "Default"}
    assert await site.refused("POST", path, to) == (400, "bad_request")
    assert len(await site.lease(queue, max=9)) == 3
    assert await verb("seek", to=4, partition="Default") == (1, 0)


async def test_seek_moves_a_group_back_and_forth(site, queue, verb):
    """earliest, latest, a version, a time; a version is meant for one partition."""
    await site.push(queue, *range(4))
    await site.ack(*await site.lease(queue, max=4))
    for to, wanted in [(3, [2, 3]), ("earliest", [0, 1, 2, 3]), ("latest", [])]:
        assert await verb("seek", to=to) == (1, 0)
        assert [message["payload"] for message in await site.lease(queue, max=9)] == wanted
    assert await verb("seek", to="2000-01-01T00:00:00Z") == (1, 0)
    held = await site.lease(queue, max=9)
    assert len(held) == 4
    assert await verb("seek", to="2200-01-01T00:00:00Z") == (1, 0)
    assert await site.ack(*held[:1]) in (["acked"], ["refused"])
    assert await site.lease(queue) == []
    await site.push(queue, 1, partition="p")
    path = f"/v1/queues/{queue}/seek"
    assert await site.refused("POST", path, {"to": 1}) == (400, "bad_request")
    assert await verb("seek", to=1, partition="p") == (1, 0)


async def test_pause_and_resume_a_queue_or_a_group(site, queue, verb):
    """A paused queue takes pushes and gives nothing; a paused group does not hold up the others."""
    await site.push(queue, 1)
    await site.ask("PUT", f"/v1/queues/{queue}/groups/g", {})
    await verb("pause", group="g", reason="slow")
    assert await site.lease(queue, group="g") == []
    assert len(await site.lease(queue)) == 1
    await verb("pause")
    assert (await site.ask("GET", f"/v1/queues/{queue}"))["paused"] is True
    await site.push(queue, 2)
    assert await site.lease(queue) == []
    await verb("resume")
    assert len(await site.lease(queue)) == 1
    assert await site.lease(queue, group="g") == []
    await verb("resume", group="g")
    assert len(await site.lease(queue, group="g", max=9)) == 2


async def test_verbs_name_queues_and_groups_that_exist(site, queue, verb):
    """404 with the code that says which of both is missing."""
    await site.make(queue)
    for name, request in {
        "unblock": {"all": True},
        "park": {"all": True},
        "purge": {"what": "waiting", "all": True},
        "seek": {"to": "latest"},
        "pause": {},
        "resume": {},
    }.items():
        missing = "/v1/queues/nope/" + name
        assert await site.refused("POST", missing, request) == (404, "queue_not_found")
        path = f"/v1/queues/{queue}/{name}"
        ours = request | {"group": "nope"}
        assert await site.refused("POST", path, ours) == (404, "group_not_found")
