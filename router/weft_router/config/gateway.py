"""gateway.json: one address for many services, where they are found, and how clients and services know each other."""

import os
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from weft_core.authority import http_url
from weft_router.config.engine import ModelConfig, TimeoutsConfig
from weft_router.config.front import AuthConfig, CorsConfig, LimitsConfig, TlsConfig
from weft_router.config.live import LiveConfig
from weft_router.config.observability import AccessLogConfig
from weft_router.config.process import Flags, listen_address, read_file
from weft_router.config.qos import Rates
from weft_router.config.section import ConfigError, Section, first_error
from weft_router.config.workers import parsed

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet puts a pod's token and the certificate of the API server's authority."""


class KubernetesConfig(Section):
    """The services of a cluster, which the gateway watches by its ServiceAccount."""

    namespaces: tuple[str, ...] = ()
    """Namespaces whose services are served; those of all namespaces if empty."""
    selector: str = Field(default="", max_length=1024)
    """A label selector that services must match, such as ``team=search``; all match if empty."""


class HopConfig(Section):
    """How services know whom the gateway has authenticated: by a token for one service and some minutes, signed by the
    gateway."""

    key_file: str = Field(min_length=1)
    """An Ed25519 private key in PEM, as ``python -m weft_router.gateway.hop_key FOLDER`` writes one."""
    issuer: str = Field(default="weft-gateway", min_length=1, max_length=256)
    """The token's ``iss``; its ``aud`` is the service, NAMESPACE/NAME, its ``sub`` the tenant."""
    seconds: float = Field(default=300.0, ge=30, le=3600)
    """How long a token is valid."""


class GatewayConfig(Section):
    """The file of a gateway; every field has a default, unknown fields are refused."""

    kubernetes: KubernetesConfig = Field(default_factory=KubernetesConfig)
    services_file: str = ""
    """A JSON or YAML file that lists the services, in place of the cluster's; read again when it changes."""
    hop: HopConfig | None = None
    auth: AuthConfig = Field(default_factory=AuthConfig)
    """Who may come in: keys and tokens. With it ``hop`` is needed. Without it
    services get the clients' own credentials."""
    upstream_ca_file: str = ""
    """Certificates to trust besides the system's, in PEM: of services with TLS, which must be valid for
    NAME.NAMESPACE.svc."""
    tls: TlsConfig | None = None
    cors: CorsConfig | None = None
    limits: LimitsConfig = Field(default_factory=LimitsConfig)
    """Of these: bodies, headers, connections and memory."""
    timeouts: TimeoutsConfig = Field(default_factory=TimeoutsConfig)
    """Of these: ``connect``, and what concerns clients. How long an answer may take is each service's own."""
    access_log: AccessLogConfig = Field(default_factory=AccessLogConfig)

    @model_validator(mode="after")
    def _one_hop(self) -> "GatewayConfig":
        authenticates = bool(self.auth.api_keys_file) or self.auth.jwt is not None
        if authenticates and self.hop is None:
            raise ValueError(
                "hop: a gateway that authenticates clients names their tenants to services by tokens; give hop.keyFile,"
                " or remove auth, and services get the clients' own credentials"
            )
        if self.hop is not None and not authenticates:
            raise ValueError("hop: there is nobody to name to services without auth; add auth, or remove hop")
        if self.limits.rates != Rates():
            raise ValueError("limits.rates: services limit rates; set spec.coordinator.limits.rates there")
        return self


class ListedService(Section):
    """A service that a file names."""

    name: str = Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
    """The service's own name."""
    namespace: str = Field(default="default", pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
    """With the name what it is called in logs, metrics and ``X-Weft-Service``: NAMESPACE/NAME."""
    url: str = Field(pattern=r"^https?://[^\s/?#@]+$")
    """Its coordinators, such as http://10.0.0.7:8080."""
    model: ModelConfig
    pooling: bool = False
    """Whether it answers requests for embeddings and ranks."""
    total: float = Field(default=3600.0, gt=0)
    """The longest answer, a wait for workers included, in seconds."""


class ServicesFile(Section):
    """The services of a file; of two with one name of a model the first has it."""

    services: tuple[ListedService, ...] = ()
    """The services; names of models that several have lead to the first of these."""

    @model_validator(mode="after")
    def _names(self) -> "ServicesFile":
        keys = [f"{one.namespace}/{one.name}" for one in self.services]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise ValueError(f"two services are {twice}; give each a name of its own")
        return self


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """Where the API server is, and the files by which it and this process know each other."""

    url: str
    token_file: Path
    ca_file: Path


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Everything a gateway's process needs to know about itself."""

    role: Literal["gateway"]
    config: GatewayConfig
    host: str
    port: int
    token: bytes = field(repr=False)
    """Random: nobody else is a router process of this one's service."""
    instance_id: str
    drain_s: float
    api: ApiAccess | None
    """None where a file lists the services."""
    url: str = ""
    processes: int = 1
    health_host: str = ""
    health_port: int = 0
    place: int = 0
    family: Path | None = None
    key_classes: Collection[str] | None = None
    """Services know the classes, not the gateway."""

    @property
    def api_keys_file(self) -> Path | None:
        """Return the file with the API keys."""
        name = self.config.auth.api_keys_file
        return Path(name) if name else None

    def live(self) -> LiveConfig | None:
        """Return None: keys, certificates and services are read again, the rest needs a restart."""
        return None


def load_gateway(flags: Flags, env: Mapping[str, str] = os.environ) -> GatewaySettings:
    """Put flags, environment and file together.

    Raises:
        ConfigError: something is missing or wrong; the message says what to set.
    """
    config = read_gateway(read_file(flags.config, "--config"), source=str(flags.config))
    host, port = listen_address(flags.listen, "--listen")
    health = ("", 0) if flags.health_listen is None else listen_address(flags.health_listen, "--health-listen")
    return GatewaySettings(
        role="gateway",
        config=config,
        host=host,
        port=port,
        token=secrets.token_bytes(32),
        instance_id=secrets.token_hex(8),
        drain_s=flags.drain_seconds,
        api=None if config.services_file else _api(env),
        processes=flags.processes,
        health_host=health[0],
        health_port=health[1],
    )


def read_gateway(raw: bytes, *, source: str) -> GatewayConfig:
    """Parse gateway.json, which may be YAML where a parser for it is installed.

    Raises:
        ConfigError: it is neither, or a field is unknown or out of range.
    """
    try:
        return GatewayConfig.model_validate(parsed(raw, source))
    except ValidationError as error:
        raise ConfigError(f"{source}: {first_error(error)}") from error


def read_services(raw: bytes, *, source: str) -> tuple[ListedService, ...]:
    """Parse the file that lists services.

    Raises:
        ConfigError: it is neither JSON nor YAML, or a field is unknown, missing or out of range.
    """
    try:
        return ServicesFile.model_validate(parsed(raw, source)).services
    except ValidationError as error:
        raise ConfigError(f"{source}: {first_error(error)}") from error


def _api(env: Mapping[str, str]) -> ApiAccess:
    host, port = env.get("KUBERNETES_SERVICE_HOST"), env.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConfigError(
            "servicesFile: there is no API server to ask for services outside of a cluster; name a file that lists them"
        )
    folder = Path(env.get("WEFT_SERVICE_ACCOUNT_FOLDER", str(ACCOUNT)))
    url = http_url(host, port).replace("http://", "https://", 1)
    return ApiAccess(url, folder / "token", folder / "ca.crt")
