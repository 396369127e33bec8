"""GET /metrics: the broker's facts as Prometheus text, or as JSON for those who ask for it."""

from collections.abc import Iterable, Iterator
from math import inf, isnan
from typing import Annotated, Any

from msgspec import Meta

from spillway.api.call import Call
from spillway.api.media import JSON
from spillway.api.response import Response, answer
from spillway.core.metrics import Family, Sample
from spillway.wire.shapes import Request

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"

# The block that the file-buffer specification names, and the families behind its fields.
FILE_BUFFER = {
    "pending": "spillway_spool_pending",
    "flushed": "spillway_spool_flushed_total",
    "failed": "spillway_spool_failed",
    "db_healthy": "spillway_spool_db_healthy",
}


class MetricsQuery(Request):
    """Finer series on request: `by=group`, `by=partition`, or both with a comma."""

    by: Annotated[str, Meta(pattern="^(group|partition)(,(group|partition))?$")] | None = None


async def metrics(call: Call) -> Response:
    by = call.query(MetricsQuery).by
    families = await call.broker.metrics(by.split(",") if by else ())
    if JSON.content_type.encode() in call.headers.get(b"accept", b""):
        return answer(JSON, 200, as_json(families))
    return Response(200, as_text(families).encode(), PROMETHEUS)


# ---------------------------------------------------------------- Prometheus text


def as_text(families: Iterable[Family]) -> str:
    """Text format 0.0.4."""
    return "".join(line for family in families for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {_escaped(family.help)}\n"
    yield f"# TYPE {family.name} {family.kind}\n"
    for sample in family.samples:
        yield f"{family.name}{sample.suffix}{_labels(sample)} {_number(sample.value)}\n"


def _labels(sample: Sample) -> str:
    if not sample.labels:
        return ""
    pairs = (f'{name}="{_quoted(value)}"' for name, value in sample.labels.items())
    return "{" + ",".join(pairs) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")


def _number(value: float) -> str:
    if value in (inf, -inf):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if isnan(value) else repr(value)


# ---------------------------------------------------------------- JSON


def as_json(families: Iterable[Family]) -> dict[str, Any]:
    """The same facts by name, and the `file_buffer` block where there is a spool."""
    known = {family.name: family for family in families}
    facts: dict[str, Any] = {"metrics": {name: _facts(family) for name, family in known.items()}}
    if all(name in known for name in FILE_BUFFER.values()):
        facts["file_buffer"] = _file_buffer(known)
    return facts


def _facts(family: Family) -> dict[str, Any]:
    samples = [_fact(sample) for sample in family.samples]
    return {"kind": family.kind, "help": family.help, "samples": samples}


def _fact(sample: Sample) -> dict[str, Any]:
    fact: dict[str, Any] = {"labels": dict(sample.labels), "value": sample.value}
    return fact | {"suffix": sample.suffix} if sample.suffix else fact


def _file_buffer(known: dict[str, Family]) -> dict[str, Any]:
    block: dict[str, Any] = {
        field: sum(sample.value for sample in known[name].samples)
        for field, name in FILE_BUFFER.items()
    }
    return block | {"db_healthy": bool(block["db_healthy"])}
