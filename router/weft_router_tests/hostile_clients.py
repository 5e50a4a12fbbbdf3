"""Send a running coordinator requests that mean harm, for some time: ``python -m weft_router_tests.hostile_clients``.

Sidecars and scripted engines stand behind it, and admission is on: API keys, classes, rates and shares. It must stay
alive, answer every whole request in time and none with 500, serve good requests meanwhile, write no traceback, and
not grow. Ends with status 1 otherwise; requests that were answered wrongly are kept in ``--keep``.
"""

import argparse
import asyncio
import contextlib
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp

from weft_router_tests.fake_engine import prompt_ids, reply_text
from weft_router_tests.hostile_requests import hostile_request
from weft_router_tests.soak import LENGTH, Soak
from weft_router_tests.stack import MODEL

CLIENTS = 16
ANSWER_S = 15.0
"""Within which a whole request is answered; a deadline of the coordinator's own would end it earlier."""
REST_S = 0.5
"""How long a client waits for the rest; many connections stay open after it."""
LEAVES = 0.02
"""Share of reads after which a client goes."""
GOOD_S = 15.0
"""Within which a good request is answered whatever others send."""
EVERY_GOOD_S = 0.25
KEYS = "good-key tenant=good\nhostile-key tenant=hostile rps=1000 concurrent=64\nother-key tenant=other\n"
WARM = 0.4
"""Share of the time after which memory may no longer grow."""
GROWTH_BYTES = 24 * 2**20
"""Most that the largest after that may exceed the largest before."""


class Hostile(Soak):
    """One run."""

    def __init__(self, folder: Path, seconds: float, rng: random.Random, keep: Path | None = None) -> None:
        super().__init__(folder, seconds, rng)
        self._keep = keep
        self._statuses: Counter[str] = Counter()
        self._memory: list[tuple[float, float]] = []
        self._sent = 0

    def config(self) -> dict[str, Any]:
        whole = super().config()
        whole["limits"] = {**whole["limits"], "maxConnections": 200}
        whole["timeouts"] = {**whole["timeouts"], "header": 2.0, "body": 2.0}
        whole["qos"] = {
            "maxWaiting": 32,
            "classes": {"interactive": {"priority": 2, "queueLimit": 64}, "batch": {"queueLimit": 16}},
            "defaultClass": "interactive",
        }
        return whole

    def _router(self, role: str, name: str, *more: str, env: dict[str, str] | None = None) -> str:
        keys = self.folder / "keys"
        keys.write_text(KEYS)
        front = {"WEFT_API_KEYS_FILE": str(keys)} if role == "coordinator" else {}
        return super()._router(role, name, *more, env={**(env or {}), **front})

    async def _client(self, http: aiohttp.ClientSession, front: str, number: int) -> None:
        if number == 0:
            await self._good(http, front)
        elif number <= CLIENTS:
            while not self.over:
                await self._attack(front)

    async def _good(self, http: aiohttp.ClientSession, front: str) -> None:
        """Ask what anybody may ask, again and again."""
        headers = {"Authorization": "Bearer good-key"}
        number = 0
        while not self.over:
            number += 1
            body = {"model": MODEL, "messages": [{"role": "user", "content": f"good {number}"}], "temperature": 0}
            began = time.monotonic()
            try:
                async with http.post(front + "/v1/chat/completions", json=body, headers=headers) as response:
                    said, raw = response.status, await response.text()
            except (aiohttp.ClientError, TimeoutError) as error:
                said, raw = 0, repr(error)
            took = time.monotonic() - began
            good = said == 200 and reply_text(prompt_ids(body), LENGTH) in raw and took < GOOD_S
            self.outcomes["good" if good else "failed"] += 1
            if not good:
                self.wrong.append(f"a good request after {took:.1f} s: {said} {raw[:200]}")
            await asyncio.sleep(EVERY_GOOD_S)

    async def _attack(self, front: str) -> None:
        raw, whole = hostile_request(self.rng, self.rng.choice(["hostile-key", "other-key", "no-key"]))
        self._sent += 1
        host, _, port = front.removeprefix("http://").rpartition(":")
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
        except OSError as error:
            self.outcomes["failed"] += 1
            self.wrong.append(f"nobody listens: {error!r}")
            await asyncio.sleep(0.5)
            return
        said = "cut"
        try:
            writer.write(raw)
            async with asyncio.timeout(ANSWER_S if whole else REST_S):
                line = await reader.readline()
            said = line.decode("latin-1").split(" ")[1] if line.startswith(b"HTTP/1.") else "closed"
            async with asyncio.timeout(REST_S):
                while await reader.read(65536) and self.rng.random() > LEAVES:
                    pass
        except TimeoutError:
            if whole and said == "cut":
                self._blame("hangs", raw, "no answer")
        except OSError:
            said = "reset"
        finally:
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(2):
                    await writer.wait_closed()
        self._statuses[said] += 1
        if said == "500":
            self._blame("500", raw, said)

    def _blame(self, kind: str, raw: bytes, said: str) -> None:
        self.outcomes["failed"] += 1
        self.wrong.append(f"{said} to {raw[:300]!r}")
        del self.wrong[20:]
        if self._keep is not None:
            self._keep.mkdir(parents=True, exist_ok=True)
            (self._keep / f"{kind}-{self._sent}").write_bytes(raw)

    async def _kill(self) -> None:
        """Kill nobody."""

    async def _sample(self, http: aiohttp.ClientSession) -> None:
        while True:
            try:
                async with http.get(self.urls["router"] + "/metrics") as response:
                    page = await response.text()
            except (aiohttp.ClientError, TimeoutError):
                page = ""
            for line in page.splitlines():
                if line.startswith("process_resident_memory_bytes"):
                    self._memory.append((time.monotonic(), float(line.rpartition(" ")[2])))
            await asyncio.sleep(0.5)

    def _report(self) -> int:
        logs = self.folder.glob("*.log")
        faults = [f"{path.stem} wrote a traceback" for path in logs if b"Traceback" in path.read_bytes()]
        dead = [str(process.args)[:80] for process in self.processes if process.returncode not in (None, -9)]
        half = self._memory[0][0] + WARM * self.seconds if self._memory else 0.0
        early = max((held for at, held in self._memory if at <= half), default=0.0)
        late = max((held for at, held in self._memory if at > half), default=0.0)
        if not early or late > early + GROWTH_BYTES:
            faults.append("it grows")
        if self.outcomes["failed"] or not self.outcomes["good"]:
            faults.append("requests failed")
        faults += [f"ended by itself: {args}" for args in dead]
        said = ", ".join(f"{count} {status}" for status, count in sorted(self._statuses.items()))
        shown = self._memory[:: len(self._memory) // 10 or 1]
        sys.stdout.write(
            f"{self._sent} requests in {self.seconds:.0f} s: {said}\n"
            f"{self.outcomes['good']} good requests served\n"
            f"memory {', '.join(f'{held / 2**20:.0f}' for _, held in shown)} MiB\n"
        )
        for line in (*faults, *self.wrong):
            sys.stdout.write(f"FAULT {line}\n")
        return 1 if faults else 0


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder for requests that were answered wrongly")
    given = parser.parse_args()
    logging.getLogger("aiohttp.server").disabled = True
    with tempfile.TemporaryDirectory() as folder:
        run = Hostile(Path(folder), given.seconds, random.Random(given.seed), given.keep)
        return asyncio.run(run.run("sidecars"))


if __name__ == "__main__":
    sys.exit(main())
