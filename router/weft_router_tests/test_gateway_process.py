"""A gateway as it runs in a pod: started by the command line, two processes behind one port, ended by SIGTERM."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from weft_router_tests.gateway_kit import TIMEOUT, listed, recorder
from weft_router_tests.stack import MODEL, free_port, until

pytestmark = pytest.mark.component


def start(folder: Path, config: dict[str, object], *more: str) -> "tuple[subprocess.Popen[bytes], str]":
    """Start a gateway; return it and its URL."""
    path, port = folder / "gateway.json", free_port()
    path.write_text(json.dumps(config))
    command = [sys.executable, "-m", "weft_router", "--role", "gateway", "--config", str(path)]
    command += ["--listen", f"127.0.0.1:{port}", "--drain-seconds", "5", *more]
    env = {name: value for name, value in os.environ.items() if not name.startswith("KUBERNETES_")}
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(command, env=env, stderr=log, stdout=log), f"http://127.0.0.1:{port}"


async def test_two_processes_share_a_port_and_end_in_good_order(tmp_path: Path) -> None:
    listing = tmp_path / "services.json"
    async with recorder() as made, aiohttp.ClientSession(timeout=TIMEOUT) as http:
        listing.write_text(json.dumps({"services": [listed(made.url)]}))
        process, url = start(tmp_path, {"servicesFile": str(listing)}, "--processes", "2")
        try:

            async def ready() -> bool:
                assert process.poll() is None, (tmp_path / "log").read_text()
                try:
                    async with http.get(f"{url}/readyz") as response:
                        return response.status == 200
                except aiohttp.ClientError:
                    return False

            await until(ready, seconds=60)
            for _ in range(8):
                body = {"model": MODEL, "prompt": "a"}
                async with http.post(f"{url}/v1/completions", json=body, headers={"Connection": "close"}) as response:
                    assert (response.status, await response.read()) == (200, made.body)
            async with http.get(f"{url}/metrics") as response:
                page = (await response.text()).splitlines()
            counted = [line for line in page if line.startswith("weft_router_gateway_requests_total{")]
            assert sum(float(line.rsplit(" ", 1)[1]) for line in counted) == 8
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 60) == 0
        finally:
            process.kill()
            process.wait()


async def test_a_wrong_configuration_is_said_and_ends_the_process(tmp_path: Path) -> None:
    process, _ = start(tmp_path, {"hop": {"keyFile": "key.pem"}})
    assert await asyncio.to_thread(process.wait, 60) == 2
    assert "hop: there is nobody to name to services" in (tmp_path / "log").read_text()
