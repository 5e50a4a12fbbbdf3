"""Fits come close to what they are fitted to, say what is missing or filled in, and survive being written and read."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_planner.traces.reading import parse_trace
from weft_planner.traces.records import Trace, TraceError
from weft_planner.workload.distributions import Constant, Empirical, Lognormal
from weft_planner.workload.file import duration, read_fragment, spec_form, to_yaml
from weft_planner.workload.fitting import fit_figure
from weft_planner.workload.sessions import Size, draw
from weft_planner.workload.trace_fit import Fill, FitOptions, fit_trace
from weft_planner.workload.traffic import POINTS, Workload


def trace_of(sessions: list[list[tuple[int, int, float | None]]], **more: Any) -> Trace:
    rows = [
        {
            "session": f"s{k}",
            "arrival_s": None,
            "turns": [{"incr_prefill": a, "decode": d, "gap_s": g} for a, d, g in turns],
            **more,
        }
        for k, turns in enumerate(sessions)
    ]
    return parse_trace("\n".join(json.dumps(row) for row in rows).encode(), name="t.jsonl")


def recorded(seed: int = 0, sessions: int = 400) -> Trace:
    """Return a trace with heavy tails, steps and bursts: what real agents send."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, object]] = []
    at = 0.0
    for k in range(sessions):
        rounds = int(rng.choice([1, 2, 2, 3, 8]))
        turns: list[dict[str, object]] = [
            {
                "incr_prefill": int(rng.lognormal(6, 1.2)) + 1 if i == 0 else int(rng.choice([1, 1, 40, 900])),
                "decode": min(384, int(rng.lognormal(5, 1)) + 1),
                "gap_s": 0.0 if i == 0 else round(float(rng.lognormal(0, 1)), 3),
            }
            for i in range(rounds)
        ]
        at += float(rng.gamma(0.25, 8))
        rows.append({"session": f"s{k}", "arrival_s": at, "kind": "Chat Bot" if k % 4 else "agent", "turns": turns})
    return parse_trace("\n".join(json.dumps(row) for row in rows).encode(), name="t.jsonl")


def test_lognormal_values_are_fitted_with_two_numbers() -> None:
    values = np.random.default_rng(1).lognormal(5, 0.8, 4000).round() + 1
    fit = fit_figure("decode", values.tolist())
    assert isinstance(fit.distribution, Lognormal)
    assert fit.ks < 0.03
    assert fit.fitted_p95 == pytest.approx(fit.p95, rel=0.05)


def test_steps_and_tails_are_fitted_with_quantiles() -> None:
    rng = np.random.default_rng(2)
    values = np.concatenate((np.ones(700), np.full(300, 384.0), rng.pareto(1.6, 500) * 50 + 2)).round()
    fit = fit_figure("increment", values.tolist())
    assert isinstance(fit.shape, Empirical)
    assert len(fit.shape.at) <= POINTS
    assert fit.ks < 0.03
    assert fit.shift < 0.05
    assert fit.distribution.mean == pytest.approx(values.mean())
    assert fit.distribution.variation == pytest.approx(values.std() / values.mean(), rel=0.05)
    assert fit_figure("increment", values.tolist(), shape="lognormal").ks > 0.2
    assert fit_figure("increment", values.tolist(), shape="mean").ks > 0.2
    assert fit_figure("increment", [7.0] * 5).distribution == Constant(7.0)


@given(st.lists(st.integers(1, 50_000), min_size=1, max_size=300))
@settings(max_examples=100)
def test_any_values_can_be_fitted(values: list[int]) -> None:
    fit = fit_figure("decode", values, shape="empirical")
    assert fit.distribution.mean == pytest.approx(np.mean(values), rel=1e-6)
    assert 0 <= fit.ks <= 1
    if isinstance(fit.shape, Empirical):
        assert len(fit.shape.at) <= POINTS
        assert fit.shape.values[0] >= min(values)
        assert fit.shape.values[-1] <= max(values)


def test_a_sample_of_the_fitted_workload_looks_like_the_trace() -> None:
    trace = recorded()
    workload = Workload.model_validate(fit_trace(trace).body)
    drawn = draw(workload, max_model_len=10**7, round_seconds=1.0, seed=5, size=Size(sessions=20_000))
    rounds = np.bincount(drawn.session)
    real = np.array([len(s.rounds) for s in trace.sessions])
    assert rounds.mean() == pytest.approx(real.mean(), rel=0.02)
    assert (rounds == 1).mean() == pytest.approx((real == 1).mean(), abs=0.03)
    for figure, values in (
        (drawn.increment[drawn.first_row], [s.rounds[0].added_tokens for s in trace.sessions]),
        (drawn.tokens, [r.decode_tokens for s in trace.sessions for r in s.rounds]),
    ):
        for share in (0.1, 0.5, 0.9, 0.95):
            assert np.quantile(figure, share) == pytest.approx(np.quantile(values, share), rel=0.1, abs=2)
    assert (drawn.tokens == 384).mean() == pytest.approx(
        np.mean([r.decode_tokens == 384 for s in trace.sessions for r in s.rounds]), abs=0.02
    )
    arrivals = workload.arrivals
    assert arrivals.process == "gamma"
    assert arrivals.cv == pytest.approx(2.0, rel=0.2)


def test_what_a_trace_lacks_is_named_and_filled_only_on_request() -> None:
    trace = trace_of([[(100, 10, None), (20, 5, None)], [(50, 10, None), (30, 5, None)]])
    with pytest.raises(TraceError) as fault:
        fit_trace(trace)
    assert "gaps: the trace records no pauses" in str(fault.value)
    assert "--fill-gaps" in str(fault.value)
    assert "--fill-arrivals" in str(fault.value)
    mean = fit_trace(trace, FitOptions(gaps=Fill("filled with a mean of 3s", mean=3.0), arrivals=0.5))
    assert mean.body["gap"] == {"mean": 3.0}
    workload = Workload.model_validate(mean.body)
    assert (workload.arrival_rate, workload.mean_gap) == (0.5, 3.0)
    said = " ".join(workload.assumptions)
    assert "gaps are not recorded: filled with a mean of 3s" in said
    assert "filled with a Poisson process of 0.5 sessions/s" in said
    pool = fit_trace(trace, FitOptions(gaps=Fill("from b", values=(1.0, 2.0, 9.0)), arrivals=0.5))
    assert Workload.model_validate(pool.body).mean_gap == pytest.approx(4.0)
    assert fit_trace(trace, FitOptions(given=frozenset({"gap", "arrivals"}))).body.keys() >= {"rounds", "decode"}


def test_times_between_calls_stand_in_for_gaps_only_when_asked() -> None:
    rows = [
        {"arrival_s": 0.0, "input": 1100, "decode": 9, "hash_ids": [1, 2, 3]},
        {"arrival_s": 30.0, "input": 1700, "decode": 9, "hash_ids": [1, 2, 4, 5]},
        {"arrival_s": 40.0, "input": 99, "decode": 9, "hash_ids": [7]},
        {"arrival_s": 41.0, "input": 98, "decode": 9, "hash_ids": [8]},
        {"arrival_s": 42.0, "input": 97, "decode": 9, "hash_ids": [9]},
    ]
    trace = parse_trace("\n".join(json.dumps(row) for row in rows).encode(), name="m.jsonl", link=True)
    with pytest.raises(TraceError, match="'intervals'"):
        fit_trace(trace)
    workload = Workload.model_validate(fit_trace(trace, FitOptions(intervals=True)).body)
    assert workload.mean_gap == pytest.approx(30.0)
    assert "include the model's own" in " ".join(workload.assumptions)
    assert "an inference" in " ".join(workload.assumptions)


def test_requests_without_sessions_need_no_gaps() -> None:
    rows = "\n".join(json.dumps({"arrival_s": t, "input": 100 + t, "decode": 9}) for t in range(60))
    workload = Workload.model_validate(fit_trace(parse_trace(rows.encode(), name="r.jsonl")).body)
    assert (workload.mean_rounds, workload.mean_gap) == (1, 0)
    assert workload.arrival_rate == pytest.approx(1.0)
    assert workload.arrivals.cv == 0


def test_arrivals_are_scaled_or_replayed() -> None:
    trace = recorded()
    body = fit_trace(trace, FitOptions(rate=3.0, arrival_fit="replayed")).body
    workload = Workload.model_validate(body)
    assert workload.arrival_rate == 3.0
    assert workload.arrivals.process == "replayed"
    drawn = draw(workload, max_model_len=10**7, round_seconds=1.0, seed=0, size=Size(sessions=50))
    recorded_s = np.array([s.arrival_s or 0.0 for s in trace.sessions])
    ahead = drawn.arrival[drawn.arrival >= 0]
    factor = 3.0 * (recorded_s[-1] - recorded_s[0]) / (len(recorded_s) - 1)
    assert ahead * factor == pytest.approx((recorded_s - recorded_s[0])[: len(ahead)], abs=0.01)
    assert any("scaled to 3" in note for note in workload.assumptions)


def test_classes_are_made_of_a_label() -> None:
    fitted = fit_trace(recorded(), FitOptions(classes_by="kind"))
    workload = Workload.model_validate(fitted.body)
    assert [(item.name, round(item.share, 2)) for item in workload.mix] == [("agent", 0.25), ("chat-bot", 0.75)]
    assert set(fitted.figures) == {"", "agent", "chat-bot"}
    with pytest.raises(TraceError, match="not every session has the text field 'colour'"):
        fit_trace(recorded(), FitOptions(classes_by="colour"))
    with pytest.raises(TraceError, match="at most 16 classes"):
        fit_trace(recorded(), FitOptions(classes_by="session"))


def test_few_values_are_said() -> None:
    notes = fit_trace(recorded(sessions=12)).notes
    assert any("tails are uncertain" in note and "rounds (12)" in note for note in notes)


@pytest.mark.parametrize("by", [None, "kind"])
def test_a_fitted_workload_survives_being_written_and_read(by: str | None) -> None:
    fitted = fit_trace(recorded(), FitOptions(classes_by=by))
    text = to_yaml(spec_form(fitted.body), comments=fitted.notes)
    again = read_fragment(text, name="w.yaml")
    assert again is not None
    drop = {"source", "notes"}
    before, after = (Workload.model_validate(body) for body in (fitted.body, again))
    assert after.model_dump(exclude=drop | {"gap", "classes"}) == before.model_dump(exclude=drop | {"gap", "classes"})
    assert after.mean_gap == pytest.approx(before.mean_gap, abs=0.001)
    assert read_fragment(f"spec:\n  {text.replace(chr(10), chr(10) + '  ')}", name="w.yaml") == again
    assert to_yaml(spec_form(again)) == to_yaml(spec_form(fitted.body))


means = st.floats(1, 1e5).map(lambda x: round(x, 3))
quantiles = st.lists(st.integers(0, 5000), min_size=1, max_size=8).map(
    lambda steps: {
        "at": [k / len(steps) for k in range(len(steps) + 1)],
        "values": [0, *np.cumsum(steps).tolist()[:-1], sum(steps) + 1],
    }
)
figures = st.fixed_dictionaries({"mean": means}, optional={}) | st.fixed_dictionaries(
    {"mean": means, "cv": st.floats(0, 5)}
)
shaped = figures | st.builds(lambda mean, q: {"mean": mean, "quantiles": q}, means, quantiles)
workloads = st.fixed_dictionaries(
    {
        "arrivalRate": st.floats(0.01, 100),
        "rounds": st.builds(lambda m: {"mean": m}, st.floats(1, 100)),
        "firstPrompt": shaped,
        "increment": shaped,
        "decode": shaped,
        "gap": shaped,
    },
    optional={
        "arrivals": st.just({"process": "gamma", "cv": 1.5}),
        "classes": st.lists(
            st.fixed_dictionaries({"share": st.floats(0.1, 5)}, optional={"gap": shaped, "decode": shaped}), max_size=3
        ).map(lambda rows: [{**row, "name": f"c{k}"} for k, row in enumerate(rows)]),
    },
)


@given(workloads)
@settings(max_examples=100)
def test_any_workload_survives_being_written_as_people_write_it(body: dict[str, Any]) -> None:
    again = read_fragment(to_yaml(spec_form(body)), name="w")
    assert again is not None
    assert spec_form(again) == spec_form(body)
    before, after = Workload.model_validate(body), Workload.model_validate(again)
    assert after.model_dump(exclude={"gap", "classes"}) == before.model_dump(exclude={"gap", "classes"})
    for one, other in zip(before.mix, after.mix, strict=True):
        assert (other.name, other.decode) == (one.name, one.decode)
        assert other.gap.mean == pytest.approx(one.gap.mean, abs=0.001)


@given(st.floats(0, 604_800))
def test_durations_are_exact_to_the_millisecond(seconds: float) -> None:
    from weft_core.durations import parse_duration

    text = duration(seconds)
    assert len(text) <= 16
    assert parse_duration(text) == pytest.approx(seconds, abs=0.00051)
