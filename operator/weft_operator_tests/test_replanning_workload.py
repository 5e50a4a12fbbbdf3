"""What was seen, in the planner's words: a request that the planner takes, with what cannot be seen from the spec."""

from dataclasses import replace
from typing import Any

import pytest

from weft_operator.api import DisaggInferenceServiceSpec
from weft_operator.metrics.observation import ObservedWorkload
from weft_operator.planning.request import planner_request
from weft_operator.replanning.workload import observed_workload, stored, taken_up, with_longer_fast_lengths
from weft_operator_tests.observations import VALID, look, spread
from weft_operator_tests.valid import changed, rich_service, service, spec
from weft_planner.request.reading import request_of
from weft_planner.workload.traffic import Workload


def seen(**parts: Any) -> ObservedWorkload:
    load = look(0.0, 1.8, **parts).workload
    assert load is not None
    return load


def planned(parsed: DisaggInferenceServiceSpec, load: ObservedWorkload, *, rate: float = 1.8) -> Workload:
    """Return the workload that the planner reads from the request for what was seen."""
    request = planner_request(parsed)
    body = observed_workload(request["workload"], load, rate=rate, validity=VALID, min_samples=30)
    return request_of(
        {key: value for key, value in {**request, "workload": body}.items() if value is not None}
    ).workload


def test_the_planner_takes_the_observed_figures_with_their_shapes() -> None:
    load = planned(spec(service()), seen(first_prompt=spread(2345.678), rounds=spread(3.0)))
    assert (load.arrival_rate, load.first_prompt.mean, load.rounds.mean) == (1.8, 2346.0, 3.0)
    assert load.first_prompt.histogram is not None
    assert load.first_prompt.histogram.edges == (0.0, 1173.0, 3519.0, 7037.0)
    assert load.mean_gap == pytest.approx(2)


@pytest.mark.parametrize("parts", [{"decode": None}, {"decode": spread(900.0, count=29)}])
def test_what_was_not_seen_enough_is_the_specs(parts: dict[str, Any]) -> None:
    assert planned(spec(service()), seen(**parts)).decode.mean == 280


def test_lengths_that_grew_within_the_window_are_those_of_its_end() -> None:
    fast = spread(200.0, count=60)
    mixed = seen(decode=spread(120.0), fast_lengths={"decode": fast, "increment": spread(810.0, count=60)})
    found = with_longer_fast_lengths(mixed, min_samples=30)
    assert (found.decode, found.increment, found.first_prompt) == (fast, mixed.increment, mixed.first_prompt)
    few, shorter, similar = replace(fast, count=29), spread(60.0), replace(fast, mean=140.0)
    for other in ({"decode": few}, {"decode": shorter}, {"decode": similar}, {}):
        unchanged = seen(decode=spread(120.0), fast_lengths=other)
        assert with_longer_fast_lengths(unchanged, min_samples=30) == unchanged
    none_of_all = seen(decode=None, fast_lengths={"decode": fast})
    assert with_longer_fast_lengths(none_of_all, min_samples=30).decode is None


def test_sessions_of_one_round_and_no_pause_are_taken() -> None:
    load = planned(spec(service()), seen(rounds=spread(1.0), gap_s=replace(spread(1.0), mean=0.0)))
    assert (load.rounds.mean, load.gap.mean) == (1.0, 0.0)
    assert load.rounds.histogram is None


def test_a_preset_keeps_what_cannot_be_seen() -> None:
    body = changed(service(), "spec.workload", {"preset": "ampd/gaia", "arrivalRate": 2})
    load = planned(spec(body), seen())
    assert (load.arrival_rate, load.first_prompt.mean, load.rounds.mean) == (1.8, 1000, 5)


def test_classes_move_as_their_mean_does() -> None:
    parsed = spec(rich_service())
    prior = planner_request(parsed)["workload"]
    load = planned(parsed, seen(rounds=spread(10.0)))
    for was, now in zip(prior["classes"], load.classes, strict=True):
        assert (now.name, now.share) == (was["name"], was["share"])
        assert (now.ttft, now.itl) == (was.get("ttft"), was.get("itl"))
        own = was.get("rounds")
        if own is not None:
            assert now.rounds is not None
            assert now.rounds.mean == pytest.approx(2 * own["mean"], rel=1e-3), "twice the planned 5"
    assert load.arrivals.cv == 1.5


def test_prompts_shorter_than_the_shared_prefix_shorten_it() -> None:
    body = changed(service(), "spec.workload.sharedPrefix", 800)
    assert planned(spec(body), seen()).shared_prefix == 800
    assert planned(spec(body), seen(first_prompt=spread(500.0))).shared_prefix == 450


def test_a_record_keeps_the_hash_of_a_trace_and_takes_it_up_again() -> None:
    prior = {"trace": {"name": "t", "data": "x" * 1000, "encoding": "text"}, "arrivalRate": 1.0}
    asked = observed_workload(prior, seen(), rate=2.0, validity=None, min_samples=30)
    kept = stored(asked)
    assert "x" * 1000 not in str(kept)
    assert taken_up(kept, prior) == asked
    assert taken_up(kept, {**prior, "trace": {**prior["trace"], "data": "y"}}) is None, "a person gave another trace"  # type: ignore[dict-item]
    assert taken_up(kept, {"arrivalRate": 1.0}) is None
    assert taken_up({"arrivalRate": 2.0}, {"arrivalRate": 1.0}) == {"arrivalRate": 2.0}


def test_the_thresholds_of_classes_are_those_of_the_spec_of_today() -> None:
    before = planner_request(spec(rich_service()))["workload"]
    kept = stored(observed_workload(before, seen(), rate=2.0, validity=VALID, min_samples=30))
    limits = [{"name": before["classes"][1]["name"], "ttft": "7s"}]
    after = planner_request(spec(changed(rich_service(), "spec.slo.classes", limits)))["workload"]
    again = taken_up(kept, after)
    assert again is not None
    assert [item.get("ttft") for item in again["classes"]] == [None, 7.0]
    assert [item.get("itl") for item in again["classes"]] == [None, None]
    assert again["arrivalRate"] == 2.0
