"""Talk HTTP to engines and router processes: bounded waits, no cookies, no proxies, no header of the client's."""

import asyncio
import hmac
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from time import monotonic
from types import TracebackType

import aiohttp

from weft_router.errors import LegFailedError
from weft_router.state.registry import Health

TOKEN_HEADER = "X-Weft-Token"  # noqa: S105 - the header's name
PROBE_TIMEOUT_S = 1.0
RESEND_WITHIN_S = 0.25
"""A connection that was closed while idle fails at once; what fails later had begun to work."""

CONNECT_ERRORS = (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError, aiohttp.InvalidURL)


def token_matches(given: str | None, token: bytes) -> bool:
    """Compare an internal token in constant time."""
    return hmac.compare_digest((given or "").encode("utf-8", "replace"), token)


def client(*, connect_s: float, keepalive_s: float) -> aiohttp.ClientSession:
    """Return a client whose idle connections end before the server's would, so that few are used half closed."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=keepalive_s, use_dns_cache=True, ttl_dns_cache=5),
        timeout=aiohttp.ClientTimeout(total=None, connect=connect_s, sock_connect=connect_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        read_bufsize=2**18,
        skip_auto_headers=("User-Agent", "Accept-Encoding"),
    )


async def probe(http: aiohttp.ClientSession, url: str) -> Health:
    """Ask a worker's sidecar for its readiness; no answer within a second means dead."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S), http.get(url + "/readyz") as response:
            return "ready" if response.status == 200 else "busy"
    except (aiohttp.ClientError, OSError, TimeoutError):
        return "dead"


class Deadline:
    """One moving deadline over a whole leg, which somebody else may also end at once."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._scope = asyncio.timeout(None)
        self._open = False
        self._end = float("inf")
        self.lost = ""

    async def __aenter__(self) -> "Deadline":
        await self._scope.__aenter__()
        self._open = True
        if self.lost:
            self.end(self.lost)
        else:
            self.extend(self._seconds)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        await self._scope.__aexit__(kind, error, trace)

    def cap(self, seconds: float) -> None:
        """End no later than this from now, whatever extends the deadline."""
        self._end = asyncio.get_running_loop().time() + seconds

    def extend(self, seconds: float) -> None:
        """Move the deadline: this long from now."""
        if not self.lost and self._open and not self._scope.expired():
            self._scope.reschedule(min(asyncio.get_running_loop().time() + seconds, self._end))

    def end(self, why: str) -> None:
        """End the leg now, or as soon as it begins."""
        self.lost = why
        if self._open and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())


class Legs:
    """The deadlines of all legs under way, so that a process that stops can end them with a word instead of silence."""

    def __init__(self) -> None:
        self._live: set[Deadline] = set()

    @contextmanager
    def track(self, deadline: Deadline) -> Iterator[None]:
        """Count a leg while it lasts."""
        self._live.add(deadline)
        try:
            yield
        finally:
            self._live.discard(deadline)

    def cut(self, why: str) -> None:
        """End all legs now."""
        for deadline in list(self._live):
            deadline.end(why)


@asynccontextmanager
async def post(
    http: aiohttp.ClientSession,
    url: str,
    data: bytes,
    headers: Mapping[str, str],
    *,
    resend: bool = False,
) -> AsyncIterator[aiohttp.ClientResponse]:
    """Send a JSON body and give the response; leaving the block early closes the connection, which aborts the work.

    A connection that the server closed while it was idle shows only when it is used: with ``resend`` the request
    is then sent once more. Not for requests with a KV handle, which is good for one sending.

    Raises:
        LegFailedError: no response came.
    """
    response: aiohttp.ClientResponse | None = None
    started = monotonic()
    for attempt in range(2):
        try:
            response = await http.post(url, data=data, headers={"Content-Type": "application/json", **headers})
            break
        except CONNECT_ERRORS as error:
            raise LegFailedError("connect", str(error)) from error
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            if attempt or not resend or monotonic() - started > RESEND_WITHIN_S:
                raise LegFailedError("disconnected", str(error)) from error
        except aiohttp.ClientError as error:
            raise LegFailedError("protocol", str(error)) from error
    if response is None:
        raise LegFailedError("disconnected")
    try:
        yield response
    finally:
        if response.content.is_eof():
            response.release()
        else:
            response.close()


async def read_bounded(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Read a whole body.

    Raises:
        LegFailedError: the body is cut short or exceeds ``limit`` bytes.
    """
    parts: list[bytes] = []
    size = 0
    try:
        async for part in response.content.iter_any():
            size += len(part)
            if size > limit:
                raise LegFailedError("reply-too-large", f"more than {limit} bytes")
            parts.append(part)
    except (aiohttp.ClientError, OSError) as error:
        raise LegFailedError("cut-short", str(error)) from error
    return b"".join(parts)
