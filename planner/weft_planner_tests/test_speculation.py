"""Speculative decoding in a planning request: costs, refusals, and what a plan says of it."""

from typing import Any

import pytest

from weft_core.analytic import derive_profile
from weft_core.cost import CostProfile
from weft_core.efficiency import efficiency_for
from weft_core.gpus import GPUS
from weft_core.memory import weight_bytes
from weft_core.models import MODELS
from weft_core.profile_json import profile_to_json
from weft_core.speculation import PROVENANCE, Speculation, with_speculation
from weft_planner.plan.solve import solve
from weft_planner.programs.inputs import prepare_inputs
from weft_planner.programs.left_out import left_out_notes
from weft_planner.request.costs import profiles_of, speculation_notes
from weft_planner.request.error import RequestError
from weft_planner.request.infeasible import Infeasible
from weft_planner.request.manifest import request_from_service
from weft_planner.request.reading import Request
from weft_planner_tests.requests import LLAMA, request

R1 = "deepseek-ai/DeepSeek-R1"
H200 = {"name": "h200", "gpuType": "nvidia-h200", "degrees": [8], "gpusPerNode": 8}
H20 = {"name": "h20", "gpuType": "nvidia-h20", "degrees": [4, 8], "gpusPerNode": 8}
MTP = {"method": "mtp", "tokens": 2, "acceptance": 0.7}
NGRAM = {"method": "ngram", "tokens": 2, "acceptance": 0.7}
EAGLE = {"method": "eagle", "tokens": 2, "acceptance": 0.7, "model": "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B"}


def r1(speculative: dict[str, Any] | None = None, **changes: Any) -> Request:
    parts: dict[str, Any] = {"model.name": R1, "capacity.pools": [H200], "engine.type": "vllm", **changes}
    if speculative is not None:
        parts["engine.speculative"] = speculative
    return request(**parts)


def profile(asked: Request) -> CostProfile:
    return next(iter(profiles_of(asked).values()))


def refused(asked: Request) -> tuple[str, str]:
    with pytest.raises(Infeasible) as caught:
        profiles_of(asked)
    return caught.value.reason, caught.value.message


@pytest.mark.parametrize("silicon", [None, {}])
def test_costs_of_both_sources_are_those_of_speculative_decoding(silicon: dict[str, Any] | None) -> None:
    plain, found = profile(r1(silicon=silicon)), profile(r1(MTP, silicon=silicon))
    assert plain.provenance["source"] == found.provenance["source"] == ("analytic" if silicon is None else "silicon")
    batch = {"batch": 4, "context": 4 * 2000, "degree": 8}
    assert 1.2 < plain.t_dec(**batch) / found.t_dec(**batch) < 2.19
    assert found.kv_capacity(8) < plain.kv_capacity(8)
    assert found.provenance[PROVENANCE].startswith("mtp, 2 tokens drafted a step")
    assert PROVENANCE not in plain.provenance


def test_a_given_profile_is_changed_once() -> None:
    plain = derive_profile(MODELS[LLAMA], GPUS["nvidia-h20"], degrees=(4, 8), engine="measured")
    asked = {"capacity.pools": [H20], "engine.type": "vllm", "engine.speculative": NGRAM}
    found = profile(request(profile=profile_to_json(plain), **asked))
    assert found == with_speculation(plain, Speculation("ngram", 2, 0.7), MODELS[LLAMA])
    assert profile(request(profile=profile_to_json(found), **asked)) == found


def test_a_given_profile_of_an_unknown_model_takes_n_grams_alone() -> None:
    plain = derive_profile(MODELS[LLAMA], GPUS["nvidia-h20"], degrees=(4, 8), engine="measured")
    body = {**profile_to_json(plain), "model": "my-org/mine"}
    asked = {"capacity.pools": [H20], "engine.type": "vllm", "model.name": "my-org/mine", "profile": body}
    assert PROVENANCE in profile(request(**asked, **{"engine.speculative": NGRAM})).provenance
    reason, message = refused(request(**asked, **{"engine.speculative": EAGLE}))
    assert reason == "SpeculationUnsupported"
    assert "engine.speculative.method: what the draft of eagle costs" in message
    assert "my-org/mine" in message


def test_what_the_model_or_the_engine_cannot_do_is_refused_by_name() -> None:
    reason, message = refused(request(**{"capacity.pools": [H20], "engine.type": "vllm", "engine.speculative": MTP}))
    assert reason == "SpeculationUnsupported"
    assert message.startswith("engine.speculative.method: mtp needs a checkpoint with next-token-prediction layers")
    assert LLAMA in message
    reason, message = refused(r1(EAGLE, **{"engine.type": "sglang", "engine.bidirectional": False}))
    assert reason == "SpeculationUnsupported"
    assert "has latent attention" in message


def test_a_degree_without_room_for_the_draft_is_left_out_and_another_named() -> None:
    """8 GPUs have 5 GB beside the weights, less than the 11.6 GB of the draft."""
    gpu, reserve = GPUS["nvidia-h200"], efficiency_for("nvidia-h200").reserve_bytes_per_gpu
    fraction = (weight_bytes(MODELS[R1]) + 8 * reserve + 5e9) / (8 * gpu.memory_bytes)
    pools = [{**H200, "parallelism": [{"tp": 8}, {"tp": 16}]}]
    tight: dict[str, Any] = {"analytic": {"memoryFraction": fraction}, "capacity.pools": pools, "capacity.gpus": 32}
    plain = r1(**tight)
    assert 8 in profile(plain).degrees
    asked = r1(MTP, **tight)
    assert set(profile(asked).degrees) == {16}
    (note,) = left_out_notes(prepare_inputs(asked))
    assert "parallelism: 8 is left out: the weights and the draft's do not fit 8 x nvidia-h200" in note


STAGES = {"capacity.pools": [{**H200, "parallelism": [{"tp": 8, "pp": 2}]}]}
RANKS = {"capacity.pools": [{**H200, "parallelism": [{"dp": 8, "ep": True}]}]}


@pytest.mark.parametrize(
    ("speculative", "changes", "words"),
    [
        ({"method": "eagle"}, {}, "eagle needs a draft model"),
        ({**MTP, "model": "x"}, {}, "mtp has no draft model; remove it"),
        ({**MTP, "tokens": 9}, {}, "less than or equal to 8"),
        ({**MTP, "acceptance": 1}, {}, "less than 1"),
        ({**MTP, "method": "medusa"}, {}, "'mtp', 'eagle' or 'ngram'"),
        (MTP, {"engine.type": "neuron"}, "engine.speculative: neuron cannot be started with it"),
        (MTP, STAGES, "capacity.pools.parallelism: tp8pp2 has pipeline stages, with which vllm cannot"),
        (MTP, {**STAGES, "engine.type": "tensorrt-llm"}, "with which tensorrt-llm cannot"),
        (NGRAM, {**RANKS, "engine.type": "sglang"}, "sglang takes no n-grams with data-parallel attention (dp8ep)"),
    ],
)
def test_a_request_that_cannot_be_is_refused(speculative: dict[str, Any], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError) as caught:
        r1(speculative, **changes)
    assert words in str(caught.value)


@pytest.mark.parametrize("engine", ["mock", ""])
def test_engines_that_follow_a_profile_may_have_stages(engine: str) -> None:
    assert r1(MTP, **{**STAGES, "engine.type": engine}).engine.speculative is not None


def test_a_request_without_it_has_the_json_that_it_had() -> None:
    assert "speculative" not in r1().model_dump(by_alias=True, mode="json")["engine"]
    assert r1(MTP).model_dump(by_alias=True, mode="json")["engine"]["speculative"] == {**MTP, "model": None}


def notes(asked: Request) -> str:
    return "\n".join(speculation_notes(asked, profiles_of(asked)))


def test_notes_say_what_is_assumed_and_what_is_not_sure() -> None:
    assert notes(r1()) == ""
    said = notes(r1(MTP))
    assert (
        "costs of nvidia-h200 are those of speculative decoding: mtp, 2 tokens drafted a step, acceptance 0.7" in said
    )
    assert "longer than predicted, by up to 3 times" not in said
    assert "longer than predicted, by up to 3 times" in notes(r1(MTP, **{"slo.itlStatistic": "max"}))
    hybrid = r1(MTP, **{"model.name": "Qwen/Qwen3.5-27B"})
    assert "not validated for models with linear attention" in notes(hybrid)
    assert "issue 39273" in notes(r1(NGRAM, **{"model.name": "Qwen/Qwen3.5-27B"}))
    other = r1({**MTP, "tokens": 1}, **{"model.name": "zai-org/GLM-4.5", "engine.type": "tensorrt-llm"})
    assert "DeepSeek models alone" in notes(other)


def test_a_plan_with_it_needs_no_more_gpus_and_says_so() -> None:
    plain, found = (solve(r1(asked, objective="cost")) for asked in (None, MTP))
    assert found[0].gpus <= plain[0].gpus
    assert found[0].predicted.itl_mean_s < plain[0].predicted.itl_mean_s
    note = "costs of nvidia-h200 are those of speculative decoding: mtp, 2 tokens drafted a step"
    assert note in " ".join(found[0].notes)
    assert note not in " ".join(plain[0].notes)
    assert PROVENANCE in found[1]["h200"].provenance, "routers and mock engines read this profile"


def test_a_manifest_s_fault_is_named_as_in_the_manifest() -> None:
    service = {
        "kind": "DisaggInferenceService",
        "metadata": {"name": "r1"},
        "spec": {
            "model": {"name": R1},
            "engine": {"type": "vllm", "speculative": {"method": "eagle"}},
            "slo": {"ttft": "4s", "itl": "60ms"},
            "workload": {"arrivalRate": 1, "preset": "ampd/gaia"},
            "capacity": {"gpus": 16, "pools": [H200]},
        },
    }
    with pytest.raises(RequestError, match=r"spec\.engine\.speculative: model: eagle needs a draft model"):
        request_from_service(service)
