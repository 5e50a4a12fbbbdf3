"""Small answers every role gives: errors in OpenAI's form, the model list, the last word of a broken stream."""

import asyncio

import aiohttp
from aiohttp import web

from weft_router.config import Settings
from weft_router.errors import (
    ApiError,
    InvalidRequestError,
    NotFoundError,
    TooLargeError,
    UnavailableError,
    stream_error,
)

RETRY_HEADER = "X-Weft-Retry"
LAST_WORDS_S = 0.5
"""How long a client that is told of an end may take to read it."""


def answer(error: ApiError) -> web.Response:
    """Return an error as a response."""
    response = web.Response(status=error.status, body=error.body(), content_type="application/json")
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(error.retry_after_s)
    if error.retryable:
        response.headers[RETRY_HEADER] = "1"
    return response


def cut_off(request: web.Request) -> None:
    """Close a client's connection at once: it does not read what it asked for."""
    if request.transport is not None:
        request.transport.abort()


async def say_last(request: web.Request, out: web.StreamResponse, reason: str) -> None:
    """End a broken stream with an error event; a client that does not take it is cut off."""
    try:
        async with asyncio.timeout(LAST_WORDS_S):
            await out.write(stream_error(reason).event())
            await out.write_eof()
    except TimeoutError:
        cut_off(request)


async def read_body(request: web.Request, *, limit: int, seconds: float) -> bytes:
    """Return a request's body.

    Raises:
        TooLargeError: it exceeds ``limit``.
        ApiError: it did not arrive within ``seconds``.
    """
    if request.content_length is not None and request.content_length > limit:
        raise TooLargeError(limit)
    try:
        async with asyncio.timeout(seconds):
            return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise TooLargeError(limit) from error
    except TimeoutError as error:
        raise ApiError(f"the request body did not arrive within {seconds:g} s", status=408) from error
    except (aiohttp.ClientPayloadError, web.RequestPayloadError) as error:
        raise InvalidRequestError(f"the request body is broken: {error}") from error


def models(settings: Settings) -> web.Response:
    """Return the list of the one model this service runs."""
    model = settings.config.model
    entry = {
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": "weft",
        "max_model_len": model.max_model_len,
    }
    return web.json_response({"object": "list", "data": [entry]})


def not_ready(what: str) -> UnavailableError:
    """Return the quick refusal when nothing can serve."""
    return UnavailableError(f"no {what} is ready; try again shortly", retry_after_s=2)


def translate(error: web.HTTPException, request: web.Request, settings: Settings) -> ApiError:
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return TooLargeError(settings.config.limits.max_body_bytes)
    if error.status == 404:
        return NotFoundError(
            f"unknown path {request.path[:128]!r}; this service has /v1/chat/completions, /v1/completions, /v1/models"
        )
    if error.status == 405:
        return ApiError(f"{request.method} is not allowed on {request.path[:128]!r}", status=405)
    return ApiError(error.reason, status=error.status)
