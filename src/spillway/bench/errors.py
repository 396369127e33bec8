"""Why a measurement could not be made."""

from spillway.core.errors import SpillwayError


class BenchError(SpillwayError):
    """The bench cannot go on."""

    code = "bench_failed"
    hint = "the last lines of its log, if the broker was started here, are above"


class WorkloadError(BenchError):
    """The workload asked for makes no sense."""

    code = "bench_usage"
    status = 400
    hint = "see `spillway bench SCENARIO --help`"
