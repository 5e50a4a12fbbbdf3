"""List and watch one kind of object by the API server, with a pod's ServiceAccount: plain HTTP, no client library."""

import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, cast
from urllib.parse import quote, urlencode

import orjson

from weft_router.config.gateway import ApiAccess
from weft_router.errors import UpstreamFailedError
from weft_router.http.header_lines import header_lines
from weft_router.http.pool import ConnectionPool
from weft_router.http.upstream_request import UpstreamRequest

Json = dict[str, Any]

KIND_PATH: Final = "/apis/weft.dev/v1alpha1"
PLURAL: Final = "disagginferenceservices"
PAGE: Final = 50
"""Objects of one page of a list: a service of the largest size has a megabyte."""
MAX_PAGE: Final = 128 * 2**20
MAX_EVENT: Final = 8 * 2**20
LIST_S: Final = 30.0
WATCH_S: Final = 240
"""How long one watch lasts; the API server ends it."""
LATE_S: Final = 30.0
"""How much later it is given up from here."""
LOST_S: Final = 20
"""A connection on which the API server's machine acknowledges nothing for so long is lost."""
GONE: Final = 410


class KubeApiError(Exception):
    """The API server does not answer, or refuses; ``gone``: what was known is too old to go on from."""

    def __init__(self, message: str, *, gone: bool = False) -> None:
        super().__init__(message)
        self.gone = gone


class KubeApi:
    """The API server, as far as a gateway asks it."""

    def __init__(self, access: ApiAccess) -> None:
        self._access = access
        self._pool: ConnectionPool | None = None

    async def pages(self, namespace: str, selector: str) -> AsyncIterator[Json]:
        """Yield all services of a namespace, or of all (""), in pages as the API server sends them.

        Raises:
            KubeApiError: it did not.
        """
        query = {"limit": str(PAGE), **({"labelSelector": selector} if selector else {})}
        while True:
            page = await self._get(_path(namespace, query))
            yield page
            query["continue"] = (page.get("metadata") or {}).get("continue") or ""
            if not query["continue"]:
                return

    async def watch(self, namespace: str, selector: str, since: str, take: Callable[[Json], None]) -> None:
        """Have ``take`` called with each event after the version ``since``, until the API server ends the watch.

        Raises:
            KubeApiError: it refused, or the connection broke. What ``take`` raises comes as it is.
        """
        query = {
            "watch": "1", "resourceVersion": since, "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_S),
            **({"labelSelector": selector} if selector else {}),
        }  # fmt: skip
        leg = UpstreamRequest(first_s=WATCH_S + LATE_S)
        events = _Events(leg, take)
        pool = self._open()
        pool.send(
            leg, pool.origin(self._access.url), _path(namespace, query), b"", events, lines=self._lines(), method="GET"
        )
        try:
            await leg
        except UpstreamFailedError as error:
            await self._failed(error)
            if events.failure is not None:
                raise events.failure from error
            raise KubeApiError(f"the watch broke off ({error})") from error
        if events.status != 200:
            raise _refusal(events.status, events.rest)

    async def close(self) -> None:
        """Close the connections."""
        if self._pool is not None:
            await self._pool.close()

    async def _get(self, path: str) -> Json:
        pool = self._open()
        try:
            answer = await pool.call(
                UpstreamRequest(first_s=LIST_S), pool.origin(self._access.url), path, limit=MAX_PAGE,
                lines=self._lines(), method="GET", resend=True,
            )  # fmt: skip
        except UpstreamFailedError as error:
            await self._failed(error)
            raise KubeApiError(f"the API server does not answer ({error})") from error
        if answer.status != 200:
            raise _refusal(answer.status, answer.body)
        try:
            return cast(Json, orjson.loads(answer.body))
        except orjson.JSONDecodeError as error:
            raise KubeApiError("the API server's answer is not JSON") from error

    async def _failed(self, error: UpstreamFailedError) -> None:
        """Start again where nobody could connect: the certificate of the authority may be another one."""
        if error.reason == "connect":
            pool, self._pool = self._pool, None
            if pool is not None:
                await pool.close()

    def _open(self) -> ConnectionPool:
        if self._pool is None:
            access = self._access
            context = None
            if access.url.startswith("https:"):
                try:
                    context = ssl.create_default_context(cafile=access.ca_file)
                except OSError as error:
                    raise KubeApiError(f"{access.ca_file}: cannot be read ({error.strerror})") from error
            self._pool = ConnectionPool(connect_s=5.0, keepalive_s=30.0, tls=context, lost_s=LOST_S)
        return self._pool

    def _lines(self) -> str:
        """Return the header lines of a request; the kubelet renews the token, so it is read each time."""
        try:
            token = self._access.token_file.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise KubeApiError(f"{self._access.token_file}: cannot be read ({type(error).__name__})") from error
        return header_lines({"Authorization": f"Bearer {token}", "Accept": "application/json", "User-Agent": "weft"})


class _Events:
    """Takes the lines of a watch, one event each."""

    def __init__(self, leg: UpstreamRequest, take: Callable[[Json], None]) -> None:
        self._leg = leg
        self._take = take
        self.status = 0
        self.rest = b""
        """What came after the last whole line; of a refusal, all of it."""
        self.failure: Exception | None = None
        """What ended the watch from here."""

    def head(self, status: int, headers: dict[str, str]) -> None:
        """Take the head."""
        del headers
        self.status = status

    def data(self, chunk: bytes) -> None:
        """Take a piece of the body."""
        lines: list[bytes] = []
        self.rest += chunk
        if self.status == 200:
            *lines, self.rest = self.rest.split(b"\n")
        if len(self.rest) > MAX_EVENT:
            self._end(KubeApiError(f"an event has more than {MAX_EVENT} bytes"))
            return
        for line in lines:
            if line.strip() and self.failure is None:
                try:
                    self._take(orjson.loads(line))
                except Exception as error:  # noqa: BLE001 - it goes to whoever watches
                    self._end(error)

    def _end(self, error: Exception) -> None:
        self.failure = error
        self._leg.fail("refused", str(error))


def _path(namespace: str, query: dict[str, str]) -> str:
    scope = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    return f"{KIND_PATH}{scope}/{PLURAL}?{urlencode(query)}"


def _refusal(status: int, body: bytes) -> KubeApiError:
    """Return the error of an answer that is none; the API server says why in a Status object."""
    try:
        message = str(orjson.loads(body)["message"])[:300]
    except (orjson.JSONDecodeError, LookupError, TypeError):
        message = ""
    return KubeApiError(f"the API server answered {status}: {message}", gone=status == GONE)
