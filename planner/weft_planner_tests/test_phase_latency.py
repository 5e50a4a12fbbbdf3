import math
from dataclasses import replace

import numpy as np
import pytest

from weft_core.analytic import derive_profile
from weft_core.cost import CostProfile, CostProfileError, DegreeCosts
from weft_core.gpus import GPUS
from weft_core.models import MODELS
from weft_planner.phases.latency import PhaseInputs, decode_latency, phase_inputs, prefill_latency, prefill_seconds
from weft_planner.workload.sessions import draw
from weft_planner_tests.requests import LLAMA, workload

PROFILE = derive_profile(MODELS[LLAMA], GPUS["nvidia-h20"], degrees=(2, 4, 8))


def phases(*, profile: CostProfile = PROFILE, bidirectional: bool = True, **means: float) -> PhaseInputs:
    sample = draw(workload(**means), max_model_len=32768, round_seconds=3.0, seed=0)
    return phase_inputs(sample, {"a": (profile, (2, 4, 8))}, percentile=95, bidirectional=bidirectional)["a"]


@pytest.mark.parametrize("model", [LLAMA, "Qwen/Qwen3-30B-A3B"])
def test_prefill_times_over_arrays_are_those_of_the_profile(model: str) -> None:
    profile = derive_profile(MODELS[model], GPUS["nvidia-h20"], degrees=(2, 4))
    history, increment = np.array([0.0, 500.0, 30000.0]), np.array([512.0, 1.0, 4000.0])
    for degree in (2, 4):
        expected = [
            profile.t_pre(history=h, increment=i, degree=degree) for h, i in zip(history, increment, strict=True)
        ]
        assert prefill_seconds(profile, history=history, increment=increment, degree=degree) == pytest.approx(expected)


def test_more_workers_are_never_worse() -> None:
    inputs = phases(arrival_rate=1.0)
    for measure in (prefill_latency, decode_latency):
        for degree in (2, 4, 8):
            taus = measure(inputs, degree=degree, counts=range(1, 9))
            assert list(taus) == list(range(1, 9))
            figures = [tau.quantile_s for tau in taus.values()]
            assert figures == sorted(figures, reverse=True)
            used = [tau.utilisation for tau in taus.values()]
            assert used == sorted(used, reverse=True)


def test_a_faster_worker_is_better() -> None:
    inputs = phases(arrival_rate=0.4)
    for measure in (prefill_latency, decode_latency):
        figures = [measure(inputs, degree=n, counts=[2])[2].quantile_s for n in (2, 4, 8)]
        assert figures == sorted(figures, reverse=True)


def test_more_load_is_never_better() -> None:
    for measure in (prefill_latency, decode_latency):
        figures = [measure(phases(arrival_rate=rate), degree=4, counts=[2])[2].quantile_s for rate in (0.1, 0.5, 0.9)]
        assert figures == sorted(figures)


def test_a_load_without_steady_state_is_infinite_and_says_by_how_much() -> None:
    inputs = phases(arrival_rate=40.0)
    tau = prefill_latency(inputs, degree=2, counts=[1])[1]
    service = prefill_seconds(PROFILE, history=inputs.sample.history, increment=inputs.sample.increment, degree=2)
    assert tau.quantile_s == math.inf
    assert tau.utilisation == pytest.approx(40.0 * inputs.sample.per_session(service))
    decode = decode_latency(inputs, degree=2, counts=[1])[1]
    assert decode.quantile_s == math.inf
    assert decode.utilisation > 1


def test_recomputing_history_costs_time() -> None:
    reading = prefill_latency(phases(arrival_rate=0.3), degree=4, counts=[1])[1]
    recomputing = prefill_latency(phases(arrival_rate=0.3, bidirectional=False), degree=4, counts=[1])[1]
    assert recomputing.mean_s > reading.mean_s
    assert recomputing.utilisation > 1.3 * reading.utilisation


def test_kv_memory_limits_decode_workers() -> None:
    """Long contexts fill a worker before its steps get slow; pauses do not, for idle sessions may be evicted."""
    small = DegreeCosts(
        prefill=PROFILE.degrees[2].prefill,
        decode=PROFILE.degrees[2].decode,
        weight_bytes_per_gpu=1,
        kv_capacity_tokens=40_000,
    )
    scarce = replace(PROFILE, degrees={**PROFILE.degrees, 2: small})
    tau = decode_latency(phases(profile=scarce, first_prompt=8000.0, arrival_rate=1.0), degree=2, counts=[1, 32])
    assert tau[1].quantile_s == math.inf
    assert tau[1].utilisation > 1
    assert tau[32].quantile_s < 0.1
    idle = decode_latency(phases(arrival_rate=2.0, gap=120.0, decode=10.0), degree=2, counts=[1])
    assert idle[1].utilisation < 0.5


def test_answers_of_one_token_have_no_itl() -> None:
    sample = draw(workload(decode=1.0), max_model_len=32768, round_seconds=3.0, seed=0)
    flat = type(sample)(**{**{f: getattr(sample, f) for f in sample.__slots__}, "tokens": np.ones(sample.rows)})
    inputs = phase_inputs(flat, {"a": (PROFILE, (2,))}, percentile=95, bidirectional=True)["a"]
    assert decode_latency(inputs, degree=2, counts=[1])[1].quantile_s == 0.0


def test_a_profile_without_transfers_is_named() -> None:
    lacking = CostProfile(model="m", gpu="g", engine="e", kv_bytes_per_token=1, degrees=PROFILE.degrees, transfers={})
    with pytest.raises(CostProfileError, match=r"transfers: .* from degree 4 to degree 4"):
        prefill_latency(phases(profile=lacking), degree=4, counts=[1])
