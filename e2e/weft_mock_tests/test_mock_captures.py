"""The mock engine answers the captured requests of every protocol with the captured replies."""

import asyncio
import uuid

import orjson
import pytest

from weft_mock.config import Protocol
from weft_mock_tests.captures import FOLDER, Answer, Request, compare, compare_stream, filled, read
from weft_mock_tests.engines import Client, at_rest, config, engines

PROTOCOLS: dict[str, Protocol] = {
    "vllm": "vllm",
    "vllm_responses": "vllm",
    "sglang": "sglang",
    "tensorrt_llm": "tensorrt-llm",
    "neuron": "neuron",
    "openai": "openai",
}


def test_every_capture_is_replayed() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(PROTOCOLS)


@pytest.mark.component
@pytest.mark.parametrize("name", PROTOCOLS)
async def test_the_mock_answers_as_captured(name: str) -> None:
    protocol = PROTOCOLS[name]
    both, paired = protocol == "vllm", protocol != "openai"
    ttl = 0.5
    configs = [
        config(
            engine_id=role[0],
            role=role if paired else "both",
            protocol=protocol,
            bidirectional=both,
            ttl_seconds=ttl,
            time_scale=0.1,
        )
        for role in ("prefill", "decode")
    ]
    async with engines(*configs) as (p, d):
        clients = {"prefill": p, "decode": d}
        bound = _addresses(p, d)
        for requests, answers in read(name):
            got = await asyncio.gather(*(_send(clients[each.role], each, bound) for each in requests))
            replies = {request.role: reply for request, reply in zip(requests, got, strict=True)}
            for answer in answers:
                _check(answer, *replies[answer.role], bound)
        await at_rest(p, d)


def _addresses(p: Client, d: Client) -> dict[str, object]:
    return {
        "p_host": "127.0.0.1",
        "d_host": "127.0.0.1",
        "p_side_port": p.side_port,
        "d_side_port": d.side_port,
        "p_api": p.url.removeprefix("http://"),
        "d_api": d.url.removeprefix("http://"),
        "uuid": str(uuid.uuid4()),
    }


async def _send(client: Client, request: Request, bound: dict[str, object]) -> tuple[int, str]:
    headers = {name: value.format(**bound) for name, value in request.headers.items()}
    data = orjson.dumps(filled(request.body, bound))
    async with client._session.request(request.method, client.url + request.path, data=data, headers=headers) as reply:
        return reply.status, (await reply.read()).decode()


def _check(answer: Answer, status: int, text: str, bound: dict[str, object]) -> None:
    assert status == answer.status, text
    if answer.lines:
        compare_stream(answer.lines, text.split("\n"), bound)
    else:
        compare(answer.body, orjson.loads(text), bound)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": 1, "b": 2}, {"a": 1}),
        ({"a": "<int>"}, {"a": True}),
        ({"a": "<list>"}, {"a": {}}),
        ([1, 2], [1]),
        ("$x", 6),
        ("y", "z"),
        (None, 0),
    ],
)
def test_a_difference_is_found(expected: object, actual: object) -> None:
    with pytest.raises(AssertionError, match="reply"):
        compare(expected, actual, {"x": 5})


@pytest.mark.parametrize(
    "lines",
    [
        ['data: {"n":1}', "data: [DONE]", "data: [DONE]"],
        ['data: {"n":1}', 'data: {"m":1}', "data: [DONE]"],
        ['data: {"n":1}'],
        ["event: x", 'data: {"n":1}', "data: [DONE]"],
    ],
)
def test_a_difference_in_a_stream_is_found(lines: list[str]) -> None:
    wanted = ('data: {"n":"<int>"}', "...", "data: [DONE]")
    compare_stream(wanted, ['data: {"n":1}', "", 'data: {"n":2}', "", "data: [DONE]", ""], {})
    with pytest.raises(AssertionError):
        compare_stream(wanted, lines, {})
