"""Errors that become answers: OpenAI's or Anthropic's form towards clients, retry hints between the router's own hops.

ApiError                an answer to give as it is
 ├─ InvalidRequestError      400: the client's body is at fault; names the field
 ├─ UnauthorizedError        401: no API key, or an unknown one
 ├─ NotFoundError            404: unknown path or model
 ├─ TooLargeError            413: the body exceeds its limit
 ├─ EngineDiedError          502: the engine ended while it worked on the request
 └─ UnavailableError         503: nothing can serve this now; says when to come back
UpstreamFailedError          an upstream request broke before its first byte; another worker may serve the request
StreamBrokenError            an upstream response broke after bytes were forwarded; only an error event can follow
"""

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import orjson

if TYPE_CHECKING:
    from weft_router.openai.reply import Reply

_KNOWN: Final = frozenset(status.value for status in HTTPStatus)
SHUTTING_DOWN = "shutting down"
WORKER_LOST = "worker lost"
DEATHS = frozenset({"engine-died", "engine-died-suspect", "engine-died-poison", "engine-died-again"})
"""Reasons for which a leg failed whose engine ended; ``engines.deaths`` says what they mean."""


_MESSAGE_ERRORS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def message_error(message: str, status: int) -> bytes:
    """Return the body of an error of Anthropic's Messages API."""
    kind = _MESSAGE_ERRORS.get(status, "api_error")
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": message}})


class ApiError(Exception):
    """An answer in OpenAI's error form; ``retryable`` tells the hop before that no engine output was lost.

    ``overload``: this service has too much to do, or nobody to do it; another service may serve the request.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retryable: bool = False,
        retry_after_s: int | None = None,
        overload: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.overload = overload

    def body(self) -> bytes:
        """Return the JSON body OpenAI clients expect."""
        return orjson.dumps(
            {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}
        )

    def message_body(self) -> bytes:
        """Return the JSON body that clients of Anthropic's Messages API expect."""
        return message_error(self.message, self.status)

    def event(self) -> bytes:
        """Return the server-sent event that ends a broken stream."""
        return b"data: " + self.body() + b"\n\n"


class InvalidRequestError(ApiError):
    """Refuse a request whose body is at fault; ``param`` names the field."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, status=400, param=param, code=code)


class UnauthorizedError(ApiError):
    """Refuse a request without a known API key."""

    def __init__(self, message: str) -> None:
        super().__init__(message, status=401, code="invalid_api_key")


class NotFoundError(ApiError):
    """Refuse an unknown path or model."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, status=404, param=param, code=code)


class TooLargeError(ApiError):
    """Refuse a body above its limit; ``param`` names that."""

    def __init__(self, limit: int, what: str = "bytes", *, param: str = "limits.maxBodyBytes") -> None:
        super().__init__(
            f"the request body exceeds {limit} {what} ({param}); send less",
            status=413, param=param, code="request_too_large",
        )  # fmt: skip


class UnavailableError(ApiError):
    """Say that nothing can serve the request now, and when to try again."""

    def __init__(
        self, message: str, *, retry_after_s: int = 1, retryable: bool = False, overload: bool = False
    ) -> None:
        super().__init__(
            message,
            status=503,
            kind="service_unavailable",
            code="unavailable",
            retryable=retryable,
            retry_after_s=retry_after_s,
            overload=overload,
        )


def no_room() -> UnavailableError:
    """Return the refusal of a request that there is no memory for now."""
    return UnavailableError("this router holds as many bytes of requests as it may; send it again in 1 s")


class EngineDiedError(ApiError):
    """The engine ended while it worked on the request; ``verdict`` says what may become of the request."""

    def __init__(self, verdict: str) -> None:
        super().__init__(
            f"the engine ended while it served this request ({verdict})",
            status=502,
            kind="server_error",
            code="engine_died",
        )
        self.verdict = verdict


class UpstreamFailedError(Exception):
    """An upstream leg broke before a byte of its answer was used; ``reason`` is a short word for metrics and logs."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class StreamBrokenError(Exception):
    """An upstream leg broke after bytes of its answer were forwarded."""

    def __init__(self, reason: str, reply: "Reply | None" = None, *, from_worker: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.from_worker = from_worker
        """Whether the worker said so itself: it lives, and knows its engine better than others do."""
        self.reply = reply
        """What was read of the stream so far, from which another worker may resume it."""


class EngineAnsweredError(Exception):
    """The engine refused the request itself (4xx): the client gets its words."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"engine answered {status}")
        self.status = status
        self.body = body


def engine_error(status: int, body: bytes) -> ApiError:
    """Return an engine's error as an answer, with its message, field and code where it has them."""
    message, param, code = f"the engine refused the request with status {status}", None, None
    try:
        given: object = orjson.loads(body)
    except orjson.JSONDecodeError:
        given = None
    if isinstance(given, dict):
        inner = given["error"] if isinstance(given.get("error"), dict) else given
        message = str(inner.get("message") or message)
        param = inner["param"] if isinstance(inner.get("param"), str) else None
        code = inner["code"] if isinstance(inner.get("code"), str) else None
    kind = "invalid_request_error" if status < 500 else "server_error"
    return ApiError(message, status=status, kind=kind, param=param, code=code)


def faults_request(status: int) -> bool:
    """Return whether an engine's status is its last word on the request, which no other engine would answer better.

    That is a 4xx; and a status that HTTP does not know, such as 529, is the engine's own word to its client.
    """
    return status >= 400 and (status not in _KNOWN or (status < 500 and status not in (408, 429)))


def stream_error(reason: str) -> ApiError:
    """Return the error that ends a stream whose worker was lost after the first token."""
    return ApiError(
        f"the stream ended early ({reason}); the reply is incomplete, send the request again",
        status=502,
        kind="server_error",
        code="stream_interrupted",
    )
