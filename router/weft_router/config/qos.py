"""Who is served first: classes of requests, the tenants that send them, and how a request names its class."""

from typing import Literal

from pydantic import Field, model_validator

from weft_core.policies.qos import early_rejection as rejection
from weft_core.policies.qos import local_only as staying
from weft_core.policies.qos import output_cap as capping
from weft_router.config.section import Section

NAME = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
PLAIN_CLASS = "default"
"""The class of every request where none is configured."""


class Rates(Section):
    """Most that may be asked for; None is without bound."""

    requests_per_second: float | None = Field(default=None, gt=0)
    """Requests, whatever their size."""
    tokens_per_minute: float | None = Field(default=None, gt=0)
    """Prompt and answer together."""
    concurrent: int | None = Field(default=None, ge=1)
    """Requests at the same time, at one coordinator process."""
    burst_seconds: float = Field(default=10.0, gt=0, le=3600)
    """How many seconds of the rate may come at once."""


class QosClass(Section):
    """One class of requests; times and shares follow the rules of ``weft_core.policies``."""

    priority: int = Field(default=0, ge=0, le=1000)
    """The higher goes first in prefill queues."""
    queue_limit: int | None = Field(default=None, ge=0)
    """Most requests of the class without a first byte yet, at one coordinator process; more get 429."""
    concurrent: int | None = Field(default=None, ge=1)
    """Most requests of the class at the same time, at one coordinator process; more get 429."""
    max_output_tokens: int | None = Field(default=None, ge=1)
    """Cap on every answer of the class; one that asks for more gets this many."""
    early_rejection: bool = False
    """Refuse at once what is predicted to miss its TTFT."""
    tolerance: float = Field(default=rejection.TOLERANCE.default, gt=0, le=100)
    """Times the TTFT SLO above which a prediction is refused."""
    output_cap: bool = False
    """Shorten answers while KV memory is scarce."""
    local_only: Literal["off", "pressure", "always"] = "off"
    """Keep prefills off prefill workers: never, while these are busy, or always."""


class Pressure(Section):
    """When answers are capped, and low classes stay on their decode workers."""

    kv_use: float = Field(default=capping.PARAMS[capping.PRESSURE], ge=0, le=0.99)
    """Share of KV memory in use above which answers are capped."""
    largest: int = Field(default=int(capping.PARAMS[capping.LARGEST]), ge=1)
    """Tokens of an answer where the cap begins."""
    least: int = Field(default=int(capping.PARAMS[capping.LEAST]), ge=1)
    """Tokens of an answer at full memory."""
    busy: float = Field(default=staying.BUSY.default, ge=0)
    """Queued prefills per prefill worker from which these are busy."""

    @model_validator(mode="after")
    def _falls(self) -> "Pressure":
        if self.least > self.largest:
            raise ValueError(f"least: {self.least} is more than largest {self.largest}; lower it")
        return self


class Tenant(Section):
    """What one tenant may do; a tenant is named by its API key's line or by a claim of its token."""

    weight: float = Field(default=1.0, gt=0, le=1000)
    """Its share of admission while there is a queue, beside the other tenants' weights."""
    default_class: str = Field(default="", alias="class")
    """The class of its requests that name none; the service's default if empty."""
    classes: tuple[str, ...] | None = None
    """The classes it may name; all if absent."""
    rates: Rates = Field(default_factory=Rates)
    """Bounds on all its keys together."""


class FallbackConfig(Section):
    """Another service that serves what this one refuses because it is overloaded."""

    service: str = Field(min_length=1)
    """Its name, which clients see in the header X-Weft-Fallback."""
    url: str = Field(pattern=r"^https?://[^/?#]+$")
    """Where its coordinators answer."""


class QosConfig(Section):
    """Classes, tenants, and how a request names its class; without any, all requests are alike."""

    class_header: str = Field(default="X-Weft-Class", pattern=r"^[A-Za-z][A-Za-z0-9-]*$")
    """The header that names a class; an unknown one is refused."""
    class_field: str = "service_tier"
    """The body field that names a class if the header does not; names that are no class are the engine's affair."""
    default_class: str = PLAIN_CLASS
    """The class of requests whose header, field, key, token and tenant name none."""
    classes: dict[str, QosClass] = Field(default_factory=dict, max_length=32)
    tenants: dict[str, Tenant] = Field(default_factory=dict, max_length=10_000)
    pressure: Pressure = Field(default_factory=Pressure)
    fallback: FallbackConfig | None = None
    """Who serves, with its own model, requests that are refused because this service is overloaded; nobody if
    absent."""
    max_waiting: int = Field(default=4096, ge=1)
    """Most requests without a first byte yet at one coordinator process, whatever their class; more get 429."""

    def known(self) -> frozenset[str]:
        """Return the names of all classes."""
        return frozenset(self.classes) | {PLAIN_CLASS}

    def of(self, name: str) -> QosClass:
        """Return a class; those without settings of their own are plain."""
        return self.classes.get(name, _PLAIN)

    @model_validator(mode="after")
    def _names(self) -> "QosConfig":
        known = ", ".join(sorted(self.known()))
        if self.default_class not in self.known():
            raise ValueError(f"defaultClass: {self.default_class!r} is not one of {known}; add it to qos.classes")
        for name, tenant in self.tenants.items():
            for where, wanted in (("class", (tenant.default_class,)), ("classes", tenant.classes or ())):
                unknown = [item for item in wanted if item and item not in self.known()]
                if unknown:
                    raise ValueError(
                        f"tenants.{name}.{where}: {unknown[0]!r} is not one of {known}; add it to qos.classes"
                    )
        return self


_PLAIN = QosClass()
