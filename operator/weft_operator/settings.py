"""What the operator's environment says; every error names the variable and the fix."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit


class SettingsError(ValueError):
    """Report an environment variable that cannot be used."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the operator is told at start; times are seconds."""

    router_image: str
    mock_image: str
    redis_url: str = field(repr=False)
    watch_namespaces: tuple[str, ...] = ()
    planner_deadline: float = 60.0
    resync: float = 60.0
    port: int = 8081
    instance: str = ""
    """Which of several operators in a cluster this is: it looks after services that carry its name as a label."""


def settings_from_env(env: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings.

    Raises:
        SettingsError: a variable is missing or not a number.
    """
    return Settings(
        router_image=_required(env, "WEFT_ROUTER_IMAGE", "the image of coordinators and sidecars"),
        mock_image=env.get("WEFT_MOCK_IMAGE", ""),
        redis_url=_redis_url(env),
        watch_namespaces=tuple(part for part in env.get("WEFT_WATCH_NAMESPACES", "").replace(",", " ").split() if part),
        planner_deadline=_seconds(env, "WEFT_PLANNER_DEADLINE_SECONDS", 60.0),
        resync=_seconds(env, "WEFT_RESYNC_SECONDS", 60.0),
        port=_port(env, "WEFT_OPERATOR_PORT", 8081),
        instance=env.get("WEFT_OPERATOR_INSTANCE", ""),
    )


def _redis_url(env: Mapping[str, str]) -> str:
    """Return the URL itself, or what is in the file that holds it because it has a password; it is never shown."""
    path = env.get("WEFT_REDIS_URL_FILE")
    if not path:
        return env.get("WEFT_REDIS_URL") or "redis://weft-redis.weft-system:6379/0"
    try:
        url = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"WEFT_REDIS_URL_FILE={path}: cannot be read ({type(error).__name__})") from error
    if urlsplit(url).scheme not in ("redis", "rediss"):
        raise SettingsError(f"WEFT_REDIS_URL_FILE={path}: must hold a URL such as rediss://user:password@host:6379/0")
    return url


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
