"""Coordinators: scaling, authentication, request limits, TLS, and telemetry of routers."""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from weft_core.durations import parse_duration
from weft_core.request_fields import ROUTER_FIELD_PREFIXES, ROUTER_FIELDS
from weft_operator.api.base import ApiModel, Rule
from weft_operator.api.capacity import LabelValue, Toleration
from weft_operator.api.engine_parts import Resources
from weft_operator.api.fields import Duration, ObjectName
from weft_operator.api.references import ConfigMapKey, SecretKey, SecretName
from weft_operator.api.routing import Rates

Claim = Annotated[str, StringConstraints(min_length=1, max_length=128)]
Algorithm = Literal["RS256", "ES256", "EdDSA"]
AllowedField = Annotated[
    str, StringConstraints(pattern=r"^[a-zA-Z][a-zA-Z0-9_]*(\.[a-zA-Z][a-zA-Z0-9_]*)?$", max_length=64)
]
MediaHost = Annotated[
    str,
    StringConstraints(
        pattern=r"^(\*\.)?([a-z0-9]([-a-z0-9]*[a-z0-9])?\.)+[a-z]([-a-z0-9]*[a-z0-9])?(:[0-9]{1,5})?$", max_length=253
    ),
]

PoolingUrl = Annotated[str, StringConstraints(pattern=r"^https?://[^\s/?#@]+$", max_length=253)]
Origin = Annotated[str, StringConstraints(pattern=r"^(\*|https?://[a-z0-9.\[\]:-]+)$", max_length=253)]

_ROUTER_FIELD = f"(?i)^(({'|'.join(ROUTER_FIELDS)})([.]|$)|{'|'.join(ROUTER_FIELD_PREFIXES)})"
"""The pattern of an allowed field that would be taken out all the same."""


class Jwt(ApiModel):
    """Tokens that an identity provider signed."""

    issuer: Annotated[str, StringConstraints(pattern=r"^\S+$", min_length=1, max_length=512)]
    """The issuer that a token must name."""
    audiences: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=256)]], Field(min_length=1, max_length=16)
    ]
    """Audiences of which a token must name one."""
    jwks_uri: Annotated[str, StringConstraints(pattern=r"^https://\S+$", max_length=1024)] | None = None
    """Where the provider publishes its keys."""
    jwks_config_map_ref: ConfigMapKey | None = None
    """A ConfigMap with the keys, instead of jwksUri."""
    algorithms: Annotated[list[Algorithm], Field(min_length=1, max_length=3)] | None = None
    """Algorithms that tokens may be signed with; all three if absent."""
    tenant_claim: Claim = "sub"
    """Claim that names the tenant."""
    class_claim: Claim | None = None
    """Claim that names the class of the token's requests."""
    limits_claim: Claim | None = None
    """Claim that limits the token's holder as a line of API keys does: an object with rps, tpm, concurrent and weight,
    and with key, by which rates are counted."""
    leeway: Duration = "30s"
    """How far the clocks of provider and service may differ."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.jwksUri) != has(self.jwksConfigMapRef)",
            "spec.coordinator.auth.jwt: give exactly one of jwksUri and jwksConfigMapRef",
            lambda j: (j.jwks_uri is None) != (j.jwks_config_map_ref is None),
        ),
        Rule(
            "!has(self.jwksUri) || !self.jwksUri.contains('@')",
            "spec.coordinator.auth.jwt.jwksUri: must hold no user name or password; remove them",
            lambda j: j.jwks_uri is None or "@" not in j.jwks_uri,
        ),
        Rule(
            "duration(self.leeway) >= duration('0s') && duration(self.leeway) <= duration('5m')",
            "spec.coordinator.auth.jwt.leeway: must be at most 5m; clocks that differ more need a time server",
            lambda j: parse_duration(j.leeway) <= 300,
        ),
    )


class Auth(ApiModel):
    """Who may send requests: holders of an API key or of a token; everyone where neither is set."""

    api_key_secret_ref: SecretKey | None = None
    """Secret key that holds the accepted API keys, one per line; docs/router.md says what a line may hold."""
    jwt: Jwt | None = None
    """Tokens that an identity provider signed."""


class Tls(ApiModel):
    """TLS of the front door; the Service then listens on port 443."""

    secret_ref: SecretName
    """Secret of type kubernetes.io/tls; a renewed certificate is used without a restart."""
    min_version: Literal["VersionTLS12", "VersionTLS13"] = "VersionTLS12"
    """Oldest version of TLS that is spoken."""


class RequestLimits(ApiModel):
    """Bounds on one request and one client; beyond them a request is refused with a 4xx."""

    max_body_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = 32 << 20
    """Size of a request body."""
    max_n: Annotated[int, Field(ge=1, le=128)] = 8
    """Most answers of one request (n)."""
    max_output_tokens: Annotated[int, Field(ge=1, le=10_485_760)] | None = None
    """Tokens of one answer; as many as model.maxModelLen if absent."""
    max_connections: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Clients connected to one coordinator process; 10000 if absent."""
    max_body_nodes: Annotated[int, Field(ge=1024, le=100_000_000)] | None = None
    """Values in the JSON of a request body, one more for a name, four for an array or object; 200000 if absent.

    A prompt given as token ids has one for each.
    """
    max_bytes_in_flight: Annotated[int, Field(ge=65536, le=1 << 40)] | None = None
    """Bytes of requests and unread answers that clients may make one router process hold; a quarter of its container's
    memory limit if absent."""
    rates: Rates | None = None
    """Rates for each API key or token that has none of its own."""
    quarantine: Duration | None = None
    """How long a request that crashed an engine is refused; 10m if absent; 0s: never."""
    max_header_bytes: Annotated[int, Field(ge=1024, le=1 << 20)] | None = None
    """All headers of a request together; 64 KiB if absent."""
    idle_timeout: Duration | None = None
    """How long an engine may send nothing within a stream, as while it makes the arguments of a tool; 5m if absent."""
    total_timeout: Duration | None = None
    """The longest answer; 1h if absent."""
    keep_alive: Duration | None = None
    """A stream in which nothing was sent for so long gets a comment, so that no proxy cuts it; 15s if absent, never if
    0s."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.idleTimeout) || duration(self.idleTimeout) >= duration('1s')",
            "spec.coordinator.limits.idleTimeout: must be at least 1s; raise it, or leave it out",
            lambda limits: limits.idle_timeout is None or parse_duration(limits.idle_timeout) >= 1,
        ),
        Rule(
            "!has(self.totalTimeout) || duration(self.totalTimeout) >= duration('1s')",
            "spec.coordinator.limits.totalTimeout: must be at least 1s; raise it, or leave it out",
            lambda limits: limits.total_timeout is None or parse_duration(limits.total_timeout) >= 1,
        ),
    )


class Requests(ApiModel):
    """What requests may hold beyond what every client may send."""

    allowed_fields: Annotated[list[AllowedField], Field(max_length=64)] | None = None
    """Fields that change what an engine runs, loads or reads, and that are refused with a 400 otherwise: chat_template,
    vllm_xargs and others; chat_template_kwargs.NAME for one variable of templates, tools.mcp for a kind of tools that
    the engine itself runs, image_embeds for a kind of parts of messages. Fields of the router's own stay refused."""
    allowed_media_hosts: Annotated[list[MediaHost], Field(max_length=64)] | None = None
    """Hosts that engines may load media from, as HOST, HOST:PORT or *.DOMAIN; if absent, only from data: URLs. Engines
    follow no redirects then, where they can be told so (vLLM)."""
    media_over_http: bool | None = None
    """Whether without TLS, too."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!has(self.allowedFields) || self.allowedFields.all(f, !f.matches('{_ROUTER_FIELD}'))",
            "spec.coordinator.requests.allowedFields: names a field of the router's own, such as kv_transfer_params or "
            "session_id; these reach no engine whatever is allowed, so remove it",
            lambda r: not any(re.match(_ROUTER_FIELD, field) for field in r.allowed_fields or ()),
            culprit=lambda r: repr(next(field for field in r.allowed_fields if re.match(_ROUTER_FIELD, field))),
        ),
        Rule(
            "!has(self.mediaOverHttp) || has(self.allowedMediaHosts)",
            "spec.coordinator.requests.mediaOverHttp: says how allowedMediaHosts are asked; set these, or remove it",
            lambda r: r.media_over_http is None or r.allowed_media_hosts is not None,
        ),
    )


class Cors(ApiModel):
    """Web pages that may call the service from a browser."""

    allowed_origins: Annotated[list[Origin], Field(min_length=1, max_length=16)]
    """Origins as browsers name them: https://chat.example.com; "*" is every one."""


class CoordinatorScaling(ApiModel):
    """As many coordinators as the plan needs: the operator sets their number, so no autoscaler may."""

    max: Annotated[int, Field(ge=1, le=50)]
    """Most coordinator pods; spec.coordinator.replicas is the fewest."""
    rounds_per_second: Annotated[float, Field(gt=0, le=10_000)] = 50
    """Rounds a second that one pod is reckoned with; the plan needs pods for the most sessions that it holds the SLO
    at."""


class Coordinator(ApiModel):
    """The front door."""

    replicas: Annotated[int, Field(ge=1, le=50)] = 2
    """Coordinator pods; the fewest where scaling is set."""
    scaling: CoordinatorScaling | None = None
    """More coordinators for plans that carry more; always replicas of them if absent."""
    resources: Resources = Resources(requests={"cpu": "100m", "memory": "128Mi"}, limits={"memory": "512Mi"})
    """CPU and memory of a coordinator."""
    node_selector: Annotated[dict[str, LabelValue], Field(max_length=16)] = {}  # noqa: RUF012 - pydantic copies it
    """Labels of the nodes that coordinators run on."""
    tolerations: Annotated[list[Toleration], Field(max_length=16)] = []  # noqa: RUF012 - pydantic copies it
    """Taints of these nodes."""
    priority_class_name: ObjectName | None = None
    """PriorityClass of coordinators."""
    auth: Auth = Auth()
    """Who may send requests."""
    tls: Tls | None = None
    """TLS of the front door; plain HTTP if absent."""
    limits: RequestLimits = RequestLimits()
    """Bounds on one request and one client."""
    requests: Requests | None = None
    """What requests may hold beyond what every client may send."""
    pooling_url: PoolingUrl | None = None
    """A server of embedding or ranking models, http://NAME.NAMESPACE.svc:8000: /v1/embeddings, /v1/rerank and /v1/score
    of this service are passed to it, without the caller's credentials. They are refused if absent."""
    cors: Cors | None = None
    """Web pages that may call the service from a browser; none if absent."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.scaling) || self.scaling.max >= self.replicas",
            "spec.coordinator.scaling.max: is below replicas, the fewest; raise it or lower replicas",
            lambda c: c.scaling is None or c.scaling.max >= c.replicas,
        ),
    )


class AccessLog(ApiModel):
    """One structured line for each request."""

    mode: Literal["Stderr", "Stdout", "Off"] = "Stderr"
    """Where the lines go; Stderr is where all other lines of a router go."""
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 1
    """Share of the lines of successful requests that is written; failures always are."""


class Telemetry(ApiModel):
    """Telemetry of routers in addition to metrics."""

    otlp_endpoint: Annotated[str, StringConstraints(pattern=r"^https?://[^\s@]+$", max_length=1024)] | None = None
    """Base URL of an OTLP/HTTP collector for traces, such as http://collector.monitoring:4318; no traces if absent."""
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Share of rounds that begin a trace."""
    access_log: AccessLog | None = None
    """One structured line for each request; all to standard error if absent."""
