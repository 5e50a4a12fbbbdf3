"""Fetch a small document over HTTPS, once in minutes: in a thread, with bounds on size and time, without redirects."""

import asyncio
from urllib.request import HTTPRedirectHandler, Request, build_opener

TIMEOUT_S = 10.0
MAX_BYTES = 2**20


class _NoRedirects(HTTPRedirectHandler):
    """Whoever could redirect the request could choose the keys."""

    def redirect_request(self, *_: object, **__: object) -> None:
        """Follow none: the answer stays the error that it is."""


async def fetch(url: str) -> bytes:
    """Return the body of a 200 answer; certificates are checked against the system's authorities.

    Raises:
        OSError: there is no such answer, it came too late, or it is larger than ``MAX_BYTES``.
    """
    return await asyncio.to_thread(_get, url)


def _get(url: str) -> bytes:
    if not url.startswith(("https://", "http://")):
        raise OSError("is no HTTP address")
    request = Request(url, headers={"Accept": "application/json", "User-Agent": "weft"})  # noqa: S310 - checked above
    with build_opener(_NoRedirects).open(request, timeout=TIMEOUT_S) as answer:
        if answer.status != 200:
            raise OSError(f"answered {answer.status}")
        body: bytes = answer.read(MAX_BYTES + 1)
    if len(body) > MAX_BYTES:
        raise OSError(f"is larger than {MAX_BYTES} bytes")
    return body
