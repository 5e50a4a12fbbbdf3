"""Pools without degrees and parallelism: a request has the strategies that fit model, pool and engine."""

import pytest

from weft_core.parallelism import parse_degree
from weft_core.profile_json import profile_to_json
from weft_planner.programs.inputs import prepare_inputs
from weft_planner.request.costs import profile_of
from weft_planner.request.infeasible import Infeasible
from weft_planner.request.reading import Request, request_of
from weft_planner.request.service import request_body

R1, LLAMA, QWEN = "deepseek-ai/DeepSeek-R1", "meta-llama/Llama-3.1-70B-Instruct", "Qwen/Qwen3-30B-A3B"
WORK = {"arrivalRate": 1.0, "rounds": 3, "firstPrompt": 500, "increment": 200, "decode": 100, "gap": 1}


def _request(model: str, gpu: str = "nvidia-h200", *, engine: str = "vllm", gpus: int = 64, **more: object) -> Request:
    pool = {"name": "gpu", "gpuType": gpu, **{k: v for k, v in more.items() if k in ("degrees", "gpusPerNode")}}
    return request_of(
        {
            "model": {"name": model},
            "engine": {"type": engine},
            "slo": {"ttft": 4, "itl": 0.06},
            "workload": WORK,
            "capacity": {"gpus": gpus, "pools": [pool]},
            **{k: v for k, v in more.items() if k not in ("degrees", "gpusPerNode")},
        }
    )


def _names(request: Request) -> list[str]:
    return [str(degree) for degree in request.capacity.pools[0].all_degrees]


def test_a_dense_model_has_powers_of_two_within_a_node() -> None:
    request = _request(LLAMA)
    assert request.capacity.pools[0].degrees == (1, 2, 4, 8)
    assert request.capacity.pools[0].parallelism == ()
    assert _request(LLAMA, gpusPerNode=4).capacity.pools[0].degrees == (1, 2, 4)


def test_a_list_stays_as_it_is() -> None:
    assert _request(R1, degrees=[8, 16]).capacity.pools[0].degrees == (8, 16)


def test_a_large_mixture_has_experts_and_ranks() -> None:
    assert sorted(_names(_request(R1))) == sorted(["8", "tp8ep", "dp8ep", "tp2dp4ep", "dp16ep", "tp2dp8ep"])


@pytest.mark.parametrize(
    ("engine", "wanted"),
    [
        ("vllm", {"16", "tp16ep", "tp8dp2ep", "dp16ep"}),
        ("sglang", {"16", "tp8pp2", "tp16ep", "tp8dp2ep", "dp16ep"}),
        ("tensorrt-llm", {"16", "tp8pp2", "tp16ep", "dp16ep"}),
    ],
)
def test_what_no_node_holds_spans_two_as_the_engine_can(engine: str, wanted: set[str]) -> None:
    assert set(_names(_request(R1, "nvidia-h100", engine=engine))) == wanted


def test_where_tables_have_some_the_others_are_left_out() -> None:
    assert "tp8ep" in _names(_request(QWEN, "nvidia-l40s", engine="tensorrt-llm"))
    assert _names(_request(QWEN, "nvidia-l40s", engine="tensorrt-llm", silicon={})) == ["1", "2", "4", "8"]


def test_a_profile_says_which_there_are() -> None:
    profile = profile_to_json(profile_of(_request(LLAMA, "nvidia-h100", degrees=[4, 8, 16])))
    assert _names(_request(LLAMA, "nvidia-h100", profile=profile)) == ["4", "8", "16"]


def test_an_unknown_model_is_refused_by_planning_as_ever() -> None:
    request = _request("nobody/nothing")
    assert _names(request) == ["1", "2", "4", "8"]
    with pytest.raises(Infeasible, match=r"model\.name: nobody/nothing is not in the catalogue"):
        prepare_inputs(request)


def test_what_fits_nowhere_says_how_many_gpus_its_weights_take() -> None:
    with pytest.raises(Infeasible, match=r"no degree up to 64 would do; its weights alone take the memory of \d+ GPUs"):
        prepare_inputs(_request(R1, "nvidia-h100-mig-1g.10gb", gpusPerNode=7))


def test_a_request_reads_again_as_itself() -> None:
    request = _request(R1)
    assert request_of(request.model_dump(by_alias=True, mode="json")) == request


@pytest.mark.parametrize(
    ("pool", "degrees"),
    [
        ({"resource": "nvidia.com/mig-3g.40gb"}, [1]),
        ({"resource": "aws.amazon.com/neuron", "gpusPerNode": 16}, [4, 8, 16]),
        (
            {"gpusFromClaims": True, "resourceClaims": [{"name": "a", "degrees": [4]}, {"name": "b", "degrees": [8]}]},
            [4, 8],
        ),
        ({"resourceClaims": [{"name": "a"}]}, None),
    ],
)
def test_devices_limit_what_a_worker_has(pool: dict[str, object], degrees: list[int] | None) -> None:
    spec = {
        "model": {"name": LLAMA},
        "slo": {"ttft": "4s", "itl": "60ms"},
        "workload": {**WORK, "gap": "1s"},
        "capacity": {"gpus": 64, "pools": [{"name": "gpu", "gpuType": "nvidia-h200", **pool}]},
    }
    body = request_body(spec)
    (row,) = body["capacity"]["pools"]  # type: ignore[index]
    assert row.get("degrees") == degrees
    assert parse_degree("8") in request_of(body).capacity.pools[0].all_degrees or degrees == [1]
