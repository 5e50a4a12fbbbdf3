"""The router's configuration: router.json, flags and environment; every error names the field and the fix."""

from weft_router.config.engine import EngineConfig, EngineType, ModelConfig, SloConfig, TimeoutsConfig
from weft_router.config.file import RouterConfig, SessionClass, read_config
from weft_router.config.front import AuthConfig, JwtConfig, LimitsConfig, RequestsConfig, TlsConfig
from weft_router.config.observability import AccessLogConfig, RequestLogConfig, TelemetryConfig
from weft_router.config.process import FRONT_ROLES, FlagRole, Flags, Role, Settings, load
from weft_router.config.qos import PLAIN_CLASS, Pressure, QosClass, QosConfig, Rates, Tenant
from weft_router.config.routing import CanaryConfig, ClassRouting, HedgeConfig, RoutingConfig, SlicesConfig
from weft_router.config.section import ConfigError
from weft_router.config.workers import WorkerEntry

__all__ = [
    "FRONT_ROLES",
    "PLAIN_CLASS",
    "AccessLogConfig",
    "AuthConfig",
    "CanaryConfig",
    "ClassRouting",
    "ConfigError",
    "EngineConfig",
    "EngineType",
    "FlagRole",
    "Flags",
    "HedgeConfig",
    "JwtConfig",
    "LimitsConfig",
    "ModelConfig",
    "Pressure",
    "QosClass",
    "QosConfig",
    "Rates",
    "RequestLogConfig",
    "RequestsConfig",
    "Role",
    "RouterConfig",
    "RoutingConfig",
    "SessionClass",
    "Settings",
    "SlicesConfig",
    "SloConfig",
    "TelemetryConfig",
    "Tenant",
    "TimeoutsConfig",
    "TlsConfig",
    "WorkerEntry",
    "load",
    "read_config",
]
