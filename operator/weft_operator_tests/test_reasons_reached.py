"""Every documented reason is reached, and no other one is used: by running passes, and by reading the sources."""

import ast
import dataclasses
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest

from weft_core.adapters import adapter_version
from weft_core.heartbeat import WorkerRecord
from weft_core.shortfall import Shortfall
from weft_operator.api.conditions import ConditionValue
from weft_operator.api.objects import APPROVE_ANNOTATION, ROLLBACK_ANNOTATION
from weft_operator.metrics.observation import Latency, MetricsAvailability, Tally, UnavailableReason, WorkerPressure
from weft_operator.planning.planner_process import Refused
from weft_operator.replanning.drift import DetectedDrift, DriftKind
from weft_operator.rollout.advance import RolloutStep
from weft_operator.rollout.ledger import Ledger, Refusal
from weft_operator.status.conditions import build_status
from weft_operator.status.kv_cache_tiers import check_tiers
from weft_operator.status.reasons.catalogue import CONDITIONS, GROUP_REASONS, REASONS
from weft_operator.status.results import ServiceResult
from weft_operator.workers.readiness import PickerState
from weft_operator_tests.observations import blind, look
from weft_operator_tests.samples import record
from weft_operator_tests.service_results import with_parts
from weft_operator_tests.test_kv_cache_tiers import FOUND as TIER_FACTS
from weft_operator_tests.test_reconcile_replanning import Watched, watched
from weft_operator_tests.test_status import NOW, result
from weft_operator_tests.valid import changed, service, vllm_service
from weft_operator_tests.world import World, serving, summary

ROOT = Path(__file__).parents[2]
EXCLUDED = {"runbook.py", "events.py"}
"""Modules that name reasons and set none."""

FIRST = {"StalledError", "Infeasible", "Refused", "NoMetricsError", "MetricsAvailability"}
"""Callables whose first argument is a reason."""
SECOND = {"ConditionValue", "KeepPlan", "Rollback", "ScaleToZeroDecision", "_record_decision"}
"""Callables whose second argument is a reason."""

Reached = tuple[str, str]


def shown(status: Mapping[str, Any]) -> set[Reached]:
    return {(item["type"], item["reason"]) for item in status["conditions"]}


# --- what statuses say of workers, coordinator and figures


def stuck(**parts: Any) -> ServiceResult:
    found = result("110", **parts)
    sick = dataclasses.replace(found.workers.states[2], unschedulable=True, trouble="no node has room")
    return with_parts(found, states=(*found.workers.states[:2], sick))


def at_zero(**parts: Any) -> ServiceResult:
    found = result(**parts)
    assert found.plan.record is not None
    baseline = dataclasses.replace(found.plan.record.baseline, scaled_to_zero_at=datetime(2026, 1, 1, tzinfo=UTC))
    return with_parts(found, states=(), record=dataclasses.replace(found.plan.record, baseline=baseline))


def told(*words: str, **parts: Any) -> ServiceResult:
    """A service with vLLM whose workers say this of their engines' plug-ins, and these parts of all the rest."""
    found = result()
    beats = {
        state.name: WorkerRecord(state.name, state.worker.role, "http://x", 1, 1, engine_plugin=word, **parts)
        for state, word in zip(found.workers.states, words, strict=True)
    }
    body = changed(vllm_service(), "spec.engine.plugin", "Expected")
    return with_parts(found, record=record(body), heartbeats=beats)


def adapted(**parts: Any) -> ServiceResult:
    """A service with an adapter whose workers report these parts."""
    found = result()
    beats = {
        state.name: WorkerRecord(state.name, state.worker.role, "http://x", 1, 1, **parts)
        for state in found.workers.states
    }
    adapters = [{"name": "sql", "source": {"huggingFace": "acme/sql"}}]
    body = changed(vllm_service(), "spec.model.adapters", adapters)
    return with_parts(found, record=record(body), heartbeats=beats)


def missing_the_slo() -> ServiceResult:
    """A service whose best plan should miss the SLO."""
    found = result()
    assert found.plan.record is not None
    before = found.plan.record.plan
    short = Shortfall(binding="gpus", message="16 GPUs would do; raise spec.capacity.gpus")
    plan = dataclasses.replace(before, predicted=dataclasses.replace(before.predicted, slo_met=False), shortfall=short)
    return with_parts(found, record=dataclasses.replace(found.plan.record, plan=plan))


def drifts(kind: DriftKind) -> tuple[DetectedDrift, ...]:
    return (DetectedDrift(kind, "more", {}, "P95 TTFT is 9s and 1s was predicted: measure again with `weft profile`"),)


SEEN = look(0.0)
FEW = Latency(0.9, 3)
assert SEEN.slo is not None
SELDOM = dataclasses.replace(SEEN, slo=dataclasses.replace(SEEN.slo, ttft_first=FEW, ttft_later=None, itl=None))
UNPLANNED = with_parts(result(), record=None)
GIVEN_UP = RolloutStep(
    replicas={},
    outcome="RolledBack",
    ledger=Ledger(),
    message="back to the plan before",
    refusal=Refusal((), "q", "NeverReady", "no worker got ready", datetime(2026, 1, 1, tzinfo=UTC)),
)
RESULTS: Mapping[Reached, ServiceResult] = {
    ("Ready", "Serving"): result(),
    ("Ready", "Degraded"): result("110"),
    ("Ready", "NoPrefillWorker"): result("100"),
    ("Ready", "NoDecodeWorker"): result("011"),
    ("Ready", "CoordinatorNotReady"): result(coordinator=False),
    ("Ready", "EndpointPickerNotReady"): result(picker=PickerState(available=False, rolled_out=True)),
    ("Ready", "ScaledToZero"): at_zero(),
    ("Ready", "DemandUnknown"): at_zero(demand_unknown=True),
    ("Ready", "NotPlanned"): UNPLANNED,
    ("Progressing", "UpToDate"): result(),
    ("Progressing", "RollingOut"): result("110"),
    ("Progressing", "ReplacingWorkers"): result("110", lost=("demo-p4-0",)),
    ("Progressing", "Unschedulable"): stuck(),
    ("Progressing", "RolloutAborted"): with_parts(result(), step=GIVEN_UP),
    ("Progressing", "CanaryRunning"): with_parts(
        result(), step=RolloutStep(replicas={}, outcome="Canary", ledger=Ledger(), message="10 % of sessions go to it")
    ),
    ("Progressing", "CanaryFailed"): with_parts(
        result(),
        step=dataclasses.replace(
            GIVEN_UP, refusal=Refusal((), "q", "CanaryFailed", "it did worse", datetime(2026, 1, 1, tzinfo=UTC))
        ),
    ),
    ("Progressing", "WaitingForPlan"): UNPLANNED,
    ("Progressing", "WaitingForDeletion"): result(
        failure=ConditionValue("True", "WaitingForDeletion", "it is being removed")
    ),
    ("Progressing", "NameTaken"): result(failure=ConditionValue("False", "NameTaken", "remove it")),
    ("Progressing", "ApplyFailed"): result(failure=ConditionValue("False", "ApplyFailed", "422")),
    ("Progressing", "KindMissing"): result(failure=ConditionValue("False", "KindMissing", "no PodGroup")),
    ("Progressing", "RedisUserRefused"): result(failure=ConditionValue("False", "RedisUserRefused", "NOPERM")),
    ("Progressing", "RightMissing"): result(failure=ConditionValue("False", "RightMissing", "may not list pods")),
    ("Drained", "NoWorkersDraining"): result(),
    ("Drained", "Draining"): result(leaving=("demo-p4-1",)),
    ("Drained", "WorkersLost"): result("110", lost=("demo-p4-0",)),
    ("Drained", "NotPlanned"): UNPLANNED,
    ("SLOFeasible", "PredictedMet"): result(),
    ("SLOFeasible", "PredictedMissed"): missing_the_slo(),
    ("SLOFeasible", "NotPlanned"): UNPLANNED,
    ("CostModelFresh", "AsPredicted"): result(observation=SEEN),
    ("CostModelFresh", "SlowerThanPredicted"): result(observation=SEEN, drifts=drifts("Residual")),
    ("CostModelFresh", "NotComparable"): result(observation=SEEN, drifts=drifts("Rate")),
    ("CostModelFresh", "TooFewRounds"): result(observation=SELDOM),
    ("CostModelFresh", "Unknown"): result(),
    ("MetricsAvailable", "Fresh"): result(observation=SEEN),
    ("SLOMet", "Met"): result(observation=SEEN),
    ("SLOMet", "Missed"): result(observation=look(0.0, slow=Tally(100, 900), fast=Tally(20, 180))),
    ("SLOMet", "TooFewRounds"): result(observation=look(0.0, slow=Tally(3, 0), fast=Tally(1, 0))),
    ("SLOMet", "Unknown"): result(),
    ("EnginePlugin", "PluginActive"): told("active", "active", "active"),
    ("EnginePlugin", "PluginAbsent"): told("active", "absent", "absent"),
    ("EnginePlugin", "PluginOff"): told("active", "absent", "off"),
    ("EnginePlugin", "NotYetReported"): told("active", "active", ""),
    ("KVTransportVerified", "TransportVerified"): told("active", "active", "active", kv_open=2, kv_proven=2),
    ("KVTransportVerified", "NotYetProven"): told("active", "active", "active", kv_open=2, kv_proven=0),
    ("KVTransportVerified", "NotYetTried"): told("active", "active", "active"),
    ("AdaptersLoaded", "AllLoaded"): adapted(adapters=(adapter_version("sql", "acme/sql"),)),
    ("AdaptersLoaded", "NotYetLoaded"): adapted(),
    ("AdaptersLoaded", "LoadFailed"): adapted(
        adapter_faults=((adapter_version("sql", "acme/sql"), "No adapter found"),)
    ),
    **{
        ("KVTransportVerified", reason): told("active", "active", "active", kv_faults=(("demo-p4-0", fault),))
        for reason, fault in {
            "SideChannelClosed": "side-channel",
            "DataPortsClosed": "data-port",
            "TransferFailed": "transfer",
            "WrongTransport": "transport",
        }.items()
    },
    **{
        ("KVCacheTiers", reason): result(tiers=check_tiers(cache, facts))
        for reason, (cache, facts, _) in TIER_FACTS.items()
    },
    **{
        ("ProfileMeasured", reason): result(profile=ConditionValue("Unknown", reason, "see test_profiling.py"))
        for reason in (
            *("Measured", "Measuring", "Waiting", "InsufficientCapacity"),
            *("MeasurementFailed", "MeasurementUnusable", "NothingToMeasure"),
        )
    },
    **{
        ("ModelReady", reason): result(condition=ConditionValue("False", reason, "see test_reconcile_weights.py"))
        for reason in (
            *("WeightsReady", "ImageVolume", "RemovingWeights", "Downloading", "FetchPending", "FetchFailed"),
            *("ClaimNotFound", "ImageVolumesUnsupported"),
        )
    },
    ("Ready", "ModelNotReady"): with_parts(result(), groups=(), missing="Coming"),
    ("Progressing", "WaitingForModel"): with_parts(result(), missing="Coming"),
    ("Progressing", "ModelRefused"): with_parts(result(), missing="Refused"),
    ("Reconciling", "Working"): result("110"),
    ("Reconciling", "Settled"): result(),
    ("Stalled", "NotStalled"): result(),
    ("Stalled", "SpecRefused"): with_parts(result(), planned=ConditionValue("False", "OverBudget", "x")),
    ("Stalled", "ObjectRefused"): result(failure=ConditionValue("False", "NameTaken", "remove it")),
    **{
        ("MetricsAvailable", reason): result(observation=blind(0.0, reason))
        for reason in get_args(UnavailableReason)
    },
}  # fmt: skip


@pytest.mark.parametrize("wanted", list(RESULTS), ids="-".join)
def test_what_is_seen_of_a_service_reaches_the_reason(wanted: Reached) -> None:
    assert wanted in shown(build_status(RESULTS[wanted], {}, now=NOW))


# --- what passes say of plans

Way = Callable[[], Awaitable[World]]


def spec_with(**parts: Any) -> Way:
    """A serving service whose spec is changed so."""

    async def way() -> World:
        world = await serving()
        world.cluster.api_key_found = world.cluster.jwks_found = False
        world.cluster.change(**parts)
        await world.until_quiet()
        return world

    return way


WITH_TABLE = {"policy": "ppd", "tableConfigMapRef": {"name": "learned", "key": "table.json"}}


async def spec_with_bad_table() -> World:
    world = await serving()
    world.cluster.routing_table = {"data": {"table.json": "[]"}}
    world.cluster.change(routing=WITH_TABLE)
    await world.until_quiet()
    return world


async def unmarked_secret() -> World:
    world = await serving()
    world.cluster.patched_secrets = {"other-token": "unmarked"}
    volume = {"name": "mine", "secret": {"secretName": "other-token"}}
    world.cluster.change(podTemplates=[{"patch": {"spec": {"volumes": [volume]}}}])
    await world.until_quiet()
    return world


def planner_says(reason: str) -> Way:
    """A serving service whose changed spec the planner refuses."""

    async def way() -> World:
        world = await serving()
        world.answer = Refused(reason, "why, and what helps")
        world.cluster.change(slo={"ttft": "3s", "itl": "40ms"})
        await world.until_quiet()
        return world

    return way


def drifted(workers: int, rate: float, *, annotated: Mapping[str, str] | None = None, **parts: Any) -> Way:
    """A watched service whose traffic went on so for long, and that was annotated then."""
    planning = parts.pop("planning", {})

    async def way() -> World:
        world = await watched(**planning)
        world.offers(workers, rate)
        world.serves(10, 2000, rate, **parts)
        await world.until_quiet()
        if annotated:
            world.cluster.service["metadata"].setdefault("annotations", {}).update(annotated)
            await world.until_quiet()
        return world

    return way


async def planning() -> World:
    world = World()
    await world.reconciler.reconcile(key())
    return world


def key() -> Any:
    from weft_operator_tests.samples import KEY

    return KEY


async def replanning() -> World:
    world = await watched()
    world.serves(10, 310, 1.8)
    world.offers(5, 1.8)
    await world.step()
    return world


async def cooldown() -> World:
    world = await watched(cooldown="10m")
    world.serves(10, 310, 1.8)
    await world.step()
    return world


async def kept_blind() -> World:
    world = await watched()
    world.serves(10, 310, 0.6)
    world.see(
        dataclasses.replace(
            blind(320.0, "PrometheusUnreachable"), availability=MetricsAvailability("PrometheusUnreachable", "no")
        )
    )
    await world.until_quiet()
    return world


async def schedule_held() -> World:
    night = {"name": "day", "days": ["Thu"], "begin": "00:00", "end": "01:00", "decode": {"min": 4}}
    world = Watched(schedules=[night])
    world.offers(4, 0.6)
    world.see(look(0.0))
    await world.until_quiet()
    world.offers(1, 0.1)
    world.see(look(3600.0, 1.8))
    await world.until_quiet()
    return world


async def kept_awake() -> World:
    world = await watched(scaleToZero={"after": "10m"})
    world.see(blind(320.0, "NotConfigured"))
    await world.until_quiet()
    return world


async def rollback_refused() -> World:
    world: Watched = await watched()
    world.offers(5, 1.8)
    world.serves(10, 310, 1.8)
    await world.until_quiet()
    world.cluster.change(planning={"objective": "cost", "decode": {"min": 3, "max": 15}})
    world.cluster.service["metadata"]["annotations"] = {ROLLBACK_ANNOTATION: "1"}
    await world.until_quiet()
    return world


LONG = {"cooldown": "10m"}
CAPACITY = service()["spec"]["capacity"]
JWT = {
    "issuer": "https://login.example.com/",
    "audiences": ["weft"],
    "jwksConfigMapRef": {"name": "keys", "key": "jwks.json"},
}
PLANNER = (
    *(
        "ModelDoesNotFit",
        "ContextDoesNotFit",
        "NoPoolForRole",
        "BoundsUnsatisfiable",
        "NotPlaceable",
        "NoPairOfDegrees",
    ),
    *(
        "OverBudget",
        "UnknownModel",
        "ModelConfigInvalid",
        "UnknownGpu",
        "NoFeasibleLayout",
        "Infeasible",
        "PlannerTimeout",
    ),
    *("PlannerCrashed", "ProfileInvalid", "MixedGpuTypes", "SpeculationUnsupported"),
)
"""What the planner, or the process that it runs in, refuses with; the sources below prove that it does."""

WAYS: Mapping[str, Way] = {
    "PlanReady": serving,
    "Planning": planning,
    "Replanned": drifted(5, 1.8),
    "Replanning": replanning,
    "AwaitingApproval": drifted(5, 1.8, planning={"mode": "Manual"}),
    "ReplanProposed": drifted(5, 1.8, planning={"mode": "Advisory"}),
    "ApprovalStale": drifted(5, 1.8, planning={"mode": "Manual"}, annotated={APPROVE_ANNOTATION: "0" * 12}),
    "RolledBack": drifted(5, 1.8, annotated={ROLLBACK_ANNOTATION: "1"}),
    "RollbackRevisionNotFound": drifted(5, 1.8, annotated={ROLLBACK_ANNOTATION: "9"}),
    "RollbackRefused": rollback_refused,
    "Cooldown": cooldown,
    "NoBetterPlan": drifted(2, 0.6, planning=LONG, fast=Tally(100, 100), slow=Tally(500, 500)),
    "MetricsUnavailable": kept_blind,
    "ScaleToZeroBlocked": kept_awake,
    "ScheduleDeferred": schedule_held,
    "SessionsDoNotFit": drifted(1, 0.1, planning=LONG, pressure=WorkerPressure(queue=0.0, kv_use={"decode": 0.8})),
    "ScaleDownStabilized": drifted(1, 0.1, planning=LONG, fast=Tally(100, 100)),
    "ReplanFailed": drifted(12, 1.8, planning={**LONG, "decode": {"min": 1, "max": 4}}),
    "InvalidSpec": spec_with(slo={"ttft": "1ms", "itl": "40ms"}),
    "ProtectedField": spec_with(
        podTemplates=[{"component": "decode", "patch": {"spec": {"serviceAccountName": "mine"}}}]
    ),
    "ProfileNotFound": spec_with(profile={"ref": {"name": "measured"}}),
    "TraceNotFound": spec_with(workload={"traceConfigMap": {"name": "trace", "key": "t"}, "arrivalRate": 1.0}),
    "RoutingTableNotFound": spec_with(routing=WITH_TABLE),
    "RoutingTableInvalid": spec_with_bad_table,
    "SecretNotFound": spec_with(coordinator={"auth": {"apiKeySecretRef": {"name": "keys", "key": "all"}}}),
    "SecretNotAllowed": unmarked_secret,
    "JwksNotFound": spec_with(coordinator={"auth": {"jwt": JWT}}),
    "TooFewGpus": spec_with(capacity={**CAPACITY, "gpus": 64}),
    **{reason: planner_says(reason) for reason in PLANNER},
}


@pytest.mark.parametrize("reason", list(WAYS))
async def test_passes_reach_the_reason_of_planned(reason: str) -> None:
    world = await WAYS[reason]()
    assert summary(world)["Planned"][1] == reason, world.cluster.condition("Planned")
    if reason not in ("Planning",):
        assert summary(world)["Ready"] == ("True", "Serving"), "what ran runs on"


def test_every_documented_reason_has_its_way() -> None:
    ways = {*RESULTS, *(("Planned", reason) for reason in WAYS)}
    documented = {(condition, reason) for condition in CONDITIONS for reason in REASONS[condition]}
    assert documented - ways == set(), "documented, and nobody shows how it is reached"
    assert ways - documented == set(), "reached, and not documented"


# --- what the sources say


def sources() -> Iterator[tuple[Path, ast.AST]]:
    for folder in ("operator/weft_operator", "planner/weft_planner"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.name not in EXCLUDED and not {"reasons", "commands"} & set(path.parts):
                yield path, ast.parse(path.read_text(encoding="utf-8"))


def given_reasons(tree: ast.AST) -> Iterator[str]:
    """Yield the words that stand where a reason is given."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            place = 0 if node.func.id in FIRST else 1 if node.func.id in SECOND else None
            if place is not None and len(node.args) > place:
                for part in ast.walk(node.args[place]):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value[:1].isupper():
                        yield part.value


def test_no_reason_is_given_that_is_not_documented() -> None:
    documented = {reason for reasons in (*REASONS.values(), *GROUP_REASONS.values()) for reason in reasons}
    unknown = {
        f"{path.relative_to(ROOT)}: {word}"
        for path, tree in sources()
        for word in given_reasons(tree)
        if word not in documented
    }
    assert unknown == set()


def test_no_reason_is_documented_that_no_source_gives() -> None:
    words = {
        node.value
        for _, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    derived = {*REASONS["Reconciling"], *REASONS["Stalled"]}  # kstatus.py, by the results above
    nowhere = {reason for reasons in REASONS.values() for reason in reasons} - words - derived
    assert nowhere == set()
