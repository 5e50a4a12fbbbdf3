import json
import math
from typing import Any

import pytest

from weft_planner.request.reading import RequestError, parse_request, request_of
from weft_planner_tests.requests import body


def test_what_is_left_out_has_defaults() -> None:
    request = parse_request(
        json.dumps(body(bounds={"prefill": {"min": 2, "max": None}, "decode": None}, engine=None, profile=None))
    )
    assert (request.bounds.of("prefill").min, request.bounds.of("prefill").max) == (2, None)
    assert request.bounds.of("decode").min == 1
    assert request.engine.bidirectional
    assert request.objective == "latency"


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("slo.ttft", math.nan, "slo.ttft"),
        ("slo.ttft", 0, "slo.ttft: Input should be greater than 0 (got 0)"),
        ("slo.itl", -0.05, "slo.itl"),
        ("slo.percentile", 100, "slo.percentile"),
        ("slo.attainment", 90, "slo.attainment"),
        ("workload.arrivalRate", math.inf, "workload.arrivalRate"),
        ("workload.rounds", 0.5, "workload.rounds"),
        ("workload.rate", 2, "workload.rate: unknown field, remove it (got 2)"),
        ("capacity.gpus", 0, "capacity.gpus"),
        ("capacity.gpus", "16", "capacity.gpus"),
        ("capacity.pools", [], "capacity.pools"),
        ("capacity.pools.0.degrees", [], "capacity.pools.0.degrees"),
        ("capacity.pools.0.degrees", [12], "none of [12] fits a node of 8 GPUs or is a multiple of"),
        ("capacity.pools.0.roles", ["both"], "capacity.pools.0.roles.0"),
        ("bounds", {"prefill": {"min": 3, "max": 2}}, "bounds.prefill: max: 2 is below min 3"),
        ("analytic", {"compute": 60}, "analytic.compute"),
        ("analytic", {"speed": 1}, "analytic.speed: unknown field"),
        ("objective", "fun", "objective"),
        ("model.maxModelLen", 0, "model.maxModelLen"),
    ],
)
def test_a_bad_field_is_refused_by_its_path(path: str, value: Any, named: str) -> None:
    with pytest.raises(RequestError) as fault:
        request_of(body(**{path: value}))
    assert named in str(fault.value)
    assert "\n" not in str(fault.value)


def test_the_order_of_degrees_and_roles_means_nothing() -> None:
    changed = body(**{"capacity.pools.0.degrees": [8, 4, 2, 1, 8], "capacity.pools.0.roles": ["prefill", "decode"]})
    other = body(**{"capacity.pools.0.roles": ["decode", "prefill"]})
    assert request_of(changed) == request_of(other) == request_of(body())
    assert request_of(changed).capacity.pools[0].degrees == (1, 2, 4, 8)


def test_a_missing_field_is_named() -> None:
    given = body()
    del given["slo"]["itl"]
    with pytest.raises(RequestError, match=r"slo\.itl: is missing, add it"):
        request_of(given)


def test_two_pools_of_one_name_are_refused() -> None:
    given = body()
    given["capacity"]["pools"] *= 2
    with pytest.raises(RequestError, match="the name 'h20' is used twice"):
        request_of(given)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", b"\xff\xfe", '{"slo": NaN}'])
def test_what_is_no_request_is_refused_on_one_line(text: str | bytes) -> None:
    with pytest.raises(RequestError) as fault:
        parse_request(text)
    assert "\n" not in str(fault.value)
