"""Ask a Prometheus server: the only module that knows its client. Calls block, end within bounds, and are not repeated.

The next look comes in seconds, so a retry inside one would only hold a thread that others wait for.
"""

import io
import re
import ssl
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import requests
from prometheus_api_client.exceptions import PrometheusApiClientException
from prometheus_api_client.prometheus_connect import PrometheusConnect
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from weft_operator.api.measuring import HEADER_VALUE
from weft_operator.measuring.credentials import AUTH_FIELD, Credentials, read_file
from weft_operator.measuring.observation import BlindError
from weft_operator.measuring.outbound import restrict
from weft_operator.measuring.queries import CLOCK

CONNECT_S = 3.0
READ_S = 5.0
LOOK_S = 15.0
"""Longest that all queries of one look may take together."""

MAX_BYTES = 16 * 1024 * 1024


class _TokenFile(requests.auth.AuthBase):
    """Sends the token that a file holds at the moment of each request."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        token = read_file(self._path)
        if not re.fullmatch(HEADER_VALUE, token):
            raise BlindError(
                "PrometheusUnauthorized",
                f"the operator's file {self._path} is empty, or holds no token; check the chart's values of prometheus",
            )
        request.headers["Authorization"] = f"Bearer {token}"
        return request


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
    bearer = {"Authorization": f"Bearer {credentials.token}"} if credentials.token else {}
    options: dict[str, Any] = {
        "headers": {**credentials.headers, **bearer} or None,
        "auth": _auth(credentials),
        "timeout": (CONNECT_S, READ_S),
    }
    server = PrometheusConnect(url=base, retry=Retry(total=0), session=session, **options)
    if credentials.ca:
        session.mount(base, _Trusting(credentials.ca, max_retries=Retry(total=0)))
    if credentials.foreign:
        restrict(session)
    return server


def _auth(credentials: Credentials) -> tuple[str, str] | _TokenFile | None:
    """Return how a request is signed where its headers do not do it; a service's Secret goes before the token file."""
    if credentials.token:
        return None
    if credentials.user:
        return credentials.user, credentials.password
    return _TokenFile(credentials.token_file) if credentials.token_file else None


class _Trusting(HTTPAdapter):
    """Trusts the certificates of a Secret or a ConfigMap besides the usual ones."""

    def __init__(self, ca: str, **options: Any) -> None:
        self._context = ssl.create_default_context()
        try:
            self._context.load_verify_locations(cadata=ca)
        except ssl.SSLError as error:
            raise BlindError(
                "PrometheusUnauthorized",
                f"there is no certificate in PEM form to trust; correct ca.crt of {AUTH_FIELD}, or the chart's "
                "prometheus.ca",
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
            f"password, in {AUTH_FIELD}, and a tenant in headers beside it where the server has tenants",
        )
    if response.status_code == 429 or response.status_code >= 500:
        raise BlindError(
            "PrometheusUnreachable", f"{_shown(response.url)} answers {response.status_code}; look at its log"
        )


def _shown(url: str) -> str:
    """Return a URL without what may be secret in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _why(error: Exception) -> str:
    if isinstance(error, requests.exceptions.SSLError):
        return "its certificate is not trusted; put ca.crt into the Secret of authSecretRef, or set the chart's ca"
    return "it took too long" if isinstance(error, (requests.Timeout, TimeoutError)) else "no connection"
