"""What is said of an SLO that no layout holds: the nearest that these GPUs hold, and the GPUs that would do."""

from typing import Any

from weft_core.plan import Plan
from weft_planner.plan.field_search import with_field
from weft_planner.plan.solve import solve
from weft_planner_tests.requests import request

AMPD: dict[str, Any] = {"routing": {"policy": "ampd", "params": {"alpha": 0.9, "beta": 0.85}}}


def missed(**changes: Any) -> Plan:
    plan, _ = solve(request(**AMPD, **changes))
    assert plan.shortfall is not None
    assert not plan.predicted.slo_met
    return plan


def test_the_nearest_slo_is_that_of_the_gpus_and_not_of_the_layout_that_a_hopeless_one_chose() -> None:
    plan = missed(**{"slo.ttft": 0.2})
    assert plan.shortfall is not None
    nearest = plan.shortfall.nearest_ttft_s
    assert nearest is not None
    closer = with_field(request(**AMPD), "slo.ttft", round(0.75 * nearest, 3))
    again, _ = solve(closer)
    assert not again.predicted.slo_met, "three quarters of the nearest SLO hold as well"


def test_gpus_that_would_do_are_found_though_the_layout_of_the_best_latency_does_not_suit_the_rule() -> None:
    plan = missed(**{"workload.arrivalRate": 9})
    assert plan.shortfall is not None
    assert plan.shortfall.least_gpus is not None
    assert 16 < plan.shortfall.least_gpus <= 200
