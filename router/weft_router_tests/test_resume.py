"""Which streams may go on elsewhere: exactly, with the right distribution, or not at all, and why."""

from array import array
from typing import Any

import pytest

from weft_router.config import LimitsConfig, ModelConfig
from weft_router.engines.adapter import AdapterOptions, EngineRequest, NotPossibleError
from weft_router.engines.catalogue import ADAPTERS, adapter_for
from weft_router.engines.resume import resumable, resume_kinds, resume_method, resume_obstacle
from weft_router.openai.bounds import RequestLimits
from weft_router.openai.inference import Inference, check_request
from weft_router.openai.reply import Reply


def inference(path: str = "/v1/chat/completions", **fields: Any) -> Inference:
    given: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
        "/v1/completions": {"prompt": "x"},
        "/v1/responses": {"input": "x"},
    }
    body = {"model": "m", "stream": True, **given[path], **fields}
    model, limits = ModelConfig.model_validate({"name": "m", "maxModelLen": 1000}), LimitsConfig.model_validate({})
    return check_request(path, body, RequestLimits(model, limits))


@pytest.mark.parametrize(
    ("fields", "how"),
    [
        ({"temperature": 0}, "exact"),
        ({"temperature": 0.0, "presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1}, "exact"),
        ({"temperature": 0, "tools": [{}], "tool_choice": "none"}, "exact"),
        ({"temperature": 0, "response_format": {"type": "text"}, "logprobs": False, "stop": []}, "exact"),
        ({}, "sampled"),
        ({"temperature": 0.7, "seed": 5}, "sampled"),
    ],
)
def test_plain_streams_may_go_on(fields: dict[str, Any], how: str) -> None:
    assert resumable(inference(**fields)).how == how


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"stream": False}, "not-a-plain-stream"),
        ({"n": 2}, "several-answers"),
        ({"logprobs": True}, "logprobs"),
        ({"prompt_logprobs": 0}, "logprobs"),
    ],
)
def test_streams_that_would_not_be_the_same_do_not_fail_over(fields: dict[str, Any], reason: str) -> None:
    found = resumable(inference(temperature=0, **fields))
    assert (found.how, found.reason) == ("no", reason)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"presence_penalty": 0.1}, "penalties"),
        ({"frequency_penalty": -1}, "penalties"),
        ({"repetition_penalty": 1.1}, "penalties"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "structure"),
        ({"structured_outputs": {"regex": "a+"}}, "structure"),
        ({"stop": ["\n"]}, "stop-texts"),
        ({"continue_final_message": True}, "prompt"),
    ],
)
def test_greedy_streams_that_ids_cannot_continue_are_generated_again(fields: dict[str, Any], reason: str) -> None:
    found = resumable(inference(temperature=0, **fields))
    assert (found.how, found.reason) == ("regenerate", reason)
    assert resumable(inference(**fields)).how == "no"
    assert resumable(inference(temperature=0, return_token_ids=True, **fields)).how == "no"


def test_a_prompt_with_media_is_not_continued_from_token_ids() -> None:
    picture = [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": "data:,x"}}]
    found = resumable(inference(messages=[{"role": "user", "content": picture}], temperature=0))
    assert (found.how, found.reason) == ("regenerate", "media")
    words = [{"type": "text", "text": "what?"}]
    assert resumable(inference(messages=[{"role": "user", "content": words}], temperature=0)).how == "exact"


def test_a_response_does_not_go_on() -> None:
    assert resumable(inference("/v1/responses")).how == "no"


def broken(**facts: Any) -> Reply:
    reply = Reply("chat")
    reply.text, reply.prompt_ids, reply.output_ids, reply.shown = ["ab"], array("I", [1]), array("I", [2, 3]), 2
    for name, value in facts.items():
        setattr(reply, name, value)
    return reply


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({}, None),
        ({"finish_reason": "stop"}, "finished"),
        ({"error": True}, "engine-error"),
        ({"reasoning": True}, "structure"),
        ({"tool_calls": {0: {}}}, "structure"),
        ({"prompt_ids": None}, "no-ids"),
        ({"output_ids": None}, "no-ids"),
        ({"shown": 5}, "finished"),
    ],
)
def test_what_the_break_itself_stands_in_the_way_of(facts: dict[str, Any], reason: str | None) -> None:
    request = inference(max_tokens=5)
    assert resume_obstacle(request, broken(**facts)) == reason
    ask = EngineRequest(request, "weft-1")
    if reason is None:
        adapter_for("vllm").resume(ask, broken(**facts))
        return
    with pytest.raises(NotPossibleError) as refused:
        adapter_for("vllm").resume(ask, broken(**facts))
    assert refused.value.reason == reason


def test_a_client_that_has_ids_beyond_the_text_gets_none_twice() -> None:
    reply = broken(shown=1)
    assert resume_obstacle(inference(), reply) is None
    assert resume_obstacle(inference(return_token_ids=True), reply) == "ids-ahead"


def test_services_choose_what_goes_on() -> None:
    found = {
        how: resume_kinds(adapter_for("vllm", traits=AdapterOptions(resume=how))) for how in ("off", "exact", "sampled")
    }
    exact = {"exact", "regenerate"}
    assert found == {"off": set(), "exact": exact, "sampled": exact | {"sampled"}}


@pytest.mark.parametrize("kind", sorted(set(ADAPTERS) - {"vllm", "mock"}))
def test_engines_without_ids_generate_greedy_streams_again(kind: str) -> None:
    adapter = adapter_for(kind)
    kinds = resume_kinds(adapter)
    assert resume_method(inference(temperature=0), kinds) == "regenerate"
    assert resume_method(inference(), kinds) == "no"
    with pytest.raises(NotPossibleError):
        adapter.resume(EngineRequest(inference(), "weft-1"), broken())
