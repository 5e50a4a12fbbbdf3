"""The scenarios of replanning: services that other traffic drives out of their plans, and what must become of them."""

from weft_e2e.kube import Object
from weft_e2e.replay.sessions import PlannedRound
from weft_e2e.scenarios.arriving import Traffic
from weft_e2e.scenarios.blinding import NAMES
from weft_e2e.scenarios.replanning import (
    WINDOW_S,
    Approve,
    Blind,
    ConditionCheck,
    LeftAlone,
    Mend,
    Mode,
    Proposed,
    Ready,
    Replanned,
    ReplanScenario,
    Served,
    TrafficChange,
)

SHRINK_AFTER_S = 60.0
AT_MOST_S = 90.0
"""From drift to an applied plan where the machine is busy: the planner computes for some seconds."""

SESSION = (PlannedRound(600, 60, 0.0), PlannedRound(200, 60, 0.3), PlannedRound(200, 60, 0.3))
WORDY = (PlannedRound(300, 160, 0.0), PlannedRound(100, 160, 0.3), PlannedRound(100, 160, 0.3))
LONGER = (PlannedRound(1200, 60, 0.0), PlannedRound(200, 60, 0.3), PlannedRound(200, 60, 0.3))

USUAL = Traffic(0.5, SESSION)
SURGE = Traffic(1.5, LONGER)
"""Three times the load, and longer prompts."""
MORE = Traffic(1.1, LONGER)
"""Too much for the SLO, but hardly more than can be served: it goes on for minutes while a person decides."""
A_FEW = Traffic(0.2, SESSION)
STEADY = Traffic(1.0, SESSION)
"""What two GPUs carry with headroom; twice as much, which is the most that a trigger asks for, takes three."""

USUAL_MIX = Traffic(0.4, SESSION)
PROMPTS = Traffic(1.2, LONGER)
ANSWERS = Traffic(1.2, WORDY)
"""As many sessions as with the long prompts."""


def drifting_service(mode: str, *, rate: float, first_prompt: float) -> Object:
    """Return a service whose workers are slow enough that a few sessions a second need more of them.

    Its one decode worker can only be replaced by a larger one, so its sessions must leave it.
    """
    return {
        "apiVersion": "weft.dev/v1alpha1",
        "kind": "DisaggInferenceService",
        "metadata": {"name": "drift"},
        "spec": {
            "model": {"name": "meta-llama/Llama-3.1-8B-Instruct", "maxModelLen": 8192},
            "engine": {"type": "mock"},
            "slo": {"ttft": "2s", "itl": "40ms"},
            "workload": {
                "arrivalRate": rate,
                "rounds": {"mean": 3},
                "firstPrompt": {"mean": first_prompt},
                "increment": {"mean": 200},
                "decode": {"mean": 60},
                "gap": {"mean": "300ms"},
            },
            "capacity": {
                "gpus": 4,
                "pools": [{"name": "h20", "gpuType": "nvidia-h20", "gpusPerNode": 8, "degrees": [1, 2]}],
            },
            "profile": {"analytic": {"compute": 0.15, "memory": 0.3}},
            "planning": {
                "layouts": ["disaggregated"],
                "objective": "cost",
                "mode": mode,
                "prefill": {"max": 2},
                "decode": {"max": 1},
                "interval": "1s",
                "cooldown": "0s",
                "prometheus": {"window": f"{WINDOW_S:.0f}s", "staleAfter": "10s"},
                "drift": {"minSamples": 5, "shrinkAfter": f"{SHRINK_AFTER_S:.0f}s"},
            },
            "coordinator": {"replicas": 1},
            "rollout": {"drainTimeout": "10s"},
        },
    }


def balanced_service(traffic: Traffic) -> Object:
    """Return a service planned for some traffic, whose 4 GPUs have enough workers only with the right roles."""
    first, later = traffic.rounds[:2]
    manifest = drifting_service("Auto", rate=traffic.sessions_per_s, first_prompt=first.added_tokens)
    spec = manifest["spec"]
    spec["workload"] |= {"increment": {"mean": later.added_tokens}, "decode": {"mean": first.decode_tokens}}
    spec["engine"]["maxNumSeqs"] = 8
    spec["slo"]["itl"] = "30ms"
    spec["capacity"]["pools"][0]["degrees"] = [1]
    for role in ("prefill", "decode"):
        del spec["planning"][role]
    return manifest


def watched_service(traffic: Traffic) -> Object:
    """Return a service planned for some traffic, which meets its SLO and exceeds its trigger."""
    manifest = drifting_service("Auto", rate=traffic.sessions_per_s, first_prompt=traffic.rounds[0].added_tokens)
    trigger = {"metric": "DecodeBatch", "target": 1.5, "window": "15s", "cooldown": "1m"}
    manifest["spec"]["planning"]["triggers"] = [trigger]
    return manifest


AUTO = ReplanScenario(
    "auto",
    drifting_service("Auto", rate=0.5, first_prompt=600),
    (
        TrafficChange(USUAL),
        Served(6),
        TrafficChange(SURGE),
        Replanned(within_s=AT_MOST_S),
        Ready(),
        Served(20),
    ),
)
"""Three times the load and longer prompts: another degree or count of workers, in time, and no round fails."""

APPROVAL = ReplanScenario(
    "person",
    drifting_service("Advisory", rate=0.5, first_prompt=600),
    (
        TrafficChange(USUAL),
        ConditionCheck("MetricsAvailable", "True"),
        TrafficChange(MORE),
        # Where the machine was too slow for the usual load, that was judged already, and stands for a minute.
        Proposed(within_s=AT_MOST_S + 60),
        ConditionCheck("Planned", "True", frozenset({"ReplanProposed"})),
        LeftAlone(15),
        Mode("Manual"),
        ConditionCheck("Planned", "True", frozenset({"AwaitingApproval"})),
        LeftAlone(10),
        Approve("000000000000"),
        ConditionCheck("Planned", "True", frozenset({"ApprovalStale"})),
        LeftAlone(15),
        Approve(),
        Replanned(within_s=30),
        Ready(),
        Served(20),
    ),
)
"""Advisory proposes and touches nothing; Manual carries out what was approved by its hash, and no other."""

BLIND = ReplanScenario(
    "blind",
    drifting_service("Auto", rate=1.5, first_prompt=1200),
    (
        TrafficChange(A_FEW),
        ConditionCheck("MetricsAvailable", "True"),
        *(
            step
            for fault in ("down", "stale", "nan")
            for step in (
                Blind(fault),
                ConditionCheck("MetricsAvailable", "False", NAMES[fault], within_s=40),
                # Longer than an operator would wait that mistook missing metrics for an idle service.
                LeftAlone(SHRINK_AFTER_S, blind=True),
                Mend(),
                ConditionCheck("MetricsAvailable", "True", within_s=90),
            )
        ),
        # With metrics for long enough the service shrinks: fewer workers suffice.
        Replanned(within_s=2 * SHRINK_AFTER_S + 60, grows=False),
        Ready(),
        Served(2),
    ),
)
"""Much less load than planned for: nothing shrinks while Prometheus is down, stale or answers NaN."""

BALANCE = ReplanScenario(
    "balance",
    balanced_service(PROMPTS),
    (
        TrafficChange(PROMPTS),
        Served(12),
        TrafficChange(ANSWERS),
        Replanned(within_s=AT_MOST_S, grows=False, same_workers=True),
        Ready(),
        Served(20),
    ),
)
"""Short prompts and long answers instead of the opposite: prefill workers become decode workers, and none starts."""

TRIGGER = ReplanScenario(
    "trigger",
    watched_service(STEADY),
    (
        TrafficChange(STEADY),
        Replanned(within_s=AT_MOST_S, because="DecodeBatch"),
        Ready(),
        Served(10),
    ),
)
"""The traffic that was planned for, and a batch above its trigger's target: a larger plan, before the SLO suffers."""

SCENARIOS = (AUTO, APPROVAL, BLIND, BALANCE, TRIGGER)
