"""Read and write JSON over HTTP."""

from collections.abc import Mapping, Sequence

import orjson
from aiohttp import web

from weft_mock.errors import ApiError


async def read_object(request: web.Request) -> Mapping[str, object]:
    """Return a request's JSON object.

    Raises:
        ApiError: 400, it has none.
    """
    try:
        body = orjson.loads(await request.read())
    except ValueError as error:
        raise ApiError(400, f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise ApiError(400, "the body: a JSON object is needed")
    return body


def json_reply(body: Mapping[str, object] | Sequence[object], *, status: int = 200) -> web.Response:
    """Return a reply with a JSON body."""
    return web.Response(status=status, body=orjson.dumps(body), content_type="application/json")
