"""Put a gateway together: where its services come from, how it reaches them, and what it tells them of its clients."""

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final

from weft_router.auth.access_control import AccessControl
from weft_router.config import ConfigError
from weft_router.config.gateway import GatewayConfig, GatewaySettings
from weft_router.context import COMPILED, Context
from weft_router.gateway.kube_api import KubeApi
from weft_router.gateway.service_file import ServiceFile
from weft_router.gateway.service_source import ServiceSource
from weft_router.gateway.service_watch import ServiceWatch
from weft_router.http.pool import ConnectionPool
from weft_router.roles.gateway import Gateway
from weft_router.roles.server import Server
from weft_router.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from weft_router.gateway.hop_token import HopTokens

KEEPALIVE_S: Final = 30.0
LOST_S: Final = 20
"""Seconds after which a coordinator is lost whose machine does not answer, while others may serve the next request."""


def build_gateway(settings: GatewaySettings, *, source: ServiceSource | None = None) -> tuple[Server, Gateway]:
    """Return the server and application of a gateway; ``source`` is in place of the configured one.

    Raises:
        ConfigError: a file that the configuration names cannot be used.
    """
    config = settings.config
    metrics = Metrics()
    metrics.compiled.set(COMPILED)
    context = Context(metrics, AccessControl(settings))
    pool = ConnectionPool(
        connect_s=config.timeouts.connect, keepalive_s=KEEPALIVE_S, tls=_trusted(config), lost_s=LOST_S
    )
    app = Gateway(settings, context, source=source or _source(settings), pool=pool, tokens=_tokens(config))
    return Server(settings, context, app), app


def _source(settings: GatewaySettings) -> ServiceSource:
    if settings.api is None:
        return ServiceFile(Path(settings.config.services_file))
    return ServiceWatch(settings.config.kubernetes, KubeApi(settings.api))


def _tokens(config: GatewayConfig) -> "HopTokens | None":
    if config.hop is None:
        return None
    from weft_router.gateway.hop_token import HopTokens  # whose library takes memory that not every gateway needs

    return HopTokens(config.hop)


def _trusted(config: GatewayConfig) -> ssl.SSLContext | None:
    """Return what services with TLS are verified by, None for the system's authorities."""
    if not config.upstream_ca_file:
        return None
    context = ssl.create_default_context()
    try:
        context.load_verify_locations(cafile=config.upstream_ca_file)
    except OSError as error:  # of which ssl's errors are some
        raise ConfigError(
            f"upstreamCaFile={config.upstream_ca_file}: holds no certificates in PEM that can be read "
            f"({error.strerror or error}); check the path"
        ) from error
    return context
