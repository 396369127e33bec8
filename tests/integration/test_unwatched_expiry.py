"""A message passes its time to live while no group is there to see it."""


def entry_of(desk):
    """The one lane of the broker."""
    (entry,) = [entry for shard in desk.broker.shards for entry in shard.entries.values()]
    return entry


async def test_an_expiry_without_a_group_is_no_alarm_for_ever(desk, eventually_async):
    """The broker rests afterwards: it does not look at the lane again and again."""
    await desk.queue()
    await desk.push(1, ttl_ms=50)
    entry = entry_of(desk)
    await eventually_async(lambda: entry.alarm_ms is None)
    assert entry.lane.schedule.next_expiry_ms() is None


async def test_a_group_that_comes_later_finds_it_expired(desk, eventually_async):
    """It is dropped for the group; what came behind it is handed out."""
    await desk.queue()
    await desk.push(1, ttl_ms=50)
    await desk.push(2)
    await eventually_async(lambda: entry_of(desk).alarm_ms is None)
    (message,) = await desk.lease(10)
    assert message.version == 2
    group = (await desk.insights.get_queue("default", "orders")).groups[0]
    assert (group.dropped, group.leased, group.ready) == (1, 1, 0)
