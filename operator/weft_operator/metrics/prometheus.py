"""Query a Prometheus server: the only module that uses its client. Calls block, have timeouts, and are not retried.

The next poll comes in seconds, so a retry would only occupy a thread.
"""

import math
import re
import ssl
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import requests
from prometheus_api_client.exceptions import PrometheusApiClientException
from prometheus_api_client.prometheus_connect import PrometheusConnect

from weft_operator.api.prometheus import HEADER_VALUE
from weft_operator.metrics.address_guard import restrict
from weft_operator.metrics.bounded_http import Budget, BudgetAdapter, TooLargeError, TooSlowError, whole
from weft_operator.metrics.credentials import AUTH_FIELD, Credentials, read_file
from weft_operator.metrics.observation import NoMetricsError
from weft_operator.metrics.queries import CLOCK

CONNECT_S = 3.0
READ_S = 5.0
QUERY_BUDGET_S = 15.0
"""Timeout of all queries of one poll together."""


class _TokenFile(requests.auth.AuthBase):
    """Sends the token of a file, which is read for each request."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        token = read_file(self._path)
        if not re.fullmatch(HEADER_VALUE, token):
            raise NoMetricsError(
                "PrometheusUnauthorized",
                f"the operator's file {self._path} is empty, or holds no token; check the chart's values of prometheus",
            )
        request.headers["Authorization"] = f"Bearer {token}"
        return request


def ask(url: str, credentials: Credentials, queries: Sequence[str]) -> tuple[object, list[object]]:
    """Return the server's time and its results to the queries, all at that time.

    Raises:
        NoMetricsError: there is no usable answer.
    """
    with Budget(QUERY_BUDGET_S) as budget:
        try:
            with _connect(url, credentials, budget) as server:
                clock = server.custom_query(CLOCK, params=_OPTIONS)
                at = {**_OPTIONS, "time": _moment(clock)}
                return clock, [server.custom_query(query, params=at) for query in queries]
        except NoMetricsError:
            raise
        except TooSlowError as error:
            raise _too_slow(url) from error
        except (requests.RequestException, TimeoutError) as error:
            if budget.passed:
                raise _too_slow(url) from error
            if not isinstance(error, (requests.ConnectionError, requests.Timeout, TimeoutError)):
                raise _no_prometheus(url, error) from error
            raise NoMetricsError(
                "PrometheusUnreachable",
                f"no answer from {_shown(url)} ({_why(error)}); check that it runs, the URL, and network policies",
            ) from error
        except TooLargeError as error:
            raise NoMetricsError(
                "QueryFailed", f"an answer of {_shown(url)} {error}, so it is not read; check the URL and its path"
            ) from error
        except (
            PrometheusApiClientException,
            ArithmeticError,
            LookupError,
            TypeError,
            ValueError,
            RecursionError,
        ) as error:
            raise _no_prometheus(url, error) from error


def _moment(clock: Any) -> str:
    """Return the server's time as a parameter of further queries; it must be a number and nothing else."""
    moment = float(clock[1])
    if not math.isfinite(moment):
        raise ValueError("the server's time is no number")
    return repr(moment)


def _too_slow(url: str) -> NoMetricsError:
    return NoMetricsError("PrometheusUnreachable", f"{_shown(url)} answers too slowly; look at its load")


def _no_prometheus(url: str, error: Exception) -> NoMetricsError:
    return NoMetricsError(
        "QueryFailed",
        f"{_shown(url)} did not answer as Prometheus does ({type(error).__name__}); check the URL and its path",
    )


_OPTIONS: Mapping[str, str] = {"timeout": f"{READ_S:g}s", "partial_response": "false"}
"""Otherwise Thanos would return partial results, which look like less load."""


def _connect(url: str, credentials: Credentials, budget: Budget) -> PrometheusConnect:
    session = requests.Session()
    session.trust_env = False
    session.max_redirects = 0
    session.hooks["response"] = [lambda response, **_: _read(response, budget)]
    base = url.rstrip("/")
    bearer = {"Authorization": f"Bearer {credentials.token}"} if credentials.token else {}
    options: dict[str, Any] = {
        "headers": {**credentials.headers, **bearer} or None,
        "auth": _auth(credentials),
        "timeout": (CONNECT_S, READ_S),
    }
    server = PrometheusConnect(url=base, session=session, **options)
    # Replaces the client's own adapter, which retries and has no time budget.
    session.mount(base, BudgetAdapter(budget, _trust(credentials.ca) if credentials.ca else None))
    if credentials.foreign:
        restrict(session)
    return server


def _auth(credentials: Credentials) -> tuple[str, str] | _TokenFile | None:
    """Return the authentication where headers have none; a service's Secret goes before the token file."""
    if credentials.token:
        return None
    if credentials.user:
        return credentials.user, credentials.password
    return _TokenFile(credentials.token_file) if credentials.token_file else None


def _trust(ca: str) -> ssl.SSLContext:
    """Return a TLS context that trusts the certificates of a Secret or a ConfigMap in addition to the usual ones."""
    context = ssl.create_default_context()
    try:
        context.load_verify_locations(cadata=ca)
    except (ssl.SSLError, ValueError) as error:
        raise NoMetricsError(
            "PrometheusUnauthorized",
            f"there is no certificate in PEM form to trust; correct ca.crt of {AUTH_FIELD}, or the chart's "
            "prometheus.ca",
        ) from error
    return context


def _read(response: requests.Response, budget: Budget) -> requests.Response:
    """Return a response with its body; the body of an error is not read."""
    try:
        _check_status(response)
    except NoMetricsError:
        response.close()
        raise
    return whole(response, budget)


def _check_status(response: requests.Response) -> None:
    if response.status_code in (401, 403):
        raise NoMetricsError(
            "PrometheusUnauthorized",
            f"{_shown(response.url)} answers {response.status_code}; give a Secret with a token, or with username and "
            f"password, in {AUTH_FIELD}, and a tenant in headers beside it where the server has tenants",
        )
    if response.status_code == 429 or response.status_code >= 500:
        raise NoMetricsError(
            "PrometheusUnreachable", f"{_shown(response.url)} answers {response.status_code}; look at its log"
        )
    if response.status_code != 200:
        raise NoMetricsError(
            "QueryFailed", f"{_shown(response.url)} answers {response.status_code}; check the URL and its path"
        )


def _shown(url: str) -> str:
    """Return a URL without parts that may be secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _why(error: Exception) -> str:
    if isinstance(error, requests.exceptions.SSLError):
        return "its certificate is not trusted; put ca.crt into the Secret of authSecretRef, or set the chart's ca"
    return "it took too long" if isinstance(error, (requests.Timeout, TimeoutError)) else "no connection"
