"""Play scenarios of replanning: events that happen to a service, and what must be seen of it after each."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from weft_core.plan import Plan
from weft_e2e import kube
from weft_e2e.checks import (
    check_condition,
    check_left_alone,
    check_no_failures,
    check_proposed,
    check_ready,
    check_replanned,
)
from weft_e2e.checks.objects import check_pods_untouched
from weft_e2e.checks.plans import running
from weft_e2e.kube import Object
from weft_e2e.scenarios.arriving import Arrivals, Traffic, arriving
from weft_e2e.scenarios.blinding import FAULTS, Fault
from weft_e2e.service import Service
from weft_e2e.waiting import until

WINDOW_S = 20.0
"""The shortest window that a service may ask for."""
PROMISED_S = 10.0
"""From drift to an applied plan, beside the window, on a machine that has nothing else to do."""
ROUND_S = 120.0
"""What a round may take: more arrives than the workers serve until others are there."""

Says = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TrafficChange:
    """Event: other sessions arrive from now on."""

    traffic: Traffic | None


@dataclass(frozen=True, slots=True)
class Mode:
    """Event: somebody changes spec.planning.mode."""

    mode: str


@dataclass(frozen=True, slots=True)
class Approve:
    """Event: somebody approves a hash; "" stands for that of the proposal."""

    hashed: str = ""


@dataclass(frozen=True, slots=True)
class Blind:
    """Event: Prometheus tells no more, in one of the ways of ``blinding``."""

    fault: Fault


@dataclass(frozen=True, slots=True)
class Mend:
    """Event: Prometheus is whole again."""


@dataclass(frozen=True, slots=True)
class ConditionCheck:
    """Check: a condition comes to be within a time."""

    condition: str
    status: str
    reasons: frozenset[str] = frozenset()
    within_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Replanned:
    """Check: another plan is active within a time of the last event; ``grows`` tells whether it has more GPUs.

    ``same_workers``: it is carried out by other roles for the workers that run, and no pod changes. ``because`` is in
    the message of condition Planned.
    """

    within_s: float
    grows: bool = True
    same_workers: bool = False
    because: str = ""


@dataclass(frozen=True, slots=True)
class Proposed:
    """Check: another plan is proposed within a time."""

    within_s: float


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """Check: no child and no pod changes for a time; while blind, MetricsAvailable stays False."""

    for_s: float
    blind: bool = False


@dataclass(frozen=True, slots=True)
class Served:
    """Check: so many more rounds are served."""

    rounds: int
    within_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Ready:
    """Check: everything that is planned runs."""

    within_s: float = 150.0


Step = (
    TrafficChange | Mode | Approve | Blind | Mend | ConditionCheck | Replanned | Proposed | LeftAlone | Served | Ready
)


@dataclass(frozen=True, slots=True)
class ReplanScenario:
    """A service, what happens to it and what must be seen, in order."""

    name: str
    manifest: Object
    steps: tuple[Step, ...]


@dataclass(slots=True)
class Played:
    """A scenario that is being played; ``took_s`` holds what was measured, in seconds."""

    service: Service
    arrivals: Arrivals
    say: Says
    plan: Plan
    faults: ExitStack
    at: float = field(default_factory=time.monotonic)
    """When the last event was."""
    took_s: dict[str, float] = field(default_factory=dict)


@contextmanager
def _stage(service: Service, say: Says) -> Iterator[Played]:
    with (
        service.reachable(run=f"{time.time():.0f}-") as target,
        arriving(Arrivals(target, round_deadline_s=ROUND_S)) as arrivals,
        ExitStack() as faults,
    ):
        yield Played(service, arrivals, say, service.plan(), faults)


def play(scenario: ReplanScenario, service: Service, say: Says) -> dict[str, float]:
    """Play a scenario on its service, which is Ready; return what was measured, in seconds.

    Raises:
        CheckFailed: something was not seen as it must be; no round may fail meanwhile, either.
    """
    begin = time.monotonic()
    with _stage(service, say) as stage:
        for step in scenario.steps:
            say(f"{time.monotonic() - begin:6.1f} s  {_words(step)}")
            _take(step, stage)
    check_no_failures(stage.arrivals.records)
    say(f"{time.monotonic() - begin:6.1f} s  {stage.arrivals.served()} rounds were served, none failed")
    return stage.took_s


def _words(step: Step) -> str:
    match step:
        case TrafficChange(traffic=None):
            return "no more sessions arrive"
        case TrafficChange(traffic=Traffic(sessions_per_s=rate, rounds=rounds)):
            first = rounds[0]
            lengths = f"first prompts of {first.added_tokens} tokens, answers of {first.decode_tokens}"
            return f"{rate:g} sessions/s arrive: {lengths}"
        case ConditionCheck():
            return f"{step.condition} becomes {step.status} {' or '.join(sorted(step.reasons))}".rstrip()
        case _:
            return str(step)


def _take(step: Step, stage: Played) -> None:
    service = stage.service
    match step:
        case TrafficChange() | Mode() | Approve() | Blind() | Mend():
            stage.at = time.monotonic()
            _happen(step, stage)
        case ConditionCheck():
            check_condition(service, step.condition, step.status, step.reasons, timeout_s=step.within_s)
        case Replanned():
            _replanned(step, stage)
        case Proposed():
            hashed = check_proposed(service, timeout_s=step.within_s)
            _took(stage, "proposed")
            stage.say(f"          {hashed}: {'; '.join(service.object()['status']['proposedPlan']['diff'])}")
        case LeftAlone():
            before, uids = running(service), service.worker_uids()
            check_left_alone(service, before, uids, for_s=step.for_s, meanwhile=_blindness(service, step.blind))
        case Served():
            stage.arrivals.wait_served(step.rounds, timeout_s=step.within_s)
        case Ready():
            check_ready(service, timeout_s=step.within_s)
            _took(stage, "ready")


def _happen(event: TrafficChange | Mode | Approve | Blind | Mend, stage: Played) -> None:
    service = stage.service
    match event:
        case TrafficChange():
            stage.arrivals.turn_to(event.traffic)
        case Mode():
            patch = f'{{"spec": {{"planning": {{"mode": "{event.mode}"}}}}}}'
            service.kube.kubectl("patch", "dis", service.name, "-n", service.namespace, "--type=merge", "-p", patch)
        case Approve():
            hashed = event.hashed or check_proposed(service, timeout_s=5)
            annotation = f"weft.dev/approve={hashed}"
            service.kube.kubectl("annotate", "--overwrite", "dis", service.name, "-n", service.namespace, annotation)
        case Blind():
            stage.faults.enter_context(FAULTS[event.fault](service))
        case Mend():
            stage.faults.close()


def _replanned(step: Replanned, stage: Played) -> None:
    old, uids = stage.plan, stage.service.worker_uids()
    new = check_replanned(stage.service, old, timeout_s=step.within_s)
    _took(stage, "applied")
    words = stage.service.object()["status"]["conditions"]
    said = next(item["message"] for item in words if item["type"] == "Planned")
    stage.say(f"          {said}")
    if step.because not in said:
        raise AssertionError(f"the reason of the new plan is not {step.because}: {said}")
    if (new.gpus > old.gpus) is not step.grows:
        raise AssertionError(f"{old.gpus} GPUs were replaced by {new.gpus}")
    stage.plan = new
    if step.same_workers:
        check_pods_untouched(stage.service, uids)
        until(
            lambda: _confirmed_roles(stage.service) == _roles_of(new),
            what="workers with the plan's roles",
            timeout_s=30.0,
        )
        _took(stage, "switched")
        check_pods_untouched(stage.service, uids)


def _roles_of(plan: Plan) -> Counter[str]:
    return Counter({group.role: group.replicas for group in plan.groups})


def _confirmed_roles(service: Service) -> Counter[str]:
    """Return how many workers serve, by the role that they have confirmed."""
    groups = kube.items(service.kube, "workergroups", namespace=service.namespace, selector=service.selector)
    found: Counter[str] = Counter()
    for group in groups:
        found.update(group.get("status", {}).get("roles") or {})
    return +found


def _took(stage: Played, what: str) -> None:
    stage.took_s[what] = time.monotonic() - stage.at
    stage.say(f"          {what} {stage.took_s[what]:.1f} s after the last event")


def _blindness(service: Service, blind: bool) -> Callable[[], None]:
    if not blind:
        return lambda: None
    return lambda: check_condition(service, "MetricsAvailable", "False")
