"""Query a Prometheus without revealing more about a server that a service names than whether it is a Prometheus.

The operator can reach addresses that authors of services cannot. Messages such as "refused", "timed out" and "404"
would make it a port scanner, so all of these are one message; the operator's log has the details.
"""

import logging
from collections.abc import Sequence
from urllib.parse import urlsplit

from weft_operator.metrics import prometheus
from weft_operator.metrics.credentials import Credentials
from weft_operator.metrics.observation import NoMetricsError

_MASKED_REASONS = ("PrometheusUnreachable", "QueryFailed")

log = logging.getLogger(__name__)


def ask(url: str, credentials: Credentials, queries: Sequence[str]) -> tuple[object, list[object]]:
    """Return the server's time and its results to the queries, all at that time.

    Raises:
        NoMetricsError: there is no usable answer.
    """
    try:
        return prometheus.ask(url, credentials, queries)
    except NoMetricsError as error:
        if not credentials.foreign or error.availability.reason not in _MASKED_REASONS:
            raise
        host = urlsplit(url).netloc.rpartition("@")[2]
        cause = error.__cause__
        why = "" if cause is None else f"{type(cause).__name__}: {cause}"
        log.info("foreign_prometheus", extra={"server": host, "reason": error.availability.message, "error": why})
    raise NoMetricsError(
        "PrometheusUnreachable",
        f"{urlsplit(url).scheme}://{host} does not answer as Prometheus; check the URL and its path, that it runs, "
        "its certificate (ca.crt in the Secret of authSecretRef) and network policies; the operator's log says why. "
        "Loopback and link-local addresses, metadata servers and the API server's Service are refused",
    )
