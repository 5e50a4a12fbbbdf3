"""Where the operator reads what a service does."""

from typing import Annotated, ClassVar

from pydantic import StringConstraints

from weft_core.durations import parse_duration
from weft_operator.api.base import ApiModel, Rule
from weft_operator.api.fields import Duration
from weft_operator.api.front_door import SecretName


class Prometheus(ApiModel):
    """The Prometheus that scrapes the service's pods."""

    url: Annotated[str, StringConstraints(pattern=r"^https?://[^\s?#]+$", max_length=512)] | None = None
    """Its URL, with a path where it has one; the operator's own (the chart's prometheus.url) if absent."""
    auth_secret_ref: SecretName | None = None
    """A Secret with token, or username and password, and ca.crt where the certificate is not a public one's."""
    window: Duration = "5m"
    """How far back is looked; the SLO is also judged over the last fifth of it."""
    stale_after: Duration = "1m"
    """Age from which samples tell nothing any more; a few scrape intervals."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.url) || !self.url.contains('@')",
            "spec.planning.prometheus.url: must hold no user name or password; put them into a Secret and name it in "
            "authSecretRef",
            lambda p: p.url is None or "@" not in p.url,
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
