"""Send spans to an OpenTelemetry collector: JSON over HTTP, in batches, by a thread that nothing else waits for."""

import asyncio
import contextlib
import http.client
import logging
import os
import re
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import orjson

from weft_router.config import ConfigError, Settings, TelemetryConfig
from weft_router.config.server import FRONT_ROLES
from weft_router.telemetry.metrics import Metrics
from weft_router.telemetry.tracing import Attribute, Tracer, body_of

EVERY_S = 2.0
BATCH = 512
TIMEOUT_S = 5.0
LAST_S = 3.0
FIRST_REST_S, LONGEST_REST_S = 1.0, 30.0
COMPLAIN_EVERY_S = 60.0
_LATER = frozenset({429, 502, 503, 504})
"""What a collector answers that wants the same spans again (OTLP specification, HTTP, failures)."""
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

log = logging.getLogger(__name__)


class Exporter:
    """Takes a tracer's spans to a collector."""

    def __init__(
        self, tracer: Tracer, endpoint: str, *, resource: Mapping[str, Attribute], metrics: Metrics,
        env: Mapping[str, str] = os.environ,
    ) -> None:  # fmt: skip
        """Send to ``endpoint`` (its base URL); OTEL_EXPORTER_OTLP_HEADERS may name headers, a key for example."""
        parts = urlsplit(endpoint)
        self._tracer = tracer
        self._host, self._port = parts.hostname or "", parts.port
        path = parts.path.rstrip("/")
        self._path = path if path.endswith("/v1/traces") else path + "/v1/traces"
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._headers = {"Content-Type": "application/json", **_headers(env.get("OTEL_EXPORTER_OTLP_HEADERS", ""))}
        self._resource = resource
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="spans")
        self._exported = metrics.spans.labels("exported")
        self._dropped = metrics.spans.labels("dropped")
        self._complained = float("-inf")

    async def run(self) -> None:
        """Send what is there every two seconds; retries to a collector that is down back off."""
        rest = FIRST_REST_S
        while True:
            await asyncio.sleep(EVERY_S)
            while self._tracer.waiting:
                if await self.send():
                    rest = FIRST_REST_S
                else:
                    await asyncio.sleep(rest)
                    rest = min(2 * rest, LONGEST_REST_S)

    async def send(self) -> bool:
        """Send one batch; tell whether it is off our hands, taken or refused for good."""
        spans = self._tracer.waiting[:BATCH]
        if not spans:
            return True
        payload = orjson.dumps(body_of(spans, self._resource))
        status = await asyncio.get_running_loop().run_in_executor(self._thread, self._post, payload)
        if status == 0 or status in _LATER:
            self._complain(len(spans), status)
            return False
        del self._tracer.waiting[: len(spans)]
        if status == 200:
            self._exported.inc(len(spans))
        else:
            self._dropped.inc(len(spans))
            self._complain(len(spans), status)
        return True

    async def close(self) -> None:
        """Send what is left, while the collector takes it and for three seconds; the rest is dropped."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._send_all(), LAST_S)  # as ``Server.last_words``
        self._dropped.inc(len(self._tracer.waiting))
        self._tracer.waiting.clear()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _send_all(self) -> None:
        while self._tracer.waiting and await self.send():
            pass

    def _post(self, payload: bytes) -> int:
        """Return the collector's status, 0 when there was none."""
        connection = (
            http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
            if self._tls is None
            else http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT_S, context=self._tls)
        )
        try:
            connection.request("POST", self._path, payload, self._headers)
            answer = connection.getresponse()
            answer.read(65536)
            return answer.status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def _complain(self, spans: int, status: int) -> None:
        if monotonic() - self._complained >= COMPLAIN_EVERY_S:
            self._complained = monotonic()
            log.warning("spans_not_exported", extra={"spans": spans, "status": status or "no answer"})


def _headers(text: str) -> dict[str, str]:
    """Read headers as OpenTelemetry writes them: name=value, comma separated, percent-encoded.

    Raises:
        ConfigError: one of them is no valid HTTP header; its value may be a secret and is not shown.
    """
    found = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if equals and name.strip():
            found[unquote(name.strip())] = unquote(value.strip())
    if not all(_NAME.fullmatch(name) and value.isprintable() and value.isascii() for name, value in found.items()):
        raise ConfigError("OTEL_EXPORTER_OTLP_HEADERS: a name or value has characters that no header can hold")
    return found


class Telemetry(NamedTuple):
    """What a process that traces has: spans are made by the one and sent by the other."""

    tracer: Tracer
    exporter: Exporter


def open_telemetry(config: TelemetryConfig, *, settings: Settings, metrics: Metrics) -> Telemetry:
    """Return a tracer and its exporter for a process.

    Raises:
        ConfigError: the environment's headers for the collector make no sense.
    """
    front = settings.role in FRONT_ROLES
    tracer = Tracer(ratio=config.sample_ratio, front=front, metrics=metrics)
    resource = {
        "service.name": "weft-router",
        "service.namespace": settings.config.namespace,
        "service.instance.id": settings.instance_id,
        "weft.service": settings.config.service,
        "weft.role": settings.role if settings.role_file is None else "worker",
        "weft.worker": settings.worker or None,
        "k8s.node.name": settings.node or None,
    }
    return Telemetry(tracer, Exporter(tracer, config.otlp_endpoint, resource=resource, metrics=metrics))
