"""Read the router's configuration file, flags and environment; every error names the field and the fix."""

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from weft_core.cost import CostProfile, CostProfileError
from weft_core.policies.catalogue import (
    DEFAULT_BINDING,
    DEFAULT_CAP,
    POLICIES,
    BindingName,
    ModeName,
    OrderName,
    PolicyName,
    parameters,
)
from weft_core.policies.live import LIVE_BINDINGS, LIVE_MODE, LIVE_MODES
from weft_core.profile_json import profile_from_json

Role = Literal["coordinator", "prefill", "decode"]


class ConfigError(ValueError):
    """Report a configuration that cannot be used; the message names the field and the fix."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelConfig(_Section):
    name: str = Field(min_length=1)
    max_model_len: int = Field(alias="maxModelLen", ge=1)


class EngineConfig(_Section):
    type: Literal["vllm", "mock"]
    bidirectional: bool = True
    lease_seconds: float = Field(30.0, alias="leaseSeconds", gt=0)
    handle_ttl_seconds: float = Field(120.0, alias="handleTtlSeconds", gt=0)


class SloConfig(_Section):
    ttft: float = Field(gt=0)
    itl: float = Field(gt=0)


class RoutingConfig(_Section):
    policy: PolicyName = "ampd"
    mode: ModeName = LIVE_MODE
    binding: BindingName = DEFAULT_BINDING
    order: OrderName = "ampd-window"
    params: dict[str, float] = Field(default_factory=dict)
    alpha: float = Field(0.9, gt=0)
    beta: float = Field(0.85, gt=0)
    window: int = Field(3, ge=1, le=6)
    ageing_cap: int = Field(DEFAULT_CAP, alias="ageingCap", ge=1)
    stats_window_seconds: float = Field(10.0, alias="statsWindowSeconds", gt=0)
    session_ttl_seconds: int = Field(3600, alias="sessionTtlSeconds", ge=1)
    prefill_concurrency: int = Field(1, alias="prefillConcurrency", ge=1)
    prefill_queue_limit: int = Field(512, alias="prefillQueueLimit", ge=1)
    seed: int = 0

    @property
    def overrides(self) -> dict[str, float]:
        """Return the policy's parameters that differ from the catalogue's defaults, as far as they are given."""
        return {"alpha": self.alpha, "beta": self.beta} if self.policy == "ampd" else self.params

    @model_validator(mode="before")
    @classmethod
    def _order_of_the_policy(cls, given: object) -> object:
        """Let an absent queue order be the one the policy goes with."""
        if isinstance(given, dict) and "order" not in given:
            rule = POLICIES.get(str(given.get("policy", "ampd")))
            return {**given, "order": rule.order} if rule is not None else given
        return given

    @model_validator(mode="after")
    def _feasible(self) -> "RoutingConfig":
        """Refuse what this router cannot do; it never does something else silently."""
        if self.policy == "weft" and self.mode not in LIVE_MODES:
            raise ValueError(f"mode: the router cannot run local prefills in chunks yet; use {' or '.join(LIVE_MODES)}")
        if self.binding not in LIVE_BINDINGS:
            raise ValueError(
                f"binding: the router does not know what decode workers' prefix caches hold yet; use one of "
                f"{', '.join(LIVE_BINDINGS)}"
            )
        if self.policy == "ampd" and self.params:
            raise ValueError("params: the parameters of ampd are the fields alpha and beta; remove params")
        parameters(self.policy, self.mode, self.overrides)
        return self


class LimitsConfig(_Section):
    max_body_bytes: int = Field(32 * 2**20, alias="maxBodyBytes", ge=1024)
    max_n: int = Field(8, alias="maxN", ge=1)
    max_output_tokens: int = Field(32768, alias="maxOutputTokens", ge=1)
    max_reply_bytes: int = Field(64 * 2**20, alias="maxReplyBytes", ge=1024)


class TimeoutsConfig(_Section):
    """Seconds; in streams ``first_byte`` covers queue and prefill, ``idle`` each gap; ``total`` bounds all answers."""

    connect: float = Field(2.0, gt=0)
    first_byte: float = Field(300.0, alias="firstByte", gt=0)
    idle: float = Field(60.0, gt=0)
    total: float = Field(3600.0, gt=0)
    body: float = Field(30.0, gt=0)


class RequestLogConfig(_Section):
    """Where a decode worker writes a line for each round: nowhere, its standard output, or a file that is rotated."""

    to: str = Field("off", pattern=r"^(off|stdout|/.+)$")
    max_bytes: int = Field(64 * 2**20, alias="maxBytes", ge=2**16)
    files: int = Field(4, ge=1, le=100)


class RouterConfig(_Section):
    """The file the operator renders; unknown fields are refused."""

    service: str = Field(min_length=1)
    namespace: str = Field(min_length=1)
    model: ModelConfig
    engine: EngineConfig
    slo: SloConfig
    routing: RoutingConfig = Field(default_factory=lambda: RoutingConfig.model_validate({}))
    limits: LimitsConfig = Field(default_factory=lambda: LimitsConfig.model_validate({}))
    timeouts: TimeoutsConfig = Field(default_factory=lambda: TimeoutsConfig.model_validate({}))
    request_log: RequestLogConfig = Field(
        default_factory=lambda: RequestLogConfig.model_validate({}), alias="requestLog"
    )
    profile: dict[str, object]
    profiles: dict[str, dict[str, object]] = Field(default_factory=dict)
    """The profile of every planned pool, where pools differ."""
    plan_revision: str = Field("", alias="planRevision")

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


@dataclass(frozen=True, slots=True)
class Flags:
    """What the command line of one router process says."""

    role: Role
    config: Path
    listen: str
    engine_url: str
    advertise: str | None
    drain_seconds: float


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything one router process needs to know about itself; ``pools`` are profiles by pool, where they differ."""

    role: Role
    config: RouterConfig
    profile: CostProfile
    host: str
    port: int
    token: bytes
    redis_url: str
    worker: str
    degree: int
    pool: str
    revision: str
    url: str
    node: str
    incarnation: str
    engine_url: str
    drain_s: float
    api_keys_file: Path | None
    pools: Mapping[str, CostProfile] = field(default_factory=dict)

    def profile_of(self, pool: str) -> CostProfile:
        """Return what the workers of a pool cost; those of a pool that is no longer planned as this one does."""
        return self.pools.get(pool, self.profile)

    @property
    def kv_capacity_tokens(self) -> int:
        """Return how many tokens of KV this worker holds according to the profile; 0 for a coordinator."""
        return self.profile.kv_capacity(self.degree) if self.role != "coordinator" else 0


def read_config(raw: bytes, *, source: str) -> RouterConfig:
    """Parse router.json.

    Raises:
        ConfigError: it is not JSON, or a field is unknown, missing or out of range.
    """
    try:
        return RouterConfig.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "file"
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise ConfigError(f"{source}: {where}: {first['msg']}{more}") from error


def load(flags: Flags, env: Mapping[str, str] = os.environ) -> Settings:
    """Put flags, environment and files together.

    Raises:
        ConfigError: something is missing or wrong; the message says what to set.
    """
    role = flags.role
    config = read_config(_file(flags.config, "--config"), source=str(flags.config))
    pool = env.get("WEFT_POOL", "")
    pools = config.pool_profiles()
    profile = pools[pool] if pool in pools else config.cost_profile()
    host, port = _listen(flags.listen)
    worker, degree, url = _identity(role, flags.advertise, env, port)
    if role != "coordinator" and degree not in profile.degrees:
        known = ", ".join(str(d) for d in sorted(profile.degrees))
        raise ConfigError(
            f"WEFT_DEGREE={degree}: the profile of {profile.gpu} knows only degree {known}; set one of these"
        )
    keys = env.get("WEFT_API_KEYS_FILE")
    return Settings(
        role=role,
        config=config,
        profile=profile,
        host=host,
        port=port,
        token=_token(env),
        redis_url=env.get("WEFT_REDIS_URL", "redis://weft-redis.weft-system:6379/0"),
        worker=worker,
        degree=degree,
        pool=pool,
        revision=env.get("WEFT_REVISION", config.plan_revision),
        url=url,
        node=env.get("NODE_NAME", ""),
        incarnation=secrets.token_hex(8),
        engine_url=flags.engine_url.rstrip("/"),
        drain_s=flags.drain_seconds,
        api_keys_file=Path(keys) if keys else None,
        pools=pools,
    )


def _identity(role: Role, advertise: str | None, env: Mapping[str, str], port: int) -> tuple[str, int, str]:
    if role == "coordinator":
        return env.get("POD_NAME", "coordinator"), 0, ""
    worker = env.get("WEFT_WORKER")
    if not worker:
        raise ConfigError(f"WEFT_WORKER: a {role} sidecar needs the name of its worker; set it")
    degree = env.get("WEFT_DEGREE", "")
    if not degree.isdigit() or int(degree) < 1:
        raise ConfigError(
            f"WEFT_DEGREE={degree!r}: set the worker's tensor-parallel degree, a whole number of 1 or more"
        )
    ip = env.get("POD_IP")
    if advertise is None and not ip:
        raise ConfigError("POD_IP: other pods must find this worker; set POD_IP or pass --advertise URL")
    url = (advertise or f"http://{f'[{ip}]' if ip and ':' in ip else ip}:{port}").rstrip("/")
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise ConfigError(f"--advertise {url}: give a URL such as http://10.0.0.7:8080")
    return worker, int(degree), url


def _listen(value: str) -> tuple[str, int]:
    host, _, port = value.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"--listen {value}: give HOST:PORT, for example 0.0.0.0:8080")
    return host.strip("[]"), int(port)


def _token(env: Mapping[str, str]) -> bytes:
    path = env.get("WEFT_TOKEN_FILE", "/etc/weft-token/token")
    token = _file(Path(path), "WEFT_TOKEN_FILE").strip()
    if len(token) < 16:
        raise ConfigError(
            f"WEFT_TOKEN_FILE={path}: the internal token needs at least 16 characters; write a random one"
        )
    return token


def _file(path: Path, field: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{field}={path}: cannot be read ({error.strerror}); check the path") from error
