import copy
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_core.plan import (
    LAYOUTS,
    OBJECTIVES,
    SEARCHES,
    WORKER_ROLES,
    Alternative,
    Plan,
    PlanError,
    PlannedGroup,
    PlannedPolicy,
    Prediction,
    plan_from_json,
    plan_revision,
    plan_to_json,
)
from weft_core.prediction import LIMITS, SOURCES, Estimate, GroupUse, LatencyQuantiles, Limit
from weft_core.shortfall import CONSTRAINTS, Remedy, Shortfall
from weft_core.validity import Validity

seconds = st.one_of(st.just(math.inf), st.floats(0, 1e6, allow_nan=False))
names = st.text(min_size=1, max_size=8)
groups = st.lists(
    st.builds(
        PlannedGroup,
        role=st.sampled_from(WORKER_ROLES),
        degree=st.integers(1, 64),
        replicas=st.integers(1, 64),
        pool=names,
    ),
    min_size=1,
    max_size=3,
).map(tuple)


shares = st.floats(0, 10, allow_nan=False)
roles = st.one_of(st.none(), st.sampled_from(WORKER_ROLES))
quantiles = st.one_of(st.none(), st.builds(LatencyQuantiles, seconds, seconds))
estimates = st.one_of(st.none(), st.builds(Estimate, shares, shares, shares))
policies = st.one_of(
    st.none(),
    st.builds(PlannedPolicy, names, st.sampled_from(["", "imd"]), names, names, st.booleans(), st.none() | shares),
)
figures = st.one_of(st.none(), shares)
validities = st.one_of(st.none(), st.builds(Validity, *([shares] * 8)))
shortfalls = st.one_of(
    st.none(),
    st.builds(
        Shortfall,
        binding=st.sampled_from(CONSTRAINTS),
        message=names,
        least_gpus=st.one_of(st.none(), st.integers(1, 99)),
        remedies=st.lists(
            st.builds(Remedy, names, st.one_of(st.none(), st.integers(), names, st.lists(st.integers(1, 8)))),
            max_size=2,
        ).map(tuple),
    ),
    st.builds(Shortfall, st.just("itl"), names, shares, shares),
)


@st.composite
def predictions(draw: st.DrawFn, of: tuple[PlannedGroup, ...]) -> Prediction:
    return Prediction(
        draw(seconds),
        draw(seconds),
        draw(seconds),
        draw(seconds),
        sum(g.gpus for g in of),
        draw(st.booleans()),
        source=draw(st.sampled_from(SOURCES)),
        ttft=draw(quantiles),
        ttft_first=draw(quantiles),
        ttft_later=draw(quantiles),
        itl=draw(quantiles),
        attainment=draw(estimates),
        reading=draw(st.text(max_size=5)),
        readings=draw(st.dictionaries(names, shares, max_size=2)),
        goodput=draw(estimates),
        use=tuple(GroupUse(g.role, g.degree, g.pool, draw(shares), draw(shares)) for g in of),
        kv_headroom=draw(figures),
        local_share=draw(figures),
        cost_per_hour=draw(figures),
        cost_per_million_tokens=draw(figures),
        limits=tuple(draw(st.lists(st.builds(Limit, st.sampled_from(LIMITS), shares, roles), max_size=2))),
    )


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    chosen = draw(groups)
    others = draw(st.lists(groups, max_size=3))
    return Plan(
        groups=chosen,
        predicted=draw(predictions(chosen)),
        objective=draw(st.sampled_from(OBJECTIVES)),
        inputs_hash=draw(names),
        revision=draw(names),
        reason=draw(st.text(max_size=20)),
        slo_reading=draw(st.text(max_size=20)),
        alternatives=tuple(
            Alternative(
                other,
                draw(predictions(other)),
                draw(seconds),
                layout=draw(st.sampled_from(LAYOUTS)),
                policy=draw(policies),
                runnable=draw(st.booleans()),
                note=draw(st.text(max_size=5)),
            )
            for other in others
        ),
        layout=draw(st.sampled_from(LAYOUTS)),
        policy=draw(policies),
        search=draw(st.sampled_from(SEARCHES)),
        shortfall=draw(shortfalls),
        nodes_seen=draw(st.booleans()),
        notes=tuple(draw(st.lists(st.text(max_size=5), max_size=2))),
        validity=draw(validities),
    )


@given(plans())
def test_writing_and_reading_gives_the_same_plan(plan: Plan) -> None:
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan), allow_nan=False))) == plan


def _plan_json() -> dict[str, object]:
    group = PlannedGroup("prefill", 4, 2, "h20")
    return plan_to_json(Plan((group,), Prediction(1, 0.1, 1, 0.1, 8, True), "latency", "ab", "cd"))


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("groups", [], "groups: at least one"),
        ("groups", [{"role": "router", "degree": 1, "replicas": 1, "pool": "p"}], r"groups\[0\].role: 'router'"),
        ("groups", [{"role": "decode", "degree": 0, "replicas": 1, "pool": "p"}], r"groups\[0\].degree: a whole"),
        ("objective", "fun", "objective: 'fun'"),
        ("predicted", None, "predicted: must be an object"),
        ("predicted", {"sloMet": "yes"}, "predicted.sloMet"),
        ("predicted", {"sloMet": True, "ttftP95": -1}, "predicted.ttftP95"),
        ("revision", None, "revision: a non-empty text"),
        ("alternatives", {}, "alternatives: a list"),
        ("layout", "ring", "layout: 'ring' is not known; use one of disaggregated"),
        ("policy", {"mode": "imd"}, "policy.route: a non-empty text"),
        ("shortfall", {"binding": "luck"}, "shortfall.binding: 'luck'"),
        ("nodesSeen", 1, "nodesSeen: true or false"),
        ("notes", "x", "notes: a list"),
        ("validity", {"arrivalRate": "often"}, "validity.arrivalRate: a figure"),
        ("predicted", {"sloMet": True, "attainment": {"value": 1}}, "predicted.attainment.low: a figure"),
        ("predicted", {"sloMet": True, "limits": [{"kind": "luck"}]}, r"predicted.limits\[0\].kind: 'luck'"),
    ],
)
def test_a_bad_field_is_named(key: str, value: object, named: str) -> None:
    body = copy.deepcopy(_plan_json())
    body[key] = value
    with pytest.raises(PlanError, match=named):
        plan_from_json(body)


def test_the_revision_changes_with_what_runs_and_with_nothing_else() -> None:
    two = (PlannedGroup("prefill", 4, 2, "a"), PlannedGroup("decode", 8, 1, "a"))
    revision = plan_revision(two, profile={"x": 1}, engine_inputs={"model": "m"})
    assert len(revision) == 10
    assert revision == plan_revision(tuple(reversed(two)), profile={"x": 1}, engine_inputs={"model": "m"})
    assert revision != plan_revision(two[:1], profile={"x": 1}, engine_inputs={"model": "m"})
    assert revision != plan_revision(two, profile={"x": 2}, engine_inputs={"model": "m"})
    assert revision != plan_revision(two, profile={"x": 1}, engine_inputs={"model": "n"})
