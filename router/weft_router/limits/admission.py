"""Decide whether a request may come in now, and what it gets: rates, concurrency, queues, shares.

One call per request over counters in memory; no I/O, the clock is the caller's (monotonic seconds). All figures are of
this process: several coordinator processes each have their own.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from weft_core.policies.qos.output_cap import output_cap
from weft_router.auth.principal import Principal, RateLimits
from weft_router.config import PLAIN_CLASS, LimitsConfig, QosConfig, Rates, SessionClass
from weft_router.errors import ApiError
from weft_router.limits.token_buckets import TokenBuckets, whole_seconds
from weft_router.limits.waiting_room import WaitingRoom

Reason = Literal["requests", "tokens", "concurrency", "class-concurrency", "class-queue", "share", "full"]
MINUTE_S: Final = 60.0
UNASKED_OUTPUT: Final = 256
"""Tokens of an answer that are charged at first where the client gives no limit.

At its end the difference to what it took is charged or given back, unless nobody knows what that was.
"""
SOON_S = 1.0
"""Retry time when a place must be freed by another request, whose end is unknown."""

RATES: Final = frozenset[Reason]({"requests", "tokens", "concurrency"})
"""Refusals for what one key sends; the others are for what all do."""

Owners = tuple[tuple[str, RateLimits], ...]
"""Whose bounds a request came in under; it leaves under the same, whatever they are by then."""
_NOBODY: Final[Owners] = ()

_WORDS: Mapping[Reason, str] = {
    "requests": "this key has sent too many requests a second",
    "tokens": "this key has used too many tokens a minute",
    "concurrency": "this key has too many requests at the same time",
    "class-concurrency": "too many requests of this class run",
    "class-queue": "too many requests of this class wait",
    "share": "this tenant has its share of the waiting requests",
    "full": "too many requests wait",
}


@dataclass(frozen=True, slots=True)
class RequestLoad:
    """What one request asks for, and how busy the service is where it would go.

    ``prompt`` and ``output`` are tokens (``output`` None: the client gives no limit), ``n`` answers, ``kv_use``
    the share of KV memory in use, ``queued`` tasks per prefill worker.
    """

    prompt: float
    output: int | None = None
    n: int = 1
    kv_use: float = 0.0
    queued: float = 0.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request may not come in now, and in how many seconds it may be sent again."""

    status: int
    reason: Reason
    retry_after_s: int

    def error(self) -> ApiError:
        """Return it as an answer."""
        late = self.status == 503
        return ApiError(
            f"{_WORDS[self.reason]}; send it again in {self.retry_after_s} s",
            status=self.status,
            kind="service_unavailable" if late else "rate_limit_error",
            code="overloaded" if late else "rate_limit_exceeded",
            retry_after_s=self.retry_after_s,
            overload=self.reason not in RATES,
        )


class ClassLoad:
    """The requests of one class that are in, and the rules that hold for the next one."""

    __slots__ = ("cap", "caps", "concurrent", "queue_limit", "running", "stays", "waiting")

    def __init__(self, rules: SessionClass) -> None:
        self.waiting = 0
        """Without a first byte."""
        self.running = 0
        """All that are in."""
        self.reload(rules)

    def reload(self, rules: SessionClass) -> None:
        """Follow other rules from now on."""
        qos = rules.qos
        self.queue_limit = qos.queue_limit
        self.concurrent = qos.concurrent
        self.cap = qos.max_output_tokens
        self.caps = qos.output_cap
        self.stays = qos.local_only


class AdmissionPermit:
    """An admitted request: what it is granted and the slots that it holds; each is released once."""

    __slots__ = (
        "_admission",
        "_charged",
        "_inside",
        "_of_class",
        "_owners",
        "_waits",
        "local_only",
        "output_cap",
        "principal",
    )  # fmt: skip

    def __init__(
        self, admission: "Admission", principal: Principal, of_class: ClassLoad, *,
        owners: Owners, charged: float, output_cap: int | None, local_only: bool,
    ) -> None:  # fmt: skip
        self._admission = admission
        self._of_class = of_class
        self._owners = owners
        self._charged = charged
        self._waits = True
        self._inside = True
        self.principal = principal
        self.output_cap = output_cap
        """Most tokens of its answer; None: what it asked for."""
        self.local_only = local_only
        """It has to prefill on its decode worker."""

    def first_byte(self) -> None:
        """Leave the waiting room: the answer has started."""
        if self._waits:
            self._waits = False
            self._admission.began(self.principal, self._of_class)

    def done(self, now: float, tokens: float | None = None) -> None:
        """Release everything, however the request ended; ``tokens`` is what it used, None where unknown."""
        self.first_byte()
        if self._inside:
            self._inside = False
            surplus = 0.0 if tokens is None else tokens - self._charged
            self._admission.ended(self._of_class, self._owners, surplus, now)


class Admission:
    """The counters of one process, and the rules over them."""

    def __init__(self, qos: QosConfig, limits: LimitsConfig, classes: Mapping[str, SessionClass]) -> None:
        self._room = WaitingRoom(qos.max_waiting)
        self.of_classes: dict[str, ClassLoad] = {}
        """Those that somebody asked for."""
        self.reload(qos, limits, classes)
        self._requests = TokenBuckets()
        self._tokens = TokenBuckets()
        self._inside: Counter[str] = Counter()

    def reload(self, qos: QosConfig, limits: LimitsConfig, classes: Mapping[str, SessionClass]) -> None:
        """Follow other rules from now on; who is in stays in, and what was charged stays charged."""
        self._classes = classes
        for name, of_class in self.of_classes.items():
            of_class.reload(self._rules(name))
        self._pressure, self._busy = qos.pressure.kv_use, qos.pressure.busy
        self._capping = (qos.pressure.kv_use, float(qos.pressure.largest), float(qos.pressure.least), float("inf"))
        self._default = _bounds(limits.rates)
        self._tenants = {name: _bounds(tenant.rates) for name, tenant in qos.tenants.items()}
        self._weights = {name: tenant.weight for name, tenant in qos.tenants.items()}
        self._room.places = qos.max_waiting

    def weight(self, principal: Principal) -> float:
        """Return a tenant's weight: what its key says, else what the configuration says, else 1."""
        return principal.weight if principal.weight is not None else self._weights.get(principal.tenant, 1.0)

    def closed_to(self, now: float, principal: Principal) -> Refusal | None:
        """Return why a caller's next request would be refused, whatever its body; nothing is charged.

        So nothing need be read of it: neither the room that waiting requests have nor its bounds on requests depend
        on the body.
        """
        room = self._room
        if not room.may_enter(principal.tenant, self.weight(principal)):
            return Refusal(503, "full", 1) if room.full else Refusal(429, "share", 1)
        for name, bounds in self._owners(principal):
            refusal = self._closed(name, bounds, now)
            if refusal is not None:
                return refusal
        return None

    def admit(self, now: float, principal: Principal, class_name: str, load: RequestLoad) -> AdmissionPermit | Refusal:
        """Let a request in, or say why not; nothing is charged for one that is refused."""
        of_class = self._of(class_name)
        tenant = principal.tenant
        if not self._room.may_enter(tenant, self.weight(principal)):
            return Refusal(503, "full", 1) if self._room.full else Refusal(429, "share", 1)
        if of_class.queue_limit is not None and of_class.waiting >= of_class.queue_limit:
            return Refusal(429, "class-queue", 1)
        if of_class.concurrent is not None and of_class.running >= of_class.concurrent:
            return Refusal(429, "class-concurrency", 1)
        cap = of_class.cap
        if of_class.caps and load.kv_use > self._pressure:
            asked = float("inf") if cap is None else float(cap)
            cap = int(output_cap(asked, load.kv_use, 0.0, self._capping))
        if cap is not None and load.output is not None and load.output <= cap:
            cap = None
        answer = cap or load.output or UNASKED_OUTPUT
        charged = load.prompt + answer * load.n
        owners = self._owners(principal)
        refusal = self._charge(now, owners, charged)
        if refusal is not None:
            return refusal
        self._room.enter(tenant)
        of_class.waiting += 1
        of_class.running += 1
        stays = of_class.stays
        local = stays != "off" and (stays == "always" or load.queued >= self._busy)
        return AdmissionPermit(
            self, principal, of_class, owners=owners, charged=charged, output_cap=cap, local_only=local
        )

    def began(self, principal: Principal, of_class: ClassLoad) -> None:
        """Count one that waits no more."""
        self._room.leave(principal.tenant)
        of_class.waiting -= 1

    def ended(self, of_class: ClassLoad, owners: Owners, surplus: float, now: float) -> None:
        """Count a request that ended; ``surplus`` tokens are charged now, negative ones are refunded."""
        of_class.running -= 1
        for name, bounds in owners:
            if bounds.concurrent is not None:
                self._inside[name] -= 1
                if not self._inside[name]:
                    del self._inside[name]
            if bounds.tpm is not None and surplus:
                self._tokens.take(name, surplus, rate=bounds.tpm / MINUTE_S, burst=bounds.burst_s, now=now)

    def _of(self, name: str) -> ClassLoad:
        """Return what is known of a class."""
        of_class = self.of_classes.get(name)
        if of_class is None:
            of_class = self.of_classes[name] = ClassLoad(self._rules(name))
        return of_class

    def _rules(self, class_name: str) -> SessionClass:
        return self._classes.get(class_name) or self._classes[PLAIN_CLASS]

    def _owners(self, principal: Principal) -> Owners:
        """Return whose bounds hold for a request: its key's, and its tenant's where it has some."""
        bounds = principal.bounds or self._default
        of_tenant = self._tenants.get(principal.tenant)
        if of_tenant is None:
            return (("key:" + principal.id, bounds),) if bounds.bind else _NOBODY
        return (("key:" + principal.id, bounds), ("tenant:" + principal.tenant, of_tenant))

    def _closed(self, name: str, bounds: RateLimits, now: float) -> Refusal | None:
        """Return why an owner may have no request more."""
        if bounds.concurrent is not None and self._inside[name] >= bounds.concurrent:
            return Refusal(429, "concurrency", whole_seconds(SOON_S))
        if bounds.rps is not None:
            wait = self._requests.wait(name, 1.0, rate=bounds.rps, burst=_burst(bounds), now=now)
            if wait > 0.0:
                return Refusal(429, "requests", whole_seconds(wait))
        return None

    def _charge(self, now: float, owners: Owners, tokens: float) -> Refusal | None:
        """Take a request and its tokens from all buckets, or from none and say why."""
        for name, bounds in owners:
            refusal = self._closed(name, bounds, now)
            if refusal is not None:
                return refusal
            if bounds.tpm is not None:
                rate = bounds.tpm / MINUTE_S
                wait = self._tokens.wait(name, tokens, rate=rate, burst=bounds.burst_s, now=now)
                if wait > 0.0:
                    return Refusal(429, "tokens", whole_seconds(wait))
        for name, bounds in owners:
            if bounds.concurrent is not None:
                self._inside[name] += 1
            if bounds.rps is not None:
                self._requests.take(name, 1.0, rate=bounds.rps, burst=_burst(bounds), now=now)
            if bounds.tpm is not None:
                self._tokens.take(name, tokens, rate=bounds.tpm / MINUTE_S, burst=bounds.burst_s, now=now)
        return None


def _burst(bounds: RateLimits) -> float:
    """Return the seconds of a request rate that may come at once: at least one whole request."""
    assert bounds.rps is not None  # noqa: S101 - for the type checker; the caller has looked
    return max(bounds.burst_s, 1.0 / bounds.rps)


def _bounds(rates: Rates) -> RateLimits:
    return RateLimits(
        rps=rates.requests_per_second,
        tpm=rates.tokens_per_minute,
        concurrent=rates.concurrent,
        burst_s=rates.burst_seconds,
    )
