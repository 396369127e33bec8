"""The spool over HTTP: what waits, and what an operator may do about it."""

import base64
import time

import msgspec
import pytest
from structlog.testing import capture_logs

from spillway.api.native import ROUTES
from spillway.core.errors import DatabaseUnavailableError
from spillway.log import keys
from spillway.settings import Settings
from spillway.spool import folder as disk
from spillway.spool.event import Address

MSGPACK = "application/msgpack"


@pytest.fixture
def settings(tmp_path) -> Settings:
    """A folder that the test knows; nothing is tried again or made by itself."""
    return Settings(
        num_shards=2,
        file_buffer_dir=tmp_path,
        file_buffer_retry_interval=3600,
        auto_create_queues=False,
    )


@pytest.fixture
async def site(database_url, open_site, settings):
    """A broker of the test's own, with a queue."""
    async with open_site(database_url, settings) as site:
        await site.make("orders")
        yield site


async def spool(site):
    return await site.ask("GET", "/v1/spool")


async def released(site, eventually_async, **counts):
    """End the hold and come back when the spool is as it should be, empty if nothing is said."""
    await site.ask("POST", "/v1/spool/release")
    await comes_to(site, eventually_async, **counts or {"pending": 0})


async def comes_to(site, eventually_async, **counts):
    async def it_does():
        now = await spool(site)
        return {name: now[name] for name in counts} == counts

    await eventually_async(it_does)


async def held_file(site, *payloads, queue="orders", **item) -> str:
    """The name of a complete file with these pushes, held back from the replay."""
    await site.ask("POST", "/v1/spool/hold")
    results = await site.results(queue, *payloads, **item)
    assert {result["status"] for result in results} == {"buffered"}
    await site.broker.spool.rotate()
    return site.broker.spool.files[-1].name


async def test_health_shows_how_much_room_there_is_and_how_fast_it_empties(site, monkeypatch):
    """What a probe wants to know of the spool, without a second question."""
    spool = site.broker.spool
    site.broker.replay.rate = 1234.56
    shown = (await site.ask("GET", "/health"))["spool"]
    assert shown["disk_free_bytes"] > 0
    assert shown["replay_rate"] == 1234.6

    def no_answer(_):
        raise OSError("it is gone")

    monkeypatch.setattr("shutil.disk_usage", no_answer)
    assert (await site.ask("GET", "/health"))["spool"]["disk_free_bytes"] == 0
    assert await spool.disk_free() == 0


async def failed_file(site, eventually_async, *payloads) -> str:
    """The name of a file of events that failed: their queue had been deleted."""
    await site.make("doomed")
    file = await held_file(site, *payloads, queue="doomed")
    await site.ask("DELETE", "/v1/queues/doomed")
    await released(site, eventually_async, pending=0, failed=len(payloads))
    return file


def flip(path, line: int) -> None:
    """Another payload in a line, as a disk might have it."""
    lines = path.read_bytes().split(b"\n")
    lines[line - 1] = lines[line - 1].replace(b'"payload":', b'"payload":1')
    path.write_bytes(b"\n".join(lines))


def actions(folder) -> list[dict]:
    return [msgspec.json.decode(t) for t in (folder / "actions.jsonl").read_bytes().splitlines()]


# ---------------------------------------------------------------- hold and release


async def test_a_hold_sends_pushes_to_files_and_a_release_brings_them_back(site, eventually_async):
    """In their order, behind what was stored before; who held, since when and why is told."""
    await site.push("orders", 1, 2)
    held = await site.ask("POST", "/v1/spool/hold", {"reason": "new disk"}, x_spillway_actor="ann")
    assert (held["hold"]["actor"], held["hold"]["reason"]) == ("ann", "new disk")
    results = await site.results("orders", 3, 4)
    assert [result["status"] for result in results] == ["buffered", "buffered"]
    status = await spool(site)
    assert (status["pending"], status["hold"], status["files"]) == (2, held["hold"], 1)
    assert status["queues"] == [{"org": "default", "queue": "orders", "events": 2}]
    assert await site.payloads("orders") == [1, 2]
    await released(site, eventually_async)
    assert (await spool(site))["hold"] is None
    assert await site.payloads("orders") == [1, 2, 3, 4]
    assert (await spool(site))["replayed"] == 2


async def test_a_hold_outlives_a_restart(database_url, open_site, settings, tmp_path):
    """A broker that comes back goes on holding; who did it is in the folder, which is all ours."""
    async with open_site(database_url, settings) as site:
        await site.make("orders")
        before = await site.ask("POST", "/v1/spool/hold", {"reason": "r"}, x_spillway_actor="ann")
    async with open_site(database_url, settings) as site:
        assert (await spool(site))["hold"] == before["hold"]
        assert [r["status"] for r in await site.results("orders", 1)] == ["buffered"]
        await site.ask("POST", "/v1/spool/release", x_spillway_actor="bob")
        await site.ask("POST", "/v1/spool/release", x_spillway_actor="cy")
        assert (await spool(site))["foreign"] == []
    done = [(one["verb"], one["actor"]) for one in actions(tmp_path)]
    assert done == [("hold", "ann"), ("release", "bob")]


async def test_holding_again_changes_the_reason_not_the_beginning(site):
    """Whoever asks twice, for a lost answer say, has held since the first time."""
    first = await site.ask("POST", "/v1/spool/hold", {"reason": "a"}, x_spillway_actor="ann")
    again = await site.ask("POST", "/v1/spool/hold", {"reason": "b"}, x_spillway_actor="bob")
    assert again["hold"] == {"actor": "bob", "reason": "b", "since": first["hold"]["since"]}


# ---------------------------------------------------------------- looking


async def test_files_are_listed_in_pages(site, eventually_async):
    """Those that wait, the one that is being written too, and those that failed."""
    failed = await failed_file(site, eventually_async, 1)
    first = await held_file(site, 1, 2)
    second = await held_file(site, 3)
    await site.results("orders", 4)
    page = await site.ask("GET", "/v1/spool/files?limit=2")
    assert [file["file"] for file in page["files"]] == [first, second]
    assert page["next"] == second
    rest = await site.ask("GET", f"/v1/spool/files?limit=2&after={page['next']}")
    assert "next" not in rest
    files = [*page["files"], *rest["files"]]
    told = [(one["state"], one["events"], one["left"]) for one in files]
    assert told == [("waiting", 2, 2), ("waiting", 1, 1), ("open", 1, 1)]
    assert {one["stream"] for one in files} == {"failover"}
    [file] = (await site.ask("GET", "/v1/spool/files?state=failed"))["files"]
    assert (file["file"], file["state"], file["events"]) == (failed, "failed", 1)


async def test_events_are_shown_in_pages(site):
    """With their lines, and everything that was pushed."""
    file = await held_file(site, {"n": 1}, {"n": 2}, {"n": 3}, key="k", headers={"h": "v"})
    url = f"/v1/spool/files/{file}"
    page = await site.ask("GET", f"{url}?limit=2")
    assert (page["file"], page["state"], page["next"]) == (file, "waiting", 3)
    told = [(one["line"], one["payload"]) for one in page["events"]]
    assert told == [(1, {"n": 1}), (2, {"n": 2})]
    [third] = (await site.ask("GET", f"{url}?from_line=3"))["events"]
    assert (third["queue"], third["partition"], third["key"]) == ("orders", "Default", "k")
    assert third["headers"] == {"h": "v"}
    assert third.keys() >= {"transaction_id", "accepted_at", "seq", "priority", "org"}
    assert not third.keys() & {"error", "damaged", "done"}
    assert (await site.ask("GET", f"{url}?from_line=4"))["events"] == []


async def test_bytes_are_shown_in_the_words_of_the_medium(site):
    """As a bin in MessagePack, as base64 in JSON."""
    text = base64.b64encode(b"\xff\x00").decode()
    file = await held_file(site, {"payload_base64": text}, [1])
    url = f"/v1/spool/files/{file}"
    in_json = (await site.ask("GET", url))["events"]
    in_msgpack = (await site.ask("GET", url, media=MSGPACK))["events"]
    assert [one["payload"] for one in in_json] == [{"payload_base64": text}, [1]]
    assert [one["payload"] for one in in_msgpack] == [b"\xff\x00", [1]]


async def test_a_file_that_is_not_there_is_not_found(site):
    """Replayed meanwhile, never there, or not ours to show."""
    file = await held_file(site, 1)
    for name in (file.replace("failover", "qos0"), "spool.lock", "..%2F..%2Fetc%2Fpasswd", "x"):
        refused = await site.refused("GET", f"/v1/spool/files/{name}")
        assert refused == (404, "spool_file_not_found")
    # Its events wait: none of them failed.
    for verb in ("repair", "discard"):
        asked = {"file": file, "line": 1} | ({"accept": True} if verb == "repair" else {})
        refused = await site.refused("POST", f"/v1/spool/{verb}", asked)
        assert refused == (404, "spool_file_not_found")


async def test_damage_is_found_and_changes_nothing(site, tmp_path):
    """In which file, in which line; a file may be checked alone."""
    good, bad = await held_file(site, 1, 2), await held_file(site, 3, 4)
    flip(tmp_path / bad, 2)
    before = (tmp_path / bad).read_bytes()
    found = await site.ask("POST", "/v1/spool/verify")
    assert found["sound"] is False
    told = [(one["file"], one["state"], one["events"], one["damaged"]) for one in found["files"]]
    assert told == [(good, "waiting", 2, 0), (bad, "waiting", 2, 1)]
    assert found["files"][1]["problems"][0].startswith("line 2:")
    assert (await site.ask("POST", "/v1/spool/verify", {"file": good}))["sound"] is True
    assert (tmp_path / bad).read_bytes() == before
    assert await site.refused("POST", "/v1/spool/verify", {"file": "x"}) == (
        404,
        "spool_file_not_found",
    )


# ---------------------------------------------------------------- failed events


async def test_failed_events_are_shown_with_their_reason_and_retried(site, eventually_async):
    """Once the cause is mended, they go into the log."""
    file = await failed_file(site, eventually_async, 1, 2)
    [first, _] = (await site.ask("GET", f"/v1/spool/files/{file}?state=failed"))["events"]
    assert (first["error"]["code"], first["payload"]) == ("queue_not_found", 1)
    assert first["failed_at"]
    assert await site.ask("POST", "/v1/spool/retry") == {
        "verb": "retry",
        "affected": 0,
        "dry_run": False,
        "remaining": 2,
        "earlier": 0,
    }
    await site.make("doomed")
    only = await site.ask("POST", "/v1/spool/retry", {"file": file, "line": 2})
    assert (only["affected"], only["remaining"]) == (1, 1)
    assert await site.payloads("doomed") == [2]
    [left] = (await site.ask("GET", f"/v1/spool/files/{file}?state=failed"))["events"]
    assert (left["line"], left["payload"]) == (1, 1)
    assert (await site.ask("POST", "/v1/spool/retry", {"file": file}))["affected"] == 1
    assert await site.payloads("doomed") == [2, 1]
    status = await spool(site)
    assert (status["failed"], status["revived"]) == (0, 2)


async def test_a_retry_of_what_went_in_a_moment_ago_says_so(site, eventually_async):
    """Of a line, and of a file that is gone with the last of them; another one is not found."""
    file = await failed_file(site, eventually_async, 1, 2)
    await site.make("doomed")
    retry = "/v1/spool/retry"
    first = await site.ask("POST", retry, {"file": file, "line": 2})
    assert (first["affected"], first["earlier"]) == (1, 0)
    again = await site.ask("POST", retry, {"file": file, "line": 2})
    assert (again["affected"], again["earlier"], again["remaining"]) == (0, 1, 1)
    rest = await site.ask("POST", retry, {"file": file})
    assert (rest["affected"], rest["earlier"]) == (1, 1)
    gone = await site.ask("POST", retry, {"file": file})
    assert (gone["affected"], gone["earlier"]) == (0, 2)
    missing = {"file": file, "line": 9}
    assert await site.refused("POST", retry, missing) == (404, "spool_file_not_found")


async def test_a_failed_event_is_mended(site, eventually_async, tmp_path):
    """Other fields, and it is tried again as if it had been pushed like this."""
    file = await failed_file(site, eventually_async, 1, 2)
    fields = {"queue": "orders", "payload": {"payload_base64": "/wA="}, "key": "k"}
    body = {"file": file, "line": 1, "event": fields, "reason": "gone"}
    assert (await site.ask("POST", "/v1/spool/repair", body))["affected"] == 1
    [mended, other] = (await site.ask("GET", f"/v1/spool/files/{file}?state=failed"))["events"]
    assert {name: mended[name] for name in fields} == fields
    assert mended["error"]["code"] == "queue_not_found"
    assert other["queue"] == "doomed"
    assert (await site.ask("POST", "/v1/spool/retry"))["affected"] == 1
    [stored] = (await site.ask("GET", "/v1/queues/orders/messages"))["messages"]
    assert (stored["payload"], stored["key"]) == ({"payload_base64": "/wA="}, "k")
    assert stored["transaction_id"] == mended["transaction_id"]
    [*_, repair, _] = actions(tmp_path)
    assert repair["what"] == {"file": file, "line": 1}
    assert (repair["verb"], repair["reason"]) == ("repair", "gone")


async def test_a_mended_payload_may_come_as_messagepack(site, eventually_async):
    """A bin is bytes, as in a push."""
    file = await failed_file(site, eventually_async, 1)
    body = {"file": file, "line": 1, "event": {"queue": "orders", "payload": b"\xff"}}
    await site.ask("POST", "/v1/spool/repair", body, media=MSGPACK)
    await site.ask("POST", "/v1/spool/retry")
    assert await site.payloads("orders") == [{"payload_base64": "/w=="}]


async def damaged(site, eventually_async, tmp_path, change) -> str:
    """The name of a file whose second line was damaged and set aside; the others are in the log."""
    file = await held_file(site, 1, 2, 3, key="k")
    path = tmp_path / file
    lines = path.read_bytes().split(b"\n")
    lines[1] = change(lines[1])
    path.write_bytes(b"\n".join(lines))
    await released(site, eventually_async, pending=0, failed=1)
    assert await site.payloads("orders") == [1, 3]
    return file


async def test_a_damaged_line_is_accepted_as_it_reads(site, eventually_async, tmp_path):
    """The checksum does not hold, the event is there: a person says that it is right."""
    change = lambda line: line.replace(b'"payload":2', b'"payload":22')  # noqa: E731
    file = await damaged(site, eventually_async, tmp_path, change)
    [shown] = (await site.ask("GET", f"/v1/spool/files/{file}?state=failed"))["events"]
    assert (shown["line"], shown["error"]["code"]) == (1, "damaged_line")
    assert (shown["payload"], '"payload":22' in shown["damaged"]) == (22, True)
    asked = {"file": file, "line": 1}
    assert (await site.ask("POST", "/v1/spool/retry"))["affected"] == 0
    assert await site.refused("POST", "/v1/spool/retry", asked) == (422, "damaged_line")
    await site.ask("POST", "/v1/spool/repair", asked | {"accept": True})
    assert (await site.ask("POST", "/v1/spool/retry", asked))["affected"] == 1
    assert await site.payloads("orders") == [1, 3, 22]


async def test_an_unreadable_line_is_replaced_by_a_whole_event(site, eventually_async, tmp_path):
    """There is nothing to take over: queue and payload must be given."""
    file = await damaged(site, eventually_async, tmp_path, lambda line: b"\xff" + line[1:])
    [shown] = (await site.ask("GET", f"/v1/spool/files/{file}?state=failed"))["events"]
    assert shown["damaged"].startswith("\\xff")
    assert "payload" not in shown
    asked = {"file": file, "line": 1}
    repair = "/v1/spool/repair"
    assert await site.refused("POST", repair, asked | {"accept": True}) == (422, "damaged_line")
    half = asked | {"event": {"queue": "orders"}}
    assert await site.refused("POST", repair, half) == (400, "bad_request")
    whole = asked | {"event": {"queue": "orders", "payload": "new"}}
    await site.ask("POST", repair, whole)
    assert (await site.ask("POST", "/v1/spool/retry"))["affected"] == 1
    assert await site.payloads("orders") == [1, 3, "new"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"line": 1, "accept": True}, "bad_request"),
        ({"file": "f", "accept": True}, "bad_request"),
        ({"file": "f", "line": 0, "accept": True}, "bad_request"),
        ({"file": "f", "line": 1}, "bad_request"),
        ({"file": "f", "line": 1, "accept": True, "event": {}}, "bad_request"),
        ({"file": "f", "line": 1, "event": {"seq": 7}}, "unknown_option"),
        ({"file": "f", "line": 1, "event": {"queue": "a b"}}, "invalid_name"),
        ({"file": "f", "line": 1, "event": {"key": "a\0"}}, "bad_request"),
        ({"file": "f", "line": 1, "event": {"priority": 9}}, "bad_request"),
    ],
)
async def test_a_repair_of_the_wrong_shape_is_refused(site, body, code):
    """Before any file is looked at."""
    assert await site.refused("POST", "/v1/spool/repair", body) == (400, code)


async def test_a_repair_that_finds_nothing_to_mend_is_refused(site, eventually_async):
    """And nothing is changed."""
    file = await failed_file(site, eventually_async, 1)
    url, asked = f"/v1/spool/files/{file}?state=failed", {"file": file, "line": 1}
    before = await site.ask("GET", url)
    refusals = [
        (asked | {"line": 2, "accept": True}, (404, "spool_line_not_found")),
        (asked | {"file": "f", "accept": True}, (404, "spool_file_not_found")),
        (asked | {"event": {}}, (400, "bad_request")),
        (asked | {"accept": True}, (400, "bad_request")),  # it is not damaged
    ]
    for body, refusal in refusals:
        assert await site.refused("POST", "/v1/spool/repair", body) == refusal
    assert await site.ask("GET", url) == before


# ---------------------------------------------------------------- retry


async def test_a_retry_needs_postgresql_and_no_hold(site, eventually_async):
    """It says what stands in the way."""
    await site.ask("POST", "/v1/spool/hold")
    assert await site.refused("POST", "/v1/spool/retry") == (409, "spool_held")
    assert await site.refused("POST", "/v1/spool/retry", {"line": 1}) == (400, "bad_request")
    await released(site, eventually_async)
    site.broker.breaker.trip(DatabaseUnavailableError("gone"))
    assert await site.refused("POST", "/v1/spool/retry") == (503, "database_unavailable")
    await eventually_async(lambda: not site.broker.breaker.is_open)


async def test_lanes_that_were_passed_over_are_tried_again_by_hand(site, eventually_async):
    """What holds them is told; once there is room a retry lets them go, in order."""
    await site.make("full", max_depth=2)
    await held_file(site, *range(5), queue="full")
    await released(site, eventually_async, pending=3)
    [held] = (await spool(site))["held"]
    assert (held["queue"], held["partition"], held["code"]) == ("full", "Default", "queue_full")
    await site.make("full", max_depth=100)
    assert (await spool(site))["pending"] == 3
    assert (await site.ask("POST", "/v1/spool/retry"))["affected"] == 0
    await comes_to(site, eventually_async, pending=0, held=[])
    assert await site.payloads("full") == list(range(5))


# ---------------------------------------------------------------- throwing away


async def test_a_waiting_line_is_thrown_away_for_good(
    database_url, open_site, settings, eventually_async, tmp_path
):
    """The others come in order, also after a restart, and the counts never show it again."""
    async with open_site(database_url, settings) as site:
        await site.make("orders")
        file = await held_file(site, 1, 2, 3)
        asked = {"file": file, "line": 2, "state": "waiting", "reason": "poison"}
        would = await site.ask("POST", "/v1/spool/discard", asked | {"dry_run": True})
        assert (would["affected"], would["remaining"], would["dry_run"]) == (1, 2, True)
        assert (await spool(site))["pending"] == 3
        reply = await site.ask("POST", "/v1/spool/discard", asked, x_spillway_actor="ann")
        assert (reply["affected"], reply["remaining"]) == (1, 2)
        assert await site.refused("POST", "/v1/spool/discard", asked) == (
            404,
            "spool_line_not_found",
        )
        now = await spool(site)
        assert (now["pending"], now["discarded"], now["queues"][0]["events"]) == (2, 1, 2)
        assert (await site.ask("POST", "/v1/spool/verify"))["sound"] is True
    async with open_site(database_url, settings) as site:
        assert (await spool(site))["pending"] == 2
        events = (await site.ask("GET", f"/v1/spool/files/{file}"))["events"]
        assert [(one["line"], one["payload"]) for one in events] == [(1, 1), (3, 3)]
        await released(site, eventually_async)
        assert await site.payloads("orders") == [1, 3]
        assert (await spool(site))["failed"] == 0
        assert not site.broker.spool.gate.holds(Address("default", "orders", "Default"))
    [_, discard, _] = actions(tmp_path)
    assert (discard["verb"], discard["actor"], discard["reason"]) == ("discard", "ann", "poison")
    assert discard["what"] == {"file": file, "line": 2, "state": "waiting", "events": 1}


async def test_a_waiting_file_is_thrown_away(site, eventually_async, tmp_path):
    """The one that is being written too, by the name under which it is listed."""
    first = await held_file(site, 1, 2)
    await site.results("orders", 3)
    [_, second] = (await site.ask("GET", "/v1/spool/files"))["files"]
    assert second["state"] == "open"
    for name, count in ((second["file"], 1), (first, 2)):
        asked = {"file": name, "state": "waiting"}
        assert (await site.ask("POST", "/v1/spool/discard", asked))["affected"] == count
    assert not list(tmp_path.glob("*.buf*"))
    now = await spool(site)
    assert (now["pending"], now["bytes"], now["files"], now["queues"]) == (0, 0, 0, [])
    await released(site, eventually_async)
    await site.push("orders", 4)
    assert await site.payloads("orders") == [4]


async def test_the_last_line_takes_its_file_with_it(site, tmp_path):
    """Nothing of it is left to be counted."""
    file = await held_file(site, 1, 2)
    for line in (2, 1):
        asked = {"file": file, "line": line, "state": "waiting"}
        await site.ask("POST", "/v1/spool/discard", asked)
    assert not (tmp_path / file).exists()
    now = await spool(site)
    assert (now["pending"], now["bytes"], now["files"], now["discarded"]) == (0, 0, 0, 2)


async def test_lines_of_a_lane_that_is_passed_over_may_be_thrown_away(site, eventually_async):
    """What is left goes as soon as there is room, without a wait for the interval."""
    await site.make("full", max_depth=1)
    file = await held_file(site, 1, 2, 3, queue="full")
    await released(site, eventually_async, pending=2)
    asked = {"file": file, "line": 1, "state": "waiting"}
    assert await site.refused("POST", "/v1/spool/discard", asked) == (404, "spool_line_not_found")
    await site.ask("POST", "/v1/spool/discard", asked | {"line": 2})
    await site.make("full", max_depth=100)
    await held_file(site, 4, queue="full")
    await site.ask("POST", "/v1/spool/release")
    await site.ask("POST", "/v1/spool/retry")
    await comes_to(site, eventually_async, pending=0)
    assert await site.payloads("full") == [1, 3, 4]


@pytest.mark.parametrize("more", [{"dry_run": True}, {"line": 1, "accept": True}])
async def test_whoever_takes_a_waiting_file_for_a_failed_one_is_told(site, more):
    """That it waits, though it has not failed; and what may be done about it."""
    file = await held_file(site, 1)
    verb = "repair" if "accept" in more else "discard"
    answer = await site("POST", f"/v1/spool/{verb}", {"file": file} | more)
    error = answer.body["error"]
    assert (answer.status, error["code"]) == (404, "spool_file_not_found")
    assert "it waits" in error["message"]
    assert "--waiting" in error["hint"]


async def test_failed_events_are_thrown_away_by_name(site, eventually_async, tmp_path):
    """A line, then the rest; the other lines keep their numbers."""
    file = await failed_file(site, eventually_async, 1, 2, 3)
    asked = {"file": file, "line": 2}
    assert (await site.ask("POST", "/v1/spool/discard", asked))["remaining"] == 2
    assert (await site.refused("POST", "/v1/spool/discard", asked))[1] == "spool_line_not_found"
    events = (await site.ask("GET", f"/v1/spool/files/{file}?state=failed"))["events"]
    assert [(one["line"], one["payload"]) for one in events] == [(1, 1), (3, 3)]
    would = await site.ask("POST", "/v1/spool/discard", {"file": file, "dry_run": True})
    assert (would["affected"], (await spool(site))["failed"]) == (2, 2)
    assert (await site.ask("POST", "/v1/spool/discard", {"file": file}))["affected"] == 2
    now = await spool(site)
    assert (now["failed"], now["discarded"]) == (0, 3)
    assert list((tmp_path / "failed").iterdir()) == []


@pytest.mark.parametrize("how", ["discard", "retry", "repair"])
async def test_what_left_failed_does_not_come_again_from_its_file(
    database_url, open_site, settings, eventually_async, how
):
    """The file still waits for another lane, so a restart replays it from its beginning."""
    async with open_site(database_url, settings) as site:
        await site.make("full", max_depth=1)
        await site.make("doomed", dedupe_window_ms=0)
        await site.ask("POST", "/v1/spool/hold")
        await site.results("full", 1, 2)
        await site.results("doomed", "poison")
        await site.ask("DELETE", "/v1/queues/doomed")
        await released(site, eventually_async, pending=1, failed=1, files=1)
        await site.make("doomed", dedupe_window_ms=0)
        [file] = (await site.ask("GET", "/v1/spool/files?state=failed"))["files"]
        asked = {"file": file["file"], "line": 1}
        if how == "repair":
            await site.ask("POST", "/v1/spool/repair", asked | {"event": {"queue": "orders"}})
            await site.make("orders")
        await site.ask("POST", f"/v1/spool/{'discard' if how == 'discard' else 'retry'}", asked)
        assert (await spool(site))["failed"] == 0
        await site.make("full", max_depth=100)
    async with open_site(database_url, settings) as site:
        await comes_to(site, eventually_async, pending=0, failed=0)
        assert await site.payloads("full") == [1, 2]
        assert await site.payloads("doomed") == (["poison"] if how == "retry" else [])


async def test_no_file_changes_before_all_are_counted(site, monkeypatch):
    """It would be counted as what it was; to look at them is fine, and pushes are taken."""
    name = await held_file(site, 1, 2)
    discard = "POST", "/v1/spool/discard", {"file": name, "state": "waiting"}

    async def index():
        """Takes its time."""

    with monkeypatch.context() as patch:
        patch.setattr(site.broker.spool, "index", index)
        patch.setattr(site.broker.spool.gate, "is_known", False)
        assert (await spool(site))["counting"] is True
        assert await site.refused(*discard) == (503, "overloaded")
        assert [result["status"] for result in await site.results("orders", 3)] == ["buffered"]
    assert (await spool(site))["counting"] is False
    assert (await site.ask(*discard))["affected"] == 2


async def test_nothing_is_thrown_away_unnamed(site):
    """There is no discard without a file."""
    assert await site.refused("POST", "/v1/spool/discard", {}) == (400, "bad_request")
    assert (await site.refused("POST", "/v1/spool/discard", {"all": True}))[0] == 400


async def test_a_full_disk_can_still_be_emptied(site, eventually_async, tmp_path, monkeypatch):
    """Discard and release need no room; what was done is in the log where it is not in the file."""
    file = await held_file(site, 1, 2)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "append", full)
    monkeypatch.setattr(disk, "write_whole", full)
    assert await site.refused("POST", "/v1/spool/hold") == (507, "spool_full")
    asked = {"file": file, "line": 1, "state": "waiting"}
    with capture_logs() as said:
        assert (await site.ask("POST", "/v1/spool/discard", asked))["affected"] == 1
    assert "spool_action_unrecorded" in [one["event"] for one in said]
    await released(site, eventually_async)
    assert await site.payloads("orders") == [2]


# ---------------------------------------------------------------- who may, and when


async def test_a_key_of_another_org_has_no_say(database_url, site):
    """The spool holds the pushes of all orgs; a key of `default` is an operator's."""
    await site.make("orders")
    theirs = await keys.create(database_url, "acme", "ci")
    ours = await keys.create(database_url, "default", "ops")
    for route in ROUTES:
        if route.path.startswith("/v1/spool"):
            url = route.path.replace("{file}", "f")
            body = {"file": "f", "line": 1, "accept": True} if route.body else None
            refused = await site.refused(route.method, url, body, authorization=f"Bearer {theirs}")
            assert refused == (403, "forbidden"), route.path
    reply = await site.ask("POST", "/v1/spool/hold", authorization=f"Bearer {ours}")
    assert reply["hold"]["actor"] == "ops"


async def test_the_spool_is_looked_after_while_postgresql_is_away(open_site, settings):
    """Before it was ever reached too: it lies on the disk."""
    nowhere = "postgresql://nobody@127.0.0.1:1/nothing"
    async with open_site(nowhere, settings, is_audited=False) as site:
        results = await site.results("orders", 1, 2)
        assert [one["status"] for one in results] == ["buffered", "buffered"]
        now = await spool(site)
        assert (now["pending"], now["breaker"], now["database"]) == (2, "open", "disconnected")
        [file] = (await site.ask("GET", "/v1/spool/files"))["files"]
        events = (await site.ask("GET", f"/v1/spool/files/{file['file']}"))["events"]
        assert [one["payload"] for one in events] == [1, 2]
        assert (await site.ask("POST", "/v1/spool/verify"))["sound"] is True
        asked = {"file": file["file"], "line": 1, "state": "waiting"}
        assert (await site.ask("POST", "/v1/spool/discard", asked))["affected"] == 1
        assert (await site.ask("POST", "/v1/spool/hold"))["hold"]
        assert (await site.ask("POST", "/v1/spool/release"))["hold"] is None
        asked_s = time.monotonic()
        for question in ("/v1/queues", "/v1/topology", "/v1/queues/orders/dead"):
            assert await site.refused("GET", question) == (503, "database_unavailable")
        assert time.monotonic() - asked_s < 1.0  # nobody waits for what is known
        facts = await site.ask("GET", "/metrics")
        assert facts["file_buffer"] == {
            "pending": 1,
            "flushed": 0,
            "failed": 0,
            "db_healthy": False,
        }
        text = (await site("GET", "/metrics", accept="text/plain")).content.decode()
        assert "\nspillway_spool_breaker_open 1\n" in text
        assert 'spillway_spool_queue_events{org="default",queue="orders"} 1\n' in text
