"""Small answers every role gives: errors in OpenAI's form, the model list."""

import orjson

from weft_router.config import Settings
from weft_router.errors import ApiError, EngineDiedError, UnavailableError
from weft_router.http.exchange import Exchange

RETRY_HEADER = "X-Weft-Retry"
OVERLOAD_HEADER = "X-Weft-Overload"
"""Set where another service may serve what was refused."""
DIED = "X-Weft-Died"
"""What becomes of a request whose engine ended, between the router's own hops."""
LAST_WORDS_S = 0.5
"""How long a client may take to read the last event of an ended stream."""


def reply_error(exchange: Exchange, error: ApiError) -> None:
    """Answer with an error."""
    headers: dict[str, str] = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if error.retryable:
        headers[RETRY_HEADER] = "1"
    if error.overload:
        headers[OVERLOAD_HEADER] = "1"
    if isinstance(error, EngineDiedError):
        headers[DIED] = error.verdict
    exchange.reply(error.status, error.body(), headers=headers)


def reply_models(exchange: Exchange, settings: Settings) -> None:
    """Answer with the list of the one model this service runs."""
    model = settings.config.model
    entry = {
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": "weft",
        "max_model_len": model.max_model_len,
    }
    exchange.reply(200, orjson.dumps({"object": "list", "data": [entry]}))


def not_ready(what: str) -> UnavailableError:
    """Return the quick refusal when nothing can serve."""
    return UnavailableError(f"no {what} is ready; try again shortly", retry_after_s=2, overload=True)
