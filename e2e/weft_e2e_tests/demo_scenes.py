"""A made-up replan for the tests of the screen and the report (no claim about any machine)."""

from dataclasses import replace
from typing import Any

from weft_core.plan import Plan, PlannedGroup, Prediction, plan_to_json
from weft_core.validity import Validity
from weft_e2e.demo.scene import Drifted, Rounds, Story
from weft_e2e.kube import Object


def a_plan(degree: int, rate_high: float, first_prompt: float) -> Plan:
    """Return a plan of one prefill and one decode worker of a degree."""
    return Plan(
        groups=(PlannedGroup("prefill", degree, 1, "h20"), PlannedGroup("decode", degree, 1, "h20")),
        predicted=Prediction(
            ttft_p95_s=1.1, itl_p95_s=0.02, ttft_mean_s=0.4, itl_mean_s=0.02, gpus=2 * degree, slo_met=True
        ),
        objective="cost",
        inputs_hash="abc",
        revision=f"rev{degree}",
        reason="fewest GPUs",
        validity=Validity(0.5, 0.0, rate_high, 3.0, first_prompt, 200.0, 60.0, 0.3),
    )


TURNED = replace(
    a_plan(2, 2.2, 300.0),
    groups=(PlannedGroup("decode", 2, 1, "h20"), PlannedGroup("both", 2, 1, "h20")),
    revision="turned",
)
"""The larger plan's workers, of which one changes its role."""
SMALL, LARGE = a_plan(1, 1.28, 600.0), a_plan(2, 2.2, 1187.0)
WHY = "1187 tokens of a first prompt are observed (mean of 24) and the plan is for 600"


def a_service(plan: Plan, reason: str, message: str, *, rate: float, prompt: float, answer: float = 60.0) -> Object:
    """Return a service as the API server shows it."""
    conditions = [{"type": "Planned", "status": "True", "reason": reason, "message": message}]
    conditions += [{"type": "Ready", "status": "True"}, {"type": "Progressing", "status": "False"}]
    return {
        "kind": "DisaggInferenceService",
        "metadata": {"name": "drift", "generation": 1},
        "spec": {"model": {"name": "m"}},
        "status": {
            "observedGeneration": 1,
            "plan": plan_to_json(plan),
            "conditions": conditions,
            "observed": {
                "workload": {"sessionRate": rate, "firstPrompt": {"mean": prompt}, "decode": {"mean": answer}}
            },
        },
    }


def a_pod(name: str, role: str, degree: int, *, ready: bool = True, leaves: bool = False) -> Object:
    """Return a worker's pod."""
    metadata: dict[str, Any] = {
        "name": name,
        "labels": {"app.kubernetes.io/component": "worker", "weft.dev/role": role, "weft.dev/degree": str(degree)},
    }
    if leaves:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    metadata["labels"]["weft.dev/service"] = "drift"
    return {
        "kind": "Pod",
        "metadata": metadata,
        "status": {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
    }


def sessions_page(count: int) -> str:
    """Return a metrics page that tells of sessions."""
    return f"# TYPE weft_router_sessions gauge\nweft_router_sessions {count}\n"


Moment = tuple[float, Object, list[Object], dict[str, int], Rounds]


def moments() -> list[Moment]:
    """Return a replan from the first second to the last: when, service, pods, sessions of decode pods, rounds."""
    old = [a_pod("drift-w1-1-0", "prefill", 1), a_pod("drift-w1-0-0", "decode", 1)]
    new = [a_pod("drift-w2-1-0", "prefill", 2, ready=False), a_pod("drift-w2-0-0", "decode", 2, ready=False)]
    ready = [a_pod("drift-w2-1-0", "prefill", 2), a_pod("drift-w2-0-0", "decode", 2)]
    going = [a_pod("drift-w1-1-0", "prefill", 1, leaves=True), a_pod("drift-w1-0-0", "decode", 1, leaves=True)]
    before = a_service(SMALL, "PlanReady", "made for the spec", rate=0.5, prompt=600.0)
    asked = a_service(SMALL, "Replanning", "the planner is at work", rate=1.31, prompt=1187.0)
    after = a_service(LARGE, "Replanned", f"P2x1 D2x1 was made, because {WHY}; it holds", rate=1.48, prompt=1190.0)
    return [
        (0.0, before, old, {"drift-w1-0-0": 3}, Rounds(12, 2, 0)),
        (14.0, asked, old, {"drift-w1-0-0": 7}, Rounds(40, 6, 0)),
        (21.0, after, [*old, *new], {"drift-w1-0-0": 9}, Rounds(61, 9, 0)),
        (29.0, after, [*ready, *going], {"drift-w1-0-0": 5, "drift-w2-0-0": 4}, Rounds(90, 8, 0)),
        (38.0, after, ready, {"drift-w2-0-0": 9}, Rounds(131, 7, 0)),
    ]


def later_moments() -> list[Moment]:
    """Return a second replan, after the first: one worker changes its role."""
    words = "160 tokens of an answer are observed (mean of 24) and the plan is for 60"
    before = [a_pod("drift-w2-1-0", "prefill", 2), a_pod("drift-w2-0-0", "decode", 2)]
    turned = [a_pod("drift-w2-1-0", "both", 2), a_pod("drift-w2-0-0", "decode", 2)]
    seen = {"rate": 1.2, "prompt": 310.0, "answer": 160.0}
    asked = a_service(LARGE, "Replanning", "the planner is at work", **seen)
    after = a_service(TURNED, "Replanned", f"D2x1 B2x1 was made, because {words}; it holds", **seen)
    return [
        (0.0, asked, before, {"drift-w2-0-0": 9}, Rounds(131, 7, 0)),
        (12.0, after, turned, {"drift-w2-0-0": 9}, Rounds(150, 7, 0)),
    ]


def a_story() -> Story:
    """Return the replan as it was seen."""
    story = Story(SMALL)
    for at_s, service, pods, held, rounds in moments():
        pages = {name: sessions_page(count) for name, count in held.items()}
        story.take(service, pods, pages, at_s=at_s, arrives="1.5 sessions/s arrive", rounds=rounds)
    return story


def drifted() -> Drifted:
    """Return the whole replan."""
    return Drifted("drift", a_story(), ())
