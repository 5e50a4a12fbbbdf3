"""Measure what the router adds to a call on an idle stack: through one sidecar, and through all hops.

Starts Redis, two mock engines and a coordinator with a decode and a prefill sidecar on loopback (`weft_e2e.stack`:
the programs and log levels of the pods), sends single requests one after the other, and prints the medians and their
difference for local and for remote prefills. A direct remote call is the prefill leg and the decode leg sent by hand,
so the difference is the router alone. "sidecar" rows go to the decode worker's sidecar as a coordinator would (a
remote one passes the prefill worker's sidecar too), the "session" rows through the coordinator as well. The target is
for one sidecar on the way to its engine.
The router's own CPU time per request stands beside them: it says more than the clock on a busy machine.
Exit status 1 when that difference exceeds the target.
"""

import argparse
import asyncio
import secrets
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from weft_core.profile_json import profile_from_json
from weft_e2e.stack import HOST, TOKEN, Stack, StackConfig, StackWorker, running
from weft_e2e.waiting import until
from weft_router_tests.stack import proven

TARGET_MS = 3.0
BATCH = 50
REQUEST_TIMEOUT = aiohttp.ClientTimeout(total=10)
MODEL = "bench/model"
PREFILL, DECODE = "p-0", "d-0"
ROUTERS = ("coordinator", f"{PREFILL}/router", f"{DECODE}/router")
PROFILE = {
    "model": MODEL,
    "gpu": "none",
    "engine": "bench",
    "kvBytesPerToken": 1024,
    "degrees": [
        {
            "degree": 1,
            "weightBytesPerGpu": 1,
            "kvCapacityTokens": 1_000_000,
            "prefill": [{"alpha": 1e-4, "perToken": 1e-8, "perPair": 0.0, "perContextToken": 0.0}],
            "decode": [{"alpha": 1e-4, "perSequence": 1e-8, "perContextToken": 0.0}],
        }
    ],
    "transfers": [{"source": 1, "destination": 1, "link": "inter-node", "alpha": 1e-4, "perToken": 1e-9}],
    "provenance": {},
}
NO_REMOTE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


class BenchError(RuntimeError):
    """Report a request that failed or went another way than the one to measure."""


def config(policy: str) -> StackConfig:
    """Return a service of one prefill and one decode worker, whose handles die before they fill the engines."""
    return StackConfig(
        profile=profile_from_json(PROFILE),
        workers=(StackWorker(PREFILL, "prefill", 1), StackWorker(DECODE, "decode", 1)),
        policy=policy,
        ttft_s=5.0,
        itl_s=0.05,
        handle_ttl_s=6.0,
    )


@contextmanager
def stack(policy: str) -> Iterator[Stack]:
    """Give a running stack and remove it and its files afterwards."""
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder, running(config(policy), Path(folder)) as started:
        yield started


def router_cpu_s(started: Stack) -> float:
    """Return the CPU seconds the live router processes have used so far; 0 where the system does not tell."""
    routers = (p.running.pid for name, p in started.processes.items() if name in ROUTERS)
    stats = (Path(f"/proc/{pid}/schedstat") for pid in routers)
    return sum(int(stat.read_text().split()[0]) / 1e9 for stat in stats if stat.exists())


def prompt(size: int, number: int) -> dict[str, object]:
    """Return a request that no cache knows."""
    text = f"{number} {secrets.token_hex(4)} " + "word " * (size // 5)
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 1, "ignore_eos": True}


async def post(
    http: aiohttp.ClientSession, url: str, body: dict[str, object], *, headers: dict[str, str] | None = None
) -> tuple[dict[str, object], str]:
    """Send one request; return the reply and the route it says it took."""
    async with http.post(url + "/v1/chat/completions", json=body, headers=headers) as response:
        reply = await response.json()
        if response.status != 200:
            raise BenchError(f"{url} answered {response.status}: {reply}")
        return reply, response.headers.get("X-Weft-Route", "")


@dataclass
class Row:
    """Times of one kind of call in milliseconds, and the CPU milliseconds the router spent on them."""

    name: str
    ms: list[float] = field(default_factory=list)
    cpu_ms: float = 0.0

    @property
    def median(self) -> float:
        """Return the median time."""
        return statistics.median(self.ms)


async def measure(started: Stack, route: str, options: argparse.Namespace) -> list[Row]:
    """Return the rows of one route: direct, through the router in a new session, and in a known one.

    The kinds take turns in short batches, so that a busy moment of the machine hits all of them.
    """
    prefill_engine, decode_engine = (f"http://{HOST}:{started.engine_ports[name]}" for name in (PREFILL, DECODE))
    sidecar, coordinator = f"http://{HOST}:{started.router_ports[DECODE]}", started.target.url
    async with aiohttp.ClientSession(timeout=REQUEST_TIMEOUT) as http, proven(sidecar, TOKEN.encode()) as peer:

        async def direct(number: int) -> None:
            body = prompt(options.size, number)
            if route == "remote":
                leg = {**body, "kv_transfer_params": NO_REMOTE}
                prefilled, _ = await post(http, prefill_engine, leg)
                body = {**body, "kv_transfer_params": prefilled["kv_transfer_params"]}
            await post(http, decode_engine, body)

        async def routed(number: int, url: str, headers: dict[str, str]) -> None:
            client = peer if url == sidecar else http
            _, took = await post(client, url, prompt(options.size, number), headers=headers)
            if took != route:
                raise BenchError(f"the request went {took}, not {route}")

        internal = {"X-Weft-Session": "sidecar"}
        known = {"X-Session-Id": route}
        calls: list[tuple[Row, Callable[[int], Awaitable[None]]]] = [
            (Row(f"{route}, direct"), direct),
            (Row(f"{route}, sidecar"), lambda number: routed(number, sidecar, internal)),
            (Row(f"{route}, known session"), lambda number: routed(number, coordinator, known)),
            (
                Row(f"{route}, new session"),
                lambda number: routed(number, coordinator, {"X-Session-Id": f"{route}-{number}"}),
            ),
        ]
        for batch in range(-1, options.requests // BATCH):
            for row, call in calls:
                cpu_s = router_cpu_s(started)
                for number in range(batch * BATCH, (batch + 1) * BATCH):
                    begin = time.perf_counter()
                    await call(number)
                    if batch >= 0:
                        row.ms.append((time.perf_counter() - begin) * 1e3)
                if batch >= 0:
                    row.cpu_ms += (router_cpu_s(started) - cpu_s) * 1e3
        return [row for row, _ in calls]


def local_rows(options: argparse.Namespace) -> list[Row]:
    """Measure local prefills: the prefill sidecar is taken away."""
    with stack("ampd") as started:
        started.kill(f"{PREFILL}/router")
        until(lambda: asyncio.run(route_taken(started)) == "local", what="a local prefill", timeout_s=30, every_s=0.1)
        return asyncio.run(measure(started, "local", options))


async def route_taken(started: Stack) -> str:
    """Return the route that a request takes now."""
    async with aiohttp.ClientSession(timeout=REQUEST_TIMEOUT) as http:
        return (await post(http, started.target.url, prompt(64, 0)))[1]


def remote_rows(options: argparse.Namespace) -> list[Row]:
    """Measure remote prefills."""
    with stack("remote-jsq") as started:
        return asyncio.run(measure(started, "remote", options))


def main() -> int:
    """Measure and print; return 1 when the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=300, help="measured requests per row (default %(default)s)")
    parser.add_argument("--size", type=int, default=2000, help="characters of a prompt (default %(default)s)")
    options = parser.parse_args()
    if shutil.which("redis-server") is None:
        parser.error("redis-server is missing: apt-get install redis-server")
    print(f"{options.requests} requests a row, one after the other, prompts of {options.size} characters, 1 token; ms")
    print(f"{'path':24} {'P50':>8} {'P95':>8} {'added P50':>10} {'router CPU':>11}")
    missed = False
    for measured in (local_rows, remote_rows):
        try:
            rows = measured(options)
        except (RuntimeError, TimeoutError) as error:
            print(f"router_overhead: {error}", file=sys.stderr)
            return 1
        for row in rows:
            added = row.median - rows[0].median
            missed = missed or (row.name == "local, sidecar" and added > TARGET_MS)
            p95 = statistics.quantiles(row.ms, n=20)[18]
            more = f"{added:10.2f} {row.cpu_ms / len(row.ms):11.2f}" if row is not rows[0] else ""
            print(f"{row.name:24} {row.median:8.2f} {p95:8.2f} {more}")
    print(f"target: one sidecar (local) adds <= {TARGET_MS:g} ms at P50: {'missed' if missed else 'met'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
