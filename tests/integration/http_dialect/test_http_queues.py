"""Queues, groups and orgs over HTTP: made, changed, listed, deleted; limits that hold in a race."""

import asyncio
import hashlib

import psycopg
import pytest

from spillway.settings import Settings

pytestmark = pytest.mark.asyncio(loop_scope="module")

ACME = {"x_spillway_org": "acme"}


async def test_put_makes_a_queue_once(site, queue):
    """201 when it was made, 200 when it was there, and PUT sets all options."""
    made = await site("PUT", f"/v1/queues/{queue}", {"max_attempts": 2, "partitions": 3})
    again = await site("PUT", f"/v1/queues/{queue}", {"partitions": 4})
    assert (made.status, again.status) == (201, 200)
    assert made.body["options"]["max_attempts"] == 2
    assert again.body["options"].get("max_attempts", 5) == 5
    assert again.body["options"]["partitions"] == 4


async def test_patch_changes_only_what_it_names(site, queue):
    """PATCH leaves the other options, and says what it cannot do."""
    await site.make(queue, max_attempts=2, partitions=2)
    changed = await site.ask("PATCH", f"/v1/queues/{queue}", {"max_depth": 7})
    assert {"max_attempts": 2, "partitions": 2, "max_depth": 7}.items() <= changed[
        "options"
    ].items()
    path = f"/v1/queues/{queue}"
    assert await site.refused("PATCH", path, {"partitions": 1}) == (400, "bad_request")
    assert await site.refused("PATCH", path, {"order": "key"}) == (400, "unknown_option")
    assert await site.refused("PATCH", path, {"colour": "red"}) == (400, "unknown_option")
    assert await site.refused("PATCH", "/v1/queues/nope", {}) == (404, "queue_not_found")
    assert await site.ask("GET", path) == changed


async def test_get_tells_where_the_messages_are(site, queue):
    """GET shows lanes, tail and the counts of each group."""
    await site.push(queue, 1, 2, 3)
    held = await site.lease(queue)
    await site.ask("PUT", f"/v1/queues/{queue}/groups/other", {})
    await site.ack(*held)
    found = await site.ask("GET", f"/v1/queues/{queue}")
    assert (found["org"], found["lanes"], found["tail"]) == ("default", 1, 3)
    depths = {group["group"]: group["depth"] for group in found["groups"]}
    assert depths == {"default": 2, "other": 3}


async def test_list_pages_in_the_order_of_names(site):
    """`next` leads through all queues of the org, each once."""
    org = {"x_spillway_org": "pages"}
    for name in "dbace":
        await site.ask("PUT", f"/v1/queues/{name}", {}, **org)
    seen, after = [], ""
    while after is not None:
        page = await site.ask("GET", f"/v1/queues?limit=2&after={after}", **org)
        seen += [queue["queue"] for queue in page["queues"]]
        after = page["next"]
    assert seen == list("abcde")


async def test_delete_and_recreate_does_not_resurrect(site, queue):
    """A new queue of an old name begins at version 1 and knows nothing of the old one."""
    await site.make(queue, max_attempts=1)
    await site.push(queue, "old", "older", transaction_id=None)
    await site.push(queue, "known", transaction_id="t")
    held = await site.lease(queue, max=2)
    await site.nack(held[0], park=True)
    path = f"/v1/queues/{queue}"
    assert await site.ask("DELETE", f"{path}?reason=spring") == {"deleted": queue}
    assert await site.refused("GET", path) == (404, "queue_not_found")
    assert await site.refused("DELETE", path) == (404, "queue_not_found")
    assert await site.refused("POST", f"{path}/lease") == (404, "queue_not_found")
    assert await site.ack(held[1]) == ["refused"]
    assert [r["status"] for r in await site.results(queue, "new", transaction_id="t")] == ["stored"]
    assert await site.payloads(queue) == ["new"]
    assert (await site.ask("GET", f"{path}/dead"))["total"] == 0
    assert await site.ack(held[1]) == ["refused"]
    assert await site.counts(queue) == {"ready": 1}


async def test_a_long_poll_ends_with_its_queue(site, queue):
    """Whoever waits on a queue that is deleted is told at once."""
    await site.make(queue)
    poll = asyncio.create_task(
        site.refused("POST", f"/v1/queues/{queue}/lease", {"wait_ms": 30_000})
    )
    await site.waiting(queue, 1)
    await site.ask("DELETE", f"/v1/queues/{queue}")
    assert await poll == (404, "queue_not_found")


async def test_groups_begin_where_they_are_told(site, queue):
    """earliest, latest and a time; each sees every message from there on, once."""
    await site.push(queue, 1)
    (first,) = (await site.ask("GET", f"/v1/queues/{queue}/messages"))["messages"]
    await site.push(queue, 2)
    starts = {"all": "earliest", "new": "latest", "since": first["enqueued_at"]}
    for group, start in starts.items():
        made = await site("PUT", f"/v1/queues/{queue}/groups/{group}", {"start": start})
        assert made.status == 201
    await site.push(queue, 3)
    for group, wanted in {"all": [1, 2, 3], "new": [3], "since": [1, 2, 3]}.items():
        leased = await site.lease(queue, group=group, max=9)
        assert [message["payload"] for message in leased] == wanted
        assert await site.lease(queue, group=group) == []


async def test_a_group_keeps_its_start(site, queue):
    """PUT of an existing group is 200, with another start it is a conflict."""
    await site.make(queue)
    path = f"/v1/queues/{queue}/groups/g"
    assert (await site("PUT", path, {"start": "latest"})).status == 201
    assert (await site("PUT", path, {"start": "latest"})).status == 200
    assert await site.refused("PUT", path) == (409, "group_conflict")
    assert await site.refused("PUT", path, {"start": "noon"}) == (400, "bad_request")


async def test_a_deleted_group_begins_anew(site, queue):
    """After DELETE the group is unknown, its receipts are stale, and its next lease starts over."""
    await site.push(queue, 1, 2)
    held = await site.lease(queue, group="g", max=2)
    await site.nack(held[0], park=True)
    path = f"/v1/queues/{queue}/groups/g"
    assert await site.ask("DELETE", path) == {"deleted": "g"}
    assert await site.refused("GET", path) == (404, "group_not_found")
    assert await site.refused("DELETE", path) == (404, "group_not_found")
    fresh = await site.lease(queue, group="g", max=2)
    assert [(m["payload"], m["attempt"]) for m in fresh] == [(1, 1), (2, 1)]
    assert await site.ack(held[1]) == ["refused"]
    assert await site.ack(*fresh) == ["acked", "acked"]


async def test_a_long_poll_survives_the_deletion_of_its_group(site, queue):
    """A waiter makes the group again, as any lease does, and gets what is pushed then."""
    await site.make(queue)
    poll = site.later("POST", f"/v1/queues/{queue}/lease", {"group": "g", "wait_ms": 30_000})
    await site.waiting(queue, 1, "g")
    await site.ask("DELETE", f"/v1/queues/{queue}/groups/g")
    await site.waiting(queue, 1, "g")
    await site.push(queue, "hello")
    assert [message["payload"] for message in (await poll)[0]["messages"]] == ["hello"]
    assert await site.counts(queue, "g") == {"leased": 1}


async def test_orgs_do_not_see_each_other(site, queue):
    """The same name in two orgs is two queues, and a receipt is worth nothing in another org."""
    await site.push(queue, "ours")
    theirs = await site("GET", f"/v1/queues/{queue}", **ACME)
    assert (theirs.status, theirs.error) == (404, "queue_not_found")
    item = {"queue": queue, "payload": "theirs"}
    await site.ask("POST", "/v1/messages", {"items": [item]}, **ACME)
    (ours,) = await site.lease(queue)
    reply = await site.ask("POST", "/v1/settle", {"ack": [ours["receipt"]]}, **ACME)
    assert reply["results"][0]["status"] == "refused"
    assert reply["results"][0]["error"]["code"] == "stale_receipt"
    lease = await site.ask("POST", f"/v1/queues/{queue}/lease", {"max": 9}, **ACME)
    assert [message["payload"] for message in lease["messages"]] == ["theirs"]
    assert await site.ack(ours) == ["acked"]


@pytest.fixture
def api_key(module_database_url):
    """The key `s3cret` of org `acme`, as a row with its digest."""
    with psycopg.connect(module_database_url, autocommit=True) as conn:
        conn.execute("INSERT INTO spillway.org VALUES ('acme') ON CONFLICT DO NOTHING")
        conn.execute(
            "INSERT INTO spillway.api_key (digest, org, name) VALUES (%s, 'acme', 'ci')"
            " ON CONFLICT DO NOTHING",
            [hashlib.sha256(b"s3cret").digest()],
        )
    return {"authorization": "Bearer s3cret"}


async def test_an_api_key_says_the_org(site, queue, api_key):
    """A key acts in its org and in no other."""
    made = await site.ask("PUT", f"/v1/queues/{queue}", {}, **api_key)
    assert made["org"] == "acme"
    assert (await site.ask("GET", f"/v1/queues/{queue}", **ACME))["org"] == "acme"
    path = f"/v1/queues/{queue}"
    other = api_key | {"x_spillway_org": "default"}
    assert await site.refused("GET", path, **other) == (403, "forbidden")
    wrong = {"authorization": "Bearer wrong"}
    assert await site.refused("GET", path, **wrong) == (401, "unauthorized")


async def test_a_site_may_demand_keys(open_site, database_url):
    """With require_api_key everything but health needs one."""
    async with open_site(database_url, Settings(num_shards=1, require_api_key=True)) as site:
        assert await site.refused("GET", "/v1/queues") == (401, "unauthorized")
        assert await site.refused("GET", "/v1/queues", **ACME) == (401, "unauthorized")
        assert (await site("GET", "/health")).status == 200


async def test_two_creates_cannot_both_win_the_last_place(open_site, database_url):
    """Creations that race for the org's cap: exactly as many win as there is room."""
    async with open_site(database_url, Settings(num_shards=1, queues_per_org_max=3)) as site:
        puts = [site("PUT", f"/v1/queues/p{n}", {}) for n in range(6)]
        items = [{"queue": f"a{n}", "payload": n} for n in range(6)]
        pushes = [site("POST", "/v1/messages", {"items": [item]}) for item in items]
        answers = await asyncio.gather(*puts, *pushes)
        assert sorted(answer.status for answer in answers) == [201] * 3 + [429] * 9
        assert {answer.error for answer in answers if answer.status == 429} == {"quota_exceeded"}
        assert len((await site.ask("GET", "/v1/queues"))["queues"]) == 3


async def test_without_auto_create_an_unknown_queue_is_an_error_of_its_item(
    open_site, database_url
):
    """The item fails with 404's code, its neighbours are stored."""
    settings = Settings(num_shards=1, auto_create_queues=False)
    async with open_site(database_url, settings) as site:
        await site.make("known")
        items = [{"queue": "known", "payload": 1}, {"queue": "unknown", "payload": 2}]
        reply = await site.ask("POST", "/v1/messages", {"items": items})
        assert [result["status"] for result in reply["results"]] == ["stored", "failed"]
        assert reply["results"][1]["error"]["code"] == "queue_not_found"
        alone = await site("POST", "/v1/messages", {"items": items[1:]})
        assert (alone.status, alone.error) == (400, "queue_not_found")
