"""The way from an endpoint picker to decode workers: through the proxy first, and then, where that failed, its own."""

from time import time
from typing import Final

from weft_core.heartbeat import WorkerRecord
from weft_core.keys import derive
from weft_router.auth.passes import KEY_PURPOSE, PASS_HEADER, issue
from weft_router.config import Settings
from weft_router.engines.adapter import Adapter
from weft_router.errors import UpstreamFailedError
from weft_router.http.pool import ConnectionPool
from weft_router.picker.headers import MODEL_NAME, split_lines
from weft_router.picker.proxy_request import ProxyRequests
from weft_router.roles.prompt_list import PromptWriter
from weft_router.roles.relay import Relay, RelayedResponse, sidecar_message
from weft_router.rounds.regeneration_writer import RegenerationWriter
from weft_router.rounds.response_writer import ResponseWriter
from weft_router.sessions.round_request import RoundRequest
from weft_router.telemetry.metrics import Metrics

CONTENT_TYPE: Final = ("content-type", "application/json")


class ProxiedRelay(Relay):
    """Has the proxy carry the first attempt of each round.

    The proxy has then sent the request. Further attempts, and what is no round of a proxy's request (a round of one of
    several prompts, a short call), go over the picker's own connections, as a coordinator's do.
    """

    def __init__(
        self, settings: Settings, *, adapter: Adapter, pool: ConnectionPool, metrics: Metrics, requests: ProxyRequests
    ) -> None:
        super().__init__(settings.config, adapter=adapter, pool=pool, metrics=metrics)
        self._requests = requests
        self._key = derive(settings.token, KEY_PURPOSE)

    def endpoints(self, writer: ResponseWriter) -> frozenset[str] | None:
        """Return the endpoints that the proxy allows for a request; None where it allows all."""
        proxied = self._requests.get(writer.exchange)
        return None if proxied is None else proxied.subset

    def _send(self, record: WorkerRecord, request: RoundRequest, relayed: RelayedResponse) -> None:
        """Send a request to a worker; its answer goes where ``relayed`` takes it.

        Raises:
            UpstreamFailedError: the proxy cannot reach that worker; another one may serve the request.
        """
        exchange = relayed.writer.exchange
        own = isinstance(relayed.writer, PromptWriter | RegenerationWriter)
        proxied = None if own else self._requests.get(exchange)
        if proxied is None:
            super()._send(record, request, relayed)
            return
        endpoint = record.url.removeprefix("http://")
        if not proxied.takes(endpoint):
            raise UpstreamFailedError("refused", "the gateway's subset of endpoints does not have it")
        del self._requests[exchange]
        lines, body = sidecar_message(request, relayed)
        fields = split_lines(lines)
        headers = dict(fields)
        path = request.inference.path
        signed = issue(self._key, path=path, authority=endpoint, headers=headers, body=body, now=time())
        asked = str(exchange.facts.get("asked_model", request.inference.body["model"]))
        given = (*fields, (PASS_HEADER, signed), (MODEL_NAME, asked), CONTENT_TYPE)
        if exchange.path != path:
            given = (*given, (":path", path))
        proxied.send(endpoint, given, body, relayed)
