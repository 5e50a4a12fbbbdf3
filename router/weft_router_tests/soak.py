"""Run a router for a long time under 24 clients, cancels and kills, and say whether it grows: ``make soak``.

One standalone process, or a coordinator with a sidecar per engine and Redis, stands in front of scripted engines.
5 % of the clients leave early, 1 % of the streams lose their engine, and every 20 s one engine is killed and started
again. Ends with status 1 when a request fails, or memory, descriptors or tasks grow.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from weft_router_tests.fake_engine import FakeEngine, prompt_ids, reply_text
from weft_router_tests.stack import MODEL, TOKEN, free_port, router_json, until

CLIENTS = 24
LENGTH = 24
CANCELLED = 0.05
EVERY_KILL_S = 20.0
EVERY_SAMPLE_S = 5.0
SESSION_TTL_S = 60
"""So that as many sessions are forgotten as begin, well before the half in which memory must not grow."""
LOOKED_AT = ("process_resident_memory_bytes", "process_open_fds", "weft_router_tasks")
LIMITS = {"process_resident_memory_bytes": 0.2 * 2**20, "process_open_fds": 2.0, "weft_router_tasks": 2.0}
"""Most growth in a minute, over the second half: memory in bytes, descriptors, tasks."""


@dataclass
class Soak:
    """One run."""

    folder: Path
    seconds: float
    rng: random.Random
    engines: dict[str, FakeEngine] = field(default_factory=dict)
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    urls: dict[str, str] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    samples: dict[tuple[str, str], list[tuple[float, float]]] = field(default_factory=dict)
    over: bool = False

    async def run(self, composition: str) -> int:
        """Run to the end; return the exit status."""
        for name in ("p0", "p1", "d0", "d1", "d2"):
            engine = self.engines[name] = FakeEngine(name, peers=self.engines, forgets=True)
            engine.script.length, engine.script.gap_s = LENGTH, 0.002
            engine.script.every = 100
            await engine.start(free_port())
        try:
            front = self._standalone() if composition == "standalone" else self._sidecars()
            timeout = aiohttp.ClientTimeout(total=30)
            async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as http:
                await until(lambda: self._ready(http, front), seconds=60)
                clients = [asyncio.ensure_future(self._client(http, front, k)) for k in range(CLIENTS)]
                others = [asyncio.ensure_future(self._kill()), asyncio.ensure_future(self._sample(http))]
                await asyncio.sleep(self.seconds)
                self.over = True
                await asyncio.wait(clients, timeout=40)
                for task in (*clients, *others):
                    task.cancel()
                await asyncio.gather(*clients, *others, return_exceptions=True)
        finally:
            for process in self.processes:
                process.kill()
                process.wait(timeout=10)
            for engine in self.engines.values():
                await engine.stop()
        return self._report()

    def _start(self, command: list[str], env: dict[str, str], name: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes.append(subprocess.Popen(command, env={**os.environ, **env}, stdout=log, stderr=log))

    def _router(self, role: str, name: str, *more: str, env: dict[str, str] | None = None) -> str:
        config, token, port = self.folder / "router.json", self.folder / "token", free_port()
        config.write_text(json.dumps(self.config()))
        token.write_text(TOKEN)
        command = [sys.executable, "-m", "weft_router", "--role", role, "--config", str(config)]
        url = self.urls[name] = f"http://127.0.0.1:{port}"
        if env is not None and "WEFT_WORKER" in env:
            command += ["--advertise", url]
        self._start(
            [*command, "--listen", f"127.0.0.1:{port}", "--log-level", "error", *more],
            {"WEFT_TOKEN_FILE": str(token), **(env or {})},
            name,
        )
        return url

    def config(self) -> dict[str, Any]:
        """Return the configuration of all routers."""
        whole = {**router_json(), "accessLog": {"to": "off"}}
        whole["routing"] = {**whole.get("routing", {}), "sessionTtlSeconds": SESSION_TTL_S}
        return whole

    def _standalone(self) -> str:
        roles = {"p": "prefill", "d": "decode"}
        entries = [{"name": n, "role": roles[n[0]], "url": e.url, "degree": 1} for n, e in self.engines.items()]
        workers = self.folder / "workers.json"
        workers.write_text(json.dumps({"workers": entries}))
        return self._router("standalone", "router", "--workers", str(workers))

    def _sidecars(self) -> str:
        port = free_port()
        self._start(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""], {}, "redis")
        redis = {"WEFT_REDIS_URL": f"redis://127.0.0.1:{port}/0", "POD_IP": "127.0.0.1"}
        for name, engine in self.engines.items():
            role = "prefill" if name.startswith("p") else "decode"
            own = {"WEFT_WORKER": name, "WEFT_DEGREE": "1"}
            self._router(role, name, "--engine-url", engine.url, env={**redis, **own})
        return self._router("coordinator", "router", env=redis)

    async def _ready(self, http: aiohttp.ClientSession, front: str) -> bool:
        try:
            async with http.get(front + "/readyz") as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False

    async def _client(self, http: aiohttp.ClientSession, front: str, number: int) -> None:
        rounds = 0
        messages: list[dict[str, Any]] = []
        while not self.over:
            if not messages or rounds == 6:
                messages, rounds = [{"role": "user", "content": f"client {number}, {self.rng.random()}"}], 0
            rounds += 1
            stream, leaves = self.rng.random() < 0.7, self.rng.random() < CANCELLED
            body = {"model": MODEL, "messages": messages, "stream": stream, "temperature": 0}
            work = asyncio.ensure_future(self._ask(http, front, body))
            if leaves:
                await asyncio.wait([work], timeout=self.rng.random() * 0.2)
                if not work.done():
                    work.cancel()
                    await asyncio.wait([work])
                    self.outcomes["cancelled"] += 1
                    messages = []
                    continue
            text = await work
            if text is None:
                messages = []
                continue
            messages = [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": f"and {rounds}"}]

    async def _ask(self, http: aiohttp.ClientSession, front: str, body: dict[str, Any]) -> str | None:
        expected = reply_text(prompt_ids(body), LENGTH)
        try:
            async with http.post(front + "/v1/chat/completions", json=body) as response:
                raw = await response.text()
                status = response.status
        except (aiohttp.ClientError, TimeoutError) as error:
            status, raw = 0, repr(error)
        if status == 200 and body["stream"]:
            events = [json.loads(line[6:]) for line in raw.split("\n\n") if line.startswith("data: {")]
            choices = [choice for event in events for choice in event.get("choices", ())]
            text = "".join(choice["delta"].get("content") or "" for choice in choices)
            good = raw.endswith("data: [DONE]\n\n") and text == expected
        elif status == 200:
            text = json.loads(raw)["choices"][0]["message"]["content"]
            good = text == expected
        else:
            text, good = "", False
        self.outcomes["good" if good else "failed"] += 1
        if not good:
            self.wrong.append(f"{status}: {raw[-200:]}")
            del self.wrong[20:]
        return text if good else None

    async def _kill(self) -> None:
        """Kill streams now and then, and an engine every so often: decode engines in turn, then prefill engines."""
        for engine in self.engines.values():
            engine.script.die_at_token = LENGTH // 2
        turn = 0
        while True:
            await asyncio.sleep(EVERY_KILL_S)
            engine = self.engines[("d0", "p0", "d1", "p1", "d2")[turn % 5]]
            turn += 1
            port = engine.port
            await engine.stop()
            self.outcomes["engines killed"] += 1
            await asyncio.sleep(2.0)
            await engine.start(port)

    async def _sample(self, http: aiohttp.ClientSession) -> None:
        started = time.monotonic()
        while True:
            for name, url in self.urls.items():
                with contextlib.suppress(aiohttp.ClientError):
                    async with http.get(url + "/metrics") as response:
                        page = await response.text()
                    for line in page.splitlines():
                        key, _, value = line.rpartition(" ")
                        if key in LOOKED_AT:
                            kept = self.samples.setdefault((name, key), [])
                            kept.append((time.monotonic() - started, float(value)))
            await asyncio.sleep(EVERY_SAMPLE_S)

    def _report(self) -> int:
        died = sum(engine.died for engine in self.engines.values())
        count = self.outcomes["good"] + self.outcomes["failed"]
        cancelled, killed = self.outcomes["cancelled"], self.outcomes["engines killed"]
        first = f"{self.outcomes['failed']}/{count} failed, {cancelled} cancelled, in {self.seconds:.0f} s"
        out = [f"{first}; {died} streams and {killed} engines killed", *self.wrong[:5]]
        grew = False
        for (name, key), points in sorted(self.samples.items()):
            late = points[len(points) // 2 :]
            slope = 60 * slope_of(late)
            bad = slope > LIMITS[key]
            grew = grew or bad
            unit = 2**20 if key.endswith("bytes") else 1
            out.append(
                f"{name:8} {key:32} {points[0][1] / unit:9.1f} -> {points[-1][1] / unit:9.1f}"
                f"  {slope / unit:+8.3f} a minute{'  GROWS' if bad else ''}"
            )
        sys.stdout.write("\n".join(out) + "\n")
        return 1 if grew or self.outcomes["failed"] or not self.samples else 0


def slope_of(points: list[tuple[float, float]]) -> float:
    """Return the growth a second of the line through points."""
    n = len(points)
    if n < 2:
        return 0.0
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=900.0)
    parser.add_argument("--composition", choices=["standalone", "sidecars"], default="standalone")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.composition == "sidecars" and shutil.which("redis-server") is None:
        parser.error("coordinators and sidecars meet in Redis: install redis-server, as `make setup` does")
    logging.getLogger("aiohttp.server").disabled = True  # its engines' clients break off by design
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder), given.seconds, random.Random(given.seed))
        return asyncio.run(soak.run(given.composition))


if __name__ == "__main__":
    sys.exit(main())
