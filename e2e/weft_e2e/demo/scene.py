"""One moment of a service whose traffic changes, read from what Kubernetes and its routers tell. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from weft_core.parallelism import Degree, parse_degree
from weft_core.plan import WORKER_ROLES, Plan, plan_from_json
from weft_e2e import kube
from weft_e2e.kube import Object
from weft_e2e.metrics import MetricMissing, growth
from weft_e2e.service import component_of
from weft_operator.render.plan_summary import plan_summary
from weft_operator.status.plan_status import plan_diff

IN_FORCE = "another plan is active"

State = Literal["starting", "ready", "draining"]


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker's pod: what it is, how it is, and how many sessions it holds (None: nobody tells)."""

    name: str
    role: str
    degree: Degree
    state: State
    sessions: int | None = None


@dataclass(frozen=True, slots=True)
class Rounds:
    """What clients saw so far."""

    served: int
    running: int
    failed: int


@dataclass(frozen=True, slots=True)
class ReplanTimeline:
    """What a stranger must see to understand a replan; times are seconds since the traffic changed."""

    at_s: float
    arrives: str
    """What arrives, in words."""
    seen_rate: float | None
    """Sessions per second as Prometheus has counted them over the window."""
    metrics_reason: str
    """Why nothing is seen, where nothing is."""
    seen_prompt: float | None
    """Mean tokens of a first prompt."""
    bound_rate: float | None
    """Sessions per second up to which the active plan holds the SLO."""
    bound_prompt: float | None
    """Tokens of a first prompt that the active plan is for."""
    seen_answer: float | None
    """Mean tokens of an answer."""
    bound_answer: float | None
    """Tokens of an answer that the active plan is for."""
    plans: tuple[str, ...]
    """The plan that was active, and the one that took its place."""
    why: str
    diff: tuple[str, ...]
    workers: tuple[Worker, ...]
    rounds: Rounds
    facts: tuple[tuple[float, str], ...] = ()


@dataclass(slots=True)
class Story:
    """What was seen so far, scene by scene; tells what happened between two of them."""

    first: Plan
    scenes: list[ReplanTimeline] = field(default_factory=list)
    facts: list[tuple[float, str]] = field(default_factory=list)
    why: str = ""
    """Why the newest plan was made, as the service said last: later it may speak of what is seen since."""

    @property
    def last(self) -> ReplanTimeline | None:
        """Return the newest scene."""
        return self.scenes[-1] if self.scenes else None

    def took_s(self, words: str) -> float | None:
        """Return when a fact was first told, None where it was not."""
        return next((at for at, fact in self.facts if fact.startswith(words)), None)

    def take(
        self,
        service: Object,
        pods: Sequence[Object],
        pages: Mapping[str, str],
        *,
        at_s: float,
        arrives: str,
        rounds: Rounds,
        weighed: Plan | None = None,
    ) -> ReplanTimeline:
        """Take in one moment; ``pages`` are the metrics pages of decode pods by name.

        ``weighed`` is the active plan with the others that it was weighed against, which the status leaves out.
        """
        status = service["status"]
        plan = plan_from_json(status["plan"])
        if weighed is not None and weighed.revision == plan.revision:
            plan = weighed
        changed = sorted(plan.groups) != sorted(self.first.groups)
        observed = status.get("observed") or {}
        load = observed.get("workload") or {}
        valid = plan.validity
        workers = tuple(sorted((_worker(pod, pages) for pod in pods if _is_worker(pod)), key=_place))
        planned: Mapping[str, Any] = next((c for c in status["conditions"] if c["type"] == "Planned"), {})
        self._tell(at_s, planned.get("reason", ""), changed=changed, workers=workers)
        if planned.get("reason") == "Replanned":
            self.why = _why(planned["message"])
        scene = ReplanTimeline(
            at_s=at_s,
            arrives=arrives,
            seen_rate=load.get("sessionRate"),
            metrics_reason=observed.get("metricsReason", ""),
            seen_prompt=(load.get("firstPrompt") or {}).get("mean"),
            bound_rate=valid.rate_high if valid is not None else None,
            bound_prompt=valid.first_prompt if valid is not None else None,
            seen_answer=(load.get("decode") or {}).get("mean"),
            bound_answer=valid.decode if valid is not None else None,
            plans=(plan_summary(self.first), *([plan_summary(plan)] if changed else [])),
            why=self.why if changed else "",
            diff=tuple(plan_diff(self.first, plan)) if changed else (),
            workers=workers,
            rounds=rounds,
            facts=tuple(self.facts),
        )
        self.scenes.append(scene)
        return scene

    def tell(self, at_s: float, words: str) -> None:
        """Add a fact; one that was told is not told again."""
        if words not in (fact for _, fact in self.facts):
            self.facts.append((at_s, words))

    def _tell(self, at_s: float, reason: str, *, changed: bool, workers: Sequence[Worker]) -> None:
        if reason == "Replanning" and not changed:
            self.tell(at_s, "drift: the planner is asked for the traffic that is seen")
        if changed:
            self.tell(at_s, IN_FORCE)
        before = {worker.name: worker for worker in (self.last.workers if self.last is not None else ())}
        for worker in workers:
            known = before.pop(worker.name, None)
            if known is not None and known.role != worker.role:
                self.tell(at_s, f"{worker.name} changes its role from {known.role} to {worker.role}")
            if known is not None and known.state == worker.state:
                continue
            if worker.state == "ready" and self.last is not None:
                self.tell(at_s, f"{worker.name} serves")
            elif worker.state == "draining":
                held = f", with {worker.sessions} sessions to finish or move" if worker.sessions else ""
                self.tell(at_s, f"{worker.name} drains{held}")
        for name in before:
            self.tell(at_s, f"{name} is gone")


@dataclass(frozen=True, slots=True)
class Drifted:
    """A replan as it was seen."""

    service: str
    story: Story
    problems: tuple[str, ...]

    @property
    def last(self) -> ReplanTimeline:
        """Return the last scene."""
        return self.story.scenes[-1]


def _is_worker(pod: Object) -> bool:
    return component_of(pod) in WORKER_ROLES


def _worker(pod: Object, pages: Mapping[str, str]) -> Worker:
    metadata = pod["metadata"]
    state: State = "ready" if kube.pod_ready(pod) else "starting"
    return Worker(
        name=metadata["name"],
        role=component_of(pod),
        degree=parse_degree(metadata["labels"].get("weft.dev/degree", "1")),
        state="draining" if "deletionTimestamp" in metadata else state,
        sessions=_sessions(pages[metadata["name"]]) if metadata["name"] in pages else None,
    )


def _place(worker: Worker) -> tuple[bool, str]:
    return worker.role != "prefill", worker.name


def _sessions(page: str) -> int | None:
    try:
        return round(growth({}, {"": page}).total("weft_router_sessions"))
    except MetricMissing:
        return None


def _why(message: str) -> str:
    """Return the cause out of the condition's message, which goes on about the plan."""
    _, _, rest = message.partition("because ")
    return rest.partition("; ")[0] or message
