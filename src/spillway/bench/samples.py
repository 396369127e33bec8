"""Timings of finished requests, kept one by one so that percentiles are exact."""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec


def percentile(ordered: Sequence[float], quantile: float) -> float:
    """The smallest sample that at least `quantile` of all samples do not exceed (nearest rank)."""
    if not ordered:
        return math.nan
    rank = math.ceil(quantile * len(ordered))
    return ordered[min(max(rank, 1), len(ordered)) - 1]


class Spread(msgspec.Struct, frozen=True):
    """How long requests took, in milliseconds, and how many messages a second they carried."""

    samples: int
    messages: int
    seconds: float
    messages_per_s: float
    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None


@dataclass(slots=True)
class Samples:
    """When each request ended, how long it took, and how many messages it carried."""

    ended_at: "array[float]" = field(default_factory=lambda: array("d"))
    took: "array[float]" = field(default_factory=lambda: array("d"))
    messages: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, ended_at: float, took: float, messages: int) -> None:
        self.ended_at.append(ended_at)
        self.took.append(took)
        self.messages.append(messages)

    def last_end(self) -> float | None:
        """When the last request that carried a message ended."""
        pairs = zip(self.ended_at, self.messages, strict=True)
        return max((end for end, count in pairs if count), default=None)

    def spread(self, start: float, end: float) -> Spread:
        """What ended after `start` and not after `end`."""
        picked = [i for i, at in enumerate(self.ended_at) if start < at <= end]
        took = sorted(self.took[i] for i in picked if self.messages[i])
        messages = sum(self.messages[i] for i in picked)
        seconds = max(end - start, 1e-9)
        return Spread(
            samples=len(took),
            messages=messages,
            seconds=seconds,
            messages_per_s=messages / seconds,
            p50_ms=in_ms(percentile(took, 0.50)),
            p99_ms=in_ms(percentile(took, 0.99)),
            max_ms=in_ms(took[-1]) if took else None,
        )


def in_ms(seconds: float) -> float | None:
    return None if math.isnan(seconds) else round(seconds * 1000, 3)


def measured_from(start: float, end: float, warmup_s: float) -> float:
    """Where measuring begins: after the warm-up, which is never more than a quarter of the run."""
    return start + min(warmup_s, max(end - start, 0.0) / 4)
