"""What the operator's environment says; every error names the variable and the fix."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args
from urllib.parse import quote, urlsplit, urlunsplit

from weft_core.authority import is_http_url
from weft_operator.api.pod_template_permissions import Permission, permissions_from_json
from weft_operator.api.prometheus import HEADER_NAME, HEADER_VALUE, LABEL_NAME

PROMETHEUS: tuple[Mapping[str, Any], ...] = (
    {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}}},
)
"""Pods of a Prometheus as its operator and its charts label them, in any namespace."""


RouterUpgrade = Literal["WhenAsked", "AtOnce"]
RedisUserMode = Literal["auto", "required", "off"]


class SettingsError(ValueError):
    """Report an environment variable that cannot be used."""


@dataclass(frozen=True, slots=True)
class PrometheusAccess:
    """How the operator's own Prometheus is asked; nothing of it is sent to a server that a service names."""

    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    headers_folder: str = ""
    """A folder with a file for each further header, named like it: a mounted Secret."""
    matchers: tuple[tuple[str, str], ...] = ()
    """Labels with their values that every series must have."""
    token_file: str = ""
    """A bearer token, which may be replaced at any time."""
    ca_file: str = ""
    """Certificates to trust besides the usual ones."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the operator, from its environment; times are seconds."""

    router_image: str
    mock_image: str
    redis_url: str = field(repr=False)
    operator_image: str = ""
    """The operator's own image, whose program measures cost profiles; empty: none are measured."""
    prometheus_url: str = ""
    """Where services are observed whose spec names no Prometheus of its own; empty: they are not."""
    prometheus_access: PrometheusAccess = field(default_factory=PrometheusAccess)
    watch_namespaces: tuple[str, ...] = ()
    namespace_role: str = ""
    """The ClusterRole that the operator binds for itself in each namespace with the label weft.dev/managed=true, and
    works in these alone; empty: it works in ``watch_namespaces``, in all where none is named."""
    service_account: str = ""
    """The operator's own service account (namespace/name), which it binds that role to."""
    planner_deadline: float = 180.0
    resync: float = 60.0
    port: int = 8081
    lease: str = ""
    """The Lease (namespace/name) by which one of several replicas leads; empty: this one runs alone."""
    lease_seconds: float = 15.0
    """A Lease that was not renewed for so long is another replica's to take."""
    identity: str = ""
    """What this replica calls itself in the Lease: its pod's name; empty: something of its own."""
    router_upgrade: RouterUpgrade = "WhenAsked"
    """When services that run take a newer router image: when asked, or at once, which restarts their workers."""
    instance: str = ""
    """Which of several operators in a cluster this is: it looks after services that carry its name as a label."""
    openshift: bool = False
    """Whether the cluster assigns the users and groups of pods, so that none may be fixed."""
    metrics_from: tuple[Mapping[str, Any], ...] = PROMETHEUS
    """Pods that scrape metrics: peers of the services' network policies."""
    pod_templates_allow: tuple[Permission, ...] = ()
    """What services may do beyond the allow-list of pod templates."""
    redis_peers: tuple[Mapping[str, Any], ...] = ()
    """Where Redis is, as peers of the services' network policies; empty: at any address."""
    redis_users: RedisUserMode = "auto"
    """Whether each service has a Redis user of its own: where Redis lets the operator make them, always, or never."""


def settings_from_env(env: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings.

    Raises:
        SettingsError: a variable is missing or not a number.
    """
    namespaces = tuple(part for part in env.get("WEFT_WATCH_NAMESPACES", "").replace(",", " ").split() if part)
    role, account = _namespace_role(env, namespaces)
    return Settings(
        router_image=_required(env, "WEFT_ROUTER_IMAGE", "the image of coordinators and sidecars"),
        mock_image=env.get("WEFT_MOCK_IMAGE", ""),
        redis_url=_redis_url(env),
        operator_image=env.get("WEFT_OPERATOR_IMAGE", "").strip(),
        prometheus_url=_http_url(env, "WEFT_PROMETHEUS_URL"),
        prometheus_access=PrometheusAccess(
            headers=_texts(env, "WEFT_PROMETHEUS_HEADERS", HEADER_NAME, HEADER_VALUE),
            headers_folder=env.get("WEFT_PROMETHEUS_HEADERS_FOLDER", "").strip(),
            matchers=_texts(env, "WEFT_PROMETHEUS_MATCHERS", LABEL_NAME, r"[^\n]+"),
            token_file=env.get("WEFT_PROMETHEUS_TOKEN_FILE", "").strip(),
            ca_file=env.get("WEFT_PROMETHEUS_CA_FILE", "").strip(),
        ),
        watch_namespaces=namespaces,
        namespace_role=role,
        service_account=account,
        planner_deadline=_seconds(env, "WEFT_PLANNER_DEADLINE_SECONDS", 180.0),
        resync=_seconds(env, "WEFT_RESYNC_SECONDS", 60.0),
        port=_port(env, "WEFT_OPERATOR_PORT", 8081),
        lease=_lease(env),
        lease_seconds=_seconds(env, "WEFT_OPERATOR_LEASE_SECONDS", 15.0),
        identity=env.get("POD_NAME", "").strip(),
        router_upgrade=_router_upgrade(env),
        instance=_instance(env),
        openshift=_flag(env, "WEFT_OPENSHIFT"),
        metrics_from=_peers(env, "WEFT_METRICS_FROM", PROMETHEUS),
        redis_peers=_peers(env, "WEFT_REDIS_PEERS", ()),
        pod_templates_allow=permissions_from_env(env),
        redis_users=_redis_users(env),
    )


def permissions_from_env(env: Mapping[str, str]) -> tuple[Permission, ...]:
    """Return what services may do beyond the allow-list of pod templates.

    Raises:
        SettingsError: the variable holds no list of permissions.
    """
    try:
        return permissions_from_json(env.get("WEFT_POD_TEMPLATES_ALLOW", "").strip())
    except ValueError as error:
        raise SettingsError(f"WEFT_POD_TEMPLATES_ALLOW: {error}") from error


def _redis_url(env: Mapping[str, str]) -> str:
    """Return the URL: itself, with a password from a file, or all of it from a file; it is never shown."""
    path = env.get("WEFT_REDIS_URL_FILE")
    if not path:
        return _with_password(env, env.get("WEFT_REDIS_URL") or "redis://weft-redis.weft-system:6379/0")
    url = _secret_file("WEFT_REDIS_URL_FILE", path)
    if urlsplit(url).scheme not in ("redis", "rediss"):
        raise SettingsError(f"WEFT_REDIS_URL_FILE={path}: must hold a URL such as rediss://user:password@host:6379/0")
    return url


def _with_password(env: Mapping[str, str], url: str) -> str:
    path = env.get("WEFT_REDIS_PASSWORD_FILE")
    if not path:
        return url
    parts = urlsplit(url)
    if not parts.username or parts.password is not None:
        raise SettingsError("WEFT_REDIS_PASSWORD_FILE: WEFT_REDIS_URL must have a user without a password beside it")
    password = quote(_secret_file("WEFT_REDIS_PASSWORD_FILE", path), safe="")
    user, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user}:{password}@{host}"))


def _secret_file(name: str, path: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{name}={path}: cannot be read ({type(error).__name__})") from error
    if not text:
        raise SettingsError(f"{name}={path}: is empty")
    return text


def _redis_users(env: Mapping[str, str]) -> RedisUserMode:
    text = env.get("WEFT_REDIS_USERS", "").strip() or "auto"
    if text not in get_args(RedisUserMode):
        raise SettingsError(f"WEFT_REDIS_USERS={text!r}: give auto, required or off")
    return cast("RedisUserMode", text)


def _namespace_role(env: Mapping[str, str], namespaces: tuple[str, ...]) -> tuple[str, str]:
    """Return the role to bind in labelled namespaces and the account to bind it to; two empty texts where none is."""
    role = env.get("WEFT_NAMESPACE_ROLE", "").strip()
    account = env.get("WEFT_SERVICE_ACCOUNT", "").strip()
    if not role:
        return "", ""
    if namespaces:
        raise SettingsError("WEFT_NAMESPACE_ROLE and WEFT_WATCH_NAMESPACES are both set: remove one")
    if not re.fullmatch(r"[a-z0-9-]{1,63}/[a-z0-9][a-z0-9.-]{0,252}", account):
        raise SettingsError(f"WEFT_SERVICE_ACCOUNT={account!r}: give NAMESPACE/NAME, such as weft-system/weft-operator")
    return role, account


def _router_upgrade(env: Mapping[str, str]) -> RouterUpgrade:
    text = env.get("WEFT_ROUTER_UPGRADE", "").strip() or "WhenAsked"
    if text not in get_args(RouterUpgrade):
        raise SettingsError(f"WEFT_ROUTER_UPGRADE={text!r}: give WhenAsked or AtOnce")
    return cast("RouterUpgrade", text)


def _flag(env: Mapping[str, str], name: str) -> bool:
    text = env.get(name, "").strip() or "false"
    if text not in ("true", "false"):
        raise SettingsError(f"{name}={text!r}: give true or false")
    return text == "true"


def _lease(env: Mapping[str, str]) -> str:
    text = env.get("WEFT_OPERATOR_LEASE", "").strip()
    if text and not re.fullmatch(r"[a-z0-9-]{1,63}/[a-z0-9][a-z0-9.-]{0,252}", text):
        raise SettingsError(f"WEFT_OPERATOR_LEASE={text!r}: give NAMESPACE/NAME, such as weft-system/weft-operator")
    return text


def _instance(env: Mapping[str, str]) -> str:
    text = env.get("WEFT_OPERATOR_INSTANCE", "").strip()
    if text and not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?", text):
        raise SettingsError(f"WEFT_OPERATOR_INSTANCE={text!r}: give at most 40 characters a-z, 0-9 and -")
    return text


def _peers(env: Mapping[str, str], name: str, default: tuple[Mapping[str, Any], ...]) -> tuple[Mapping[str, Any], ...]:
    text = env.get(name, "").strip()
    if not text:
        return default
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(item, dict) and item for item in found):
        raise SettingsError(f"{name}={text!r}: give a JSON list of peers, as a NetworkPolicy has them under from or to")
    return tuple(found)


def _texts(env: Mapping[str, str], variable: str, names: str, values: str) -> tuple[tuple[str, str], ...]:
    """Return the names and values of a JSON object of texts; the patterns say which are allowed."""
    text = env.get(variable, "").strip() or "{}"
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise SettingsError(f"{variable}: give a JSON object of names and texts")
    for name, value in found.items():
        if not re.fullmatch(names, name) or not re.fullmatch(values, value):
            raise SettingsError(f"{variable}: {name!r} or its value cannot be used")
    return tuple(sorted(found.items()))


def _http_url(env: Mapping[str, str], name: str) -> str:
    text = env.get(name, "").strip()
    if text and (not is_http_url(text) or urlsplit(text).username is not None):
        raise SettingsError(f"{name}: give a URL such as http://prometheus:9090, without a user name or password")
    return text


def _required(env: Mapping[str, str], name: str, what: str) -> str:
    value = env.get(name, "").strip()
    if not value:
        raise SettingsError(f"{name} is not set; give {what}")
    return value


def _seconds(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 86400:
        raise SettingsError(f"{name}={text!r}: give seconds above 0 and below 86400")
    return value


def _port(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "").strip()
    if not text:
        return default
    if not text.isdigit() or int(text) > 65535:
        raise SettingsError(f"{name}={text!r}: give a port between 0 and 65535")
    return int(text)
