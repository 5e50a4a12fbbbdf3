"""The profiles that are shipped, and how a plan takes them."""

import json
import re
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

import pytest
from bench.silicon.tables import degrees_of

from weft_core.analytic import derive_profile
from weft_core.cost import CostProfile
from weft_core.gpus import GPUS, gpu_named
from weft_core.models import MODELS
from weft_core.parallelism import degree_from_json, parallelism_of, parse_degree
from weft_core.profile_json import profile_to_json
from weft_planner.profiling.operators import Overheads
from weft_planner.request.costs import profiles_of, source_notes
from weft_planner.request.reading import request_of
from weft_planner.silicon.all_to_all import AllToAll, all_to_all_of
from weft_planner.silicon.shipped import DATA, file_name, representative, shipped, with_shipped
from weft_planner_tests.requests import body

LLAMA = MODELS["meta-llama/Llama-3.1-70B-Instruct"]
FILES = sorted(DATA.glob("*.json"))


def analytic(gpu: str = "nvidia-h100") -> CostProfile:
    return derive_profile(LLAMA, GPUS[gpu], degrees=(4, 8, 16))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_is_of_a_known_model_and_gpu_and_can_be_read(path: Path) -> None:
    found = json.loads(path.read_text())
    model = MODELS[found["model"]]
    assert representative(model) == model
    assert file_name(model, found["gpu"]) == path.name
    assert found["gpu"] in GPUS
    for profile in found["profiles"]:
        known = shipped(model, found["gpu"], profile["engine"], profile.get("allToAll", ""))
        assert known is not None
        assert set(known.degrees) <= set(degrees_of(model))
        assert known.provenance["source"] == "silicon"
        assert re.fullmatch(r"aiconfigurator-core \S+, \S+, \S+ \S+", known.provenance["tables"])


def test_most_fits_predict_held_out_passes_within_4_percent_in_the_median_and_12_at_p95() -> None:
    """Single combinations may miss it, and say so in their fit: L40S's all-reduces over PCIe are such."""
    fits = [
        fit
        for path in FILES
        for profile in json.loads(path.read_text())["profiles"]
        for row in profile["degrees"]
        for fit in row["fit"].values()
    ]
    assert len(fits) > 1500
    assert mean(fit["median"] <= 0.04 for fit in fits) >= 0.8
    assert median(fit["p95"] for fit in fits) <= 0.12


def test_fits_of_whole_experts_over_ranks_predict_as_well_with_either_all_to_all() -> None:
    for way in ("", "deepep"):
        fits = [
            fit
            for path in FILES
            for profile in json.loads(path.read_text())["profiles"]
            if profile.get("allToAll", "") == way
            for row in profile["degrees"]
            if (parts := parallelism_of(degree_from_json(row["degree"]))).ep and parts.dp > 1
            for fit in row["fit"].values()
        ]
        assert len(fits) > 40
        assert median(fit["median"] for fit in fits) <= 0.025
        assert median(fit["p95"] for fit in fits) <= 0.12
        assert mean(fit["median"] <= 0.04 for fit in fits) >= 0.85


def test_measured_degrees_take_the_place_of_derived_ones_and_memory_stays() -> None:
    derived = analytic()
    found = with_shipped(derived, LLAMA, "vllm", Overheads(0.5, 0.25))
    known = shipped(LLAMA, "nvidia-h100", "vllm")
    assert known is not None
    for degree in (4, 8):
        of = found.degrees[degree]
        assert of.kv_capacity_tokens == derived.degrees[degree].kv_capacity_tokens
        assert [piece.alpha for piece in of.prefill] == [p.alpha + 0.5 for p in known.degrees[degree].prefill]
        assert [piece.alpha for piece in of.decode] == [p.alpha + 0.25 for p in known.degrees[degree].decode]
        assert of.prefill_fit == known.degrees[degree].prefill_fit
    assert found.degrees[16] == derived.degrees[16]
    assert found.transfers == derived.transfers
    assert found.provenance["source"] == "silicon"
    assert found.provenance["analytic"] == "degrees 16: no tables, derived from the data sheet"
    assert found.provenance["overheads"] == "prefill 0.5 s, step 0.25 s, assumed"
    assert found.engine == "vllm"


@pytest.mark.parametrize("gpu", ["nvidia-h20", "amd-mi300x"])
def test_a_gpu_without_tables_keeps_its_derived_profile(gpu: str) -> None:
    derived = analytic(gpu)
    assert with_shipped(derived, LLAMA, "vllm") is derived


def test_another_precision_keeps_its_derived_profile() -> None:
    derived = analytic()
    eight_bit = replace(LLAMA, ffn_bytes=1.0, attention_bytes=1.0, eight_bit_products=True)
    for model in (eight_bit, replace(LLAMA, kv_dtype_bytes=1.0)):
        assert with_shipped(derived, model, "vllm") is derived


def test_a_mig_slice_keeps_its_derived_profile() -> None:
    gpu = gpu_named("nvidia-h100-mig-3g.40gb")
    assert gpu is not None
    small = MODELS["meta-llama/Llama-3.2-1B-Instruct"]
    derived = derive_profile(small, gpu, degrees=(1,))
    assert shipped(small, "nvidia-h100", "vllm") is not None
    assert with_shipped(derived, small, "vllm") is derived


def test_a_degree_that_spans_nodes_keeps_its_derived_costs() -> None:
    derived = derive_profile(LLAMA, GPUS["nvidia-h100"], degrees=(4, 8), node_gpus=4)
    found = with_shipped(derived, LLAMA, "vllm", node_gpus=4)
    assert found.degrees[4] != derived.degrees[4]
    assert found.degrees[8] == derived.degrees[8]
    assert found.provenance["analytic"].startswith("degrees 8:")


def test_workers_on_several_nodes_of_a_rack_take_the_tables_costs() -> None:
    derived = derive_profile(LLAMA, GPUS["nvidia-gb200"], degrees=(4, 8), node_gpus=4)
    found = with_shipped(derived, LLAMA, "vllm", node_gpus=4)
    assert all(found.degrees[n] != derived.degrees[n] for n in (4, 8))


def test_no_shipped_fit_is_as_bad_as_those_that_the_operator_rejects() -> None:
    for path in FILES:
        for profile in json.loads(path.read_text())["profiles"]:
            for row in profile["degrees"]:
                where = (path.stem, profile["engine"], row["degree"])
                assert all(fit["median"] <= 0.15 and fit["p95"] <= 0.3 for fit in row["fit"].values()), where
                assert any(piece["perPair"] for piece in row["prefill"]), where


def test_models_with_the_same_dimensions_share_figures() -> None:
    same = MODELS["meta-llama/Llama-3.3-70B-Instruct"]
    assert shipped(same, "nvidia-h100", "vllm") == shipped(LLAMA, "nvidia-h100", "vllm")


def test_the_mock_engine_takes_those_of_vllm() -> None:
    assert shipped(LLAMA, "nvidia-h100", "mock") == shipped(LLAMA, "nvidia-h100", "vllm")
    assert shipped(LLAMA, "nvidia-h100", "vllm") != shipped(LLAMA, "nvidia-h100", "sglang")


def test_a_request_takes_them_where_it_asks_for_silicon_alone() -> None:
    h100 = {"model.name": LLAMA.name, "capacity.pools": [{"name": "gpu", "gpuType": "nvidia-h100", "degrees": [4, 8]}]}
    (derived,) = profiles_of(request_of(body(**h100))).values()
    (measured,) = profiles_of(request_of(body(**h100, silicon={}))).values()
    (slower,) = profiles_of(request_of(body(**h100, silicon={"prefillOverhead": 1.0}))).values()
    assert derived.provenance["source"] == "analytic"
    assert measured.provenance["source"] == "silicon"
    (note,) = source_notes(request_of(body(**h100)), {"gpu": derived})
    assert note == "costs of nvidia-h100 follow from the analytic model and its data sheet"
    (note,) = source_notes(request_of(body(**h100, silicon={})), {"gpu": measured})
    assert note.startswith("costs of nvidia-h100 are fitted to silicon tables (aiconfigurator-core ")
    assert "P95 error" in note
    one, other = (found.t_pre(history=0, increment=1024, degree=4) for found in (measured, slower))
    assert other - one == pytest.approx(1.0 - 0.002)


def test_a_plan_says_that_it_compares_measured_costs_with_assumed_ones() -> None:
    pools = [
        {"name": "a", "gpuType": "nvidia-h100", "degrees": [4]},
        {"name": "b", "gpuType": "nvidia-h20", "degrees": [4]},
    ]
    request = request_of(body(**{"model.name": LLAMA.name, "capacity.pools": pools}, silicon={}))
    notes = source_notes(request, profiles_of(request))
    first, second, third, fourth = notes
    assert first.startswith("costs of nvidia-h100 (pool a) are fitted to silicon tables")
    assert second == "costs of nvidia-h20 (pool b) follow from the analytic model and its data sheet"
    assert third == "there are no silicon tables of nvidia-h20 with this model, precision and engine"
    assert fourth.startswith("measured costs are compared with assumed ones of nvidia-h20, which may be too slow")


def test_a_plan_says_where_a_given_profile_comes_from() -> None:
    given = {**profile_to_json(derive_profile(LLAMA, GPUS["nvidia-h20"], degrees=(4, 8))), "engine": "vllm 0.32"}
    request = request_of(body(profile={**given, "provenance": {"source": "engine"}}))
    assert source_notes(request, profiles_of(request)) == [
        "costs of nvidia-h20 are measured on a live engine (vllm 0.32)"
    ]


DEEPSEEK = MODELS["deepseek-ai/DeepSeek-R1"]
DP8EP = parse_degree("dp8ep")


@pytest.mark.parametrize(
    ("engine", "arguments", "way"),
    [
        ("vllm", ["--all2all-backend", "deepep_low_latency"], "deepep"),
        ("vllm", ["--all2all-backend=deepep_high_throughput"], "deepep"),
        ("vllm", ["--all2all_backend=deepep_low_latency"], "deepep"),
        ("vllm", ["--all2all-backend", "allgather_reducescatter"], ""),
        ("vllm", ["--all2all-backend=deepep_low_latency", "--all2all-backend=allgather_reducescatter"], ""),
        ("vllm", ["--moe-a2a-backend=deepep"], ""),
        ("sglang", ["--moe-a2a-backend", "deepep"], "deepep"),
        ("tensorrt-llm", ["--all2all-backend=deepep_low_latency"], ""),
    ],
)
def test_an_engine_s_arguments_say_how_whole_experts_exchange_tokens(
    engine: str, arguments: list[str], way: str
) -> None:
    assert all_to_all_of(engine, arguments) == way


def test_whole_experts_have_times_of_their_own_by_deepep() -> None:
    by_itself, by_deepep = shipped(DEEPSEEK, "nvidia-h200", "vllm"), shipped(DEEPSEEK, "nvidia-h200", "vllm", "deepep")
    assert by_itself is not None
    assert by_deepep is not None
    assert by_deepep.degrees[8] == by_itself.degrees[8]
    assert by_deepep.degrees[DP8EP] != by_itself.degrees[DP8EP]
    assert by_deepep.provenance["allToAll"] == "deepep"
    assert "allToAll" not in by_itself.provenance


def test_each_role_has_the_times_of_its_own_kernels() -> None:
    derived = derive_profile(DEEPSEEK, GPUS["nvidia-h200"], degrees=(8, DP8EP))
    decode_alone = with_shipped(derived, DEEPSEEK, "vllm", all_to_all=("", "deepep"))
    neither, both = (
        with_shipped(derived, DEEPSEEK, "vllm", all_to_all=ways) for ways in (("", ""), ("deepep", "deepep"))
    )
    assert decode_alone.degrees[DP8EP].prefill == neither.degrees[DP8EP].prefill
    assert decode_alone.degrees[DP8EP].decode == both.degrees[DP8EP].decode
    assert decode_alone.provenance["allToAll"] == "prefill collectives, decode deepep"
    assert "allToAll" not in neither.provenance


@pytest.mark.parametrize(("way", "milliseconds"), [("", 34.4), ("deepep", 47.1)])
def test_a_step_of_data_parallel_ranks_takes_what_the_tables_say(way: AllToAll, milliseconds: float) -> None:
    """aiconfigurator-core 0.12.0's own time of 8 sequences of 4,500 tokens in each rank, vLLM on H200."""
    found = shipped(DEEPSEEK, "nvidia-h200", "vllm", way)
    assert found is not None
    seconds = max(piece.seconds(8, 8 * 4500) for piece in found.degrees[DP8EP].decode)
    assert seconds == pytest.approx(milliseconds / 1e3, rel=0.04)
