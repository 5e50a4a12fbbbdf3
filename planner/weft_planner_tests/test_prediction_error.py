"""Plans that allow for wrong predictions: shorter slices are tried, and the worse of two runs counts."""

from dataclasses import replace

import numpy as np
import pytest

from weft_core.plan import PlannedGroup
from weft_core.policies.slices import SLICE_OVERHEAD_S
from weft_planner.evaluation.candidates import (
    Candidate,
    careful_share,
    other_kinds,
    runnable_policies,
    with_policies,
)
from weft_planner.evaluation.trials import Trials, options_of
from weft_planner.programs.inputs import prepare_inputs
from weft_planner.request.engines import default_chunk
from weft_planner.request.parts import EngineRole
from weft_planner.request.reading import Request
from weft_planner.simulation import AMPD, SimulationError
from weft_planner.simulation.inputs import share_of_slices
from weft_planner.simulation.layout import PolicyChoice
from weft_planner.simulation.options import Options
from weft_planner.study.naming import policy_of
from weft_planner_tests.requests import request

GROUPS = (PlannedGroup("prefill", 4, 2, "h20"), PlannedGroup("decode", 8, 1, "h20"))
SAME = (PlannedGroup("prefill", 4, 2, "h20"), PlannedGroup("decode", 4, 2, "h20"))
MODES = ["imd", "ia"]
CAREFUL_SHARE = careful_share(0.3)


def erring(error: float) -> Request:
    return request(
        **{
            "routing": {"modes": MODES, "predictionError": error},
            "engine": {"chunked": True},
            "slo.itlStatistic": "p95",
            "workload.arrivalRate": 2.5,
        }
    )


def test_shorter_slices_are_tried_where_predictions_may_be_wrong() -> None:
    tried = [(choice.mode, choice.chunk_share) for choice in runnable_policies(erring(0.3))]
    assert tried == [("imd", None), ("imd", CAREFUL_SHARE), ("ia", None)]
    assert [choice.mode for choice in runnable_policies(erring(0.0))] == MODES
    assert [choice.mode for choice in runnable_policies(erring(0.05))] == MODES  # 0.9 of the ITL SLO allows for that


def test_95_percent_of_steps_with_a_careful_slice_keep_the_itl_slo() -> None:
    errors = np.exp(0.3 * np.random.default_rng(1).standard_normal(100_000))
    assert np.mean(careful_share(0.3) * errors <= 1) == pytest.approx(0.95, abs=0.005)


@pytest.mark.parametrize(
    ("changes", "modes"),
    [
        ({"engine.type": "vllm"}, ["whole-or-chunked", "remote-jsq"]),
        ({"engine.type": "mock"}, ["whole-or-chunked", "remote-jsq"]),
        ({"engine.type": "vllm", "slo.itlStatistic": "p95"}, ["imd", "remote-jsq"]),
        ({"engine.type": "vllm", "slo.itlStatistic": "max"}, ["imd", "remote-jsq"]),
        ({"engine.type": "tensorrt-llm"}, ["ia", "remote-jsq"]),
        ({"engine.type": "sglang"}, ["remote-jsq"]),
        ({"engine.type": "neuron"}, ["remote-jsq"]),
        ({"engine.type": "vllm", "routing.slices": False}, ["ia", "remote-jsq"]),
        ({}, ["ia", "remote-jsq"]),
        ({"engine.type": "sglang", "routing.mode": "imd"}, ["imd"]),
    ],
)
def test_a_plan_chooses_from_modes_whose_local_prefills_the_router_can_send(
    changes: dict[str, object], modes: list[str]
) -> None:
    assert [choice.mode for choice in runnable_policies(request(**changes))] == modes


def test_every_kind_of_layout_that_slices_is_tried_with_shorter_ones() -> None:
    found = other_kinds(prepare_inputs(erring(0.3)), [GROUPS])
    shares = {(one.kind, one.policy.chunk_share) for one in found}
    assert {("symmetric", None), ("symmetric", CAREFUL_SHARE), ("colocated", None)} <= shares
    assert ("colocated", CAREFUL_SHARE) not in shares  # an engine's own chunks know no SLO
    assert len({one.key for one in found}) == len(found)


@pytest.mark.parametrize("engine", ["sglang", "neuron"])
def test_engines_that_cannot_prefill_at_decode_are_not_advised_to(engine: str) -> None:
    asked = {"engine.type": engine, "engine.bidirectional": False}
    assert other_kinds(prepare_inputs(request(**asked)), [GROUPS, SAME]) == []
    kinds = {one.kind for one in other_kinds(prepare_inputs(request(**{**asked, "engine.type": "vllm"})), [SAME])}
    assert kinds == {"colocated", "symmetric", "hybrid"}
    inputs = prepare_inputs(request(**asked))
    tried = {(one.policy.mode, one.runnable) for one in with_policies(inputs, [GROUPS])}
    assert tried == {("remote-jsq", True)}


def test_a_plan_states_the_share_and_is_simulated_with_it_again() -> None:
    careful = Candidate("disaggregated", GROUPS, PolicyChoice(chunk_share=CAREFUL_SHARE))
    planned = careful.planned_policy(chunked=True)
    assert planned.chunk_share == CAREFUL_SHARE
    assert policy_of(planned).chunk_share == CAREFUL_SHARE
    assert "slices within 61%" in str(policy_of(planned))
    assert careful.planned_policy(chunked=False).chunk_share is None


def test_the_worse_of_a_run_as_predicted_and_a_run_with_errors_counts() -> None:
    usual, careful, whole = (Candidate("disaggregated", GROUPS, one) for one in runnable_policies(erring(0.3)))

    def attained(error: float) -> list[float]:
        trials = Trials(prepare_inputs(erring(error)))
        return [row[0] for row in trials.attained([usual, careful, whole], 2.5)]

    as_predicted, worse = attained(0.0), attained(0.3)
    assert all(low <= high for low, high in zip(worse, as_predicted, strict=True))
    assert worse[0] < as_predicted[0]
    assert worse[1] > worse[0]  # late gaps are fewer: this reading counts them


def test_routers_send_the_slices_of_weft_and_engines_make_their_own() -> None:
    engine = erring(0.0)
    weft = options_of(engine, Candidate("disaggregated", GROUPS, PolicyChoice(mode="imd")))
    assert (weft.chunked, weft.slice_turn_s) == (None, SLICE_OVERHEAD_S)
    other = options_of(engine, Candidate("disaggregated", GROUPS, AMPD))
    assert (other.chunked, other.slice_turn_s) == (True, 0.0)


@pytest.mark.parametrize(
    ("engine", "gpu", "tokens"),
    [
        ("vllm", "nvidia-h100", 8192),
        ("vllm", "nvidia-b200", 16384),
        ("vllm", "nvidia-a100-80", 2048),
        ("vllm", "nvidia-l40s", 2048),
        ("vllm", "nvidia-h100-mig-3g.40gb", 2048),
        ("vllm", "mine", 8192),
        ("sglang", "nvidia-l40s", 8192),
    ],
)
def test_an_engines_own_chunks_are_its_default_for_the_gpu(engine: str, gpu: str, tokens: int) -> None:
    assert default_chunk(engine, gpu) == tokens


def test_chunks_follow_the_gpu_that_decodes() -> None:
    plain = erring(0.0)
    capacity = plain.capacity.model_copy(
        update={"pools": tuple(p.model_copy(update={"gpu_type": "nvidia-l40s"}) for p in plain.capacity.pools)}
    )
    engine = plain.engine.model_copy(update={"type": "vllm"})
    groups = tuple(replace(group, pool=capacity.pools[0].name) for group in GROUPS)
    case = Candidate("disaggregated", groups, AMPD)
    assert options_of(plain.model_copy(update={"capacity": capacity, "engine": engine}), case).chunk_limit == 2048


def test_an_engines_own_chunks_are_as_long_as_its_token_budget() -> None:
    plain = erring(0.0)
    engine = plain.engine.model_copy(update={"chunked": False, "decode": EngineRole(max_num_batched_tokens=2048)})
    limited = plain.model_copy(update={"engine": engine})
    weft, other = (
        options_of(limited, Candidate("disaggregated", GROUPS, policy)) for policy in (PolicyChoice(mode="imd"), AMPD)
    )
    assert weft.decode.max_tokens == other.decode.max_tokens == 2048
    assert (weft.chunked, weft.chunk_fraction) == (None, Options().chunk_fraction), "routers cut slices by the ITL SLO"
    assert (other.chunked, other.chunk_fraction) == (True, float("inf"))


@pytest.mark.parametrize("share", [0.0, -1.0, float("nan"), float("inf")])
def test_a_share_that_cannot_be_is_refused(share: float) -> None:
    with pytest.raises(SimulationError, match="chunk_share"):
        share_of_slices(PolicyChoice(chunk_share=share), Options())
    assert share_of_slices(PolicyChoice(), Options(chunk_fraction=0.5)) == 0.5
