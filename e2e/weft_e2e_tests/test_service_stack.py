"""A whole service as processes on loopback serves sessions, reads history both ways, and fails clearly."""

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from weft_core.analytic import derive_profile
from weft_core.gpus import GPUS
from weft_core.models import MODELS
from weft_e2e.checks import (
    check_answers,
    check_history_read,
    check_no_failures,
    check_no_silent_failures,
    check_session_served,
    check_tokens_computed_once,
)
from weft_e2e.checks.sessions import FOUR_ROUNDS, expected_reply
from weft_e2e.metrics import growth, kv_flow
from weft_e2e.replay.client import Deadlines, Target, replay
from weft_e2e.replay.sessions import PlannedRound, PlannedSession
from weft_e2e.scenarios.background import Background, background_sessions
from weft_e2e.stack import Stack, StackConfig, StackWorker, running
from weft_e2e.waiting import until
from weft_mock.tokenizer import filler

pytestmark = pytest.mark.component

# Rounds take a fraction of a second; a busy machine may need longer.
SERVED_S = 60.0


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Run two prefill and two decode workers of an 8B model, ten times faster than their profile."""
    profile = derive_profile(MODELS["meta-llama/Llama-3.1-8B-Instruct"], GPUS["nvidia-h20"], degrees=[1])
    workers = (
        StackWorker("p-0", "prefill", 1),
        StackWorker("p-1", "prefill", 1),
        StackWorker("d-0", "decode", 1),
        StackWorker("d-1", "decode", 1),
    )
    config = StackConfig(profile=profile, workers=workers, time_scale=0.1, max_model_len=8192)
    with running(config, tmp_path_factory.mktemp("stack")) as found:
        yield found


def _named(name: str, rounds: tuple[PlannedRound, ...] = FOUR_ROUNDS.rounds) -> PlannedSession:
    return PlannedSession(name, 0.0, rounds)


async def test_a_session_is_answered_right_and_reads_its_history(stack: Stack) -> None:
    before = stack.metrics_pages()

    transcript = await check_session_served(stack.target, session=_named("first"))

    after = stack.metrics_pages()
    remote = [r for r in transcript.records if r.route == "remote"]
    assert len(remote) == 4
    assert len({r.worker for r in transcript.records}) == 1, "a session stays with its decode worker"
    check_history_read(before, after, remote_later_rounds=3)
    check_tokens_computed_once(before, after, transcript.records)
    flow = kv_flow(growth(before, after))
    assert flow.prefill_to_decode_bytes > 0
    assert flow.decode_to_prefill_bytes > 0


async def test_many_sessions_at_once_are_all_right_and_compute_nothing_twice(stack: Stack) -> None:
    before = stack.metrics_pages()
    plans = [PlannedSession(f"many-{k}", 0.05 * k, FOUR_ROUNDS.rounds) for k in range(12)]

    result = await replay(plans, stack.target, filler=filler, deadlines=Deadlines(replay_s=60))

    assert result.failures == ()
    check_history_read(before, stack.metrics_pages(), remote_later_rounds=1)
    assert {r.worker for r in result.records} == {"d-0", "d-1"}, "sessions spread over the decode workers"


async def test_an_edited_history_is_computed_anew_and_answered_right(stack: Stack) -> None:
    transcript = await check_session_served(stack.target, session=_named("edited", FOUR_ROUNDS.rounds[:2]))
    messages = [dict(m) for m in transcript.messages]
    messages[1]["content"] = "I never said that."
    messages.append({"role": "user", "content": "go on"})
    body = {"model": stack.target.model, "messages": messages, "max_tokens": 12, "ignore_eos": True}

    url = f"{stack.target.url}/v1/chat/completions"
    async with (
        aiohttp.ClientSession() as http,
        http.post(url, json=body, headers={"X-Session-Id": "edited"}) as reply,
    ):
        answer = await reply.json()

    assert answer["choices"][0]["message"]["content"] == expected_reply(messages, 12)


async def test_a_client_that_leaves_frees_the_engines(stack: Stack) -> None:
    body = {
        "model": stack.target.model,
        "messages": [{"role": "user", "content": filler(200, 5)}],
        "max_tokens": 4000,
        "ignore_eos": True,
        "stream": True,
    }
    aborted = _counted(stack, "aborted")
    url = f"{stack.target.url}/v1/chat/completions"
    async with aiohttp.ClientSession() as http, http.post(url, json=body) as reply:
        await reply.content.readuntil(b"data: ")

    await asyncio.to_thread(
        until, lambda: _counted(stack, "running") == 0, what="idle engines", timeout_s=30, every_s=0.1
    )
    assert _counted(stack, "aborted") == aborted + 1, "the engine was told, it did not just come to the end"


def _counted(stack: Stack, what: str) -> int:
    return sum(int(str(stack.ledger(w.name)[what])) for w in stack.config.workers)


def load_over_the_death_of(worker: str, stack: Stack) -> Background:
    """Hold sessions while a worker's engine and router are killed; return what their clients saw."""
    with background_sessions(Background(stack.target, lanes=4)) as load:
        load.wait_served(8, timeout_s=SERVED_S)
        stack.kill(f"{worker}/engine")
        stack.kill(f"{worker}/router")
        load.wait_served(16, timeout_s=SERVED_S)
    stack.restart(f"{worker}/engine")
    stack.restart(f"{worker}/router")
    stack.wait_known()
    for transcript in load.transcripts:
        check_answers(transcript)
    return load


def test_a_prefill_worker_dies_under_load_and_no_client_sees_it(stack: Stack) -> None:
    load = load_over_the_death_of("p-0", stack)

    check_no_failures(load.records)


def test_a_decode_worker_dies_under_load_and_every_request_ends_clearly(stack: Stack) -> None:
    load = load_over_the_death_of("d-0", stack)

    served, failed = check_no_silent_failures(load.records)
    assert served >= 24
    assert failed <= load.lanes, "only streams that had begun on the dead worker may end with an error"


def test_redis_restarts_and_sessions_go_on(stack: Stack) -> None:
    with background_sessions(Background(stack.target, lanes=3)) as load:
        load.wait_served(6, timeout_s=SERVED_S)
        stack.kill("redis")
        stack.restart("redis")
        load.wait_served(12, timeout_s=SERVED_S)

    check_no_failures(load.records)


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"{", 400, ""),
        (b"[]", 400, ""),
        (b'{"model": "nope", "messages": []}', 404, "model"),
        (b'{"model": "MODEL", "messages": "hi"}', 400, "messages"),
        (b'{"model": "MODEL", "messages": [{"role": "user", "content": "hi"}], "max_tokens": -1}', 400, "max_tokens"),
        (b'{"model": "MODEL", "messages": [{"role": "user", "content": "LONG"}]}', 400, "input_tokens"),
    ],
)
async def test_a_bad_request_is_refused_in_the_api_s_own_form(
    stack: Stack, body: bytes, status: int, field: str
) -> None:
    sent = body.replace(b"MODEL", stack.target.model.encode()).replace(b"LONG", filler(9000, 1).encode())

    url = f"{stack.target.url}/v1/chat/completions"
    async with aiohttp.ClientSession() as http, http.post(url, data=sent) as reply:
        answer = await reply.json()

    assert reply.status == status
    assert answer["error"]["message"]
    if field:
        assert answer["error"]["param"] == field or field in answer["error"]["message"]


async def test_a_client_cannot_write_transfer_parameters(stack: Stack) -> None:
    before = stack.metrics_pages()
    body = {
        "model": stack.target.model,
        "messages": [{"role": "user", "content": "hello there"}],
        "max_tokens": 8,
        "ignore_eos": True,
        "kv_transfer_params": {"do_remote_prefill": True, "remote_host": "192.0.2.1", "remote_port": 9},
    }
    url = f"{stack.target.url}/v1/chat/completions"
    async with aiohttp.ClientSession() as http, http.post(url, json=body) as reply:
        answer = await reply.json()

    assert answer["choices"][0]["message"]["content"] == expected_reply(body["messages"], 8)  # type: ignore[arg-type]
    assert "kv_transfer_params" not in answer
    assert growth(before, stack.metrics_pages()).total("weft_mock_kv_protocol_errors_total") == 0


async def test_without_any_decode_worker_requests_are_refused_quickly(stack: Stack, tmp_path: Path) -> None:
    config = StackConfig(profile=stack.config.profile, workers=stack.config.workers[:1] + stack.config.workers[2:3])
    with running(config, tmp_path) as own:
        own.kill("d-0/router")
        target = Target(url=own.target.url, model=own.target.model)
        until(lambda: _refused(target), what="a refusal", timeout_s=60)
        begin = time.perf_counter()
        result = await replay([_named("refused", FOUR_ROUNDS.rounds[:1])], target, filler=filler)

    assert result.records[0].outcome == "refused"
    assert result.records[0].status == 503
    assert time.perf_counter() - begin < 5


def _refused(target: Target) -> bool:
    body = json.dumps({"model": target.model, "messages": [{"role": "user", "content": "hello"}]}).encode()
    request = urllib.request.Request(  # noqa: S310 - loopback
        f"{target.url}/v1/chat/completions", data=body, headers={"Content-Type": "application/json"}
    )
    try:
        urllib.request.urlopen(request, timeout=5).close()  # noqa: S310 - loopback
    except urllib.error.HTTPError as error:
        return error.code == 503
    return False
