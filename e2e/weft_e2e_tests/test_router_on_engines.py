"""The whole router, in one process and in several, before engines of each protocol: every token once."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from weft_mock.model import answer
from weft_mock.tokenizer import chat_ids, completion_ids, decode, filler
from weft_mock_tests.engines import MODEL, Client, at_rest, config, engines
from weft_router.config import Role
from weft_router.process import build
from weft_router.roles.lifecycle import run_server
from weft_router.state.store import MemoryStore
from weft_router_tests.stack import free_port, router_json, settings

pytestmark = pytest.mark.component

TOKENS = 12
NOWHERE = "http://127.0.0.1:9"
MESSAGES = [{"role": "user", "content": filler(60, 1)}]
PROMPT = filler(40, 2)
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": TOKENS},
    "/v1/completions": {"prompt": PROMPT, "max_tokens": TOKENS},
}
EXPECTED = {
    "/v1/chat/completions": decode(answer(chat_ids(MESSAGES), TOKENS)),
    "/v1/completions": decode(answer(completion_ids(PROMPT), TOKENS)),
}


class Front:
    """A router in front of engines."""

    def __init__(self, url: str, workers: list[Client]) -> None:
        self.url = url
        self.workers = workers

    async def post(self, path: str, **fields: Any) -> httpx.Response:
        async with httpx.AsyncClient(timeout=10.0) as http:
            return await http.post(self.url + path, json={"model": MODEL, **fields})

    async def until_ready(self, workers: Mapping[str, int]) -> None:
        """Wait until the router answers and sees its workers."""
        deadline = asyncio.get_running_loop().time() + 10
        wanted = [f'weft_router_workers{{role="{role}",state="ready"}} {count}' for role, count in workers.items()]
        while True:
            with suppress(httpx.TransportError):
                page = (await self.get("/metrics")).text
                if all(line in page for line in wanted):
                    return
            assert asyncio.get_running_loop().time() < deadline, "the router never became ready"
            await asyncio.sleep(0.02)

    async def get(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(timeout=10.0) as http:
            return await http.get(self.url + path)


class Routers:
    """Router processes inside the test's own event loop."""

    def __init__(self, folder: Path, config: dict[str, Any], *, keys: Path | None = None) -> None:
        self._folder = folder
        self._config = config
        self._keys = keys
        self.store = MemoryStore()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, role: Role, *, worker: str = "", engine: str = NOWHERE, workers: Path | None = None) -> str:
        """Start one and return its URL once it answers."""
        found = settings(
            self._folder,
            role,
            port=free_port(),
            worker=worker,
            engine_url=engine,
            config=self._config,
            workers=workers,
            keys=self._keys if role in ("coordinator", "standalone") else None,
        )
        server, duty = build(found, self.store)
        self._tasks.append(asyncio.get_running_loop().create_task(run_server(server, duty, found, asyncio.Event())))
        return f"http://127.0.0.1:{found.port}"

    async def close(self) -> None:
        """End them all."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=10)


@asynccontextmanager
async def fronted(
    folder: Path, protocol: str, *, sidecars: bool = False, bidirectional: bool = False, keys: Path | None = None,
    **routing: Any,
) -> AsyncIterator[Front]:  # fmt: skip
    """Run a router and its engines; afterwards no engine may have seen a wrong request.

    Nor may one hold anything, but for what the next round of a session would read.
    """
    common = {"protocol": protocol, "bidirectional": bidirectional, "time_scale": 0.1}
    roles: list[Role] = ["decode"] if protocol == "openai" else ["prefill", "decode"]
    made = [config(engine_id=r, role="both" if protocol == "openai" else r, **common) for r in roles]
    async with engines(*made) as workers:
        engine = {"type": protocol, "bidirectional": bidirectional, "bootstrapPort": workers[0].side_port}
        routers = Routers(folder, router_json(engine=engine, routing={"policy": "remote-jsq", **routing}), keys=keys)
        try:
            if sidecars:
                for role, worker in zip(roles, workers, strict=True):
                    await routers.start(role, worker=role, engine=worker.url)
                url = await routers.start("coordinator")
            else:
                entries = [
                    {"name": r, "role": r, "url": w.url, "degree": 1} for r, w in zip(roles, workers, strict=True)
                ]
                listed = folder / "workers.json"
                listed.write_text(json.dumps({"workers": entries}))
                url = await routers.start("standalone", workers=listed)
            front = Front(url, workers)
            await front.until_ready(dict.fromkeys(roles, 1))
            yield front
            if not bidirectional:
                await at_rest(*workers)
            assert [dict(w.engine.ledger.violations) for w in workers if w.engine.ledger.violations] == []
        finally:
            await routers.close()


def taken_apart(reply: httpx.Response) -> list[dict[str, Any]]:
    assert reply.status_code == 200, reply.text
    *events, done, rest = reply.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [orjson.loads(event.removeprefix("data: ")) for event in events]


def text_of(choices: list[dict[str, Any]]) -> str:
    return "".join(
        (one.get("delta") or one.get("message") or {}).get("content") or one.get("text") or "" for one in choices
    )


@pytest.mark.parametrize("path", sorted(BODIES))
@pytest.mark.parametrize("sidecars", [False, True], ids=["standalone", "sidecars"])
@pytest.mark.parametrize("protocol", ["vllm", "sglang", "tensorrt-llm", "neuron", "openai"])
async def test_each_protocol_gives_the_same_answer(tmp_path: Path, protocol: str, path: str, sidecars: bool) -> None:
    async with fronted(tmp_path, protocol, sidecars=sidecars) as front:
        whole = await front.post(path, **BODIES[path])
        assert whole.status_code == 200, whole.text
        assert text_of(whole.json()["choices"]) == EXPECTED[path]
        assert "127.0.0.1" not in whole.text
        usage = {"include_usage": True}
        streamed = await front.post(path, **BODIES[path], stream=True, stream_options=usage, temperature=0)
        chunks = taken_apart(streamed)
        assert text_of([choice for chunk in chunks for choice in chunk["choices"]]) == EXPECTED[path]
        assert len({chunk["id"] for chunk in chunks}) == 1
        assert chunks[-1]["usage"]["completion_tokens"] == TOKENS
        assert [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]] == ["length"]
        assert "token_ids" not in streamed.text
        assert "127.0.0.1" not in streamed.text
        route = "local" if protocol == "openai" else "remote"
        assert whole.headers["X-Weft-Route"] == streamed.headers["X-Weft-Route"] == route


@pytest.mark.parametrize("stream", [False, True])
async def test_a_context_server_may_finish_the_answer(tmp_path: Path, stream: bool) -> None:
    async with fronted(tmp_path, "tensorrt-llm") as front:
        stop = answer(chat_ids(MESSAGES), 1)
        path = "/v1/chat/completions"
        reply = await front.post(path, **BODIES[path], stop_token_ids=stop, stream=stream)
        if stream:
            chunks = taken_apart(reply)
            assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
        else:
            assert reply.json()["choices"][0]["finish_reason"] == "stop"
        assert "disaggregated_params" not in reply.text
        assert not [record for record in front.workers[1].engine.ledger.recent if record.form == "import"]


async def test_the_first_token_is_shown_early_where_both_engines_find_the_same(tmp_path: Path) -> None:
    async with fronted(tmp_path, "vllm", firstTokenFromPrefill="auto") as front:
        path = "/v1/chat/completions"
        chunks = taken_apart(await front.post(path, **BODIES[path], stream=True, temperature=0))
        assert text_of([choice for chunk in chunks for choice in chunk["choices"]]) == EXPECTED[path]
        assert len({chunk["id"] for chunk in chunks}) == 1
        assert [chunk["choices"][0]["delta"].get("role") for chunk in chunks].count("assistant") == 1


async def test_responses_are_created_and_not_kept(tmp_path: Path) -> None:
    async with fronted(tmp_path, "vllm") as front:
        asked: dict[str, Any] = {"input": PROMPT, "max_output_tokens": TOKENS}
        whole = await front.post("/v1/responses", **asked)
        assert whole.status_code == 200, whole.text
        body = whole.json()
        assert body["id"].startswith("resp_")
        assert body["usage"]["output_tokens"] == TOKENS
        assert "kv_transfer_params" not in whole.text
        streamed = await front.post("/v1/responses", **asked, stream=True)
        assert "event: response.completed" in streamed.text
        assert "kv_transfer_params" not in streamed.text
        assert (await front.get(f"/v1/responses/{body['id']}")).status_code == 404
        for wrong in ({"store": True}, {"background": True}, {"conversation": "c"}):
            refused = await front.post("/v1/responses", **asked, **wrong)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, next(iter(wrong)))
        foreign = await front.post("/v1/responses", **asked, previous_response_id="resp_" + "0" * 80)
        assert (foreign.status_code, foreign.json()["error"]["code"]) == (404, "previous_response_not_found")


async def test_a_sessions_second_round_reads_its_history(tmp_path: Path) -> None:
    async with fronted(tmp_path, "vllm", bidirectional=True) as front:
        path, prefill = "/v1/chat/completions", front.workers[0].engine
        told = [*MESSAGES, {"role": "assistant", "content": EXPECTED[path]}, {"role": "user", "content": filler(30, 5)}]
        for stream in (False, True):
            body = {"max_tokens": TOKENS, "stream": stream, "session_id": f"s{stream}"}
            first = await front.post(path, messages=MESSAGES, **body)
            assert first.status_code == 200, first.text
            second = await front.post(path, messages=told, **body)
            choices = (
                [c for chunk in taken_apart(second) for c in chunk["choices"]] if stream else second.json()["choices"]
            )
            assert text_of(choices) == decode(answer(chat_ids(told), TOKENS))
            assert prefill.ledger.recent[-1].form == "export_with_history"


@pytest.mark.parametrize("policy", ["weft", "remote-jsq"])
@pytest.mark.parametrize("protocol", ["sglang", "neuron"])
async def test_engines_that_cannot_prefill_locally_serve_every_round_of_a_session(
    tmp_path: Path, protocol: str, policy: str
) -> None:
    async with fronted(tmp_path, protocol, policy=policy) as front:
        messages = list(MESSAGES)
        for k in range(3):
            reply = await front.post("/v1/chat/completions", messages=messages, max_tokens=TOKENS, session_id="s")
            assert reply.status_code == 200, reply.text
            assert reply.headers["X-Weft-Route"] == "remote"
            said = reply.json()["choices"][0]["message"]["content"]
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": f"and {k}"}]


@pytest.mark.parametrize("sidecars", [False, True], ids=["standalone", "sidecars"])
async def test_tokens_are_counted_by_an_engine_within_bounds(tmp_path: Path, sidecars: bool) -> None:
    async with fronted(tmp_path, "vllm", sidecars=sidecars) as front:
        counted = await front.post("/tokenize", messages=MESSAGES)
        assert counted.status_code == 200, counted.text
        assert counted.json()["tokens"] == list(chat_ids(MESSAGES))
        refused = await front.post("/tokenize", prompt="x" * 100_000)
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "context_length_exceeded"


async def test_workers_are_found_by_name(tmp_path: Path) -> None:
    made = config(engine_id="both", role="both", protocol="vllm", bidirectional=False, time_scale=0.1)
    async with engines(made) as (worker,):
        routers = Routers(tmp_path, router_json(engine={"bidirectional": False}, routing={"policy": "colocated"}))
        listed = tmp_path / "workers.json"
        named = {"name": "all", "role": "decode", "dns": "localhost:" + worker.url.rpartition(":")[2], "degree": 1}
        listed.write_text(json.dumps({"workers": [named]}))
        try:
            front = Front(await routers.start("standalone", workers=listed), [worker])
            deadline = asyncio.get_running_loop().time() + 10
            while True:
                with suppress(httpx.TransportError):
                    if (await front.get("/readyz")).status_code == 200:
                        break
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0.02)
            reply = await front.post("/v1/chat/completions", **BODIES["/v1/chat/completions"])
            assert reply.status_code == 200
            assert reply.headers["X-Weft-Worker"].startswith("all-")
        finally:
            await routers.close()
