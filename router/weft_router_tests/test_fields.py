"""Which fields reach an engine: every field of vLLM's request models is listed, and what is not listed is refused."""

import ast
from pathlib import Path
from typing import Any

import pytest

from weft_router.config import LimitsConfig, ModelConfig, RequestsConfig
from weft_router.errors import InvalidRequestError
from weft_router.openai import fields, responses
from weft_router.openai.body import parse, sanitise
from weft_router.openai.bounds import RequestLimits
from weft_router.openai.inference import PATHS, TOKENIZED, check_request, check_tokenized

MODEL = ModelConfig.model_validate({"name": "m", "maxModelLen": 1000})
CONTENT: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
}
RECORD = Path(__file__).with_name("vllm_fields.txt")
"""The fields of the request models of vLLM 0.32, one model a line."""
MODELS = {
    "chat_completion": "ChatCompletionRequest",
    "completion": "CompletionRequest",
    "responses": "ResponsesRequest",
}
ENGINES = Path.home() / ".cache/weft/engines"


def allowing(*names: str, hosts: tuple[str, ...] = (), http: bool = False) -> RequestLimits:
    told = {"allowedFields": names, "mediaHosts": hosts, "mediaOverHttp": http}
    return RequestLimits(MODEL, LimitsConfig(), RequestsConfig.model_validate(told))


def refused(path: str, allowed: RequestLimits, **given: Any) -> InvalidRequestError | None:
    try:
        check_request(path, {"model": "m", **CONTENT[path], **given}, allowed)
    except InvalidRequestError as error:
        return error
    return None


@pytest.mark.parametrize("path", sorted(PATHS))
@pytest.mark.parametrize("name", sorted({*fields.ASKS, "brand_new", "KV_cache", "top_k ", "guided_json", "ｌora_path"}))
def test_what_changes_an_engine_and_what_nobody_knows_needs_leave(path: str, name: str) -> None:
    error = refused(path, allowing(), **{name: {"a": 1}})
    assert error is not None
    assert (error.status, error.param, error.code) == (400, name, "unsupported_parameter")
    assert "spec.coordinator.requests.allowedFields" in error.message
    assert repr(name) in error.message
    assert refused(path, allowing(name), **{name: {"a": 1}}) is None
    assert refused(path, RequestLimits(MODEL, LimitsConfig(), None), **{name: {"a": 1}}) is None, "a front has looked"


@pytest.mark.parametrize("value", [None, 0, False, "", {}, []])
def test_a_field_that_says_nothing_is_no_reason_to_refuse(value: object) -> None:
    assert all(refused(path, allowing(), **dict.fromkeys(fields.ASKS, value)) is None for path in PATHS)


@pytest.mark.parametrize(
    ("kwargs", "param"),
    [
        ({"enable_thinking": False, "thinking_budget": 100, "reasoning_effort": "low", "thinking": True}, None),
        ({"chat_template": "{{ messages }}"}, "chat_template_kwargs.chat_template"),
        ({"enable_thinking": True, "tokenize": True}, "chat_template_kwargs.tokenize"),
        ({"enable_thinking": {"a": 1}}, "chat_template_kwargs.enable_thinking"),
        ({"custom_instructions": "x" * 1025}, "chat_template_kwargs.custom_instructions"),
        ("{{ 1 }}", "chat_template_kwargs"),
    ],
)
def test_variables_of_templates_only_choose_between_branches(kwargs: object, param: str | None) -> None:
    error = refused("/v1/chat/completions", allowing(), chat_template_kwargs=kwargs)
    assert (None if error is None else error.param) == param
    if isinstance(kwargs, dict) and param is not None:
        for leave in ("chat_template_kwargs", param):
            assert refused("/v1/chat/completions", allowing(leave), chat_template_kwargs=kwargs) is None


@pytest.mark.parametrize("kind", ["mcp", "code_interpreter", "web_search_preview"])
def test_tools_that_the_engine_would_run_need_leave(kind: str) -> None:
    tools = [{"type": "function", "name": "f"}, {"type": kind, "server_url": "http://10.0.0.1"}]
    error = refused("/v1/responses", allowing(), tools=tools)
    assert error is not None
    assert error.param == "tools[1].type"
    assert refused("/v1/responses", allowing(f"tools.{kind}"), tools=tools) is None
    assert refused("/v1/responses", allowing(), tools=tools[:1]) is None


def test_what_is_counted_takes_no_more() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    check_tokenized({**body, "add_special_tokens": True, "chat_template_kwargs": {"enable_thinking": True}}, allowing())
    part = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}
    for wrong in (
        {"chat_template": "{{ 1 }}"}, {"mm_processor_kwargs": {"a": 1}}, {"brand_new": 1},
        {"messages": [{"role": "user", "content": [part]}]},
    ):  # fmt: skip
        with pytest.raises(InvalidRequestError):
            check_tokenized({**body, **wrong}, allowing())
    check_tokenized({**body, "chat_template": "{{ 1 }}"}, allowing("chat_template"))


def models(source: Path) -> dict[str, set[str]]:
    """Return the fields of the request models in vLLM's sources; nothing of it is imported."""
    found = {}
    for folder, name in MODELS.items():
        tree = ast.parse((source / "entrypoints/openai" / folder / "protocol.py").read_text())
        (model,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
        targets = [line.target for line in model.body if isinstance(line, ast.AnnAssign)]
        found[name] = {t.id for t in targets if isinstance(t, ast.Name) and not t.id.startswith("_")}
    return found


def recorded() -> dict[str, set[str]]:
    lines = [line.split() for line in RECORD.read_text().splitlines()]
    return {model: set(names) for model, *names in lines}


def known() -> dict[str, set[str]]:
    """Return the fields of the vLLM that `make engine-env` installed, else those on record."""
    source = next(iter(ENGINES.glob("vllm-*/venv/lib/python3*/site-packages/vllm")), None)
    return models(source) if source is not None else recorded()


def test_the_record_is_that_of_the_vllm_that_is_installed() -> None:
    assert recorded() == known()


@pytest.mark.parametrize("model", MODELS.values())
def test_every_field_of_vllms_is_listed(model: str) -> None:
    """A field that a new vLLM brings has to be looked at: what does an engine do with it?"""
    listed = {*fields.PASSES, *fields.RULES, *(responses.RULES if model == "ResponsesRequest" else ())}
    names = known()[model]
    assert len(names) > 40
    assert sorted(name for name in names - listed if not sanitise(parse(b'{"%b":1}' % name.encode()))) == []


def test_the_lists_are_one_list() -> None:
    assert not fields.PASSES & fields.RULES.keys() - {fields.TEMPLATE_KWARGS}
    assert fields.PASSES | {"return_token_strs", "prompt", fields.TEMPLATE_KWARGS} >= TOKENIZED
    assert sanitise(dict.fromkeys({*fields.PASSES, *fields.RULES}, 1)) == []
