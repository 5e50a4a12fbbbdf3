"""Ask a worker's sidecar for its readiness; no answer within a second means dead."""

from weft_router.errors import UpstreamFailedError
from weft_router.http.pool import ConnectionPool
from weft_router.http.upstream_request import UpstreamRequest
from weft_router.state.registry import Health

PROBE_TIMEOUT_S = 1.0


async def probe(pool: ConnectionPool, url: str) -> Health:
    """Return what the worker says of itself."""
    leg = UpstreamRequest(first_s=PROBE_TIMEOUT_S)
    try:
        answer = await pool.call(leg, pool.origin(url), "/readyz", limit=4096, method="GET", resend=True)
    except UpstreamFailedError:
        return "dead"
    return "ready" if answer.status == 200 else "busy"
