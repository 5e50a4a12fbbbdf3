import asyncio

import pytest

from weft_mock.fault import main as fault_main
from weft_mock.faults import FaultError, faults_from_json
from weft_mock.model import answer
from weft_mock.read_ledger import main as ledger_main
from weft_mock.tokenizer import chat_ids, decode
from weft_mock_tests.engines import EXPORT, Client, config, engines, until

HELLO: list[dict[str, object]] = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ([], "object"),
        ({"explode": True}, "explode"),
        ({"hang": 1}, "hang"),
        ({"die_at_token": 0}, "die_at_token"),
        ({"die_at_token": True}, "die_at_token"),
        ({"status": 200}, "status"),
        ({"times": -1}, "times"),
        ({"slow": 0}, "slow"),
        ({"slow": "2"}, "slow"),
        ({"slow_loads": 0}, "slow_loads"),
        ({"full_tiers": 1}, "full_tiers"),
        ({"fail_loads": "yes"}, "fail_loads"),
    ],
)
def test_faults_that_cannot_be_arranged_are_named(body: object, word: str) -> None:
    with pytest.raises(FaultError, match=word):
        faults_from_json(body)


def test_a_status_can_be_limited_to_some_requests() -> None:
    faults = faults_from_json({"status": 503, "times": 2})
    assert [faults.answered_with() for _ in range(4)] == [503, 503, None, None]
    assert faults_from_json({}).answered_with() is None


@pytest.mark.component
async def test_a_status_is_answered_and_cleared() -> None:
    async with engines(config(time_scale=0.1)) as (client,):
        await client.faults(status=503)
        reply = await client.chat(HELLO)
        assert (reply.status, reply.error["type"]) == (503, "ServiceUnavailableError")
        assert (await client.get("/health"))[0] == 503
        await client.faults(status=500, times=1)
        assert [(await client.chat(HELLO, max_tokens=1)).status for _ in range(2)] == [500, 200]
        await client.faults()
        assert (await client.get("/health"))[0] == 200


@pytest.mark.component
async def test_a_hanging_engine_answers_nothing_unless_its_health_lies() -> None:
    async with engines(config(time_scale=0.1)) as (client,):
        await client.faults(hang=True)
        waiting = [asyncio.create_task(client.chat(HELLO)), asyncio.create_task(client.get("/health"))]
        done, _ = await asyncio.wait(waiting, timeout=0.2)
        assert not done
        await client.faults(hang=True, lie_health=True)
        assert (await client.get("/health"))[0] == 200
        await client.faults()
        chat = await waiting[0]
        assert getattr(chat, "status", None) == 200
        await waiting[1]


@pytest.mark.component
async def test_a_slow_engine_is_slow_and_a_sick_one_still_serves() -> None:
    async with engines(config(time_scale=0.5)) as (client,):
        loop = asyncio.get_running_loop()

        async def seconds() -> float:
            began = loop.time()
            await client.chat(HELLO, max_tokens=10, ignore_eos=True)
            return loop.time() - began

        await client.faults(slow=40)
        # A prefill of at least 1 ms and nine steps of 1 ms, at half and then forty times their length.
        assert await seconds() >= 0.98 * 40 * 0.5 * 0.010
        await client.faults(unhealthy=True)
        assert (await client.get("/health"))[0] == 503
        assert (await client.chat(HELLO, max_tokens=1)).status == 200


@pytest.mark.component
async def test_death_comes_after_the_kth_token() -> None:
    died = asyncio.Event()
    async with engines(config(time_scale=0.1), die=died.set) as (client,):
        await client.faults(die_at_token=5)
        reply = await client.open_stream(HELLO, ignore_eos=True, max_tokens=50)
        await asyncio.wait_for(died.wait(), 5)
        text = (await reply.content.readany()).decode()
        assert text.count('"finish_reason":null') in (5, 6)
        words = decode(answer(chat_ids(HELLO), 5, ignore_eos=True)).split(" ")
        assert words[-1] in text
        assert client.engine.ledger.generated_tokens == 0
        assert client.engine.ledger.recent[-1].generated == 5
        reply.close()


@pytest.mark.component
async def test_failing_transfers_fail_the_reader() -> None:
    async with engines(config(engine_id="p", time_scale=0.1), config(engine_id="d", time_scale=0.1)) as (p, d):
        leg = await p.chat(HELLO, max_tokens=1, kv_transfer_params=EXPORT)
        await p.faults(fail_transfers=True)
        assert (await d.chat(HELLO, kv_transfer_params=leg.handle)).status == 500
        assert d.engine.ledger.failed_reads == {"fault": 1}
        assert p.engine.ledger.refused_handles == {"fault": 1}


@pytest.mark.component
async def test_the_commands_reach_the_engine_on_loopback(capsys: pytest.CaptureFixture[str]) -> None:
    async with engines(config(time_scale=0.1)) as (client,):
        port = client.url.rsplit(":", 1)[1]
        assert await asyncio.to_thread(fault_main, ['{"slow": 3}', "--port", port]) == 0
        assert client.engine.pacing.slowdown == 3
        assert '"slow":3' in capsys.readouterr().out
        assert await asyncio.to_thread(fault_main, ['{"explode": 1}', "--port", port]) == 1
        assert "explode" in capsys.readouterr().err
        assert await asyncio.to_thread(ledger_main, ["--port", port]) == 0
        assert '"engine_id":"engine"' in capsys.readouterr().out
    assert await asyncio.to_thread(fault_main, ["{}", "--port", port]) == 1
    assert "no engine answers" in capsys.readouterr().err


@pytest.mark.component
async def test_the_ledger_and_the_faults_can_be_read() -> None:
    async with engines(config(time_scale=0.1)) as (client,):
        assert (await client.chat(HELLO, max_tokens=4, request_id="abc")).status == 200
        ledger = await _ledger(client)
        assert ledger["blocks"] == {
            "total": 256,
            "free": 256,
            "used": 0,
            "cached": 0,
            "pinned": 0,
            "block_size": 16,
        }
        recent = ledger["recent"]
        assert isinstance(recent, list)
        assert recent[0]["request_id"] == "abc"
        assert recent[0]["finish"] == "length"
        assert (await client.get("/mock/faults"))[0] == 200


async def _ledger(client: Client) -> dict[str, object]:
    import orjson

    await until(lambda: client.engine.ledger.requests.total() > 0)
    body = orjson.loads((await client.get("/mock/ledger"))[1])
    assert isinstance(body, dict)
    return body
