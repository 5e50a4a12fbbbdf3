"""Measure what the router adds to a call on an idle stack: the engines called directly, then through all three hops.

Starts Redis, two mock engines and a coordinator with a decode and a prefill sidecar on loopback, sends single
requests one after the other, and prints the medians and their difference for local and for remote prefills. A direct
remote call is the prefill leg and the decode leg sent by hand, so the difference is the router alone.
Exit status 1 when a difference exceeds the target.
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
from pathlib import Path

import aiohttp

TARGET_MS = 3.0
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
        self.decode_engine = self.prefill_engine = self.coordinator = ""

    async def start(self) -> None:
        """Start everything and wait until the coordinator is ready."""
        redis = shutil.which("redis-server")
        if redis is None:
            raise BenchError("redis-server is missing: apt-get install redis-server")
        (self.folder / "token").write_text(secrets.token_hex(16))
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
        await self._router("decode", env, self.decode_engine)
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
        return url

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


async def post(http: aiohttp.ClientSession, url: str, body: dict[str, object]) -> tuple[dict[str, object], str]:
    """Send one request; return the reply and the route it says it took."""
    async with http.post(url + "/v1/chat/completions", json=body) as response:
        reply = await response.json()
        if response.status != 200:
            raise BenchError(f"{url} answered {response.status}: {reply}")
        return reply, response.headers.get("X-Weft-Route", "")


async def times(call: Callable[[int], Awaitable[None]], requests: int) -> list[float]:
    """Return the milliseconds of each of ``requests`` calls, after a warm-up of a tenth."""
    measured = []
    for number in range(-(requests // 10) - 5, requests):
        started = time.perf_counter()
        await call(number)
        if number >= 0:
            measured.append((time.perf_counter() - started) * 1e3)
    return measured


async def measure(running: Stack, route: str, options: argparse.Namespace) -> tuple[list[float], list[float]]:
    """Return direct and routed times in interleaved batches, so that a busy moment hits both."""
    async with aiohttp.ClientSession(timeout=REQUEST_TIMEOUT) as http:

        async def direct(number: int) -> None:
            body = prompt(options.size, number)
            if route == "remote":
                leg = {**body, "kv_transfer_params": NO_REMOTE}
                prefilled, _ = await post(http, running.prefill_engine, leg)
                body = {**body, "kv_transfer_params": prefilled["kv_transfer_params"]}
            await post(http, running.decode_engine, body)

        async def routed(number: int) -> None:
            _, took = await post(http, running.coordinator, prompt(options.size, number))
            if took != route:
                raise BenchError(f"the request went {took}, not {route}")

        straight: list[float] = []
        through: list[float] = []
        for _ in range(options.rounds):
            straight += await times(direct, options.requests // options.rounds)
            through += await times(routed, options.requests // options.rounds)
        return straight, through


async def local_stack(options: argparse.Namespace) -> tuple[list[float], list[float]]:
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


async def remote_stack(options: argparse.Namespace) -> tuple[list[float], list[float]]:
    """Measure remote prefills."""
    async with stack("remote-jsq") as running:
        return await measure(running, "remote", options)


def main() -> int:
    """Measure and print; return 1 when the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=300, help="measured requests per row (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="batches they are split into (default %(default)s)")
    parser.add_argument("--size", type=int, default=2000, help="characters of a prompt (default %(default)s)")
    options = parser.parse_args()
    missed = False
    print(f"{options.requests} requests one after the other, prompts of {options.size} characters, 1 token, ms")
    print(f"{'path':8} {'direct P50':>11} {'routed P50':>11} {'added P50':>10} {'direct P95':>11} {'routed P95':>11}")
    for route, run in (("local", local_stack), ("remote", remote_stack)):
        try:
            direct, routed = asyncio.run(run(options))
        except BenchError as error:
            print(f"router_overhead: {error}", file=sys.stderr)
            return 1
        added = statistics.median(routed) - statistics.median(direct)
        missed = missed or added > TARGET_MS
        p95 = [statistics.quantiles(values, n=20)[18] for values in (direct, routed)]
        print(
            f"{route:8} {statistics.median(direct):11.2f} {statistics.median(routed):11.2f} {added:10.2f} "
            f"{p95[0]:11.2f} {p95[1]:11.2f}"
        )
    print(f"target: added P50 <= {TARGET_MS} ms: {'missed' if missed else 'met'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
