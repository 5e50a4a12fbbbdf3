"""Two engines over real sockets: the P/D protocol, right and wrong."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from weft_mock.ledger import RequestRecord
from weft_mock.model import answer
from weft_mock.tokenizer import chat_ids, decode, filler
from weft_mock_tests.engines import EXPORT, Client, Reply, config, engines, profile, until

pytestmark = pytest.mark.component

Pair = tuple[Client, Client]
Messages = list[dict[str, object]]


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[Pair]:
    prefill = config(engine_id="p", role="prefill", degree=2, time_scale=0.1)
    decoder = config(engine_id="d", role="decode", time_scale=0.1)
    async with engines(prefill, decoder) as (p, d):
        yield p, d


def ask(tokens: int, seed: int = 1) -> Messages:
    return [{"role": "user", "content": filler(tokens, seed)}]


def record(client: Client, request_id: str) -> RequestRecord:
    found = [r for r in client.engine.ledger.recent if r.request_id == request_id]
    return found[-1]


async def prefill(p: Client, messages: Messages, *, request_id: str = "r", **handle: object) -> Reply:
    params = handle or EXPORT
    return await p.chat(messages, request_id=request_id, max_tokens=1, kv_transfer_params=params)


async def round_trip(pair: Pair, messages: Messages, history: dict[str, object], request_id: str) -> Reply:
    p, d = pair
    leg = await prefill(p, messages, request_id=request_id, **history)
    assert leg.status == 200, leg.body
    return await d.chat(messages, request_id=request_id, max_tokens=30, kv_transfer_params=leg.handle)


async def test_prefill_hands_its_blocks_to_decode(pair: Pair) -> None:
    p, d = pair
    messages = ask(100)
    leg = await prefill(p, messages)
    handle = leg.handle
    assert handle["do_remote_prefill"] is True
    assert handle["do_remote_decode"] is False
    assert handle["remote_num_tokens"] == len(chat_ids(messages))
    assert handle["remote_blocks_expiry_time"] is None
    assert handle["tp_size"] == 2
    assert p.engine.pins.blocks == 7
    reply = await d.chat(messages, max_tokens=30, kv_transfer_params=handle)
    assert reply.text == decode(answer(chat_ids(messages), 30))
    await until(lambda: len(p.engine.pins) == 0)
    assert p.engine.scheduler.pool.used == 0
    got = record(d, "r")
    assert (got.form, got.prompt, got.computed, got.cached, got.read) == ("import", 104, 1, 0, 103)
    sent = p.engine.ledger.kv_bytes["prefill_to_decode", "sent"]
    assert sent == d.engine.ledger.kv_bytes["prefill_to_decode", "received"] == 104 * 100
    assert p.engine.ledger.handles == {"given": 1, "read": 1}


async def test_four_rounds_recompute_no_history(pair: Pair) -> None:
    p, d = pair
    messages: Messages = []
    history: dict[str, object] = {}
    held = 0
    for turn in range(4):
        messages += ask(40 + turn, seed=turn)
        reply = await round_trip(pair, messages, history, f"turn{turn}")
        assert reply.text == decode(answer(chat_ids(messages), 30))
        assert reply.handle["do_remote_decode"] is True
        assert isinstance(reply.handle["remote_blocks_expiry_time"], float)
        leg = record(p, f"turn{turn}")
        assert leg.history >= held
        assert leg.history_recomputed == 0
        assert leg.cached + leg.read >= held
        assert leg.computed == leg.prompt - leg.cached - leg.read
        assert leg.computed <= len(chat_ids(messages)) - held
        assert record(d, f"turn{turn}").computed == 1
        history = reply.handle
        held = int(str(history["remote_num_tokens"]))
        messages.append({"role": "assistant", "content": reply.text})
    for client in pair:
        assert client.engine.ledger.history_tokens["recomputed"] == 0
        assert not client.engine.ledger.kv_protocol_errors
        assert not client.engine.ledger.failed_reads
    assert p.engine.ledger.history_tokens["decode_to_prefill"] > 0
    await until(lambda: len(p.engine.pins) == 0)
    assert len(d.engine.pins) == 1


async def test_streams_carry_the_handle_by_the_plug_in(pair: Pair) -> None:
    p, d = pair
    messages = ask(50)
    leg = await prefill(p, messages)
    stream = await d.stream(messages, plugin=True, max_tokens=10, kv_transfer_params=leg.handle)
    assert stream.headers["X-Weft-Engine-Plugin"] == "1"
    at = stream.lines.index(stream.comments[0])
    assert '"finish_reason":"length"' in stream.lines[at + 1]
    messages += [{"role": "assistant", "content": stream.text}, {"role": "user", "content": "go on"}]
    reply = await round_trip(pair, messages, stream.handle, "second")
    assert reply.text == decode(answer(chat_ids(messages), 30))
    assert record(p, "second").history_recomputed == 0


async def test_stock_streams_lose_the_handle_and_the_ledger_says_so() -> None:
    async with engines(config(engine_id="d", plugin=False, time_scale=0.1)) as (d,):
        stream = await d.stream(ask(50), plugin=True, max_tokens=5, kv_transfer_params=EXPORT)
        assert stream.comments == []
        assert "X-Weft-Engine-Plugin" not in stream.headers
        assert d.engine.ledger.handles["undeliverable"] == 1


async def test_a_local_round_can_be_exported_and_read_back(pair: Pair) -> None:
    p, d = pair
    messages = ask(60)
    stream = await d.stream(messages, plugin=True, max_tokens=20, kv_transfer_params=EXPORT)
    handle = stream.handle
    assert handle["do_remote_prefill"] is True
    assert handle["remote_blocks_expiry_time"] is None
    flipped = {**handle, "do_remote_prefill": False, "do_remote_decode": True}
    messages += [{"role": "assistant", "content": stream.text}, *ask(20, 9)]
    reply = await round_trip(pair, messages, flipped, "second")
    assert reply.text == decode(answer(chat_ids(messages), 30))
    leg = record(p, "second")
    assert leg.read == handle["remote_num_tokens"]
    assert leg.history_recomputed == 0
    assert p.engine.ledger.kv_bytes["decode_to_prefill", "received"] > 0
    assert d.engine.ledger.kv_bytes["decode_to_prefill", "sent"] > 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"remote_block_ids": [[1, 2, 3]]}, "wrong_blocks"),
        ({"remote_request_id": "someone-else"}, "unknown_request"),
        ({"remote_engine_id": "q"}, "wrong_engine"),
        ({"remote_engine_id": "d"}, "own_blocks"),
        ({"remote_port": 1}, "unreachable"),
        ({"remote_num_tokens": 60}, "length_mismatch"),
    ],
)
async def test_wrong_handles_are_errors_and_counted(pair: Pair, change: dict[str, object], reason: str) -> None:
    p, d = pair
    messages = ask(60)
    leg = await prefill(p, messages)
    reply = await d.chat(messages, kv_transfer_params={**leg.handle, **change})
    assert reply.status == 500
    assert reason in str(reply.error["message"])
    assert d.engine.ledger.failed_reads[reason] == 1
    assert d.engine.scheduler.pool.used == 0
    assert (await d.chat(messages, max_tokens=3)).text == decode(answer(chat_ids(messages), 3))


async def test_a_failed_read_ends_a_stream_with_an_error_event(pair: Pair) -> None:
    p, d = pair
    leg = await prefill(p, ask(60))
    wrong = {**leg.handle, "remote_request_id": "other"}
    stream = await d.stream(ask(60), kv_transfer_params=wrong)
    (event,) = stream.events
    assert event["error"]["code"] == 500  # type: ignore[index]


async def test_a_handle_is_used_once(pair: Pair) -> None:
    p, d = pair
    messages = ask(60)
    leg = await prefill(p, messages)
    assert (await d.chat(messages, max_tokens=2, kv_transfer_params=leg.handle)).status == 200
    again = await d.chat(messages, max_tokens=2, kv_transfer_params=leg.handle)
    assert again.status == 500
    assert d.engine.ledger.failed_reads == {"replayed": 1}
    assert p.engine.ledger.refused_handles == {"replayed": 1}


async def test_an_edited_history_is_detected(pair: Pair) -> None:
    p, d = pair
    messages = ask(80)
    first = await round_trip(pair, messages, {}, "one")
    edited: Messages = [
        {"role": "user", "content": filler(80, 1).replace(" ", "  ", 1)},
        {"role": "assistant", "content": first.text},
        *ask(10, 3),
    ]
    leg = await prefill(p, edited, request_id="two", **first.handle)
    assert leg.status == 500
    assert "history_mismatch" in str(leg.error["message"])
    assert p.engine.ledger.failed_reads == {"history_mismatch": 1}
    await until(lambda: len(d.engine.pins) == 0)
    retry = await round_trip(pair, edited, {}, "three")
    assert retry.text == decode(answer(chat_ids(edited), 30))


async def test_another_prompt_on_the_decode_leg_is_detected(pair: Pair) -> None:
    p, d = pair
    leg = await prefill(p, ask(60, seed=1))
    reply = await d.chat(ask(60, seed=2), kv_transfer_params=leg.handle)
    assert reply.status == 500
    assert d.engine.ledger.failed_reads == {"history_mismatch": 1}
    await until(lambda: len(p.engine.pins) == 0)


async def test_a_regenerated_round_reads_the_part_it_shares(pair: Pair) -> None:
    _, d = pair
    messages = ask(80)
    first = await round_trip(pair, messages, {}, "one")
    async with engines(config(engine_id="p2", role="prefill", time_scale=0.1)) as (fresh,):
        # The client drops the answer and asks anew: the prompt ends inside the history, in the middle of a block.
        leg = await prefill(fresh, messages, request_id="again", **first.handle)
        assert leg.status == 200
        got = record(fresh, "again")
        assert (got.prompt, got.read, got.computed) == (84, 83, 1)
        reply = await d.chat(messages, max_tokens=30, kv_transfer_params=leg.handle)
        assert reply.text == first.text


async def test_expired_leases_and_rounds_are_refused() -> None:
    prefill_config = config(engine_id="p", role="prefill", lease_seconds=0.05, time_scale=0.1)
    decode_config = config(engine_id="d", role="decode", ttl_seconds=0.05, time_scale=0.1)
    async with engines(prefill_config, decode_config) as (p, d):
        messages = ask(60)
        leg = await prefill(p, messages)
        await until(lambda: len(p.engine.pins) == 0)
        late = await d.chat(messages, max_tokens=2, kv_transfer_params=leg.handle)
        assert late.status == 500
        assert d.engine.ledger.failed_reads == {"expired": 1}
        assert p.engine.ledger.handles == {"given": 1, "expired": 1}
        assert p.engine.scheduler.pool.used == 0
        done = await round_trip((p, d), messages, {}, "again")
        await until(lambda: len(d.engine.pins) == 0)
        longer: Messages = [*messages, {"role": "assistant", "content": done.text}, *ask(5, 3)]
        stale = await prefill(p, longer, request_id="stale", **done.handle)
        assert stale.status == 500
        assert p.engine.ledger.failed_reads == {"expired": 1}


async def test_a_waiting_decode_engine_keeps_the_lease_alive() -> None:
    p_config = config(engine_id="p", role="prefill", lease_seconds=0.6, time_scale=0.1)
    d_config = config(engine_id="d", role="decode", lease_seconds=0.6, kv_capacity=128, max_model_len=128)
    async with engines(p_config, d_config) as (p, d):
        blocker = await d.open_stream(ask(60, seed=5), max_tokens=60, ignore_eos=True)
        messages = ask(70)
        leg = await prefill(p, messages)
        await d.faults(slow=40)
        reading = asyncio.create_task(d.chat(messages, max_tokens=2, kv_transfer_params=leg.handle))
        began = asyncio.get_running_loop().time()
        await until(lambda: asyncio.get_running_loop().time() > began + 1.2)
        assert len(p.engine.pins) == 1
        await d.faults()
        assert b"[DONE]" in await blocker.read()
        assert (await reading).text == decode(answer(chat_ids(messages), 2))


async def test_a_rejected_request_gives_the_blocks_back(pair: Pair) -> None:
    p, d = pair
    leg = await prefill(p, ask(60))
    reply = await d.chat(ask(60), model="other", kv_transfer_params=leg.handle)
    assert reply.status == 404
    await until(lambda: len(p.engine.pins) == 0)
    assert p.engine.ledger.handles["released_unread"] == 1


async def test_the_router_can_release_a_round_through_the_prefill_engine(pair: Pair) -> None:
    p, d = pair
    done = await round_trip(pair, ask(60), {}, "one")
    assert len(d.engine.pins) == 1
    release = {**done.handle, "do_remote_prefill": True, "do_remote_decode": False}
    reply = await p.chat(ask(1), model="no such model", kv_transfer_params=release)
    assert reply.status == 404
    await until(lambda: len(d.engine.pins) == 0)
    assert d.engine.ledger.handles["released_unread"] == 1
    assert p.engine.ledger.kv_bytes.get(("decode_to_prefill", "received"), 0) == 0


async def test_a_release_sent_to_the_holder_frees_nothing_and_counts(pair: Pair) -> None:
    _, d = pair
    done = await round_trip(pair, ask(60), {}, "one")
    release = {**done.handle, "do_remote_prefill": True, "do_remote_decode": False}
    assert (await d.chat(ask(1), model="no such model", kv_transfer_params=release)).status == 404
    await until(lambda: d.engine.ledger.failed_releases == 1)
    assert len(d.engine.pins) == 1


async def test_cancel_while_reading_frees_both_sides() -> None:
    async with engines(config(engine_id="p", role="prefill"), config(engine_id="d", role="decode")) as (p, d):
        messages = ask(100)
        leg = await prefill(p, messages)
        await d.faults(slow=1000)
        reading = asyncio.create_task(d.chat(messages, kv_transfer_params=leg.handle))
        await until(lambda: len(d.engine.scheduler.fetching) == 1)
        reading.cancel()
        await until(lambda: len(p.engine.pins) == 0 and d.engine.scheduler.pool.used == 0)
        assert d.engine.ledger.aborted == 1
        assert p.engine.scheduler.pool.used == 0


async def test_a_cancelled_prefill_pins_nothing() -> None:
    async with engines(config(engine_id="p", role="prefill", time_scale=1000.0)) as (p,):
        running = asyncio.create_task(prefill(p, ask(100)))
        await until(lambda: len(p.engine.scheduler.running) == 1)
        running.cancel()
        await until(lambda: p.engine.scheduler.pool.used == 0)
        assert len(p.engine.pins) == 0


@pytest.mark.parametrize(
    ("params", "consequence"),
    [
        ({"do_remote_prefill": True}, "would_crash"),
        ({"a": 1}, "would_leak"),
        ({"do_remote_prefill": False, "do_remote_decode": False}, "would_leak"),
        ({"do_remote_prefill": True, "do_remote_decode": True}, "would_crash"),
    ],
)
async def test_parameters_that_hurt_vllm_are_refused(pair: Pair, params: object, consequence: str) -> None:
    _, d = pair
    reply = await d.chat(ask(5), kv_transfer_params=params)
    assert reply.status == 500
    assert consequence in str(reply.error["message"])
    assert d.engine.ledger.kv_consequences == {consequence: 1}
    assert sum(d.engine.ledger.kv_protocol_errors.values()) == 1
    text = (await d.get("/metrics"))[1].decode()
    assert f'weft_mock_kv_consequences_total{{consequence="{consequence}"}} 1.0' in text


async def test_a_decode_handle_kept_by_a_one_way_engine_is_none() -> None:
    p_config = config(engine_id="p", role="prefill", bidirectional=False, time_scale=0.1)
    d_config = config(engine_id="d", role="decode", bidirectional=False, time_scale=0.1)
    async with engines(p_config, d_config) as (p, d):
        reply = await round_trip((p, d), ask(60), {}, "one")
        assert reply.body["kv_transfer_params"] is None
        assert d.engine.scheduler.pool.used == 0


async def test_engines_of_different_shape_refuse_each_other() -> None:
    async with engines(config(engine_id="p", role="prefill"), config(engine_id="d", block_size=8)) as (p, d):
        leg = await prefill(p, ask(60))
        reply = await d.chat(ask(60), kv_transfer_params=leg.handle)
        assert reply.status == 500
        assert d.engine.ledger.failed_reads == {"incompatible": 1}


async def test_transfers_take_the_profile_s_time() -> None:
    slow = profile()
    async with engines(
        config(engine_id="p", role="prefill", profile=slow), config(engine_id="d", role="decode", time_scale=50.0)
    ) as (p, d):
        leg = await prefill(p, ask(100))
        began = asyncio.get_running_loop().time()
        assert (await d.chat(ask(100), max_tokens=1, kv_transfer_params=leg.handle)).status == 200
        took = asyncio.get_running_loop().time() - began
        expected = 50 * (0.001 + 104 * 1e-6) + 50 * 0.001
        # Late wake-ups on a busy machine may add to it; nothing may make it shorter.
        assert expected * 0.98 <= took <= expected + 1.0


async def test_cancels_at_any_point_leave_no_block_behind() -> None:
    p_config = config(engine_id="p", role="prefill", lease_seconds=6.0, kv_capacity=16384)
    d_config = config(engine_id="d", role="decode", ttl_seconds=6.0, kv_capacity=16384)
    async with engines(p_config, d_config) as (p, d):

        async def session(number: int) -> None:
            messages = ask(60 + number, seed=number)
            history: dict[str, object] = {}
            for turn in range(3):
                reply = await round_trip((p, d), messages, history, f"s{number}t{turn}")
                assert reply.status == 200, reply.body
                assert reply.text == decode(answer(chat_ids(messages), 30))
                history = reply.handle
                messages = [*messages, {"role": "assistant", "content": reply.text}, *ask(10, seed=turn)]

        tasks = [asyncio.create_task(session(number)) for number in range(40)]
        for number, task in enumerate(tasks):
            if number % 2:
                await until(lambda least=number: p.engine.ledger.requests.total() >= least or all(map(_over, tasks)))  # type: ignore[misc]
                task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert outcomes[::2] == [None] * 20
        assert any(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
        for client in (p, d):
            await until(lambda c=client: c.engine.scheduler.pool.used == 0)  # type: ignore[misc]
            assert not client.engine.scheduler.running
            assert not client.engine.scheduler.waiting
            assert not client.engine.scheduler.fetching
            assert client.engine.ledger.kv_protocol_errors.total() == 0
            assert client.engine.ledger.failed_reads["history_mismatch"] == 0
            assert client.engine.ledger.history_tokens["recomputed"] == 0


def _over(task: "asyncio.Task[None]") -> bool:
    return task.done()
