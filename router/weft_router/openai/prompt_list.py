"""Several prompts in one completion: each is a round, and their answers are one answer with numbered choices.

OpenAI's API numbers the choices of all prompts in order: with two answers to each, prompt 1 has choices 2 and 3.
"""

from typing import Any, cast

import orjson

from weft_router.errors import InvalidRequestError
from weft_router.openai.body import Json

MOST_PROMPTS = 1024
"""Prompts of one request."""


def prompts_of(body: Json) -> list[object]:
    """Return the prompts of a completion's body where it has several, else nothing.

    Raises:
        InvalidRequestError: there are more than one request may have.
    """
    given = body.get("prompt")
    if not isinstance(given, list) or len(given) < 2 or not isinstance(given[0], str | list):
        return []
    if len(given) > MOST_PROMPTS:
        raise InvalidRequestError(
            f"prompt: at most {MOST_PROMPTS} prompts are allowed, got {len(given)}; send several requests",
            param="prompt",
        )
    return given


def name_prompt(error: InvalidRequestError, place: int) -> InvalidRequestError:
    """Return the refusal of one prompt among several, with its place."""
    if error.param != "prompt":
        return error
    where = f"prompt[{place}]"
    return InvalidRequestError(error.message.replace("prompt:", f"{where}:", 1), param=where, code=error.code)


def joined(answers: list[bytes], each: int) -> bytes:
    """Return one answer of those to several prompts, in order, which have ``each`` choices."""
    parsed: list[Json] = [orjson.loads(answer) for answer in answers]
    whole = parsed[0]
    choices: list[object] = []
    for place, answer in enumerate(parsed):
        given: Any = answer["choices"]
        for choice in given:
            choice["index"] += place * each
            choices.append(choice)
    whole["choices"] = choices
    whole["usage"] = total_usage([cast(Json, answer.get("usage") or {}) for answer in parsed])
    return orjson.dumps(whole)


def total_usage(usages: list[Json]) -> Json:
    """Return the sums of all counts; details are those that every answer gives as numbers."""
    total: dict[str, Any] = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    cached = 0
    for usage in usages:
        given: Any = usage
        for name in total:
            total[name] += given.get(name) or 0
        details = given.get("prompt_tokens_details")
        if isinstance(details, dict):
            cached += details.get("cached_tokens") or 0
    return {**total, "prompt_tokens_details": {"cached_tokens": cached}}
