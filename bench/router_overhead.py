"""Measure what the router adds to a call on an idle stack: through one sidecar, and through all hops.

Starts Redis, two mock engines and a coordinator with a decode and a prefill sidecar on loopback, sends single
requests one after the other, and prints the medians and their difference for local and for remote prefills. A direct
remote call is the prefill leg and the decode leg sent by hand, so the difference is the router alone. "sidecar" rows
go to the decode worker's sidecar as a coordinator would (a remote one passes the prefill worker's sidecar too), the
"session" rows through the coordinator as well. The target is for one sidecar on the way to its engine.
The router's own CPU time per request stands beside them: it says more than the clock on a busy machine.
Exit status 1 when that difference exceeds the target.
"""

import argparse
import asyncio
import json
import os
import secrets
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

TARGET_MS = 3.0
BATCH = 50
REQUEST_TIMEOUT = aiohttp.ClientTimeout(total=10)
MODEL = "bench/model"
WEFT = "import sys; from weft_planner.cli import main; sys.exit(main())"
"""The ``weft`` command, by the interpreter that runs this script."""
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
    """Report that the stack did not come up or a request failed."""


def free_port() -> int:
    """Return a loopback port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Stack:
    """The processes of one small service on loopback."""

    def __init__(self, folder: Path, policy: str) -> None:
        self.folder = folder
        self.policy = policy
        self.processes: list[asyncio.subprocess.Process] = []
        self.routers: list[int] = []
        self.decode_engine = self.prefill_engine = self.sidecar = self.coordinator = ""
        self.token = secrets.token_hex(16)

    async def start(self) -> None:
        """Start everything and wait until the coordinator is ready."""
        redis = shutil.which("redis-server")
        if redis is None:
            raise BenchError("redis-server is missing: apt-get install redis-server")
        (self.folder / "token").write_text(self.token)
        (self.folder / "profile.json").write_text(json.dumps(PROFILE))
        (self.folder / "router.json").write_text(json.dumps(self._config()))
        redis_port = free_port()
        await self._spawn(
            redis, "--port", str(redis_port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.folder)
        )
        env = {"WEFT_REDIS_URL": f"redis://127.0.0.1:{redis_port}/0", "WEFT_TOKEN_FILE": str(self.folder / "token")}
        self.decode_engine = await self._engine("decode")
        self.prefill_engine = await self._engine("prefill")
        await self._router("prefill", env, self.prefill_engine)
        self.sidecar = await self._router("decode", env, self.decode_engine)
        self.coordinator = await self._router("coordinator", env, "")

    def _config(self) -> dict[str, object]:
        return {
            "service": "bench",
            "namespace": "default",
            "model": {"name": MODEL, "maxModelLen": 32768},
            "engine": {"type": "mock", "bidirectional": True, "leaseSeconds": 30, "handleTtlSeconds": 6},
            "slo": {"ttft": 5.0, "itl": 0.05},
            "routing": {"policy": self.policy},
            "profile": PROFILE,
        }

    async def _engine(self, role: str) -> str:
        port = free_port()
        await self._spawn(
            sys.executable, "-c", WEFT, "mock-engine", "--model", MODEL,
            "--profile", str(self.folder / "profile.json"), "--degree", "1", "--role", role,
            "--listen", f"127.0.0.1:{port}",
            "--side-channel-port", str(free_port()), "--engine-id", role, "--bidirectional",
            "--handle-ttl-seconds", "5",
        )  # fmt: skip
        url = f"http://127.0.0.1:{port}"
        await wait_for(url + "/health")
        return url

    async def _router(self, role: str, env: dict[str, str], engine: str) -> str:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        extra = {"WEFT_WORKER": f"bench-{role}", "WEFT_DEGREE": "1"} if engine else {}
        engine_flags = ["--engine-url", engine, "--advertise", url] if engine else []
        await self._spawn(
            sys.executable, "-m", "weft_router", "--role", role, "--config", str(self.folder / "router.json"),
            "--listen", f"127.0.0.1:{port}", "--log-level", "warning", *engine_flags, env={**env, **extra},
        )  # fmt: skip
        await wait_for(url + "/readyz")
        self.routers.append(self.processes[-1].pid)
        return url

    def router_cpu_s(self) -> float:
        """Return the CPU seconds the live router processes have used so far; 0 where the system does not tell."""
        stats = (Path(f"/proc/{pid}/schedstat") for pid in self.routers)
        return sum(int(stat.read_text().split()[0]) / 1e9 for stat in stats if stat.exists())

    async def _spawn(self, *command: str, env: dict[str, str] | None = None) -> None:
        log = (self.folder / f"{len(self.processes)}.log").open("wb")
        with log:
            process = await asyncio.create_subprocess_exec(
                *command, stdout=log, stderr=log, env={**os.environ, **(env or {})}
            )
        self.processes.append(process)

    def show_logs(self) -> None:
        """Write the end of every process's log to standard error."""
        for log in sorted(self.folder.glob("*.log")):
            sys.stderr.write(log.read_text(errors="replace")[-2000:])

    async def stop(self) -> None:
        """End all processes, the last started first."""
        for process in reversed(self.processes):
            if process.returncode is None:
                process.terminate()
        for process in self.processes:
            try:
                await asyncio.wait_for(process.wait(), 10)
            except TimeoutError:
                process.kill()
                await process.wait()


@asynccontextmanager
async def stack(policy: str) -> AsyncIterator[Stack]:
    """Give a running stack and remove it afterwards; its logs are shown when it does not come up."""
    folder = Path(tempfile.mkdtemp(prefix="weft-bench-"))
    running = Stack(folder, policy)
    try:
        try:
            await running.start()
        except BenchError:
            running.show_logs()
            raise
        yield running
    finally:
        await running.stop()
        shutil.rmtree(folder, ignore_errors=True)


async def wait_for(url: str) -> None:
    """Wait until a URL answers 200."""
    deadline = time.monotonic() + 20
    async with aiohttp.ClientSession() as http:
        while time.monotonic() < deadline:
            try:
                async with http.get(url) as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.05)
    raise BenchError(f"{url} did not become ready")


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


async def measure(running: Stack, route: str, options: argparse.Namespace) -> list[Row]:
    """Return the rows of one route: direct, through the router in a new session, and in a known one.

    The kinds take turns in short batches, so that a busy moment of the machine hits all of them.
    """
    async with aiohttp.ClientSession(timeout=REQUEST_TIMEOUT) as http:

        async def direct(number: int) -> None:
            body = prompt(options.size, number)
            if route == "remote":
                leg = {**body, "kv_transfer_params": NO_REMOTE}
                prefilled, _ = await post(http, running.prefill_engine, leg)
                body = {**body, "kv_transfer_params": prefilled["kv_transfer_params"]}
            await post(http, running.decode_engine, body)

        async def routed(number: int, url: str, headers: dict[str, str]) -> None:
            _, took = await post(http, url, prompt(options.size, number), headers=headers)
            if took != route:
                raise BenchError(f"the request went {took}, not {route}")

        internal = {"X-Weft-Token": running.token, "X-Weft-Session": "sidecar"}
        known = {"X-Session-Id": route}
        calls: list[tuple[Row, Callable[[int], Awaitable[None]]]] = [
            (Row(f"{route}, direct"), direct),
            (Row(f"{route}, sidecar"), lambda number: routed(number, running.sidecar, internal)),
            (Row(f"{route}, known session"), lambda number: routed(number, running.coordinator, known)),
            (
                Row(f"{route}, new session"),
                lambda number: routed(number, running.coordinator, {"X-Session-Id": f"{route}-{number}"}),
            ),
        ]
        for batch in range(-1, options.requests // BATCH):
            for row, call in calls:
                cpu_s = running.router_cpu_s()
                for number in range(batch * BATCH, (batch + 1) * BATCH):
                    started = time.perf_counter()
                    await call(number)
                    if batch >= 0:
                        row.ms.append((time.perf_counter() - started) * 1e3)
                if batch >= 0:
                    row.cpu_ms += (running.router_cpu_s() - cpu_s) * 1e3
        return [row for row, _ in calls]


async def local_stack(options: argparse.Namespace) -> list[Row]:
    """Measure local prefills: the prefill sidecar is taken away."""
    async with stack("ampd") as running:
        prefill = running.processes[3]
        prefill.terminate()
        await prefill.wait()
        async with aiohttp.ClientSession(timeout=REQUEST_TIMEOUT) as http:
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                if (await post(http, running.coordinator, prompt(64, 0)))[1] == "local":
                    break
                await asyncio.sleep(0.1)
        return await measure(running, "local", options)


async def remote_stack(options: argparse.Namespace) -> list[Row]:
    """Measure remote prefills."""
    async with stack("remote-jsq") as running:
        return await measure(running, "remote", options)


def main() -> int:
    """Measure and print; return 1 when the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=300, help="measured requests per row (default %(default)s)")
    parser.add_argument("--size", type=int, default=2000, help="characters of a prompt (default %(default)s)")
    options = parser.parse_args()
    print(f"{options.requests} requests a row, one after the other, prompts of {options.size} characters, 1 token; ms")
    print(f"{'path':24} {'P50':>8} {'P95':>8} {'added P50':>10} {'router CPU':>11}")
    missed = False
    for run in (local_stack, remote_stack):
        try:
            rows = asyncio.run(run(options))
        except BenchError as error:
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
