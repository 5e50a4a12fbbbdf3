"""Pass requests for embeddings and ranks to the service that makes them, where one is configured."""

import logging
from collections.abc import Callable
from time import monotonic
from typing import Final

import orjson

from weft_router.config import RouterConfig
from weft_router.errors import SHUTTING_DOWN, ApiError, NotFoundError, UpstreamFailedError
from weft_router.http.exchange import Exchange
from weft_router.http.pool import ConnectionPool
from weft_router.http.upstream_request import UpstreamRequest
from weft_router.limits.admission import AdmissionPermit
from weft_router.openai.body import Json
from weft_router.roles.body_reader import read_body

log = logging.getLogger(__name__)

PATHS: Final = ("/v1/embeddings", "/v1/rerank", "/v2/rerank", "/rerank", "/v1/score")
KEEPALIVE_S: Final = 30.0


class PoolingEndpoint:
    """The endpoints of a front that another service answers."""

    def __init__(self, config: RouterConfig, *, admit: Callable[[Exchange, Json], AdmissionPermit]) -> None:
        self._url = config.pooling_url
        self._service = config.service
        self._timeout_s = config.timeouts.total
        self._most_bytes = config.limits.max_reply_bytes
        self._most_nodes = config.limits.max_body_nodes
        self._admit = admit
        self._pool = ConnectionPool(connect_s=config.timeouts.connect, keepalive_s=KEEPALIVE_S)

    async def serve(self, exchange: Exchange) -> None:
        """Answer with what the other service says.

        Raises:
            ApiError: there is no such service, it does not answer, or the caller may not ask now.
        """
        if not self._url:
            raise NotFoundError(
                f"the model of {self._service} generates text and has no {exchange.path}; ask a service with an "
                "embedding or ranking model, or whoever runs this one to name it in spec.coordinator.poolingUrl"
            )
        body = await read_body(exchange, self._most_nodes)
        admitted = self._admit(exchange, body)
        try:
            answer = await self._pool.call(
                UpstreamRequest(first_s=self._timeout_s), self._pool.origin(self._url), exchange.path,
                orjson.dumps(body), limit=self._most_bytes, resend=True,
            )  # fmt: skip
        except UpstreamFailedError as error:
            log.warning("pooling_failed", extra={"reason": error.reason})
            raise ApiError(
                f"the service for {exchange.path} did not answer ({error.reason}); try again", status=502,
                kind="server_error",
            ) from error  # fmt: skip
        finally:
            admitted.done(monotonic())
        exchange.reply(answer.status, answer.body, content_type=answer.headers.get("content-type", "application/json"))

    def terminate(self) -> None:
        """End the requests under way: this process shuts down."""
        self._pool.terminate(SHUTTING_DOWN)

    async def close(self) -> None:
        """Close the connections."""
        await self._pool.close()
