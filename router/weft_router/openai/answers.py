"""Small answers every role gives: errors, the model list."""

from collections.abc import Collection

import orjson

from weft_router.config import ModelConfig
from weft_router.errors import ApiError, EngineDiedError, UnavailableError
from weft_router.http.exchange import Exchange
from weft_router.openai.body import Json

MESSAGES = "/v1/messages"
"""The path of Anthropic's Messages API."""
RETRY_HEADER = "X-Weft-Retry"
OVERLOAD_HEADER = "X-Weft-Overload"
"""Set where another service may serve what was refused."""
DIED = "X-Weft-Died"
"""What becomes of a request whose engine ended, between the router's own hops."""
LAST_WORDS_S = 0.5
"""How long a client may take to read the last event of an ended stream."""


def reply_error(exchange: Exchange, error: ApiError) -> None:
    """Answer with an error, in the form of the API that was asked."""
    headers: dict[str, str] = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if error.retryable:
        headers[RETRY_HEADER] = "1"
    if error.overload:
        headers[OVERLOAD_HEADER] = "1"
    if isinstance(error, EngineDiedError):
        headers[DIED] = error.verdict
    body = error.message_body() if exchange.path.startswith(MESSAGES) else error.body()
    exchange.reply(error.status, body, headers=headers)


def reply_models(exchange: Exchange, model: ModelConfig, adapters: Collection[str]) -> None:
    """Answer with the list of the model that this service runs, under each of its names, and its ``adapters``."""
    entries = [model_entry(name, model, adapters) for name in (model.name, *model.aliases, *adapters)]
    exchange.reply(200, orjson.dumps({"object": "list", "data": entries}))


def model_entry(name: str, model: ModelConfig, adapters: Collection[str]) -> Json:
    """Return what OpenAI's API says of a model.

    As engines write it, ``root`` is the name behind an alias, and ``parent`` the model of an adapter.
    """
    adapted = name in adapters
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "weft",
        "root": name if adapted else model.name,
        "parent": model.name if adapted else None,
        "max_model_len": model.max_model_len,
    }


def not_ready(what: str) -> UnavailableError:
    """Return the quick refusal when nothing can serve."""
    return UnavailableError(f"no {what} is ready; try again shortly", retry_after_s=2, overload=True)


def adapter_missing(name: str, *, refused: bool = False) -> UnavailableError:
    """Return the refusal while no ready worker has an adapter; ``refused``: an engine could not load it."""
    if refused:
        message = f"the adapter {name!r} could not be loaded; whoever runs this service can see why"
        return UnavailableError(message, retry_after_s=10)
    return UnavailableError(f"no worker has loaded the adapter {name!r} yet; try again shortly", retry_after_s=2)
