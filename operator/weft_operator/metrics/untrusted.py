"""Ask a Prometheus, and tell no author of a service more of a server that the author chose than whether it is one.

The operator reaches what authors cannot. From "refused", "timed out" and "answers 404" they would learn what listens
where, so all of these are one to them; the operator's log, which its administrators read, says which it was.
"""

import logging
from collections.abc import Sequence
from urllib.parse import urlsplit

from weft_operator.metrics import prometheus
from weft_operator.metrics.credentials import Credentials
from weft_operator.metrics.observation import NoMetricsError

_ALIKE = ("PrometheusUnreachable", "QueryFailed")

log = logging.getLogger(__name__)


def ask(url: str, credentials: Credentials, queries: Sequence[str]) -> tuple[object, list[object]]:
    """Return the server's time and its results to the queries, all at that time.

    Raises:
        NoMetricsError: there is no answer, or none that can be used.
    """
    try:
        return prometheus.ask(url, credentials, queries)
    except NoMetricsError as error:
        if not credentials.foreign or error.availability.reason not in _ALIKE:
            raise
        host = urlsplit(url).netloc.rpartition("@")[2]
        cause = error.__cause__
        why = "" if cause is None else f"{type(cause).__name__}: {cause}"
        log.info("foreign_prometheus", extra={"server": host, "reason": error.availability.message, "error": why})
    raise NoMetricsError(
        "PrometheusUnreachable",
        f"{urlsplit(url).scheme}://{host} gives no answer of a Prometheus; check the URL and its path, that it runs, "
        "its certificate (ca.crt in the Secret of authSecretRef) and network policies; the operator's log says more. "
        "It asks no loopback or link-local address, no metadata server and not the API server's Service",
    )
