"""Where the operator reads what a service does."""

# ruff: noqa: RUF012 - pydantic copies the defaults of fields

import re
from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from weft_core.durations import parse_duration
from weft_operator.api.base import ApiModel, Rule
from weft_operator.api.fields import Duration
from weft_operator.api.references import WITHIN_CLUSTER, SecretKey, SecretName, stays_secret

HEADER_NAME = r"^[A-Za-z][A-Za-z0-9-]*$"
HEADER_VALUE = r"^[!-~]([ -~]*[!-~])?$"
LABEL_NAME = r"^[a-zA-Z_][a-zA-Z0-9_]*$"

QUERIED_LABELS = (
    "__name__",
    "class",
    "component",
    "figure",
    "le",
    "namespace",
    "objective",
    "outcome",
    "phase",
    "pod",
    "process",
    "reason",
    "service",
)
"""Labels that the queries choose and group by: a matcher of one of them would change what a figure means."""

RESERVED_HEADERS = (
    "^(?i:authorization|cookie|host|connection|upgrade|te|trailer|transfer-encoding|expect|content-.*|accept.*|proxy-.*"
    "|forwarded|x-forwarded-.*|x-real-ip|x-remote-.*|impersonate-.*|metadata.*|x-.*metadata.*)$"
)
"""Headers of HTTP itself, of proxies and of the metadata servers of clouds: the operator sends none of a user's."""


def _keeps_secrets(server: "Prometheus") -> bool:
    secret = server.auth_secret_ref is not None or any(item.secret_key_ref is not None for item in server.headers)
    return not secret or server.url is None or stays_secret(server.url)


class HttpHeader(ApiModel):
    """A header of every request."""

    name: Annotated[str, StringConstraints(pattern=HEADER_NAME, max_length=64)]
    """Its name, such as X-Scope-OrgID."""
    value: Annotated[str, StringConstraints(pattern=HEADER_VALUE, max_length=1024)] | None = None
    """Its value."""
    secret_key_ref: SecretKey | None = None
    """Where its value is, if that is a secret."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.value) != has(self.secretKeyRef)",
            "spec.planning.prometheus.headers: give exactly one of value and secretKeyRef",
            lambda h: (h.value is None) != (h.secret_key_ref is None),
        ),
        Rule(
            f"!self.name.matches('{RESERVED_HEADERS}')",
            "spec.planning.prometheus.headers: names a header that clients or proxies set themselves; remove it, "
            "and put credentials into the Secret of authSecretRef",
            lambda h: re.match(RESERVED_HEADERS, h.name) is None,
        ),
    )


class LabelMatcher(ApiModel):
    """A label that every series must have."""

    name: Annotated[str, StringConstraints(pattern=LABEL_NAME, max_length=64)]
    """Name of the label, such as cluster."""
    value: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    """Its value."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!(self.name in {list(QUERIED_LABELS)})",
            "spec.planning.prometheus.matchers: names a label that the queries use themselves "
            f"({', '.join(QUERIED_LABELS)}); remove it",
            lambda m: m.name not in QUERIED_LABELS,
        ),
    )


class Prometheus(ApiModel):
    """The Prometheus that scrapes the service's pods."""

    url: Annotated[str, StringConstraints(pattern=r"^https?://[^\s?#]+$", max_length=512)] | None = None
    """Its URL, with a path where it has one; the operator's own (the chart's prometheus.url) if absent."""
    auth_secret_ref: SecretName | None = None
    """A Secret with token, or username and password, and ca.crt where the certificate is not a public one's."""
    headers: Annotated[
        list[HttpHeader], Field(max_length=8, json_schema_extra={"x-kubernetes-list-map-keys": ["name"]})
    ] = []
    """Headers of every request, such as the tenant of Mimir; those of the chart's own values come first."""
    matchers: Annotated[
        list[LabelMatcher], Field(max_length=4, json_schema_extra={"x-kubernetes-list-map-keys": ["name"]})
    ] = []
    """Labels that every series must have, where the server holds those of several clusters."""
    window: Duration = "5m"
    """Window of queries; the SLO is also evaluated over the last fifth of it."""
    stale_after: Duration = "1m"
    """Age from which samples are stale; several scrape intervals."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            None,  # the list is keyed by name
            "spec.planning.prometheus.headers: two have the same name; remove one",
            lambda p: len({item.name for item in p.headers}) == len(p.headers),
        ),
        Rule(
            None,  # the list is keyed by name
            "spec.planning.prometheus.matchers: two have the same name; remove one",
            lambda p: len({item.name for item in p.matchers}) == len(p.matchers),
        ),
        Rule(
            "!has(self.url) || !self.url.contains('@')",
            "spec.planning.prometheus.url: must hold no user name or password; put them into a Secret and name it in "
            "authSecretRef",
            lambda p: p.url is None or "@" not in p.url,
        ),
        Rule(
            f"!has(self.url) || self.url.startsWith('https://') || self.url.matches('{WITHIN_CLUSTER}') || "
            "(!has(self.authSecretRef) && !self.headers.exists(h, has(h.secretKeyRef)))",
            "spec.planning.prometheus.url: what a Secret holds is sent by https:// only, or to a Service of the "
            "cluster; use https://, or write http://NAME.NAMESPACE.svc:9090",
            _keeps_secrets,
        ),
        Rule(
            "duration(self.window) >= duration('20s') && duration(self.window) <= duration('6h')",
            "spec.planning.prometheus.window: must be between 20s and 6h",
            lambda p: 20 <= parse_duration(p.window) <= 6 * 3600,
        ),
        Rule(
            "duration(self.staleAfter) >= duration('5s') && duration(self.staleAfter) + duration(self.staleAfter)"
            " <= duration(self.window)",
            "spec.planning.prometheus.staleAfter: must be between 5s and half of window",
            lambda p: 5 <= parse_duration(p.stale_after) <= parse_duration(p.window) / 2,
        ),
    )
