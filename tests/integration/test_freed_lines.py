"""A line that was held back goes on, also where nobody remembers that it was."""

import pytest

from spillway import wire


@pytest.mark.parametrize(
    ("verb", "more"),
    [("unblock", {"action": "park"}), ("park", {}), ("purge", {"what": "waiting"})],
)
async def test_a_line_that_left_memory_goes_on_when_its_head_is_out_of_the_way(desk, verb, more):
    """Its head was blocked, or waited for a retry; an operator removes it, the next is found."""
    await desk.queue(order="partition", on_exhausted="block", max_attempts=2)
    await desk.push(1, 2)
    await desk.nack(*await desk.lease(), delay_ms=60_000 if verb == "purge" else 0)
    if verb != "purge":
        await desk.nack(*await desk.lease())
    assert await desk.lease() == []
    desk.forget()
    head = [wire.MessageName(partition="Default", version=1)]
    assert (await desk.do(verb, messages=head, **more)).affected == 1
    assert [message.version for message in await desk.lease()] == [2]
