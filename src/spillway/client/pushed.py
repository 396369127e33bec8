"""What a push is told, one by one."""

from spillway.wire import PushResult, Reply


class Pushed(PushResult, omit_defaults=True):
    """What became of one message. Not `durable`: in the broker's memory so far (`qos=0`)."""

    durable: bool = True


class PushedReply(Reply):
    """The answer of a broker, which says once for all of them whether they are durable."""

    results: list[Pushed]
    durable: bool = True

    def each(self) -> list[Pushed]:
        """The results, each with what holds for all."""
        if not self.durable:
            for result in self.results:
                result.durable = result.status == "failed"
        return self.results
