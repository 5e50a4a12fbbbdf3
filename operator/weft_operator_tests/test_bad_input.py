"""Bad input, each to a service that serves: the reason, a message that says what is wrong and what helps, and workers
that stay. The planner is the real one, so that its refusals are."""

import copy
import json
from typing import Any

import pytest

from weft_core.plan import canonical_json
from weft_operator.api.capacity import Pool
from weft_operator.api.objects import APPROVE_ANNOTATION
from weft_operator.planning.planner_process import Answer, read_answer
from weft_operator.planning.request import Request
from weft_operator.status.runbook import remedy_of
from weft_operator.workers.node_capacity import NodeCapacity, capacity_of
from weft_operator_tests.observations import blind
from weft_operator_tests.samples import KEY
from weft_operator_tests.test_reconcile_replanning import watched
from weft_operator_tests.valid import service
from weft_operator_tests.world import World, summary
from weft_planner.plan.solve import answer
from weft_planner.request.reading import parse_request

APART = {"layouts": ["disaggregated"]}
CAPACITY = service()["spec"]["capacity"]
POOL = CAPACITY["pools"][0]


class Planning(World):
    """A service whose first plan is given, and whose later ones are the real planner's."""

    async def _solve(self, request: Request) -> Answer:
        if not self.requests:
            return await super()._solve(request)
        self.requests.append(request)
        said = answer(parse_request(json.dumps(request).encode()))
        return read_answer(0, canonical_json(said).encode(), "")


async def serves() -> Planning:
    world = Planning()
    await world.until_quiet()
    assert summary(world)["Ready"] == ("True", "Serving")
    return world


def pools(**parts: Any) -> dict[str, Any]:
    return {**CAPACITY, "pools": [{**POOL, **parts}]}


@pytest.mark.parametrize(
    ("change", "reason", "said"),
    [
        (
            {"podTemplates": [{"component": "decode", "patch": {"spec": {"terminationGracePeriodSeconds": 1}}}]},
            "ProtectedField",
            ("spec.podTemplates", "terminationGracePeriodSeconds"),
        ),
        (
            {"model": {"name": "meta-llama/Llama-3.1-8B-Instruct", "maxModelLen": 8192},
             "profile": {"analytic": {}}, "capacity": {**pools(degrees=[64], gpusPerNode=64), "gpus": 128}},
            "ModelDoesNotFit",
            ("32 heads", "do not split over 64 GPUs", "degree 1 would do"),
        ),
        (
            {"capacity": pools(pricePerGpuHour=10.0), "planning": {"budgetPerHour": 5.0}},
            "OverBudget",
            ("spec.planning.budgetPerHour", "5"),
        ),
        (
            {"capacity": {**CAPACITY, "gpus": 2}, "planning": APART},
            "TooFewGpus",
            ("spec.capacity.gpus: 2 are too few", "allow 4 GPUs"),
        ),
        (
            {"capacity": pools(degrees=[4]), "planning": {**APART, "degreePairs": [{"prefill": 8, "decode": 1}]}},
            "NoPairOfDegrees",
            ("not 4 with 4 (only 8 with 1 may)", "spec.planning.degreePairs left out would do"),
        ),
        (
            {"planning": {**APART, "prefill": {"min": 9}}},
            "BoundsUnsatisfiable",
            ("spec.capacity.gpus is 16", "lower spec.planning.prefill.min to 7"),
        ),
    ],
    ids=["protected field", "degree that does not split", "budget below what runs", "GPUs below what runs",
         "degrees that do not pair", "more workers than GPUs"],
)  # fmt: skip
async def test_a_spec_that_cannot_be_planned_is_reported_and_the_workers_stay(
    change: dict[str, Any], reason: str, said: tuple[str, ...]
) -> None:
    world = await serves()
    world.cluster.gpus = 128
    before = copy.deepcopy(world.cluster.objects)
    world.cluster.change(**change)
    await world.until_quiet()
    message = world.cluster.condition("Planned")["message"]
    assert summary(world)["Planned"] == ("False", reason)
    assert all(word in message for word in said), message
    assert "stay as they are" in message
    assert remedy_of("Planned", reason)
    assert world.cluster.objects == before
    assert summary(world)["Ready"] == ("True", "Serving")
    assert any(event.reason == reason and event.type == "Warning" for event in world.cluster.events)


async def test_a_pool_without_nodes_is_named() -> None:
    world = await serves()
    before = copy.deepcopy(world.cluster.objects)
    ghost = {**POOL, "name": "ghost", "nodeSelector": {"pool": "ghost"}}
    wanted = {**CAPACITY, "gpus": 32, "pools": [POOL, ghost]}

    async def read_capacity(_pools: object, _key: object) -> NodeCapacity:
        return NodeCapacity(total=16, free={"h20": (8, 8), "ghost": ()}, empty=("ghost",))

    setattr(world.cluster, "read_capacity", read_capacity)  # noqa: B010 - for mypy
    world.cluster.change(capacity=wanted)
    await world.until_quiet()
    assert summary(world)["Planned"] == ("False", "TooFewGpus")
    message = world.cluster.condition("Planned")["message"]
    assert "no node has the labels of spec.capacity.pools[ghost].nodeSelector: correct it or label nodes" in message
    assert world.cluster.objects == before


def test_pools_without_nodes_are_told_apart_from_full_ones() -> None:
    node = {
        "metadata": {"name": "a", "labels": {"pool": "x"}},
        "status": {"allocatable": {"nvidia.com/gpu": "8"}},
        "spec": {"unschedulable": True},
    }
    here = Pool(name="x", gpu_type="nvidia-h20", node_selector={"pool": "x"})
    ghost = Pool(name="ghost", gpu_type="nvidia-h20", node_selector={"pool": "ghost"})
    found = capacity_of([here, ghost], [node], (), service=KEY)
    assert found.empty == ("ghost",)
    assert found.free == {"x": (), "ghost": ()}
    assert found.notes == ("no node has the labels of spec.capacity.pools[ghost].nodeSelector",)


async def test_an_approval_of_a_proposal_that_went_changes_nothing() -> None:
    world = await watched(mode="Manual")
    world.serves(10, 310, 1.8)
    world.offers(5, 1.8)
    await world.until_quiet()
    old = world.cluster.service["status"]["proposedPlan"]["hash"]
    world.offers(9, 4.0)
    world.serves(320, 3000, 4.0)
    await world.until_quiet()
    new = world.cluster.service["status"]["proposedPlan"]["hash"]
    assert new != old
    before = {key: item for key, item in copy.deepcopy(world.cluster.objects).items() if key.name != "demo-plan"}
    world.cluster.service["metadata"].setdefault("annotations", {})[APPROVE_ANNOTATION] = old
    await world.until_quiet()
    assert world.planned == ("True", "ApprovalStale")
    assert f"names '{old}', and the proposal is {new}; nothing was changed" in world.message
    assert {key: item for key, item in world.cluster.objects.items() if key.name != "demo-plan"} == before
    assert summary(world)["Ready"] == ("True", "Serving")


@pytest.mark.parametrize("reason", ["PrometheusUnauthorized", "ClockSkew"])
async def test_a_prometheus_that_refuses_or_lives_in_another_time_moves_no_worker(reason: Any) -> None:
    world = await watched()
    world.offers(1, 0.1)
    world.serves(10, 2000, 0.1)
    world.see(blind(2010.0, reason))
    setattr(world.metrics_poller, "shown", lambda _key: world.seen)  # noqa: B010 - for mypy
    before = copy.deepcopy(world.cluster.objects)
    await world.until_quiet()
    assert summary(world)["MetricsAvailable"] == ("False", reason)
    assert remedy_of("MetricsAvailable", reason)
    assert world.planned == ("True", "MetricsUnavailable")
    assert world.cluster.objects == before
    assert summary(world)["Ready"] == ("True", "Serving")
