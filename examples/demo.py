"""See the whole thing work: a broker, producers, workers, a crash in the middle, nothing lost.

Starts `spillway serve` with an embedded PostgreSQL in a temporary folder, pushes orders in batches,
lets workers lease and ack them, kills the broker half-way (kill -9) and starts it again, then asks
for the audit. Always ends its broker and removes its folder. Exit code 0 only if all orders were
handled and the audit balances.
"""

import argparse
import asyncio
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import FrameType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from spillway import AsyncClient, BrokerUnreachableError, Item, RetryPolicy, SpillwayError
from spillway.wire import AuditReply, Nack, QueueReply, SettleLease

QUEUE = "orders"
BATCH = 500
VISIBILITY_MS = 5_000
START_S = 120.0
STOP_S = 30.0
LIMIT_S = 300.0
RATE_S = 2.0
FLAKY_SHARE = 0.002
PATIENCE = RetryPolicy(attempts_max=200, base_s=0.05, cap_s=0.5)

console = Console(highlight=False)


class DemoError(Exception):
    """The demo cannot go on."""


# ---------------------------------------------------------------- the broker


class Broker:
    """`spillway serve` in a folder of its own."""

    def __init__(self, scratch: Path) -> None:
        self._data = scratch / "data"
        self._log = scratch / "broker.log"
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        spillway = Path(sys.executable).with_name("spillway")
        command = [str(spillway), "serve", "--data", str(self._data), "--port", str(self._port)]
        with self._log.open("ab") as log:
            # A session of its own: Ctrl-C is for the demo, which then stops the broker in order.
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True
            )

    async def until_ready(self) -> None:
        deadline = time.monotonic() + START_S
        async with AsyncClient(self.url, retries=0, timeout_s=2) as client:
            while time.monotonic() < deadline:
                self._check_alive()
                with suppress(SpillwayError):
                    if (await client.ready()).status == "ok":
                        return
                await asyncio.sleep(0.05)
        raise DemoError(f"the broker is not ready after {START_S:.0f} s\n{self.tail()}")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """In order if it can be, by force if it must; its PostgreSQL goes with it."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
            self._process.kill()
            self._process.wait()
        if (self._data / "postgres").is_dir():
            from spillway.log.embedded import EmbeddedPostgres  # noqa: PLC0415 (only after a crash)

            postgres = EmbeddedPostgres(self._data)
            if postgres.is_running():
                postgres.start()  # attaches
                postgres.stop("immediate")

    def tail(self) -> str:
        with suppress(OSError):
            return self._log.read_bytes()[-2_000:].decode(errors="replace")
        return ""

    def _check_alive(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            code = self._process.returncode
            raise DemoError(f"the broker ended with code {code}\n{self.tail()}")


@contextmanager
def own_broker() -> Iterator[Broker]:
    scratch = Path(tempfile.mkdtemp(prefix="spillway-demo-"))
    scratch.chmod(0o755)  # as root, PostgreSQL runs under another account, which passes through
    broker = Broker(scratch)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()
        shutil.rmtree(scratch, ignore_errors=True)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


# ---------------------------------------------------------------- what happens


@dataclass(slots=True)
class Tally:
    """What the demo counts."""

    orders: int
    pushed: int = 0
    handled: set[int] = field(default_factory=set)
    again: int = 0
    retried: int = 0
    push_s: list[float] = field(default_factory=list)
    lease_s: list[float] = field(default_factory=list)
    crash: str = ""
    waits: bool = False
    """Only leases are left that nobody may settle: those whose answer the crash cut off."""
    depth: int | None = None
    half_way: asyncio.Event = field(default_factory=asyncio.Event)
    started: float = field(default_factory=time.monotonic)
    history: deque[tuple[float, int, int]] = field(default_factory=deque)

    @property
    def news(self) -> str:
        if not self.waits or self.done:
            return self.crash
        return f"waiting until the leases that the crash cut off end ({VISIBILITY_MS // 1000} s)"

    @property
    def done(self) -> bool:
        return len(self.handled) == self.orders

    def handle(self, number: int) -> None:
        self.again += number in self.handled
        self.handled.add(number)
        if 2 * len(self.handled) >= self.orders:
            self.half_way.set()

    def rates(self) -> tuple[float, float]:
        """Pushed and handled per second, over the last frames."""
        now = (time.monotonic(), self.pushed, len(self.handled))
        self.history.append(now)
        while len(self.history) > 2 and now[0] - self.history[0][0] > RATE_S:
            self.history.popleft()
        first = self.history[0] if len(self.history) > 1 else (self.started, 0, 0)
        elapsed = now[0] - first[0]
        if elapsed <= 0:
            return 0.0, 0.0
        return (now[1] - first[1]) / elapsed, (now[2] - first[2]) / elapsed


def quantile_ms(samples: list[float], share: float) -> float:
    ordered = sorted(samples[-2_000:])
    return ordered[int(len(ordered) * share)] * 1_000 if ordered else 0.0


async def produce(client: AsyncClient, tally: Tally, orders: range) -> None:
    """Push a share of the orders. A push is safe to repeat: a crash loses and doubles none."""
    for start in range(orders.start, orders.stop, BATCH):
        numbers = range(start, min(start + BATCH, orders.stop))
        items = [
            Item(QUEUE, {"order": number, "total": round(number * 1.07, 2)}, key=f"c{number % 999}")
            for number in numbers
        ]
        asked = time.perf_counter()
        results = await client.push_many(items)
        tally.push_s.append(time.perf_counter() - asked)
        tally.pushed += len(results)


async def work(client: AsyncClient, tally: Tally) -> None:
    """Lease, handle, settle and lease again in one round trip; a few orders fail the first time."""
    acks: list[str] = []
    nacks: list[Nack] = []
    while not tally.done:
        lease = SettleLease(queue=QUEUE, max=BATCH, wait_ms=100, visibility_ms=VISIBILITY_MS)
        asked = time.perf_counter()
        try:
            _, messages = await client.settle(acks, nack=nacks, lease=lease)
        except BrokerUnreachableError:
            # Whether that happened is unknown. Settling again is safe; what a lost lease held
            # comes back when its time is over.
            await client.settle(acks, nack=nacks)
            messages = None
        acks, nacks = [], []
        if messages:
            tally.lease_s.append(time.perf_counter() - asked)
        for message in messages or ():
            if message.attempt == 1 and random.random() < FLAKY_SHARE:
                nacks.append(
                    Nack(receipt=message.receipt, error="card reader offline", delay_ms=50)
                )
                tally.retried += 1
                continue
            number = message.payload["order"]
            tally.handle(number)
            acks.append(message.receipt)
        await asyncio.sleep(0)
    if acks or nacks:
        await client.settle(acks, nack=nacks)


async def crash(broker: Broker, tally: Tally) -> None:
    """Half-way: kill -9, and start again."""
    await tally.half_way.wait()
    tally.crash = "the broker was killed (kill -9)"
    await asyncio.to_thread(broker.kill)
    killed = time.monotonic()
    broker.start()
    await broker.until_ready()
    tally.crash = f"killed half-way (kill -9), back after {time.monotonic() - killed:.1f} s"


# ---------------------------------------------------------------- what is shown


async def watch(client: AsyncClient, tally: Tally, *, lively: bool) -> None:
    """Live on a terminal, a line a second elsewhere."""
    if not lively:
        while True:
            await asyncio.sleep(1)
            await look(client, tally)
            print(line_of(tally), flush=True)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            await look(client, tally)
            live.update(frame_of(tally), refresh=True)
            await asyncio.sleep(0.2)


async def look(client: AsyncClient, tally: Tally) -> None:
    with suppress(SpillwayError):
        queue: QueueReply = await client.queue(QUEUE)
        tally.depth = sum(group.depth for group in queue.groups) if queue.groups else queue.tail
        held = sum(group.leased for group in queue.groups)
        is_last = tally.pushed == tally.orders and held == tally.depth
        tally.waits = is_last and held > 0 and bool(tally.crash)


def facts_of(tally: Tally) -> list[tuple[str, str]]:
    in_rate, out_rate = tally.rates()
    return [
        ("pushed", f"{tally.pushed:,} of {tally.orders:,}  ({in_rate:,.0f}/s)"),
        ("handled", f"{len(tally.handled):,}  ({out_rate:,.0f}/s)"),
        ("depth", "-" if tally.depth is None else f"{tally.depth:,}"),
        ("push", latency(tally.push_s)),
        ("lease", latency(tally.lease_s)),
        ("retried", f"{tally.retried:,} that failed the first time"),
        ("again", f"{tally.again:,} delivered a second time (at least once, never lost)"),
    ]


def latency(samples: list[float]) -> str:
    p50, p99 = quantile_ms(samples, 0.5), quantile_ms(samples, 0.99)
    return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms for {BATCH} orders"


def line_of(tally: Tally) -> str:
    in_rate, out_rate = tally.rates()
    depth = "-" if tally.depth is None else f"{tally.depth:,}"
    return (
        f"{time.monotonic() - tally.started:5.1f} s  pushed {tally.pushed:>9,} {in_rate:>9,.0f}/s  "
        f"handled {len(tally.handled):>9,} {out_rate:>9,.0f}/s  depth {depth:>9}  "
        f"push p99 {quantile_ms(tally.push_s, 0.99):.0f} ms  "
        f"lease p99 {quantile_ms(tally.lease_s, 0.99):.0f} ms  {tally.news}"
    )


def frame_of(tally: Tally) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for name, text in facts_of(tally):
        table.add_row(Text(name, style="bold"), text)
    bar = ProgressBar(total=tally.orders, completed=len(tally.handled), width=60)
    return Group(bar, table, Text(tally.news, style="yellow"))


def summarise(tally: Tally, seconds: float, audit: AuditReply) -> None:
    console.print()
    console.print(f"[bold]{tally.orders:,} orders in {seconds:.1f} s[/]")
    rate = tally.orders / seconds
    console.print(f"  rate       {rate:,.0f} orders/s, pushed and handled, durable in PostgreSQL")
    console.print(f"  push       {latency(tally.push_s)}")
    console.print(f"  lease      {latency(tally.lease_s)}, with the wait for them")
    console.print(f"  retried    {tally.retried:,} that failed the first time")
    console.print(f"  again      {tally.again:,} delivered a second time")
    console.print(f"  lost       {tally.orders - len(tally.handled):,}")
    if tally.crash:
        console.print(f"  crash      {tally.crash}")
    verdict = "[green]balanced[/]" if audit.balanced else "[bold red]NOT balanced[/]"
    totals = ", ".join(f"{count:,} {name}" for name, count in audit.totals.items() if count)
    console.print(f"  audit      {verdict}: {audit.messages:,} messages = {totals}")
    for one in audit.differences:
        console.print(f"             {one.queue} {one.partition} {one.group} {one.what}")


GO_ON = """
Go on yourself:
  .venv/bin/spillway serve                      a broker with its own PostgreSQL in ./spillway-data
  .venv/bin/spillway push orders '{"order": 1}' push a message
  .venv/bin/spillway top                        watch it live
  .venv/bin/python examples/orders.py           push, consume and ack from Python
"""


# ---------------------------------------------------------------- the run


async def run(arguments: argparse.Namespace, broker: Broker) -> bool:
    console.print("starting a broker with a PostgreSQL of its own …")
    await broker.until_ready()
    console.print(f"it listens on {broker.url}; pushing {arguments.orders:,} orders\n")
    tally = Tally(arguments.orders)
    async with AsyncClient(broker.url, timeout_s=60, retries=PATIENCE, actor="demo") as client:
        await client.create_queue(QUEUE, partitions=8, max_attempts=50)
        started = time.monotonic()
        async with asyncio.timeout(LIMIT_S), watching(client, tally), asyncio.TaskGroup() as tasks:
            if not arguments.calm:
                tasks.create_task(crash(broker, tally))
            for share in shares(arguments.orders, arguments.producers):
                tasks.create_task(produce(client, tally, share))
            for _ in range(arguments.workers):
                tasks.create_task(work(client, tally))
        seconds = time.monotonic() - started
        audit = await client.audit()
    summarise(tally, seconds, audit)
    return tally.done and audit.balanced


@asynccontextmanager
async def watching(client: AsyncClient, tally: Tally) -> AsyncIterator[None]:
    task = asyncio.create_task(watch(client, tally, lively=console.is_terminal))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def shares(orders: int, count: int) -> list[range]:
    edges = [orders * at // count for at in range(count + 1)]
    return [range(low, high) for low, high in pairwise(edges)]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--orders", type=int, default=100_000)
    parser.add_argument("--producers", type=int, default=2)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--calm", action="store_true", help="do not kill the broker half-way")
    return parser.parse_args()


def terminated(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, terminated)
    try:
        with own_broker() as broker:
            balanced = asyncio.run(run(arguments, broker))
    except KeyboardInterrupt:
        console.print("\ninterrupted; the broker is stopped and its folder removed")
        return 130
    except (DemoError, SpillwayError, TimeoutError, ExceptionGroup) as error:
        console.print(f"[bold red]the demo failed[/]: {reason(error)}")
        return 1
    console.print(GO_ON, markup=False, soft_wrap=True)
    return 0 if balanced else 1


def reason(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(reason(one) for one in error.exceptions)
    if isinstance(error, TimeoutError):
        return f"not done after {LIMIT_S:.0f} s"
    hint = f"\n  hint: {error.hint}" if isinstance(error, SpillwayError) else ""
    return f"{error}{hint}"


if __name__ == "__main__":
    os.environ.pop("SPILLWAY_DATABASE_URL", None)  # the demo brings its own
    sys.exit(main())
