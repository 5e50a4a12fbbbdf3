"""The mock engine's LoRA adapters: loaded and unloaded by vLLM's endpoints, with its answers."""

import orjson
import pytest

from weft_mock_tests.engines import MODEL, Client, config, engines

pytestmark = pytest.mark.component

HELLO: list[dict[str, object]] = [{"role": "user", "content": "Hello, who are you?"}]
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
SQL = {"lora_name": "sql", "lora_path": "/adapters/sql"}


async def text(engine: Client, path: str, body: object) -> tuple[int, str]:
    async with engine._session.post(engine.url + path, json=body) as reply:
        return reply.status, await reply.text()


async def test_an_adapter_is_a_model_from_when_it_is_loaded_until_it_is_unloaded() -> None:
    async with engines(config(time_scale=0.1)) as (engine,):
        assert (await engine.chat(HELLO, model="sql")).status == 404
        assert await text(engine, LOAD, SQL) == (200, "Success: LoRA adapter 'sql' added successfully.")
        _, page = await engine.get("/v1/models")
        assert [(one["id"], one["root"], one["parent"]) for one in orjson.loads(page)["data"]] == [
            (MODEL, MODEL, None), ("sql", "/adapters/sql", MODEL),
        ]  # fmt: skip
        assert (await engine.chat(HELLO, model="sql")).body["model"] == "sql"
        assert await text(engine, UNLOAD, SQL) == (200, "Success: LoRA adapter 'sql' removed successfully.")
        assert (await engine.chat(HELLO, model="sql")).status == 404


async def test_what_cannot_be_loaded_or_unloaded_is_refused_as_vllm_does() -> None:
    async with engines(config(adapters={"sql": "/adapters/sql"})) as (engine,):
        for path, body, status, kind, words in (
            (LOAD, SQL, 400, "InvalidUserInput", "has already been loaded"),
            (LOAD, {"lora_name": "x"}, 400, "InvalidUserInput", "'lora_path' must be provided"),
            (LOAD, {"lora_name": 1, "lora_path": "x"}, 400, "BadRequestError", "a text is needed"),
            (UNLOAD, {"lora_name": "law"}, 404, "NotFoundError", "The lora adapter 'law' cannot be found."),
            (UNLOAD, {}, 400, "InvalidUserInput", "needs to be provided"),
        ):
            reply = await engine.post(path, body)
            assert (reply.status, reply.error["type"]) == (status, kind)
            assert words in str(reply.error["message"])
        await engine.faults(no_adapters=True)
        reply = await engine.post(LOAD, {"lora_name": "law", "lora_path": "acme/law"})
        assert (reply.status, reply.error["message"]) == (404, "Loading lora law failed: No adapter found for acme/law")


async def test_engines_of_other_protocols_have_no_such_endpoints() -> None:
    async with engines(config(protocol="sglang", bidirectional=False)) as (engine,):
        assert (await engine.post(LOAD, SQL)).status == 404
