"""router.json as a whole: the file the operator renders for coordinators and sidecars."""

from dataclasses import dataclass

from pydantic import Field, ValidationError, model_validator

from weft_core.cost import CostProfile, CostProfileError
from weft_core.profile_json import profile_from_json
from weft_router.config.engine import AdapterConfig, EngineConfig, ModelConfig, SloConfig, TimeoutsConfig
from weft_router.config.front import AuthConfig, CorsConfig, HoldConfig, LimitsConfig, RequestsConfig, TlsConfig
from weft_router.config.observability import AccessLogConfig, RequestLogConfig, TelemetryConfig
from weft_router.config.qos import QosClass, QosConfig
from weft_router.config.routing import RoutingConfig
from weft_router.config.section import ConfigError, Section, first_error


@dataclass(frozen=True, slots=True)
class SessionClass:
    """All that holds for one class of requests, what is the service's own filled in."""

    name: str
    qos: QosClass
    routing: RoutingConfig
    slo: SloConfig


class RouterConfig(Section):
    """The file the operator renders; unknown fields are refused."""

    service: str = Field(min_length=1)
    """With the namespace, the name of its keys in Redis: ``weft:{namespace/service}:…``."""
    namespace: str = Field(min_length=1)
    """The service's namespace."""
    model: ModelConfig
    adapters: tuple[AdapterConfig, ...] | None = Field(default=None, max_length=64)
    """vllm, mock: LoRA adapters that sidecars load into their engines while these run. They unload all others; absent:
    they load and unload none."""
    engine: EngineConfig
    slo: SloConfig
    routing: RoutingConfig = Field(default_factory=RoutingConfig)
    qos: QosConfig = Field(default_factory=QosConfig)
    limits: LimitsConfig = Field(default_factory=LimitsConfig)
    requests: RequestsConfig = Field(default_factory=RequestsConfig)
    timeouts: TimeoutsConfig = Field(default_factory=TimeoutsConfig)
    auth: AuthConfig = Field(default_factory=AuthConfig)
    tls: TlsConfig | None = None
    cors: CorsConfig | None = None
    pooling_url: str = Field(default="", pattern=r"^(https?://[^\s/?#@]+)?$")
    """The service that answers requests for embeddings and ranks; they are refused if empty."""
    hold: HoldConfig | None = None
    telemetry: TelemetryConfig = Field(default_factory=TelemetryConfig)
    access_log: AccessLogConfig = Field(default_factory=AccessLogConfig)
    request_log: RequestLogConfig = Field(default_factory=RequestLogConfig)
    profile: dict[str, object]
    """The cost profile that policies predict with."""
    profiles: dict[str, dict[str, object]] = Field(default_factory=dict)
    """The profile of every planned pool, where pools differ."""
    plan_revision: str = ""
    """Workers exchange KV within one revision only; WEFT_REVISION wins over it."""

    @model_validator(mode="after")
    def _classes_known(self) -> "RouterConfig":
        for name in self.routing.classes:
            if name not in self.qos.known():
                raise ValueError(f"routing.classes.{name}: no such class; add it to qos.classes, or remove it here")
        return self

    @model_validator(mode="after")
    def _adapters_differ(self) -> "RouterConfig":
        names = [self.model.name, *self.model.aliases, *self.model.adapters, *(a.name for a in self.adapters or ())]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None and any(a.name == twice for a in self.adapters or ()):
            raise ValueError(f"adapters: {twice} is the name of two models or adapters; rename one")
        return self

    def session_classes(self) -> dict[str, SessionClass]:
        """Return every class by name, the plain one among them; call it once, at start."""
        found = {}
        for name in sorted(self.qos.known()):
            own = self.routing.classes.get(name)
            slo = {} if own is None else {key: value for key, value in (("ttft", own.ttft), ("itl", own.itl)) if value}
            found[name] = SessionClass(
                name=name,
                qos=self.qos.of(name),
                routing=self.routing.of_class(name),
                slo=self.slo.model_copy(update=slo),
            )
        return found

    def cost_profile(self) -> CostProfile:
        """Return the cost profile the policies predict with."""
        return _profile(self.profile, "profile")

    def pool_profiles(self) -> dict[str, CostProfile]:
        """Return the profile of each pool where pools differ, else none; equal profiles are one object."""
        known: list[tuple[dict[str, object], CostProfile]] = []
        found = {}
        for pool, body in self.profiles.items():
            profile = next((profile for seen, profile in known if seen == body), None)
            if profile is None:
                profile = _profile(body, f"profiles.{pool}")
                known.append((body, profile))
            found[pool] = profile
        return found


def _profile(body: dict[str, object], where: str) -> CostProfile:
    try:
        return profile_from_json(body)
    except CostProfileError as error:
        raise ConfigError(f"{where}.{error}") from error


def read_config(raw: bytes, *, source: str) -> RouterConfig:
    """Parse router.json.

    Raises:
        ConfigError: it is not JSON, or a field is unknown, missing or out of range.
    """
    try:
        return RouterConfig.model_validate_json(raw)
    except ValidationError as error:
        raise ConfigError(f"{source}: {first_error(error)}") from error
