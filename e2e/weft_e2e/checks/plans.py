"""Check what becomes of a service's plan: replaced, only proposed, or left alone while nothing is seen."""

import time
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from weft_core.plan import Plan
from weft_e2e.checks.failed import CheckFailed
from weft_e2e.checks.objects import check_pods_untouched, check_same, child_specs
from weft_e2e.kube import Object
from weft_e2e.service import Service, condition_words, current_conditions
from weft_e2e.waiting import WaitedTooLong, until

T = TypeVar("T")


def check_condition(
    service: Service, kind: str, status: str, reasons: Collection[str] = (), *, timeout_s: float = 0.0
) -> None:
    """Require a condition of the newest spec, with one of the reasons where some are given, within a time."""

    def there() -> bool:
        found = current_conditions(service.object()).get(kind)
        return found is not None and found.status == status and (not reasons or found.reason in reasons)

    words = f" ({' or '.join(sorted(reasons))})" if reasons else ""
    wanted = f"{kind}={status}{words}"
    _within(there, service, what=wanted, timeout_s=timeout_s)


def check_replanned(service: Service, before: Plan, *, timeout_s: float) -> Plan:
    """Require another plan to be active within a time: other workers, and the reason said; return it."""

    def other() -> Plan | None:
        now = current_conditions(service.object()).get("Planned")
        if now is None or (now.status, now.reason) != ("True", "Replanned"):
            return None
        plan = service.plan()
        return plan if sorted(plan.groups) != sorted(before.groups) else None

    return _within(other, service, what="a plan with other workers", timeout_s=timeout_s)


def check_proposed(service: Service, *, timeout_s: float) -> str:
    """Require a proposal with what it would change and why, within a time; return its hash."""

    def proposed() -> Object | None:
        found: Object | None = (service.object().get("status") or {}).get("proposedPlan")
        return found

    found = _within(proposed, service, what="a proposed plan", timeout_s=timeout_s)
    lacking = [part for part in ("hash", "reason", "diff") if not found.get(part)]
    if lacking:
        raise CheckFailed(f"the proposal has no {' and no '.join(lacking)}: {found}")
    return str(found["hash"])


def running(service: Service) -> dict[str, str]:
    """Return what the operator made for a service to run: all but the ConfigMap that remembers plans."""
    specs = child_specs(service)
    return {name: spec for name, spec in specs.items() if name != f"ConfigMap/{service.name}-plan"}


def check_left_alone(
    service: Service,
    before: Mapping[str, str],
    uids: Mapping[str, str],
    *,
    for_s: float,
    every_s: float = 5.0,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Require children and worker pods to stay the same for a time; ``meanwhile`` is another check, made each time."""
    deadline = time.monotonic() + for_s
    while True:
        _unchanged(service, before)
        check_pods_untouched(service, uids)
        meanwhile()
        if time.monotonic() >= deadline:
            return
        time.sleep(every_s)


def _unchanged(service: Service, before: Mapping[str, str]) -> None:
    # One look: what remembers plans may change between two.
    check_same(running(service), before)


def _within(probe: Callable[[], T | None], service: Service, *, what: str, timeout_s: float) -> T:
    try:
        return until(probe, what=what, timeout_s=timeout_s, last=lambda: condition_words(service.object()))
    except WaitedTooLong as late:
        raise CheckFailed(f"{service.namespace}/{service.name}: {late}") from None
