"""LoRA adapters that are loaded while engines run: by sidecars and by one process, over real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from weft_core.adapters import adapter_version
from weft_core.heartbeat import WorkerRecord
from weft_e2e_tests.test_router_on_engines import Routers
from weft_mock.engine import Engine
from weft_mock.faults import Faults
from weft_mock.server import EngineServer
from weft_mock.tokenizer import filler
from weft_mock_tests.engines import MODEL, config
from weft_router.config import live
from weft_router.workers import adapters
from weft_router_tests.stack import free_port, router_json

pytestmark = pytest.mark.component

CHAT, LOAD = "/v1/chat/completions", "/v1/load_lora_adapter"
SQL = {"name": "sql", "source": "/adapters/models/sql"}
LAW = {"name": "law", "source": "acme/law-lora"}
ROLES = {"p0": "prefill", "d0": "decode", "d1": "decode"}
TOKENS = 200


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PERIOD_S", 0.02)
    monkeypatch.setattr(adapters, "PERIOD_S", 0.05)
    monkeypatch.setattr(adapters, "RETRY_S", 0.2)


@dataclass
class Fleet:
    """A prefill and two decode workers, and the router before them."""

    folder: Path
    url: str = ""
    servers: dict[str, EngineServer] = field(default_factory=dict)
    routers: Routers | None = None

    def engine(self, name: str) -> Engine:
        return self.servers[name].engine

    async def start_engine(self, name: str) -> None:
        """Start an engine, or one without adapters in the place of the one that was there."""
        old = self.servers.get(name)
        port = free_port() if old is None else old.engine.config.port
        if old is not None:
            await old.stop()
        made = config(engine_id=name, role=ROLES[name], port=port, time_scale=0.1, adapters={})
        self.servers[name] = EngineServer(Engine(made))
        await self.servers[name].start()

    async def ask(self, model: str, *, prompt: str = "hello", session: str = "", tokens: int = 4) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens}
        headers = {"X-Session-Id": session} if session else {}
        async with httpx.AsyncClient(timeout=10.0) as http:
            return await http.post(self.url + CHAT, json=body, headers=headers)

    async def page(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(timeout=10.0) as http:
            return await http.get(self.url + path)

    def use(self, *listed: dict[str, str]) -> None:
        """Give every router process another list of adapters, as a mounted ConfigMap changes: by renaming."""
        for path in self.folder.glob("*.json"):
            body = json.loads(path.read_text())
            if "planRevision" in body:
                fresh = path.with_suffix(".new")
                fresh.write_text(json.dumps({**body, "adapters": list(listed)}))
                fresh.rename(path)

    async def until_served(self, model: str) -> None:
        """Wait until a model is served; before, it may be unknown or not loaded yet."""

        async def served() -> bool:
            answer = await self.ask(model)
            assert answer.status_code in (200, 404, 503), answer.text
            return answer.status_code == 200

        await until(served)

    async def until_loaded(self, *adapters: str, engines: Iterable[str] = ROLES) -> None:
        """Wait until engines have these adapters and no others."""

        async def have() -> bool:
            return all(set(self.engine(name).config.adapters) == set(adapters) for name in engines)

        await until(have)

    def loads(self, name: str) -> list[str]:
        """Return what an engine was asked to load, in order."""
        sent = self.engine(name).recording.to_json()["requests"]
        assert isinstance(sent, list)
        return [json.loads(one["body"])["lora_path"] for one in sent if one["path"] == LOAD]

    async def records(self) -> list[WorkerRecord]:
        assert self.routers is not None
        return list((await self.routers.store.snapshot()).workers)


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 20.0) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while not await condition():
        assert asyncio.get_running_loop().time() < deadline, "the condition did not hold in time"
        await asyncio.sleep(0.02)


@asynccontextmanager
async def fleet(folder: Path, *, sidecars: bool, **more: Any) -> AsyncIterator[Fleet]:
    body = router_json(routing={"policy": "always-remote", "binding": "round-robin"})
    found = Fleet(folder)
    routers = found.routers = Routers(folder, {**body, "adapters": [], **more})
    try:
        for name in ROLES:
            await found.start_engine(name)
        urls = {name: f"http://127.0.0.1:{server.engine.config.port}" for name, server in found.servers.items()}
        if sidecars:
            for name, role in ROLES.items():
                await routers.start(role, worker=name, engine=urls[name])  # type: ignore[arg-type]
            found.url = await routers.start("coordinator")
        else:
            entries = [{"name": n, "role": role, "url": urls[n], "degree": 1} for n, role in ROLES.items()]
            listed = folder / "workers.json"
            listed.write_text(json.dumps({"workers": entries}))
            found.url = await routers.start("standalone", workers=listed)

        async def listening() -> bool:
            try:
                await found.page("/healthz")
            except httpx.ConnectError:
                return False
            return True

        await until(listening)
        await found.until_served(MODEL)
        yield found
        for server in found.servers.values():
            assert not server.engine.ledger.violations
    finally:
        await routers.close()
        for server in found.servers.values():
            await server.stop()


@pytest.fixture(params=[True, False], ids=["sidecars", "standalone"])
async def running(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Fleet]:
    async with fleet(tmp_path, sidecars=request.param) as found:
        yield found


async def test_an_adapter_is_served_without_a_restart_and_gone_when_it_is_removed(running: Fleet) -> None:
    before = {name: server.engine for name, server in running.servers.items()}
    unknown = await running.ask("sql")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    running.use(SQL)
    await running.until_served("sql")
    running.use(SQL, LAW)
    await running.until_served("law")
    listed = (await running.page("/v1/models")).json()["data"]
    assert [(one["id"], one["parent"]) for one in listed] == [(MODEL, None), ("sql", MODEL), ("law", MODEL)]
    await running.until_loaded("sql", "law")
    for name, engine in before.items():
        assert running.engine(name) is engine
        assert running.loads(name) == [SQL["source"], LAW["source"]]

    async def remote() -> bool:
        answer = await running.ask("law")
        assert answer.json()["model"] == "law"
        return answer.headers["X-Weft-Route"] == "remote"

    await until(remote)

    running.use(LAW)

    async def refused() -> bool:
        return (await running.ask("sql")).status_code == 404

    await until(refused)
    await running.until_loaded("law")
    assert (await running.ask("law")).status_code == 200
    listed = (await running.page("/v1/models")).json()["data"]
    assert [one["id"] for one in listed] == [MODEL, "law"]


async def test_an_engine_that_starts_again_gets_its_adapters_again(running: Fleet) -> None:
    running.use(SQL)
    await running.until_loaded("sql")
    for name in ROLES:
        await running.start_engine(name)
        await running.until_loaded("sql")
    await running.until_served("sql")


async def test_a_failure_is_reported_and_tried_again(running: Fleet) -> None:
    for server in running.servers.values():
        server.engine.set_faults(Faults(no_adapters=True))
    running.use(SQL)

    async def reported() -> bool:
        return all(record.adapter_faults for record in await running.records())

    await until(reported)
    version, words = (await running.records())[0].adapter_faults[0]
    assert version == adapter_version("sql", SQL["source"])
    assert words == f"Loading lora sql failed: No adapter found for {SQL['source']}"

    async def explained() -> bool:
        answer = await running.ask("sql")
        assert answer.status_code in (404, 503)
        return "could not be loaded" in answer.text

    await until(explained)
    refusal = await running.ask("sql")
    assert int(refusal.headers["Retry-After"]) > 0
    assert "'sql'" in refusal.json()["error"]["message"]
    assert SQL["source"] not in refusal.text, "places are the operator's"
    assert (await running.ask(MODEL)).status_code == 200
    for server in running.servers.values():
        server.engine.set_faults(Faults())
    await running.until_served("sql")


async def test_rounds_go_to_workers_that_have_the_adapter(running: Fleet) -> None:
    running.engine("d0").set_faults(Faults(no_adapters=True))
    running.engine("p0").set_faults(Faults(no_adapters=True))
    running.use(SQL)
    await running.until_served("sql")
    for number in range(6):
        answer = await running.ask("sql", session=f"s{number}")
        assert answer.status_code == 200
        assert (answer.headers["X-Weft-Worker"], answer.headers["X-Weft-Route"]) == ("d1", "local")
    workers = {(await running.ask(MODEL, session=f"m{number}")).headers["X-Weft-Worker"] for number in range(12)}
    assert workers == {"d0", "d1"}, "the model itself is served by all"


async def test_what_is_in_use_is_not_unloaded(running: Fleet) -> None:
    running.use(SQL)
    await running.until_loaded("sql")
    await running.until_served("sql")
    for name in ("d0", "d1"):
        running.engine(name).set_faults(Faults(slow=2000.0))
    task = asyncio.create_task(running.ask("sql", tokens=30))

    async def started() -> bool:
        return any(running.engine(name).scheduler.running for name in ("d0", "d1"))

    await until(started)
    busy = next(name for name in ("d0", "d1") if running.engine(name).scheduler.running)
    running.use()

    async def refused() -> bool:
        return (await running.ask("sql")).status_code == 404

    await until(refused)
    await running.until_loaded(engines=("p0",))
    assert not task.done()
    assert set(running.engine(busy).config.adapters) == {"sql"}
    running.engine(busy).set_faults(Faults())
    assert (await task).status_code == 200
    await running.until_loaded(engines=(busy,))


async def test_kv_of_an_adapter_from_another_source_is_computed_again(running: Fleet) -> None:
    running.use(SQL)
    await running.until_loaded("sql")
    await running.until_served("sql")
    prompt = filler(TOKENS, 1)

    async def computed() -> int:
        had = sum(server.engine.ledger.prefilled_tokens for server in running.servers.values())
        assert (await running.ask("sql", prompt=prompt, session="s")).status_code == 200
        return sum(server.engine.ledger.prefilled_tokens for server in running.servers.values()) - had

    assert await computed() >= TOKENS
    assert await computed() < TOKENS / 2, "the control: its own prefix is cached"
    moved = {**SQL, "source": "/adapters/models/sql-2"}
    running.use(moved)

    async def has_moved() -> bool:
        return all(server.engine.config.adapters == {"sql": moved["source"]} for server in running.servers.values())

    await until(has_moved)
    version = adapter_version("sql", moved["source"])

    async def known() -> bool:
        return all(record.adapters == (version,) for record in await running.records())

    await until(known)
    await running.until_served("sql")
    assert await computed() >= TOKENS


async def test_clients_reach_no_endpoint_that_loads_adapters(running: Fleet) -> None:
    async with httpx.AsyncClient(timeout=10.0) as http:
        for path in (LOAD, "/v1/unload_lora_adapter", "/load_lora_adapter", "/engine/v1/load_lora_adapter"):
            answer = await http.post(running.url + path, json={"lora_name": "x", "lora_path": "/etc"})
            assert answer.status_code == 404, path
    assert all(not running.loads(name) for name in ROLES)


async def test_a_worker_is_ready_once_each_adapter_was_tried(tmp_path: Path) -> None:
    async with fleet(tmp_path, sidecars=True, adapters=[SQL, LAW]) as found:
        for record in (one for one in await found.records() if one.ready):
            assert len(record.adapters) == 2, "it was ready before"
        assert (await found.ask("sql")).status_code == 200
