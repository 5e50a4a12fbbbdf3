"""Ask a Prometheus server: the only module that knows its client. Calls block, end within bounds, and are not repeated.

The next look comes in seconds, so a retry inside one would only hold a thread that others wait for.
"""

import base64
import binascii
import io
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import requests
from prometheus_api_client.exceptions import PrometheusApiClientException
from prometheus_api_client.prometheus_connect import PrometheusConnect
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from weft_core.authority import bracketed
from weft_operator.measuring.observation import BlindError
from weft_operator.measuring.queries import CLOCK

CONNECT_S = 3.0
READ_S = 5.0
LOOK_S = 15.0
"""Longest that all queries of one look may take together."""

MAX_BYTES = 16 * 1024 * 1024

_AUTH = "spec.planning.prometheus.authSecretRef"


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a Secret holds for a Prometheus server; nothing of it is ever shown."""

    token: str = field(default="", repr=False)
    user: str = ""
    password: str = field(default="", repr=False)
    ca: str = field(default="", repr=False)
    """PEM certificates to trust besides the usual ones."""


def credentials_of(secret: Mapping[str, Any] | None, name: str) -> Credentials:
    """Return what the Secret ``authSecretRef`` names holds: token, or username and password; and ca.crt.

    Raises:
        BlindError: PrometheusUnauthorized, when it is not there or holds nothing of that.
    """
    data = (secret or {}).get("data") or {}
    found = Credentials(
        token=_text(data, "token"),
        user=_text(data, "username"),
        password=_text(data, "password"),
        ca=_text(data, "ca.crt"),
    )
    if not (found.token or found.user or found.ca):
        raise BlindError(
            "PrometheusUnauthorized",
            f"{_AUTH}: there is no Secret {name} with a non-empty key token, username or ca.crt in the service's "
            "namespace; create it or correct the reference",
        )
    return found


def _text(data: Mapping[str, Any], key: str) -> str:
    try:
        return base64.b64decode(data.get(key) or "", validate=True).decode().strip()
    except (binascii.Error, ValueError):
        return ""


def ask(url: str, credentials: Credentials, queries: Sequence[str]) -> tuple[object, list[object]]:
    """Return the server's time and its results to the queries, all at that time.

    Raises:
        BlindError: there is no answer, or none that can be used.
    """
    deadline = time.monotonic() + LOOK_S
    try:
        with _connect(url, credentials, deadline) as server:
            clock = server.custom_query(CLOCK, params=_OPTIONS)
            at = {**_OPTIONS, "time": str(clock[1])}
            return clock, [server.custom_query(query, params=at) for query in queries]
    except BlindError:
        raise
    except (requests.ConnectionError, requests.Timeout, TimeoutError) as error:
        raise BlindError(
            "PrometheusUnreachable",
            f"no answer from {_shown(url)} ({_why(error)}); check that it runs, the URL, and network policies",
        ) from error
    except (requests.RequestException, PrometheusApiClientException, LookupError, TypeError, ValueError) as error:
        raise BlindError(
            "QueryFailed",
            f"{_shown(url)} did not answer as Prometheus does ({type(error).__name__}); check the URL and its path",
        ) from error


_OPTIONS: Mapping[str, str] = {"timeout": f"{READ_S:g}s", "partial_response": "false"}
"""Thanos would otherwise answer with what it could reach, which looks like less load."""


def _connect(url: str, credentials: Credentials, deadline: float) -> PrometheusConnect:
    session = requests.Session()
    session.trust_env = False
    session.max_redirects = 0
    session.hooks["response"] = [lambda response, **_: _bounded(response, deadline)]
    base = url.rstrip("/")
    options: dict[str, Any] = {
        "headers": {"Authorization": f"Bearer {credentials.token}"} if credentials.token else None,
        "auth": (credentials.user, credentials.password) if credentials.user and not credentials.token else None,
        "timeout": (CONNECT_S, READ_S),
    }
    server = PrometheusConnect(url=base, retry=Retry(total=0), session=session, **options)
    if credentials.ca:
        session.mount(base, _Trusting(credentials.ca, max_retries=Retry(total=0)))
    return server


class _Trusting(HTTPAdapter):
    """Trusts the certificates of a Secret, which are in no file."""

    def __init__(self, ca: str, **options: Any) -> None:
        self._context = ssl.create_default_context()
        try:
            self._context.load_verify_locations(cadata=ca)
        except ssl.SSLError as error:
            raise BlindError(
                "PrometheusUnauthorized", f"{_AUTH}: ca.crt holds no PEM certificate; correct it"
            ) from error
        super().__init__(**options)

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        """Use our certificates for every connection."""
        super().init_poolmanager(*args, **options, ssl_context=self._context)


def _bounded(response: requests.Response, deadline: float) -> requests.Response:
    """Return an answer that has been read as a whole.

    Raises:
        BlindError: it says that something is wrong, is too long or comes too slowly.
    """
    try:
        _judge(response)
        body = bytearray()
        for part in response.iter_content(65536):
            body += part
            if len(body) > MAX_BYTES:
                raise BlindError("QueryFailed", f"an answer of {_shown(response.url)} is longer than {MAX_BYTES} bytes")
            if time.monotonic() > deadline:
                raise BlindError(
                    "PrometheusUnreachable", f"{_shown(response.url)} answers too slowly; look at its load"
                )
    finally:
        response.close()
    whole = requests.Response()
    whole.__dict__.update(response.__dict__, raw=io.BytesIO(body), _content=False, _content_consumed=False)
    return whole


def _judge(response: requests.Response) -> None:
    if response.status_code in (401, 403):
        raise BlindError(
            "PrometheusUnauthorized",
            f"{_shown(response.url)} answers {response.status_code}; give a Secret with a token, or with username and "
            f"password, in {_AUTH}",
        )
    if response.status_code == 429 or response.status_code >= 500:
        raise BlindError(
            "PrometheusUnreachable", f"{_shown(response.url)} answers {response.status_code}; look at its log"
        )


def _shown(url: str) -> str:
    """Return a URL without what may be secret in it."""
    parts = urlsplit(url)
    host = bracketed(parts.hostname or "")
    return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}"


def _why(error: Exception) -> str:
    if isinstance(error, requests.exceptions.SSLError):
        return "its certificate is not trusted; put ca.crt into the Secret of authSecretRef"
    return "it took too long" if isinstance(error, (requests.Timeout, TimeoutError)) else "no connection"
