"""Router processes as they run in pods: started by the command line, killed, drained, misconfigured."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from weft_core.authority import split_authority
from weft_router.http import connection
from weft_router_tests.conftest import RedisServer
from weft_router_tests.fake_engine import FakeEngine, prompt_ids, reply_text
from weft_router_tests.stack import MODEL, TOKEN, free_port, is_so, router_json, until

pytestmark = pytest.mark.component

WITHOUT_IPV6 = Path(__file__).with_name("without_ipv6.py")
HELLO = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "stream": True}


class Processes:
    """Router processes of one test."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self.folder = folder
        self.env = {**os.environ, "WEFT_TOKEN_FILE": str(folder / "token"), "WEFT_REDIS_URL": redis_url}
        (folder / "token").write_text(TOKEN)
        (folder / "router.json").write_text(json.dumps(router_json()))
        self.running: list[subprocess.Popen[bytes]] = []

    def start(
        self, role: str, *, engine: str = "", name: str = "", listen: str = "127.0.0.1", under: Sequence[str] = ()
    ) -> "tuple[subprocess.Popen[bytes], str]":
        """Start one, ``under`` a command that runs it; return it and its URL."""
        env: dict[str, str] = {}
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        command = [*under, sys.executable, "-m", "weft_router", "--role", role, "--listen", f"{listen}:{port}"]
        command += ["--config", str(self.folder / "router.json"), "--drain-seconds", "5"]
        if engine:
            command += ["--engine-url", engine, "--advertise", url]
            env = {"WEFT_WORKER": name, "WEFT_DEGREE": "1"}
        with (self.folder / f"{name or role}.log").open("wb") as log:
            made = subprocess.Popen(command, env={**self.env, **env}, stderr=log, stdout=log)
        self.running.append(made)
        return made, url

    def stop(self) -> None:
        for made in self.running:
            if made.poll() is None:
                made.kill()
            made.wait(timeout=60)


@pytest.fixture
def processes(tmp_path: Path, redis_server: RedisServer) -> Iterator[Processes]:
    made = Processes(tmp_path, redis_server.url)
    yield made
    made.stop()


async def shows(http: aiohttp.ClientSession, url: str, line: str) -> bool:
    """Return whether a process's metrics have a line."""
    async with http.get(url + "/metrics") as response:
        return line in await response.text()


async def ready(http: aiohttp.ClientSession, url: str) -> bool:
    return await answers(http, url, "/readyz")


async def answers(http: aiohttp.ClientSession, url: str, path: str = "/healthz") -> bool:
    try:
        async with http.get(url + path) as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


@pytest.mark.parametrize("without_ipv6", [False, True])
async def test_a_process_listens_on_every_address_that_the_kernel_has(without_ipv6: bool, processes: Processes) -> None:
    under = (sys.executable, str(WITHOUT_IPV6)) if without_ipv6 else ()
    _, url = processes.start("coordinator", listen="[::]", under=under)
    async with aiohttp.ClientSession() as http:
        await until(lambda: answers(http, url))
    _, port = split_authority(urlsplit(url).netloc)
    with socket.socket(socket.AF_INET6) as client:
        assert (client.connect_ex(("::1", port)) == 0) is not without_ipv6


async def test_a_killed_decode_process_ends_streams_with_an_error_event_and_a_new_one_takes_over(
    processes: Processes,
) -> None:
    engine = FakeEngine("d0")
    await engine.start(free_port())
    sidecar, _ = processes.start("decode", engine=engine.url, name="d0")
    coordinator, front = processes.start("coordinator")
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
            await until(lambda: ready(http, front), seconds=60)
            engine.script.gap_s = 0.2
            async with http.post(front + "/v1/chat/completions", json=HELLO) as response:
                first = await response.content.readuntil(b"\n\n")
                assert first.startswith(b"data: {"), (response.status, first)
                sidecar.kill()
                started = time.monotonic()
                rest = await response.read()
            assert time.monotonic() - started < 5, "the error came with the death, not with a timeout"
            assert b'"code":"stream_interrupted"' in rest
            engine.script.gap_s = 0.0
            processes.start("decode", engine=engine.url, name="d0")

            async def served() -> bool:
                async with http.post(front + "/v1/chat/completions", json=HELLO) as response:
                    return (await response.read()).endswith(b"data: [DONE]\n\n")

            await until(served, seconds=60)
            coordinator.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(coordinator.wait, 10) == 0
    finally:
        await engine.stop()


async def test_killed_processes_lose_no_stream_where_others_can_go_on(processes: Processes) -> None:
    engines = {name: FakeEngine(name) for name in ("d0", "d1", "p0")}
    for engine in engines.values():
        engine.peers = engines
        await engine.start(free_port())
    started = {
        name: processes.start("prefill" if name == "p0" else "decode", engine=engine.url, name=name)
        for name, engine in engines.items()
    }
    _, front = processes.start("coordinator")
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
            for url in (*(url for _, url in started.values()), front):
                await until(lambda url=url: ready(http, url), seconds=60)  # type: ignore[misc]
            both = 'weft_router_workers{role="decode",state="ready"} 2'
            await until(lambda: shows(http, front, both), seconds=60)
            engines["d0"].script.gap_s = engines["d1"].script.gap_s = 0.1

            async def stream(k: int) -> bool:
                body = {**HELLO, "messages": [{"role": "user", "content": f"question {k}"}]}
                async with http.post(front + "/v1/chat/completions", json=body) as response:
                    raw = await response.text()
                events = [json.loads(line[6:]) for line in raw.split("\n\n") if line.startswith("data: {")]
                text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events)
                return raw.endswith("data: [DONE]\n\n") and text == reply_text(prompt_ids(body))

            live = [asyncio.ensure_future(stream(k)) for k in range(12)]
            await until(lambda: is_so(engines["d0"].running + engines["d1"].running >= 8))
            lost = max(("d0", "d1"), key=lambda name: engines[name].running)
            started[lost][0].kill()
            await engines[lost].stop()
            started["p0"][0].kill()
            whole = await asyncio.gather(*live)
            assert all(whole), f"{whole.count(False)}/12 failed"
            assert await stream(99)
    finally:
        for engine in engines.values():
            await engine.stop()


async def test_a_process_tells_whether_its_requests_go_by_compiled_modules(processes: Processes) -> None:
    compiled = not str(connection.__file__).endswith(".py")
    _, url = processes.start("coordinator")
    log = processes.folder / "coordinator.log"
    await until(lambda: is_so('"listening"' in log.read_text()), seconds=60)
    lines = map(json.loads, log.read_text().splitlines())
    assert [line["compiled"] for line in lines if line["event"] == "listening"] == [compiled]
    async with aiohttp.ClientSession() as http:
        assert await shows(http, url, f"weft_router_compiled {float(compiled)}")


async def test_the_drain_command_drains_its_pod(processes: Processes) -> None:
    engine = FakeEngine("d0")
    await engine.start(free_port())
    _, url = processes.start("decode", engine=engine.url, name="d0")
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
            await until(lambda: ready(http, url), seconds=60)
            for token, code in ((b"not the token of this service", 1), (TOKEN.encode(), 0)):
                (processes.folder / "sent").write_bytes(token)
                env = {"WEFT_TOKEN_FILE": str(processes.folder / "sent"), "WEFT_DRAIN_URL": url + "/drain"}
                command = [sys.executable, "-m", "weft_router.drain"]
                done = await asyncio.to_thread(
                    subprocess.run, command, env={**processes.env, **env}, capture_output=True, timeout=60, check=False
                )
                assert done.returncode == code, done.stderr
                async with http.get(url + "/readyz") as response:
                    assert response.status == (503 if code == 0 else 200)
    finally:
        await engine.stop()


def test_a_wrong_configuration_ends_with_status_2_and_one_line(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "router.json").write_text(json.dumps(router_json(routing={"policy": "magic"})))
    command = [sys.executable, "-m", "weft_router", "--role", "coordinator", "--config", str(tmp_path / "router.json")]
    env = {**os.environ, "WEFT_TOKEN_FILE": str(tmp_path / "token")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "routing.policy" in done.stderr
    assert "Traceback" not in done.stderr
