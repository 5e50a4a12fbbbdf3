"""Credentials for a Prometheus server: tokens, passwords, headers and trusted certificates."""

import base64
import binascii
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from weft_operator.api.objects import ServiceKey
from weft_operator.api.prometheus import HEADER_NAME, HEADER_VALUE
from weft_operator.api.references import SecretKey
from weft_operator.api.secret_references import SecretReference, refusal, usable
from weft_operator.errors import ApiError, ForbiddenError
from weft_operator.metrics.observation import NoMetricsError
from weft_operator.metrics.query_target import QueryTarget
from weft_operator.settings import PrometheusAccess

AUTH_FIELD = "spec.planning.prometheus.authSecretRef"

ReadSecret = Callable[[ServiceKey, str], Awaitable[Mapping[str, Any] | None]]


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials for a Prometheus server; they are never logged or shown."""

    token: str = field(default="", repr=False)
    user: str = ""
    password: str = field(default="", repr=False)
    ca: str = field(default="", repr=False)
    """PEM certificates to trust in addition to the usual ones."""
    token_file: str = ""
    """File with a bearer token, which is read for every request because it is rotated."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further headers of every request."""
    foreign: bool = False
    """Whether the service names the server."""


def credentials_of(secret: Mapping[str, Any] | None, name: str) -> Credentials:
    """Return the credentials of the Secret of ``authSecretRef``: token, or username and password; and ca.crt.

    Raises:
        NoMetricsError: PrometheusUnauthorized, when it is not there or holds nothing of that.
    """
    data = (secret or {}).get("data") or {}
    found = Credentials(
        token=_text(data, "token"),
        user=_text(data, "username"),
        password=_text(data, "password"),
        ca=_text(data, "ca.crt"),
    )
    if not (found.token or found.user or found.ca):
        raise NoMetricsError(
            "PrometheusUnauthorized",
            f"{AUTH_FIELD}: there is no Secret {name} with a non-empty key token, username or ca.crt in the service's "
            "namespace; create it or correct the reference",
        )
    return found


def header_of(secret: Mapping[str, Any] | None, ref: SecretKey) -> str:
    """Return the value of a header from a key of a Secret.

    Raises:
        NoMetricsError: PrometheusUnauthorized, when there is none, or it cannot be sent.
    """
    value = _text((secret or {}).get("data") or {}, ref.key)
    if not re.fullmatch(HEADER_VALUE, value):
        raise NoMetricsError(
            "PrometheusUnauthorized",
            f"spec.planning.prometheus.headers: key {ref.key} of Secret {ref.name} is missing, or holds no text that a "
            "header can have; correct the Secret or the reference",
        )
    return value


def access_of(access: PrometheusAccess) -> Credentials:
    """Return the credentials for the operator's own server; files except the token's are read now.

    Raises:
        NoMetricsError: PrometheusUnauthorized, when a file cannot be read or used.
    """
    headers = dict(access.headers)
    if access.headers_folder:
        for name in sorted(_listed(access.headers_folder)):
            value = read_file(f"{access.headers_folder}/{name}")
            if not re.fullmatch(HEADER_NAME, name) or not re.fullmatch(HEADER_VALUE, value):
                raise NoMetricsError(
                    "PrometheusUnauthorized",
                    f"the operator's file {access.headers_folder}/{name} is no header; name the key of the Secret like "
                    "the header, and let it hold the value alone",
                )
            headers[name] = value
    ca = read_file(access.ca_file) if access.ca_file else ""
    return Credentials(ca=ca, token_file=access.token_file, headers=headers)


def _listed(folder: str) -> list[str]:
    try:
        return [path.name for path in Path(folder).iterdir() if not path.name.startswith(".")]
    except OSError as error:
        raise _unreadable(folder, error) from error


def read_file(path: str) -> str:
    """Return the content of a mounted file.

    Raises:
        NoMetricsError: PrometheusUnauthorized, when it cannot be read.
    """
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: Exception) -> NoMetricsError:
    return NoMetricsError(
        "PrometheusUnauthorized",
        f"the operator cannot read {path} ({type(error).__name__}); check the chart's values of prometheus",
    )


async def credentials_for(key: ServiceKey, target: QueryTarget, read_secret: ReadSecret) -> Credentials:
    """Return the credentials for the operator's own server, overridden by those of the service.

    Only headers of the operator stay as they are: its token must not be used with another tenant than its own.

    Raises:
        NoMetricsError: PrometheusUnauthorized, when a Secret or a file cannot be read or used.
    """

    async def secret(name: str, field: str) -> Mapping[str, Any] | None:
        try:
            found = await read_secret(key, name)
        except ApiError as error:
            lack = error.right.lack() if isinstance(error, ForbiddenError) and error.right is not None else ""
            raise NoMetricsError(
                "PrometheusUnauthorized",
                f"Secret {name} of spec.planning.prometheus.{field} cannot be read: "
                f"{lack or f'the API server answers {error.status}'}",
            ) from error
        if found is not None and not usable(found, "prometheus"):
            reference = SecretReference(f"spec.planning.prometheus.{field}", name, "prometheus")
            raise NoMetricsError("PrometheusUnauthorized", refusal(reference, key.namespace))
        return found

    found = replace(access_of(target.access), foreign=target.foreign)
    fixed = {name.lower() for name in found.headers}
    headers = dict(found.headers)
    for name, value in target.headers.items():
        if name.lower() not in fixed:
            headers[name] = value if isinstance(value, str) else header_of(await secret(value.name, "headers"), value)
    if target.secret is None:
        return replace(found, headers=headers)
    own = credentials_of(await secret(target.secret, "authSecretRef"), target.secret)
    return replace(found, token=own.token, user=own.user, password=own.password, ca=own.ca or found.ca, headers=headers)


def _text(data: Mapping[str, Any], key: str) -> str:
    try:
        return base64.b64decode(data.get(key) or "", validate=True).decode().strip()
    except (binascii.Error, ValueError):
        return ""
