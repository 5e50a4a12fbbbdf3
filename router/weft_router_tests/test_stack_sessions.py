"""Whole rounds through coordinator, sidecars and scripted engines: routes, handles, headers, what engines are sent."""

import asyncio
import hashlib
import hmac
from pathlib import Path
from typing import Any

import orjson
import pytest

from weft_core.keys import derive
from weft_router_tests.fake_engine import prompt_ids, reply_text
from weft_router_tests.http_kit import until
from weft_router_tests.stack import MODEL, TOKEN, Answer, Stack, router_json

pytestmark = pytest.mark.component

SYSTEM = {"role": "system", "content": "be brief " * 40}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def expected(messages: list[dict[str, Any]]) -> str:
    return reply_text(prompt_ids({"messages": messages}))


@pytest.mark.parametrize("stream", [True, False])
async def test_later_remote_rounds_read_their_history_by_the_handle_of_the_round_before(
    stack: Stack, stream: bool
) -> None:
    await stack.up()
    messages = [SYSTEM, user("one")]
    for round_number in range(4):
        answer = await stack.chat(messages, session="s", stream=stream)
        assert answer.status == 200
        assert answer.text == expected(messages)
        assert answer.headers["X-Weft-Route"] == "remote"
        assert answer.headers["X-Weft-Worker"] == "d0"
        assert answer.headers["X-Weft-Session"] == "s"
        prefill, decode = stack.engines["p0"].seen[-1], stack.engines["d0"].seen[-1]
        assert prefill["max_tokens"] == 1
        assert prefill["stream"] is False
        sent = prefill["kv_transfer_params"]
        assert (sent["do_remote_decode"], sent["do_remote_prefill"]) == (True, False)
        assert sent["remote_engine_id"] == ("d0" if round_number else None)
        assert decode["kv_transfer_params"]["remote_engine_id"] == "p0"
        assert decode["kv_transfer_params"]["do_remote_prefill"] is True
        messages = [*messages, assistant(answer.text), user(f"and {round_number}")]
    page = await stack.metrics("d0")
    assert page['weft_router_kv_handles_total{outcome="stored"}'] == 4
    assert page['weft_router_kv_handles_total{outcome="used"}'] == 3
    for phase, count in (("first", 1), ("later", 3)):
        name = f'weft_router_ttft_seconds_count{{phase="{phase}",route="remote",class="default"}}'
        assert page[name] == count
    assert page['weft_router_history_tokens_total{kind="recomputed"}'] <= 3
    assert page['weft_router_kv_bytes_total{direction="decode_to_prefill"}'] > 0


async def test_both_legs_carry_one_request_id_made_by_the_router(stack: Stack) -> None:
    await stack.up()
    answer = await stack.chat([user("x")], headers={"X-Request-Id": "10.0.0.1:99", "X-Secret": "mine"})
    legs = [stack.engines[name].headers[-1] for name in ("p0", "d0")]
    assert {leg["X-Request-ID" if "X-Request-ID" in leg else "X-Request-Id"] for leg in legs} == {
        answer.headers["X-Request-ID" if "X-Request-ID" in answer.headers else "X-Request-Id"]
    }
    assert legs[0].get("X-Request-Id", legs[0].get("X-Request-ID", "")).startswith("weft-")
    assert not any("X-Secret" in leg or "Authorization" in leg or "X-Weft-Token" in leg for leg in legs)


async def test_a_stream_reaches_the_client_without_what_the_router_asked_for_itself(stack: Stack) -> None:
    await stack.up()
    plain = await stack.chat([user("x")], stream=True)
    assert b"token_ids" not in plain.raw
    assert b"kv_transfer_params" not in plain.raw
    assert b"usage" not in plain.raw
    assert plain.raw.endswith(b"data: [DONE]\n\n")
    asked = await stack.chat([user("x")], stream=True, stream_options={"include_usage": True}, return_token_ids=True)
    assert [chunk["usage"]["completion_tokens"] for chunk in asked.chunks if "usage" in chunk] == [8]
    ids = [i for chunk in asked.chunks for choice in chunk["choices"] for i in choice.get("token_ids", ())]
    assert bytes(ids).decode() == asked.text


async def test_a_changed_history_is_never_read_by_handle(stack: Stack) -> None:
    await stack.up()
    first = await stack.chat([SYSTEM, user("one")], session="s")
    edited = [SYSTEM, user("one"), assistant(first.text + "!"), user("two " * 200)]
    answer = await stack.chat(edited, session="s")
    assert answer.text == expected(edited)
    assert all(body["kv_transfer_params"]["remote_engine_id"] is None for body in stack.engines["p0"].seen)
    assert (await stack.metrics("d0"))['weft_router_kv_handles_total{outcome="history_changed"}'] == 1


async def test_a_local_round_is_exported_and_its_handle_turned_for_the_next_remote_one(sidecars: Stack) -> None:
    sidecars.config = router_json(routing={"policy": "ampd"})
    await sidecars.up(prefill=0)
    messages = [SYSTEM, user("one")]
    first = await sidecars.chat(messages, session="s", stream=True)
    assert first.headers["X-Weft-Route"] == "local"
    assert sidecars.engines["d0"].seen[-1]["kv_transfer_params"]["do_remote_decode"] is True
    await sidecars.worker("prefill", "p0")
    await sidecars.settle(decode=1, prefill=1)
    messages += [assistant(first.text), user("two")]
    second = await sidecars.chat(messages, session="s", stream=True)
    assert second.headers["X-Weft-Route"] == "remote"
    assert second.text == expected(messages)
    sent = sidecars.engines["p0"].seen[-1]["kv_transfer_params"]
    assert (sent["do_remote_decode"], sent["do_remote_prefill"]) == (True, False)
    assert sent["remote_engine_id"] == "d0"


async def test_a_prefill_that_reads_its_history_is_with_the_engine_when_the_one_before_it_begins(stack: Stack) -> None:
    await stack.up()
    engine = stack.engines["p0"]
    told = {name: [SYSTEM, user(name)] for name in "abc"}
    for name, messages in told.items():
        answer = await stack.chat(messages, session=name)
        messages += [assistant(answer.text), user("and then")]
    gates: list[asyncio.Event] = []
    rounds: list[asyncio.Task[Answer]] = []
    wanted = len(engine.seen)
    for name, messages in told.items():
        engine.script.gate = asyncio.Event()
        gates.append(engine.script.gate)
        rounds.append(asyncio.create_task(stack.chat(messages, session=name)))
        wanted += 1
        await until(lambda: len(engine.seen) == wanted)  # noqa: B023 - it is over before the next one
    for gate, waiting in zip(gates, rounds, strict=True):
        gate.set()
        assert (await waiting).headers["X-Weft-Route"] == "remote"
    assert await stack.count("weft_router_read_overlap_seconds_count", "p0") == 1, "that of the last one"
    assert await stack.count("weft_router_history_reads_total", "p0", overlap="yes") == 1
    assert await stack.count("weft_router_history_reads_total", "p0", overlap="no") == 2


async def test_a_history_nobody_can_read_goes_where_the_prefix_cache_has_most_of_it(stack: Stack) -> None:
    await stack.up()
    stack.engines["d0"].script.plugin = False
    first = await stack.chat([SYSTEM, user("one")], session="s", stream=True)
    messages = [SYSTEM, user("one"), assistant(first.text), user("two " * 100)]
    second = await stack.chat(messages, session="s", stream=True)
    assert (second.headers["X-Weft-Route"], second.text) == ("remote", expected(messages))
    assert stack.engines["p0"].seen[-1]["kv_transfer_params"]["remote_engine_id"] is None


async def test_a_history_nobody_can_read_is_prefilled_where_it_is_cached(stack: Stack) -> None:
    await stack.up()
    stack.engines["d0"].script.plugin = False
    first = await stack.chat([SYSTEM, user("one")], session="s", stream=True)
    second = await stack.chat([SYSTEM, user("one"), assistant(first.text), user("two")], session="s", stream=True)
    assert second.headers["X-Weft-Route"] == "local"
    assert second.headers["X-Weft-Reason"] == "history-unreadable"


async def test_tool_calls_go_on_by_token_ids(stack: Stack) -> None:
    await stack.up()
    stack.engines["d0"].script.tool_call = True
    messages: list[dict[str, Any]] = [SYSTEM, user("one")]
    first = await stack.chat(messages, session="s", stream=True)
    arguments = "".join(
        call["function"]["arguments"]
        for chunk in first.chunks
        for choice in chunk["choices"]
        for call in choice["delta"].get("tool_calls", ())
    )
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages += [{"role": "assistant", "content": None, "tool_calls": [call]}]
    messages += [{"role": "tool", "tool_call_id": "c1", "content": "done"}]
    await stack.chat(messages, session="s", stream=True)
    assert stack.engines["p0"].seen[-1]["kv_transfer_params"]["remote_engine_id"] == "d0"
    assert (await stack.metrics("d0"))['weft_router_kv_handles_total{outcome="used"}'] == 1


async def test_token_ids_that_do_not_extend_what_the_engine_saw_undo_the_read(stack: Stack) -> None:
    await stack.up()
    messages = [SYSTEM, user("one")]
    first = await stack.chat(messages, session="s")
    stack.engines["p0"].script.wrong_ids = True
    messages += [assistant(first.text), user("two")]
    second = await stack.chat(messages, session="s")
    assert second.status == 200
    assert second.text == expected(messages)
    assert second.headers["X-Weft-Route"] == "local"
    page = await stack.metrics("d0")
    assert page['weft_router_kv_handles_total{outcome="ids_differ"}'] == 1
    assert page['weft_router_kv_handles_total{outcome="orphaned"}'] == 1


async def test_what_clients_write_into_router_fields_reaches_no_engine(stack: Stack) -> None:
    stack.config["requests"] = {"allowedFields": ["vllm_xargs"]}
    await stack.up()
    evil = {"do_remote_prefill": True, "remote_host": "10.9.9.9", "remote_port": 1, "remote_block_ids": [[1]]}
    raw = orjson.dumps(
        {
            "model": MODEL,
            "messages": [user("x")],
            "kv_transfer_params": evil,
            "Bootstrap-Host": "10.9.9.9",
            "cache_salt": "a",
            "vllm_xargs": {"kv_transfer_params": evil, "keep": 1},
            "extra_body": {"inner": [{"bootstrap_room": 1}]},
            "request_id": "x",
        }
    )
    twice = raw[:-1] + b',"kv_transfer_params":{"remote_host":"10.9.9.9"}}'
    for body in (raw, twice):
        async with stack.http.post(
            stack.front + "/v1/chat/completions", data=body, headers={"Content-Type": "application/json"}
        ) as response:
            assert response.status == 200
    for engine in stack.engines.values():
        assert engine.seen
        for seen in engine.seen:
            assert "10.9.9.9" not in orjson.dumps(seen).decode()
            assert "bootstrap" not in orjson.dumps(seen).decode().lower()
            assert "cache_salt" not in seen
            assert seen["vllm_xargs"] == {"keep": 1}


async def test_a_nameless_conversation_is_found_again_by_its_prefix(sidecars: Stack) -> None:
    await sidecars.up(coordinators=2)
    messages = [SYSTEM, user("one")]
    first = await sidecars.chat(messages)
    messages += [assistant(first.text), user("two")]
    second = await sidecars.chat(messages)
    assert second.headers["X-Weft-Session"] == first.headers["X-Weft-Session"]
    messages += [assistant(second.text), user("three")]
    third = await sidecars.chat(messages, front=sidecars.processes["c1"].url)
    assert third.headers["X-Weft-Session"] == first.headers["X-Weft-Session"]
    other = await sidecars.chat([SYSTEM, user("one")])
    assert other.headers["X-Weft-Session"] != first.headers["X-Weft-Session"]


async def test_text_completions_use_handles_as_chats_do(stack: Stack) -> None:
    await stack.up()
    prompt = "once upon a time " * 20
    for _ in range(3):
        async with stack.http.post(
            stack.front + "/v1/completions",
            json={"model": MODEL, "prompt": prompt, "stream": True},
            headers={"X-Session-Id": "t"},
        ) as response:
            raw = await response.text()
        events = [orjson.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: {")]
        text = "".join(choice["text"] for event in events for choice in event["choices"])
        assert text == reply_text(list(prompt.encode()))
        prompt += text + " and then"
    assert (await stack.metrics("d0"))['weft_router_kv_handles_total{outcome="used"}'] == 2


async def test_several_answers_stay_local_and_leave_no_handle(stack: Stack) -> None:
    await stack.up()
    answer = await stack.chat([user("x")], n=2)
    assert answer.headers["X-Weft-Reason"] == "not-transferable"
    assert "kv_transfer_params" not in stack.engines["d0"].seen[-1]
    assert stack.engines["p0"].seen == []


async def test_tenants_have_sessions_and_cached_prefixes_of_their_own(stack: Stack, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# two tenants\nalpha\nbeta\n")
    await stack.up(keys=keys)
    assert (await stack.chat([user("x")])).status == 401
    assert (await stack.chat([user("x")], headers={"Authorization": "Bearer nobody"})).status == 401
    salts = set()
    messages = [SYSTEM, user("one")]
    for key in ("alpha", "beta"):
        answer = await stack.chat(messages, session="same", headers={"Authorization": f"Bearer {key}"})
        assert answer.status == 200
        tenant = hashlib.sha256(key.encode()).hexdigest()[:16]
        salt = hmac.new(derive(TOKEN.encode(), "salt"), tenant.encode(), hashlib.sha256).hexdigest()
        assert stack.engines["d0"].seen[-1]["cache_salt"] == salt
        assert stack.engines["p0"].seen[-1]["cache_salt"] == salt
        salts.add(salt)
    assert len(salts) == 2
    assert (await stack.metrics("d0"))["weft_router_sessions"] == 2
    follow = [*messages, assistant(expected(messages)), user("two")]
    await stack.chat(follow, session="same", headers={"Authorization": "Bearer beta"})
    assert stack.engines["p0"].seen[-1]["kv_transfer_params"]["remote_request_id"] == "d0-2"


async def test_new_sessions_go_where_kv_is_free(stack: Stack) -> None:
    await stack.up(decode=2, prefill=0)
    workers = [(await stack.chat([user("x" * 400)], session=f"s{i}")).headers["X-Weft-Worker"] for i in range(6)]
    assert workers.count("d0") == workers.count("d1") == 3
    again = [(await stack.chat([user("x" * 400)], session=f"s{i}")).headers["X-Weft-Worker"] for i in range(6)]
    assert again == workers
