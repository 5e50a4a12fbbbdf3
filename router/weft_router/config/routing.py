"""Where prefills run, for the service and for each class of requests, and what happens when a worker is lost."""

from typing import Literal

from pydantic import Field, model_validator

from weft_core.layouts import WorkerRole
from weft_core.policies.qos import hedge as racing
from weft_core.policies.registry import (
    DEFAULT_CAP,
    DEFAULT_MODE,
    POLICIES,
    BindingName,
    ModeName,
    OrderName,
    PolicyName,
    parameters,
)
from weft_core.policies.slices import SLICE_OVERHEAD_S, SLICE_SHARE
from weft_router.config.section import Section, WorkerDegree

DEFAULT_POLICY: PolicyName = "weft"


class SlicesConfig(Section):
    """Local prefills in slices on stock engines: the prefix cache joins them."""

    mode: Literal["auto", "off"] = "auto"
    """auto: where the policy and the engine can."""
    block: int = Field(default=16, ge=1, le=1024)
    """Tokens of one block of the engine's prefix cache; slices end at multiples of it."""
    least: int = Field(default=32, ge=1)
    """Fewest tokens of a slice; what a slice costs beyond its tokens makes them longer by itself."""
    overhead_seconds: float = Field(default=SLICE_OVERHEAD_S, ge=0, le=10)
    """What each slice costs beyond its tokens: one more request to the engine."""


class HedgeConfig(Section):
    """A raced second prefill for the top classes; the loser is cancelled."""

    mode: Literal["auto", "off"] = "off"
    """auto: where a prefill may miss its TTFT and another worker should make it."""
    top: float = Field(default=racing.TOP.default, ge=0)
    """Priority from which prefills are raced."""
    risk: float = Field(default=racing.RISK.default, ge=0, le=10)
    """Share of the TTFT SLO above which a prediction is at risk."""


class ClassRouting(Section):
    """What one class of requests does otherwise; what is absent is the service's."""

    policy: PolicyName | None = None
    """Instead of the service's; parameters then begin at the policy's own."""
    mode: ModeName | None = None
    """Instead of the service's."""
    binding: BindingName | None = None
    """Instead of the service's."""
    params: dict[str, float] | None = None
    """Instead of the service's."""
    ttft: float | None = Field(default=None, gt=0)
    """Seconds, instead of ``slo.ttft``."""
    itl: float | None = Field(default=None, gt=0)
    """Seconds, instead of ``slo.itl``."""


class CanaryGroup(Section):
    """Workers that try a new plan, by what their heartbeats say."""

    role: WorkerRole
    """Their role in force."""
    degree: WorkerDegree
    """Their degree: a number of GPUs, or text such as tp4pp2 or dp16ep."""
    pool: str = ""
    """Their pool."""
    revision: str = ""
    """Their revision."""


class CanaryConfig(Section):
    """A new plan on trial: a share of new sessions is bound to its workers, all others to the rest."""

    percent: float = Field(ge=0, le=100)
    """Share of new sessions that try it; which ones follows from their keys and ``salt``."""
    salt: str = ""
    """Names the plan, so that another one is tried by other sessions."""
    groups: list[CanaryGroup] = Field(max_length=64)
    """Its workers."""


class RoutingConfig(Section):
    """The rules of the service; ``classes`` names what a class of requests does otherwise."""

    policy: PolicyName = DEFAULT_POLICY
    """Where a prefill runs; [the policies](policies.md)."""
    mode: ModeName = DEFAULT_MODE
    """weft: which local prefills are on offer."""
    slice_share: float = Field(default=SLICE_SHARE, gt=0, le=1)
    """Share of the ITL SLO that an engine step with a slice may take."""
    binding: BindingName = "kv-headroom"
    """The decode worker of a new session; absent, the policy's own."""
    min_cache_hit_ratio: float = Field(default=0.0, ge=0, le=1)
    """Bindings that read prefix caches count a hit from this share of the prompt on."""
    order: OrderName = "moore-hodgson"
    """Which queued prefill runs next; absent, the policy's own."""
    places: int | None = Field(default=None, ge=1)
    """Most sequences of a decode engine's batch, in which a local prefill takes a place; absent: no limit is known."""
    step_tokens: int | None = Field(default=None, ge=1)
    """colocated: most tokens that an engine takes into a step; absent: any prompt is taken to be prefilled in one."""
    params: dict[str, float] = Field(default_factory=dict)
    """The policy's parameters by name, where they differ from its defaults; those of ampd are alpha and beta."""
    alpha: float = Field(default=0.9, gt=0)
    """ampd: a prefill worker is eligible while its recent TTFT is at most this part of the SLO."""
    beta: float = Field(default=0.85, gt=0)
    """ampd: prefills stay local while the recent ITL is at most this part of the SLO."""
    window: int = Field(default=3, ge=1, le=6)
    """ampd-window: tasks at the head of a queue that may be reordered."""
    ageing_cap: int = Field(default=DEFAULT_CAP, ge=1)
    """How often the oldest task may be passed over."""
    stats_window_seconds: float = Field(default=10.0, gt=0)
    """How far back recent TTFT and ITL look."""
    session_ttl_seconds: int = Field(default=3600, ge=1)
    """Idle life of a session."""
    prefill_concurrency: int = Field(default=1, ge=1)
    """Prefills at work in each batch of one engine, with as many that go there shortly before their turn."""
    prefill_queue_limit: int = Field(default=512, ge=1)
    """Prefills that may wait at one worker."""
    prediction_correction: Literal["auto", "off"] = "auto"
    """auto: predictions that were wrong lately follow what was observed; absent, off for ampd, as it is printed."""
    seed: int = 0
    """Seed of random choices."""
    hedge: HedgeConfig = Field(default_factory=HedgeConfig)
    slices: SlicesConfig = Field(default_factory=SlicesConfig)
    first_token_from_prefill: Literal["auto", "off"] = "off"  # noqa: S105 - a token of text
    """auto: the prefill worker's own token is the answer's first one where that is exact (greedy, n 1, no logprobs)."""
    resume: Literal["auto", "exact", "off"] = "auto"
    """A stream whose decode worker died goes on elsewhere: always, only where it is exact, or ends with an error."""
    on_prefill_failure: Literal["local", "other", "error"] = "local"
    """A lost prefill runs on the decode worker, on another prefill worker (else local), or fails the request."""
    classes: dict[str, ClassRouting] = Field(default_factory=dict, max_length=32)
    canary: CanaryConfig | None = None
    """A new plan on trial, if there is one."""
    fail_open_url: str = Field(default="", pattern=r"^(https?://[^\s/?#@]+)?$")
    """The coordinators to which sidecars pass clients' requests on that no endpoint picker sent; refused if empty."""

    @property
    def overrides(self) -> dict[str, float]:
        """Return the policy's parameters that differ from the catalogue's defaults, as far as they are given."""
        return {"alpha": self.alpha, "beta": self.beta} if self.policy == "ampd" else self.params

    def of_class(self, name: str) -> "RoutingConfig":
        """Return the rules of a class; parameters go with a policy, so another policy begins with its own.

        The queue order is the service's: all classes wait in one queue at each worker.
        """
        own = self.classes.get(name)
        if own is None:
            return self
        given = {field: value for field, value in own if value is not None and field not in ("ttft", "itl")}
        if own.policy is not None and own.policy != self.policy:
            given = {"params": {}, **given}
        return self.model_copy(update={**given, "classes": {}})

    @model_validator(mode="before")
    @classmethod
    def _rules_of_the_policy(cls, given: object) -> object:
        """Let an absent binding, queue order or correction be the one that the policy goes with."""
        if isinstance(given, dict) and (rule := POLICIES.get(str(given.get("policy", DEFAULT_POLICY)))) is not None:
            correction = "auto" if rule.corrected else "off"
            return {"binding": rule.binding, "order": rule.order, "predictionCorrection": correction, **given}
        return given

    @model_validator(mode="after")
    def _feasible(self) -> "RoutingConfig":
        """Refuse what this router cannot do; it never does something else silently."""
        _check(self)
        for name in self.classes:
            try:
                _check(self.of_class(name))
            except ValueError as error:
                raise ValueError(f"classes.{name}.{error}") from None
        return self


def _check(rules: RoutingConfig) -> None:
    if rules.policy == "ampd" and rules.params:
        raise ValueError("params: the parameters of ampd are the fields alpha and beta; remove params")
    parameters(rules.policy, rules.mode, rules.overrides)
