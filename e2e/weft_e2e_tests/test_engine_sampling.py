"""Every field that chooses tokens, through a remote prefill and a local one, as one plain vLLM answers it."""

import os
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from weft_e2e.engines.command import tiny_service
from weft_e2e.engines.environment import environment
from weft_e2e_tests.engine_stack import MODEL, ROUND_S, EngineStack, engine_stack

pytestmark = [
    pytest.mark.component,
    pytest.mark.engine,
    pytest.mark.skipif(not os.environ.get("WEFT_E2E_ENGINE"), reason="real engines: make e2e-engine"),
]

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PROMPT = "Weaving begins with the warp, the set of threads that are held in tension on the loom. " * 8
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "count", "parameters": SCHEMA}}
NAMED = {"type": "function", "function": {"name": "count"}}
SEEDED = {"temperature": 0.8, "seed": 7}
FIELDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 1.5},
    "repetition": {"repetition_penalty": 1.3},
    "seed": SEEDED,
    "top-k": {**SEEDED, "top_k": 5},
    "top-p": {**SEEDED, "top_p": 0.5},
    "min-p": {**SEEDED, "min_p": 0.2},
    "several": {**SEEDED, "n": 2},
    "bad-words": {"bad_words": ["e", "th"]},
    "bias": {"logit_bias": {"5": 100}},
    "allowed": {"allowed_token_ids": [1, 2, 3]},
    "stop": {"stop": "e"},
    "stops": {"stop": ["e", "a"], "include_stop_str_in_output": True},
    "stop-ids": {"stop_token_ids": [10, 11, 12, 13, 14]},
    "least": {"min_tokens": 6, "stop": "e"},
    "ignore-end": {"ignore_eos": True, "skip_special_tokens": False},
    "json": {"structured_outputs": {"json": SCHEMA}},
    "regex": {"structured_outputs": {"regex": "[a-f]{4,8}"}},
    "choice": {"structured_outputs": {"choice": ["warp", "weft"]}},
    "grammar": {"structured_outputs": {"grammar": 'root ::= "warp" | "weft"'}},
    "format": {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
    "truncated": {"truncate_prompt_tokens": 100},
}
OF_CHAT: dict[str, dict[str, Any]] = {
    "logprobs": {"logprobs": True},
    "top-logprobs": {"logprobs": True, "top_logprobs": 2},
    "tool": {"tools": [TOOL], "tool_choice": NAMED},
    "tools": {"tools": [TOOL], "tool_choice": "required"},
    "auto-tools": {"tools": [TOOL]},
    "no-tools": {"tools": [TOOL], "tool_choice": "none"},
    "thinking": {"chat_template_kwargs": {"enable_thinking": False}},
}
OF_TEXT: dict[str, dict[str, Any]] = {
    "logprobs": {"logprobs": 2},
    "echo": {"echo": True},
    "prompt": {"prompt_logprobs": 1},
}
CASES = {CHAT: {**FIELDS, **OF_CHAT}, TEXT: {**FIELDS, **OF_TEXT}}
PARSER = ("--enable-auto-tool-choice", "--tool-call-parser=hermes")
"""Its way to call tools is made of plain characters, which the tiny model's tokenizer has."""
COMPILES = """
import torch
from vllm.v1.sample.ops.logprobs import batched_count_greater_than as ranks
print(ranks(torch.ones(2, 8), torch.zeros(2, 1)).tolist())
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineStack]:
    with engine_stack(tmp_path_factory.mktemp("sampling"), args=PARSER) as running:
        yield running


def ask(url: str, path: str, fields: dict[str, Any], session: str = "") -> httpx.Response:
    content = {"messages": [{"role": "user", "content": PROMPT}]} if path == CHAT else {"prompt": PROMPT}
    body = {"model": MODEL, "max_tokens": 16, "temperature": 0, **content, **fields}
    headers = {"X-Session-Id": session} if session else {}
    return httpx.post(url + path, json=body, headers=headers, timeout=ROUND_S)


def told(reply: httpx.Response) -> object:
    """Return what an answer says: texts, why they ended, calls of tools, and the words that have probabilities."""
    if reply.status_code != 200:
        return reply.text
    found = []
    for choice in reply.json()["choices"]:
        message = choice.get("message") or {}
        calls = [(one["function"]["name"], one["function"]["arguments"]) for one in message.get("tool_calls") or ()]
        logprobs = choice.get("logprobs") or {}
        words = [one["token"] for one in logprobs.get("content") or ()] or logprobs.get("tokens")
        found.append((message.get("content") or choice.get("text"), choice["finish_reason"], calls, words))
    return sorted(found, key=str)


@pytest.mark.parametrize("policy", ["always-remote", "always-local"])
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_every_field_gives_what_a_plain_engine_gives(stack: EngineStack, path: str, policy: str) -> None:
    stack.whole()
    stack.use_policy(policy)
    routes: set[str] = set()
    wrong: dict[str, tuple[object, object]] = {}
    for name, fields in CASES[path].items():
        plain = ask(stack.plain.url, path, fields)
        assert plain.status_code == 200, f"{name}: a plain engine says {plain.text}"
        expected = told(plain)
        got = ask(stack.url, path, fields, session=f"{policy}-{path}-{name}")
        routes.add(got.headers.get("x-weft-route", ""))
        if told(got) != expected:
            wrong[name] = (told(got), expected)
    assert not wrong
    assert policy.removeprefix("always-") in routes
    assert all(engine.alive for engine in (stack.prefill, stack.decode))


def test_an_engine_without_a_compiler_gives_log_probabilities() -> None:
    """What the tiny service tells its engines is enough where pods have no C++ compiler."""
    env = {one["name"]: one["value"] for one in tiny_service()["spec"]["engine"]["env"]}
    argv = [str(environment().python), "-c", COMPILES]
    done = subprocess.run(
        argv, env={**env, "PATH": "/nonexistent", "VLLM_PLUGINS": ""}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "[8, 8]", done.stderr[-500:]
