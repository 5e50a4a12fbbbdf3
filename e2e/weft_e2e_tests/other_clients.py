"""LiteLLM, LangChain and OpenAI's Agents SDK against a router: python other_clients.py URL MODEL WORDS TOKENS.

Runs in an environment of its own, with what ``make test-clients`` installs, and prints one JSON object: each client's
answers.
"""

import asyncio
import json
import sys
from typing import Any


def by_litellm(url: str, model: str, words: str, tokens: int) -> dict[str, str]:
    """Ask by LiteLLM, in both APIs, whole and streamed."""
    import litellm

    messages = [{"role": "user", "content": words}]
    common: dict[str, Any] = {"messages": messages, "max_tokens": tokens, "api_key": "any", "num_retries": 0}
    openai = {"model": f"openai/{model}", "api_base": f"{url}/v1", **common}
    anthropic = {"model": f"anthropic/{model}", "api_base": url, **common}
    streamed = [part.choices[0].delta.content or "" for part in litellm.completion(**openai, stream=True)]
    return {
        "litellm": litellm.completion(**openai).choices[0].message.content,
        "litellm streamed": "".join(streamed),
        "litellm anthropic": litellm.completion(**anthropic).choices[0].message.content,
    }


def by_langchain(url: str, model: str, words: str, tokens: int) -> dict[str, str]:
    """Ask by LangChain's chat model, whole and streamed."""
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    chat = ChatOpenAI(
        model=model, base_url=f"{url}/v1", api_key=SecretStr("any"), max_completion_tokens=tokens, max_retries=0
    )
    return {
        "langchain": str(chat.invoke(words).content),
        "langchain streamed": "".join(str(part.content) for part in chat.stream(words)),
    }


async def by_agents(url: str, model: str, words: str, tokens: int) -> dict[str, str]:
    """Ask by an agent of OpenAI's SDK, over chat completions and over responses."""
    from agents import (
        Agent,
        ModelSettings,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
    models = {
        "agents": (OpenAIChatCompletionsModel(model=model, openai_client=client), ModelSettings(max_tokens=tokens)),
        # An answer that is cut off is an error to this one.
        "agents responses": (OpenAIResponsesModel(model=model, openai_client=client), ModelSettings()),
    }
    found = {}
    for name, (kind, settings) in models.items():
        agent = Agent(name="one", model=kind, model_settings=settings)
        found[name] = str((await Runner.run(agent, words)).final_output)
    return found


def main() -> None:
    """Ask by each."""
    url, model, words, tokens = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    found = {**by_litellm(url, model, words, tokens), **by_langchain(url, model, words, tokens)}
    found |= asyncio.run(by_agents(url, model, words, tokens))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
