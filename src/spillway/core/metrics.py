"""Metric families as plain values: whoever knows a fact states it, a skin renders it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One series. A histogram's samples carry the suffixes `_bucket`, `_sum` and `_count`."""

    labels: Mapping[str, str]
    value: float
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """The series of one name; `help` names the trouble that a rise means."""

    name: str
    kind: Kind
    help: str
    samples: tuple[Sample, ...] = ()
