import asyncio
from collections.abc import AsyncIterator

import orjson
import pytest
import pytest_asyncio

from weft_mock.model import answer
from weft_mock.tokenizer import chat_ids, completion_ids, decode, encode, filler
from weft_mock_tests.engines import MODEL, Client, config, engines, until

pytestmark = pytest.mark.component

HELLO: list[dict[str, object]] = [{"role": "user", "content": "Hello, who are you?"}]


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[Client]:
    async with engines(config(time_scale=0.1)) as (client,):
        yield client


async def test_a_chat_completion_is_the_model_s_answer(engine: Client) -> None:
    reply = await engine.chat(HELLO, model=MODEL)
    prompt = chat_ids(HELLO)
    expected = answer(prompt, 1000)
    assert reply.status == 200
    assert reply.text == decode(expected)
    assert reply.body["object"] == "chat.completion"
    assert str(reply.body["id"]).startswith("chatcmpl-r")
    assert reply.body["kv_transfer_params"] is None
    assert reply.usage == {
        "prompt_tokens": len(prompt),
        "completion_tokens": len(expected),
        "total_tokens": len(prompt) + len(expected),
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_a_stream_carries_the_same_answer_token_by_token(engine: Client) -> None:
    stream = await engine.stream(HELLO, max_tokens=12, stream_options={"include_usage": True}, return_token_ids=True)
    expected = answer(chat_ids(HELLO), 12)
    assert stream.text == decode(expected)
    first, *middle, last, usage = stream.events
    assert first["prompt_token_ids"] == chat_ids(HELLO)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}  # type: ignore[index]
    ids = [token for event in [*middle, last] for token in event["choices"][0]["token_ids"]]  # type: ignore[index]
    assert ids == expected
    assert last["choices"][0]["finish_reason"] == "length"  # type: ignore[index]
    assert all(event["choices"][0]["finish_reason"] is None for event in middle)  # type: ignore[index]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 12  # type: ignore[index]
    assert len({event["id"] for event in stream.events}) == 1
    assert stream.comments == []
    assert "X-Weft-Engine-Plugin" not in stream.headers


async def test_text_completions_take_text_ids_and_lists(engine: Client) -> None:
    for prompt, ids in (("some text", completion_ids("some text")), (encode("some text"), encode("some text"))):
        reply = await engine.post("/v1/completions", {"prompt": prompt, "max_tokens": 6, "return_token_ids": True})
        assert reply.text == decode(answer(ids, 6))
        assert reply.body["choices"][0]["token_ids"] == answer(ids, 6)  # type: ignore[index]
        assert reply.body["choices"][0]["prompt_token_ids"] == ids  # type: ignore[index]
    reply = await engine.post("/v1/completions", {"prompt": ["a b", "c d"], "n": 2, "temperature": 0})
    choices = reply.body["choices"]
    assert isinstance(choices, list)
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert choices[2]["text"] == decode(answer(completion_ids("c d"), 16))
    assert choices[3]["text"] == decode(answer(completion_ids("c d"), 16, variant=1))
    assert reply.usage["completion_tokens"] == 64


async def test_text_completions_stream(engine: Client) -> None:
    reply = await engine.post("/v1/completions", {"prompt": "x"})
    data = orjson.dumps({"prompt": "x", "stream": True, "return_token_ids": True})
    status, body = 0, b""
    async with engine._session.post(engine.url + "/v1/completions", data=data) as raw:
        status, body = raw.status, await raw.read()
    assert status == 200
    events = [orjson.loads(part[6:]) for part in body.decode().split("\n\n") if part.startswith("data: {")]
    assert "".join(event["choices"][0]["text"] for event in events) == reply.text
    assert events[0]["choices"][0]["prompt_token_ids"] == completion_ids("x")


async def test_n_answers_stream_side_by_side(engine: Client) -> None:
    stream = await engine.stream(HELLO, n=3, max_tokens=5, ignore_eos=True)
    for index in range(3):
        pieces = [c["delta"]["content"] for c in stream.choices() if c["index"] == index]  # type: ignore[index]
        assert "".join(pieces) == decode(answer(chat_ids(HELLO), 5, ignore_eos=True, variant=index))


async def test_stop_strings_end_the_answer_and_are_not_sent(engine: Client) -> None:
    words = decode(answer(chat_ids(HELLO), 10)).split(" ")
    stop = f"{words[4]} {words[5]}"
    expected = " ".join(words[:4]) + " "
    reply = await engine.chat(HELLO, stop=[stop, "never"])
    assert reply.text == expected
    choice = reply.body["choices"][0]  # type: ignore[index]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    stream = await engine.stream(HELLO, stop=stop)
    assert stream.text == expected
    await until(lambda: engine.engine.scheduler.pool.used == 0)


async def test_stop_token_ids_min_tokens_and_ignore_eos(engine: Client) -> None:
    made = answer(chat_ids(HELLO), 10)
    reply = await engine.chat(HELLO, stop_token_ids=[made[3]], return_token_ids=True)
    choice = reply.body["choices"][0]  # type: ignore[index]
    assert choice["token_ids"] == made[:4]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", made[3])
    longer = await engine.chat(HELLO, min_tokens=90, max_tokens=100)
    assert longer.usage["completion_tokens"] == 91
    endless = await engine.chat(HELLO, ignore_eos=True, max_tokens=100)
    assert endless.usage["completion_tokens"] == 100
    assert endless.body["choices"][0]["finish_reason"] == "length"  # type: ignore[index]


async def test_a_continued_stream_equals_the_first_leg(engine: Client) -> None:
    prompt = chat_ids(HELLO)
    whole = answer(prompt, 40, ignore_eos=True)
    params = {"prompt_token_ids": prompt + whole[:15]}
    reply = await engine.chat([], kv_transfer_params=params, max_tokens=25, ignore_eos=True, return_token_ids=True)
    assert reply.body["choices"][0]["token_ids"] == whole[15:]  # type: ignore[index]
    by_ids = {"prompt": prompt + whole[:15], "max_tokens": 25, "ignore_eos": True, "return_token_ids": True}
    reply = await engine.post("/v1/completions", by_ids)
    assert reply.body["choices"][0]["token_ids"] == whole[15:]  # type: ignore[index]


async def test_the_second_round_hits_the_prefix_cache(engine: Client) -> None:
    messages: list[dict[str, object]] = [{"role": "user", "content": filler(100, 1)}]
    first = await engine.chat(messages, max_tokens=30)
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "and then?"}]
    second = await engine.chat(messages, max_tokens=30)
    had = len(chat_ids(messages[:1])) + int(str(first.usage["completion_tokens"])) - 1
    assert second.usage["prompt_tokens_details"] == {"cached_tokens": had // 16 * 16}
    assert second.text == decode(answer(chat_ids(messages), 30))


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        (b"{", 400, "JSON"),
        (b"[]", 400, "object"),
        ({"messages": HELLO, "model": "other"}, 404, "other"),
        ({"messages": HELLO, "model": 5}, 400, "model"),
        ({}, 400, "messages"),
        ({"messages": []}, 400, "messages"),
        ({"messages": ["x"]}, 400, "messages"),
        ({"messages": [{"role": "king", "content": ""}]}, 400, "messages[0].role"),
        ({"messages": HELLO, "max_tokens": 0}, 400, "max_tokens"),
        ({"messages": HELLO, "max_tokens": "5"}, 400, "max_tokens"),
        ({"messages": HELLO, "max_tokens": True}, 400, "max_tokens"),
        ({"messages": HELLO, "max_tokens": 5000}, 400, "2048"),
        ({"messages": HELLO, "max_tokens": 1, "min_tokens": 5}, 400, "min_tokens"),
        ({"messages": HELLO, "n": 0}, 400, "n must"),
        ({"messages": HELLO, "temperature": -1}, 400, "temperature"),
        ({"messages": HELLO, "top_p": "x"}, 400, "top_p"),
        ({"messages": HELLO, "logprobs": True}, 400, "logprobs"),
        ({"messages": HELLO, "priority": 3}, 400, "riority"),
        ({"messages": HELLO, "stream": "yes"}, 400, "stream"),
        ({"messages": HELLO, "stream_options": {"include_usage": True}}, 400, "stream=True"),
        ({"messages": HELLO, "stop": [""]}, 400, "stop"),
        ({"messages": HELLO, "cache_salt": ""}, 400, "cache_salt"),
        ({"messages": HELLO, "tools": {}}, 400, "tools"),
        ({"messages": [{"role": "user", "content": filler(2100, 0)}]}, 400, "2048"),
        ({"messages": HELLO, "kv_transfer_params": {"prompt_token_ids": [10**6]}}, 400, "token ids"),
        ({"messages": HELLO, "kv_transfer_params": {"prompt_token_ids": "x"}}, 400, "prompt_token_ids"),
    ],
)
async def test_bad_requests_get_vllm_s_error_form(engine: Client, body: object, status: int, word: str) -> None:
    reply = await engine.post("/v1/chat/completions", body)
    assert reply.status == status
    assert word in str(reply.error["message"])
    assert reply.error["code"] == status
    assert set(reply.error) == {"message", "type", "param", "code"}
    assert (await engine.chat(HELLO, max_tokens=1)).status == 200


async def test_unknown_fields_are_ignored_as_in_vllm(engine: Client) -> None:
    assert (await engine.chat(HELLO, max_tokens=1, flavour="lemon", user="u", seed=4, logprobs=False)).status == 200


async def test_the_small_endpoints(engine: Client) -> None:
    status, body = await engine.get("/v1/models")
    assert status == 200
    assert orjson.loads(body)["data"][0]["max_model_len"] == 2048
    assert (await engine.get("/health"))[0] == 200
    assert orjson.loads((await engine.get("/version"))[1])["version"] == "0.32.0"
    assert orjson.loads((await engine.get("/load"))[1]) == {"server_load": 0}
    tokens = await engine.post("/tokenize", {"messages": HELLO, "model": MODEL})
    assert tokens.body["tokens"] == chat_ids(HELLO)
    assert tokens.body["count"] == len(chat_ids(HELLO))
    assert (await engine.post("/detokenize", {"tokens": encode("hi there")})).body == {"prompt": "hi there"}
    assert (await engine.post("/detokenize", {"tokens": [10**9]})).status == 400
    assert (await engine.get("/nowhere"))[0] == 404
    assert (await engine.get("/v1/chat/completions"))[0] == 405


async def test_tokenize_renders_as_the_chat_does(engine: Client) -> None:
    async def ids(**body: object) -> object:
        reply = await engine.post("/tokenize", body)
        assert reply.status == 200, reply.body
        assert isinstance(reply.body["tokens"], list)
        assert reply.body["count"] == len(reply.body["tokens"])
        return reply.body["tokens"]

    assert await ids(prompt="some text") == completion_ids("some text")
    assert await ids(prompt="some text", add_special_tokens=False) == encode("some text")
    assert await ids(messages=HELLO, add_generation_prompt=False) == chat_ids(HELLO, add_generation_prompt=False)
    said: list[dict[str, object]] = [*HELLO, {"role": "assistant", "content": "I am"}]
    wanted = chat_ids(said, continue_final_message=True)
    assert await ids(messages=said, add_generation_prompt=False, continue_final_message=True) == wanted
    tools: list[object] = [{"type": "function", "function": {"name": "add"}}]
    assert await ids(messages=HELLO, tools=tools) == chat_ids(HELLO, tools=tools)
    texts = (await engine.post("/tokenize", {"prompt": "hi there", "return_token_strs": True})).body["token_strs"]
    assert isinstance(texts, list)
    assert "".join(texts) == "hi there"
    wrongs: list[dict[str, object]] = [{}, {"messages": []}, {"messages": [{"role": "king"}]}, {"prompt": 5}]
    for wrong in wrongs:
        assert (await engine.post("/tokenize", wrong)).status == 400


async def test_metrics_have_vllm_s_names_and_true_values(engine: Client) -> None:
    await engine.chat(HELLO, max_tokens=10, ignore_eos=True)
    text = (await engine.get("/metrics"))[1].decode()
    label = f'{{engine="0",model_name="{MODEL}"}}'
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))

    def value(name: str) -> float:
        other = f'{{model_name="{MODEL}",engine="0"}}'
        return float(values.get(name + label) or values[name + other])

    assert value("vllm:generation_tokens_total") == 10
    assert value("vllm:prompt_tokens_total") == len(chat_ids(HELLO))
    assert value("vllm:time_to_first_token_seconds_count") == 1
    assert value("vllm:inter_token_latency_seconds_count") == 9
    assert value("vllm:num_requests_running") == 0
    assert value("vllm:num_requests_waiting") == 0
    assert value("vllm:kv_cache_usage_perc") == 0
    assert float(values["weft_mock_prefilled_tokens_total"]) == len(chat_ids(HELLO))
    assert float(values["weft_mock_free_blocks"]) == 256


async def test_a_client_that_goes_away_frees_its_blocks() -> None:
    async with engines(config(time_scale=5.0)) as (client,):
        reply = await client.open_stream(HELLO, max_tokens=1000, ignore_eos=True)
        assert client.engine.scheduler.pool.used > 0
        reply.close()
        await until(lambda: client.engine.scheduler.pool.used == 0)
        assert client.engine.ledger.aborted == 1
        whole = asyncio.create_task(client.chat(HELLO, max_tokens=1000, ignore_eos=True))
        await until(lambda: client.engine.scheduler.pool.used > 0)
        whole.cancel()
        await until(lambda: client.engine.scheduler.pool.used == 0)
        assert client.engine.ledger.requests["abort"] == 2


async def test_requests_queue_while_the_kv_cache_is_full() -> None:
    async with engines(config(kv_capacity=256, max_model_len=256, time_scale=0.2)) as (client,):
        messages: list[dict[str, object]] = [{"role": "user", "content": filler(150, 1)}]
        others: list[dict[str, object]] = [{"role": "user", "content": filler(150, 2)}]
        first = await client.open_stream(messages, max_tokens=90, ignore_eos=True)
        second = asyncio.create_task(client.chat(others, max_tokens=5))
        await until(lambda: len(client.engine.scheduler.waiting) == 1)
        text = (await client.get("/metrics"))[1].decode()
        assert 'reason="capacity"} 1.0' in text
        assert b"[DONE]" in await first.read()
        assert (await second).text == decode(answer(chat_ids(others), 5))
        assert client.engine.scheduler.pool.used == 0


async def test_timing_follows_the_profile() -> None:
    async with engines(config(time_scale=10.0)) as (client,):
        loop = asyncio.get_running_loop()
        began = loop.time()
        await client.chat(HELLO, max_tokens=41, ignore_eos=True)
        took = loop.time() - began
        prompt = len(chat_ids(HELLO))
        expected = 10 * (0.001 + prompt * 1e-5) + 40 * 10 * 0.001
        # Late wake-ups on a busy machine may add to it; nothing may make it shorter.
        assert expected * 0.98 <= took <= expected + 1.0


async def test_a_rank_that_the_engine_lacks_is_refused(engine: Client) -> None:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 1}
    assert (await engine.post("/v1/chat/completions", body, X_Data_Parallel_Rank="0")).status == 200
    reply = await engine.post("/v1/chat/completions", body, X_Data_Parallel_Rank="1")
    assert reply.status == 400
    assert "data_parallel_rank 1 is out of range [0, 1)" in str(reply.error["message"])
